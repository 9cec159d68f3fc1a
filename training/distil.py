"""Distillation: let the target answer the prompts itself and keep its features.

The features a drafter is conditioned on fall out of the very forwards that write the answer, so they are stored with
the tokens instead of being recomputed in every epoch (`F` layers x `D` values x 2 bytes a token).

A shard is one batch: `shard_00017.safetensors` with
    input_ids  [N]       int32, the sequences end to end (prompt, answer)
    features   [N, F*D]  bfloat16, target features of each token; the last token of a sequence was never read: zeros
    bounds     [S, 3]    int64, rows of (start, end of prompt, end)
A shard that exists is not made again, so a run can be stopped and restarted at any point.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path

import torch
import yaml
from safetensors.torch import save_file
from tqdm.auto import tqdm
from transformers import AutoModelForCausalLM, AutoTokenizer


def read_prompts(sources: list[dict], root: Path, seed: int) -> list[tuple[str, float]]:
    """The prompt mix of a config as shuffled `(user message, temperature)` pairs; temperature 0 is greedy."""
    prompts = []
    for source in sources:
        with (root / source["file"]).open(encoding="utf-8") as lines:  # str.splitlines would also cut at U+2028
            rows = [json.loads(line)["turns"][0] for line in lines]
        if marker := source.get("containing"):
            rows = [row for row in rows if marker in row]
        random.Random(seed).shuffle(rows)
        prompts += [(row, float(t)) for t in source.get("temperatures", [0.0]) for row in rows[: source.get("limit")]]
    random.Random(seed).shuffle(prompts)
    return prompts


def batches(prompts, tokenizer, size: int, max_prompt: int, seed: int):
    """Batches of one temperature and similar length, in a random order so that any prefix of a run is a fair mix.

    Yields (token ids per row, temperature).
    """
    encoded = []
    for text, temperature in prompts:
        ids = tokenizer.apply_chat_template([{"role": "user", "content": text}], add_generation_prompt=True)[
            "input_ids"
        ]
        if len(ids) <= max_prompt:
            encoded.append((temperature, ids))
    groups = []
    window = size * 16  # sort inside windows only: neighbours in length, but no batch of one kind of prompt
    for temperature in sorted({t for t, _ in encoded}):
        rows = [ids for t, ids in encoded if t == temperature]
        for at in range(0, len(rows), window):
            chunk = sorted(rows[at : at + window], key=len)
            groups += [(chunk[i : i + size], temperature) for i in range(0, len(chunk), size)]
    random.Random(seed).shuffle(groups)
    return groups


@torch.inference_mode()
def answer(target, tokenizer, rows: list[list[int]], temperature: float, layer_ids: list[int], max_new_tokens: int):
    """Answer one batch. Returns the tensors of a shard."""
    width = max(map(len, rows))
    ids = torch.tensor([[tokenizer.pad_token_id] * (width - len(r)) + r for r in rows])
    mask = torch.tensor([[0] * (width - len(r)) + [1] * len(r) for r in rows])
    sampling = {"do_sample": True, "temperature": temperature, "top_k": 0} if temperature else {"do_sample": False}
    captured: dict[int, list[torch.Tensor]] = {i: [] for i in layer_ids}

    def keep(i):
        return lambda _module, _args, out: captured[i].append(out[0] if isinstance(out, tuple) else out)

    layers = target.get_decoder().layers
    hooks = [layers[i].register_forward_hook(keep(i)) for i in layer_ids]
    try:
        sequences = target.generate(input_ids=ids, attention_mask=mask, max_new_tokens=max_new_tokens, **sampling)
    finally:
        for hook in hooks:
            hook.remove()
    features = torch.cat([torch.cat(captured[i], dim=1) for i in layer_ids], dim=-1)

    tokens, kept, bounds, at = [], [], [], 0
    eos = target.generation_config.eos_token_id
    ends = {eos} if isinstance(eos, int) else set(eos or [])
    for row, (prompt, sequence) in enumerate(zip(rows, sequences, strict=True)):
        new = sequence[width:].tolist()
        stop = next((i + 1 for i, token in enumerate(new) if token in ends), len(new))
        new = new[:stop]
        length = len(prompt) + len(new)
        tokens.append(torch.tensor(prompt + new, dtype=torch.int32))
        kept.append(features[row, width - len(prompt) :][: length - 1])
        kept.append(features.new_zeros(1, features.shape[-1]))
        bounds.append((at, at + len(prompt), at + length))
        at += length
    return {
        "input_ids": torch.cat(tokens),
        "features": torch.cat(kept).to(torch.bfloat16),
        "bounds": torch.tensor(bounds),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("config", type=Path, help="training config (YAML)")
    parser.add_argument("--target", required=True, help="folder or Hub id of the target")
    parser.add_argument("--prompts", type=Path, required=True, help="folder that holds the prompt files of the config")
    parser.add_argument("--out", type=Path, required=True, help="folder for the shards")
    parser.add_argument("--part", default="0/1", help="this process's part, e.g. 0/2 and 1/2 for two processes")
    parser.add_argument("--threads", type=int, default=1, help="torch threads of this process")
    args = parser.parse_args()

    torch.set_num_threads(args.threads)
    config = yaml.safe_load(args.config.read_text())["distil"]
    tokenizer = AutoTokenizer.from_pretrained(args.target)
    target = AutoModelForCausalLM.from_pretrained(args.target, dtype=torch.bfloat16).eval()
    prompts = read_prompts(config["prompts"], args.prompts, config["seed"])
    work = batches(prompts, tokenizer, config["batch_size"], config["max_prompt_tokens"], config["seed"])
    work = work[: config["batches"]]
    part, parts = map(int, args.part.split("/"))
    args.out.mkdir(parents=True, exist_ok=True)

    answered = 0
    bar = tqdm(list(enumerate(work))[part::parts], unit="batch")
    for index, (rows, temperature) in bar:
        path = args.out / f"shard_{index:05d}.safetensors"
        if path.exists():
            continue
        torch.manual_seed(config["seed"] + index)
        shard = answer(target, tokenizer, rows, temperature, config["target_layer_ids"], config["max_new_tokens"])
        save_file(shard, path.with_suffix(".part"))
        path.with_suffix(".part").rename(path)
        answered += int((shard["bounds"][:, 2] - shard["bounds"][:, 1]).sum())
        bar.set_postfix(answer_tokens=answered, tok_per_s=round(answered / bar.format_dict["elapsed"]))


if __name__ == "__main__":
    main()
