"""Batches: plain batched `generate` against the engine, in turn. `python -m domino.evaluation.batches --rows 4,16`."""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from statistics import median

import torch
from torch import Tensor
from tqdm.auto import tqdm

from .answering import decoding
from .methods import METHODS, PLAIN, Models
from .provenance import provenance
from .run import load_models
from .settings import ModelSettings
from .tasks import load, nearest

ENGINES = ("engine-plain", "engine-chain", "engine")


@dataclass
class Batch:
    """One batch answered by one method.

    Attributes:
        speed: tokens per second, all rows together. tau: of all rows' rounds, 1 for plain `generate`. same: rows with plain
            `generate`'s text. rows: of the batch.
    """

    speed: float
    tau: float
    same: int
    rows: int


def answer_all(models: Models, texts: list[str], max_new_tokens: int, names: list[str]) -> dict[str, Batch]:
    """The methods in this order, plain `generate` among them, on the same left-padded prompts."""
    tokenizer, target = models.tokenizer, models.target
    chats = [[{"role": "user", "content": text}] for text in texts]
    inputs = tokenizer.apply_chat_template(
        chats, add_generation_prompt=True, return_tensors="pt", return_dict=True, padding=True, enable_thinking=False
    ).to(target.device)
    eos = target.generation_config.eos_token_id
    ends, start = set(eos if isinstance(eos, list) else [eos]), inputs["input_ids"].shape[1]
    said: dict[str, list[list[int]]] = {}
    seconds, taus = {}, {}
    for name in names:
        ids, seconds[name] = _timed(target, inputs, **decoding(0, max_new_tokens), **METHODS[name].options(models))
        said[name] = [row[: _length(row, ends)] for row in ids[:, start:].tolist()]
        taus[name] = 1.0 if name == PLAIN else models.draft.statistics.acceptance_length
    found = {}
    for name, rows in said.items():
        same = sum(ours == plain for ours, plain in zip(rows, said[PLAIN], strict=True))
        found[name] = Batch(sum(map(len, rows)) / seconds[name], taus[name], same, len(rows))
    return found


def _length(row: list[int], ends: set[int]) -> int:
    """Tokens of an answer, its end token included."""
    return next((place for place, token in enumerate(row, 1) if token in ends), len(row))


def _timed(target, inputs, **options) -> tuple[Tensor, float]:
    if target.device.type == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    ids = target.generate(**inputs, **options)
    if target.device.type == "cuda":
        torch.cuda.synchronize()
    return ids, time.perf_counter() - start


def header(methods: list[str]) -> str:
    """The table's two first lines."""
    columns = "".join(f" {name} tok/s | τ | speedup | same rows |" for name in methods)
    return f"| task | rows | plain tok/s |{columns}\n|---|--:|--:|{'--:|' * 4 * len(methods)}"


def line(task: str, methods: list[str], batches: list[dict[str, Batch]]) -> str:
    """Medians over the batches of one task and size; a speedup is a batch's own."""
    figures = [task, str(batches[0][PLAIN].rows), f"{median(found[PLAIN].speed for found in batches):.1f}"]
    for name in methods:
        ours = [found[name] for found in batches]
        speedup = median(found[name].speed / found[PLAIN].speed for found in batches)
        figures += [
            f"{median(batch.speed for batch in ours):.1f}",
            f"{median(batch.tau for batch in ours):.2f}",
            f"{speedup:.2f}×",
            f"{sum(batch.same for batch in ours)}/{sum(batch.rows for batch in ours)}",
        ]
    return f"| {' | '.join(figures)} |"


def options() -> argparse.ArgumentParser:
    """The command's."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--rows", default="4,16", help="batch sizes")
    parser.add_argument(
        "--tasks", default="gsm8k,humaneval,mt_bench", help="first turns of the first questions of each"
    )
    known = ", ".join(name for name in METHODS if name.startswith("engine"))
    parser.add_argument("--methods", default=",".join(ENGINES), help=f"beside plain generate: {known}")
    parser.add_argument("--batches", type=int, default=2, help="batches of each size and task")
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--dtype", default="bfloat16")
    return parser


def main() -> None:
    """Measure and print one line a task and batch size; the methods' order turns by one from batch to batch."""
    args = options().parse_args()
    methods = args.methods.split(",")
    for name in methods:
        if not name.startswith("engine") or name not in METHODS:
            raise SystemExit(nearest(name, [known for known in METHODS if known.startswith("engine")], "method"))
    models = load_models(ModelSettings(), args.dtype)
    models.tokenizer.padding_side = "left"
    names = [PLAIN, *methods]
    print(provenance())
    print(header(methods))
    for task in args.tasks.split(","):
        for rows in map(int, args.rows.split(",")):
            texts = [q.turns[0] for q in load(task, min(rows * args.batches, 40))]
            answer_all(models, texts[:rows], 48, names)  # thrown away
            starts = tqdm(range(0, len(texts) - rows + 1, rows), desc=f"{task} x {rows}", leave=False)
            found = []
            for turn, at in enumerate(starts):
                order = names[turn % len(names) :] + names[: turn % len(names)]
                found.append(answer_all(models, texts[at : at + rows], args.max_new_tokens, order))
            tqdm.write(line(task, methods, found))


if __name__ == "__main__":
    main()
