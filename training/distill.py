"""`domino distill`: the target answers prompts, and its answers become the data of a drafter.

The work is a fixed list of batches and a shard is one of them, so a run can be stopped at any point and shared between any
number of processes (`accelerate launch -m domino distill …`) without a change in what it makes.
"""

from __future__ import annotations

import errno
import hashlib
import json
import shutil
import sys
import time
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path

import torch
from accelerate import PartialState
from tqdm.auto import tqdm

from . import provenance
from .answers import Decoding, Question, answer, batches, encode, use_plain_decoding
from .distill_settings import DistillSettings, feature_layers
from .prompts import Prompts, first_bad, read_mix, read_prompts
from .shards import shard_path, write_shard
from .target import load_target


def distill(settings: DistillSettings) -> dict:
    """Make the shards that are not there yet, and return the totals of the folder.

    Raises:
        `ValueError`: prompts, target or an earlier run do not fit. `OSError`: among others, the disk is full.
    """
    try:
        return _distill(settings)
    except KeyboardInterrupt:
        print("\nInterrupted. The shards made so far are kept: resume with the same command.", file=sys.stderr)
        raise


def _distill(settings: DistillSettings) -> dict:
    # Without being told, accelerate takes processes on a CPU for one; and they may end hours apart.
    state = PartialState(cpu=not torch.cuda.is_available(), timeout=timedelta(days=7))
    if settings.threads:
        torch.set_num_threads(settings.threads)
    with state.local_main_process_first():  # what is downloaded or unpacked is so once
        target, tokenizer = load_target(settings.target, settings.dtype)
        prompts, seed = _read(settings)
    decoding = _decoding(settings, target.config.get_text_config())
    questions = encode(prompts.pairs, tokenizer, settings.max_prompt_tokens, settings.thinking)
    asked, too_long = len(prompts.pairs), len(prompts.pairs) - len(questions)
    counts = {"prompts": asked, "bad_lines": len(prompts.bad), "too_long": too_long}
    if not questions:
        raise ValueError(f"{settings.prompts} has no prompt to answer: {_words(counts)}.")
    work = batches(questions, settings.batch_size, seed)
    settings.out.mkdir(parents=True, exist_ok=True)
    facts = {**_facts(settings, target, tokenizer, prompts), **asdict(decoding), "seed": seed}
    with state.main_process_first():
        provenance.begin(settings.out, facts, {"sources": prompts.counts})

    todo = [number for number in range(len(work)) if not shard_path(settings.out, number).exists()]
    state.wait_for_everyone()  # until all have looked, before the first adds a shard
    if state.is_main_process:
        if prompts.bad:
            print(f"Warning: {len(prompts.bad)} line(s) hold no prompt:\n{first_bad(prompts.bad)}", file=sys.stderr)
        print(f"{_words(counts)}; {len(work)} batches, {len(todo)} of them to be made.", flush=True)
    width = target.config.get_text_config().hidden_size
    _check_space(settings.out, [work[number] for number in todo], decoding, width)
    use_plain_decoding(target, tokenizer)
    start = time.perf_counter()
    _make(state, settings.out, work, todo, target.to(state.device), tokenizer, decoding, seed)
    state.wait_for_everyone()
    return _totals(state, settings.out, work, todo, counts, time.perf_counter() - start)


def _read(settings: DistillSettings) -> tuple[Prompts, int]:
    sources, seed = read_mix(settings.prompts)
    seed = settings.seed if settings.seed is not None else seed or 0
    root = settings.prompts_root or Path(settings.prompts).parent
    prompts = read_prompts(sources, root, seed, settings.temperature, settings.bad_lines == "skip")
    prompts.pairs = prompts.pairs[: settings.limit]
    return prompts, seed


def _decoding(settings: DistillSettings, config) -> Decoding:
    longest = settings.max_prompt_tokens + settings.max_new_tokens
    room = getattr(config, "max_position_embeddings", None)
    if room is not None and longest > room:
        raise ValueError(
            f"--max-prompt-tokens + --max-new-tokens is {longest}, but {settings.target} reads at most {room} tokens."
        )
    layer_ids = feature_layers(settings.features, config.num_hidden_layers)
    return Decoding(settings.max_new_tokens, settings.top_p, layer_ids, settings.last_hidden)


def _facts(settings: DistillSettings, target, tokenizer, prompts: Prompts) -> dict:
    """What the shards depend on, besides the decoding."""
    names = ("target", "dtype", "thinking", "temperature", "max_prompt_tokens", "batch_size")
    return {
        **{name: getattr(settings, name) for name in names},
        "revision": getattr(target.config, "_commit_hash", None),
        "chat_template_sha256": hashlib.sha256(str(tokenizer.chat_template).encode()).hexdigest(),
        "prompts_sha256": hashlib.sha256(json.dumps(prompts.pairs).encode()).hexdigest(),
    }


def _bound(work: list[list[Question]], decoding: Decoding, width: int) -> int:
    """Bytes that these batches take on the disk at most."""
    tokens = sum(len(q.ids) + decoding.max_new_tokens for batch in work for q in batch)
    return tokens * (2 * width * (len(decoding.target_layer_ids) + decoding.last_hidden) + 16)


def _check_space(out: Path, work: list[list[Question]], decoding: Decoding, width: int) -> None:
    if not decoding.target_layer_ids:
        return
    need, free = _bound(work, decoding, width), shutil.disk_usage(out).free
    if PartialState().is_main_process:
        print(f"Features: at most {need / 1e9:.2f} GB to be written, {free / 1e9:.2f} GB are free.", flush=True)
    if need > free:
        raise ValueError(
            f"{out} has {free / 1e9:.2f} GB free and the features may take {need / 1e9:.2f} GB: use fewer --features, a "
            "--limit, fewer --max-new-tokens, or none of --features (the trainer then computes them as it goes)."
        )


def _make(state, out: Path, work, todo: list[int], target, tokenizer, decoding: Decoding, seed: int) -> None:
    """This process's share of the shards."""
    mine, answered = todo[state.process_index :: state.num_processes], 0
    bar = tqdm(mine, unit="batch", disable=not state.is_main_process)
    for place, number in enumerate(bar):
        torch.manual_seed(seed + number)  # of the batch, not the process: any number of processes makes the same
        rows, tensors = answer(target, tokenizer, work[number], decoding)
        try:
            write_shard(shard_path(out, number), rows, tensors)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            need = _bound([work[i] for i in mine[place:]], decoding, target.config.get_text_config().hidden_size)
            raise OSError(
                f"The disk of {out} is full. The {len(mine) - place} batches left to this process need up to {need / 1e9:.2f} "
                "GB. Make room, then resume with the same command: the shards made so far are kept."
            ) from error
        answered += sum(len(row["input_ids"]) - row["prompt_length"] for row in rows)
        if not bar.disable:
            bar.set_postfix(answer_tokens=answered, tokens_per_s=round(answered / bar.format_dict["elapsed"]))


def _totals(state, out: Path, work, todo: list[int], counts: dict, seconds: float) -> dict:
    """Count the folder; the main process records it, with the speed of this run."""
    every = provenance.count([shard_path(out, number) for number in range(len(work))])
    totals = {**counts, **every, "empty": sum(map(len, work)) - every["answers"]}
    if state.is_main_process and todo:
        tokens = provenance.count([shard_path(out, number) for number in todo])["answer_tokens"]
        speed = {"answer_tokens": tokens, "seconds": round(seconds, 1), "tokens_per_s": round(tokens / seconds, 1)}
        provenance.finish(
            out, {**totals, "last_run": {**speed, "processes": state.num_processes, "device": str(state.device)}}
        )
    if state.is_main_process:
        print(f"{out}: {_words(totals)}")
    return totals


def _words(counts: dict[str, int]) -> str:
    return ", ".join(f"{value:,} {name.replace('_', ' ')}" for name, value in counts.items())
