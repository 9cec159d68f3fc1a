"""Batches: plain batched `generate` against the engine, in turn. `python -m domino.evaluation.batches --rows 4,16`."""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from statistics import median

import torch
from tqdm.auto import tqdm

from .answering import decoding
from .methods import Models
from .provenance import provenance
from .run import load_models
from .settings import ModelSettings
from .tasks import load


@dataclass
class Batch:
    """One batch, answered both ways: tokens per second of all rows together, and rows with equal text."""

    plain: float
    engine: float
    same: int
    rows: int


def answer_both(models: Models, texts: list[str], max_new_tokens: int, **engine) -> Batch:
    """Plain `generate`, then the engine, on the same left-padded prompts."""
    tokenizer, target = models.tokenizer, models.target
    chats = [[{"role": "user", "content": text}] for text in texts]
    inputs = tokenizer.apply_chat_template(
        chats, add_generation_prompt=True, return_tensors="pt", return_dict=True, padding=True, enable_thinking=False
    ).to(target.device)
    options = decoding(0, max_new_tokens)
    plain, plain_s = _timed(target, inputs, **options)
    ours, ours_s = _timed(target, inputs, custom_generate=models.draft.decode_rows, **options, **engine)
    width = max(plain.shape[1], ours.shape[1])
    pad = target.generation_config.pad_token_id or 0
    both = [torch.nn.functional.pad(x, (0, width - x.shape[1]), value=pad) for x in (plain, ours)]
    start = inputs["input_ids"].shape[1]
    eos = target.generation_config.eos_token_id
    ends = set(eos if isinstance(eos, list) else [eos])
    counts = [sum(_said(row, ends) for row in ids[:, start:].tolist()) for ids in (plain, ours)]
    same = int((both[0] == both[1]).all(dim=1).sum())
    return Batch(counts[0] / plain_s, counts[1] / ours_s, same, len(texts))


def _said(row: list[int], ends: set[int]) -> int:
    return next((place for place, token in enumerate(row, 1) if token in ends), len(row))


def _timed(target, inputs, **options):
    if target.device.type == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    ids = target.generate(**inputs, **options)
    if target.device.type == "cuda":
        torch.cuda.synchronize()
    return ids, time.perf_counter() - start


def main() -> None:
    """Measure and print one line a batch size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--rows", default="4,16", help="batch sizes")
    parser.add_argument(
        "--tasks", default="gsm8k,humaneval,mt_bench", help="first turns of the first questions of each"
    )
    parser.add_argument("--batches", type=int, default=2, help="batches of each size and task")
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--compile", action="store_true", help="torch.compile in the engine")
    args = parser.parse_args()
    models = load_models(ModelSettings(), args.dtype)
    models.tokenizer.padding_side = "left"
    engine = {"compile": True} if args.compile else {}
    print(provenance())
    print("| task | rows | plain tok/s | engine tok/s | speedup | same rows |\n|---|--:|--:|--:|--:|--:|")
    for task in args.tasks.split(","):
        for rows in map(int, args.rows.split(",")):
            texts = [q.turns[0] for q in load(task, min(rows * args.batches, 40))]
            answer_both(models, texts[:rows], 48, **engine)  # thrown away
            starts = tqdm(range(0, len(texts) - rows + 1, rows), desc=f"{task} x {rows}", leave=False)
            found = [answer_both(models, texts[at : at + rows], args.max_new_tokens, **engine) for at in starts]
            plain, ours = (median(getattr(b, name) for b in found) for name in ("plain", "engine"))
            speedup = median(b.engine / b.plain for b in found)
            same = f"{sum(b.same for b in found)}/{sum(b.rows for b in found)}"
            tqdm.write(f"| {task} | {rows} | {plain:.1f} | {ours:.1f} | {speedup:.2f}× | {same} |")


if __name__ == "__main__":
    main()
