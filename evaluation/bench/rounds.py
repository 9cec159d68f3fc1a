"""Whole rounds on random weights: `python -m domino.evaluation.bench.rounds --target qwen3-8b`.

Every round keeps the same number of drafts, by force: what a round costs is told without weights that would accept any. transformers'
assisted loop, the engine and, on a GPU, the engine with CUDA graphs run in turn, beside the roofline of a round.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm.auto import tqdm

from ...generation.engine import EngineSettings
from ...modeling_domino import DominoModel
from ..provenance import provenance
from . import counts
from .ceilings import Ceilings, measure_ceilings
from .drafting import whole_blocks
from .latency import build_target, random_model
from .options import BenchSettings, single_bench
from .shapes import drafter_config, target_config
from .timing import WARM_UP, Timing

FEW, MANY = 8, 40  # rounds of two calls; what both do besides, as reading the prompt, is in neither's difference
SURE = 1e4  # a logit above all others


@contextmanager
def forced(target: Any, draft: DominoModel, accepted: int) -> Iterator[None]:
    """Within it all drafts are proposed, and the target's choice is the draft for the first `accepted` of a round, and another after.

    Worked example: anchor 5, drafts 7, 8, 9, accepted 2: its choices are 7, 8, 10 and, for the bonus token, anything.
    """

    def choose(module, args, kwargs, output):
        ids, logits = kwargs["input_ids"], output.logits
        if logits.shape[1] == ids.shape[1] > 1:  # else a prompt, of which the last logits were asked for
            wanted = ids.roll(-1, dims=1)
            wanted[:, accepted:] = (wanted[:, accepted:] + 1) % logits.shape[2]
            output.logits = logits.scatter(2, wanted[..., None], SURE)
        return output

    handle = target.register_forward_hook(choose, with_kwargs=True)
    try:
        with whole_blocks(draft):
            yield
    finally:
        handle.remove()


def loops(draft: DominoModel, device: torch.device) -> dict[str, dict[str, Any]]:
    """Arguments of `generate` by name of the loop; all verify a chain of all drafts."""
    whole = {"budget": draft.config.num_drafts, "shape": "chain", "lookup": False}
    engine = {"custom_generate": draft.decode, "graphs": False, **whole}
    found = {"transformers": {"custom_generate": draft.decode, "loop": "transformers"}, "engine": engine}
    return found | ({"engine, graphs": {**engine, "graphs": True}} if device.type == "cuda" else {})


def seconds_of_a_round(target: Any, draft: DominoModel, prompt: Tensor, accepted: int, how: dict[str, Any]) -> float:
    """The difference of a long and a short call, by the difference of their rounds.

    With graphs, what only the long call reaches of the steps of visible slots is recorded within the difference: the default context
    reaches none but in its last round.

    Raises:
        `RuntimeError`: a round kept another number of drafts than it was forced to.
    """
    took, rounds = [], []
    for wanted in (FEW, MANY):
        new = 1 + wanted * (accepted + 1)
        began = time.perf_counter()
        mask = torch.ones_like(prompt)  # random tokens may look like padding
        given = {"attention_mask": mask, "do_sample": False, "eos_token_id": None, "pad_token_id": 0, **how}
        target.generate(prompt, max_new_tokens=new, **given)
        if prompt.device.type == "cuda":
            torch.cuda.synchronize(prompt.device)
        took.append(time.perf_counter() - began)
        kept = draft.statistics.accepted
        if set(kept[:-1]) - {accepted}:
            raise RuntimeError(f"Rounds kept {sorted(set(kept))} drafts, not {accepted}.")
        rounds.append(len(kept))
    return (took[1] - took[0]) / (rounds[1] - rounds[0])


def roofline(
    target: Any, draft: Any, context: int, accepted: int, dtype: torch.dtype, ceilings: Ceilings, triton: bool
):
    """Seconds of a round at best: verification, block and head over the default pool, each at its own ceiling."""
    mean = context + (FEW + MANY) * (accepted + 1) // 2  # tokens in the cache half-way between the two calls' ends
    size = dtype.itemsize
    verify = counts.target_work(target, draft.num_drafts + 1, mean, 1, size)
    block = counts.draft_work(draft, accepted + 1, mean, 1, size)
    head = counts.rollout_work(draft, 1, EngineSettings().candidate_pool, size, triton)
    return sum(map(ceilings.seconds, (verify, block, head)))


def time_rounds(settings: BenchSettings, accepted: int) -> dict[str, Any]:
    """Measure, and write `settings.out`; returns what it holds, times in seconds.

    Raises:
        `ValueError`: more drafts are to be kept than the drafter makes.
    """
    shape = target_config(settings.target)
    config = drafter_config(settings.drafter, settings.target, shape)
    if not 0 <= accepted <= config.num_drafts:
        raise ValueError(f"accepted must be 0 to {config.num_drafts}, the drafts of a round, got {accepted}.")
    dtype, context = getattr(torch, settings.dtype), settings.contexts[0]
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    ceilings = measure_ceilings(dtype, device, settings.repeats)
    target = build_target(shape, shape.num_hidden_layers, dtype, device)
    draft = random_model(lambda: DominoModel._from_config(config, dtype=dtype), device)
    prompt = torch.randint(shape.vocab_size, (1, context), device=device)
    how = loops(draft, device)
    seconds: dict[str, list[float]] = {name: [] for name in how}
    with (
        forced(target, draft, accepted),
        tqdm(total=(WARM_UP + settings.repeats) * len(how), unit="pair of calls") as bar,
    ):
        for run in range(WARM_UP + settings.repeats):
            for name, options in how.items():
                took = seconds_of_a_round(target, draft, prompt, accepted, options)
                seconds[name] += [took] if run >= WARM_UP else []
                bar.update()
    best = roofline(shape, config, context, accepted, dtype, ceilings, device.type == "cuda")
    result = {
        "what": "whole rounds on random weights, each keeping the same number of drafts by force",
        "target": settings.target,
        "drafts": config.num_drafts,
        "accepted": accepted,
        "context": context,
        "dtype": settings.dtype,
        "ceilings": asdict(ceilings),
        "roofline_seconds": best,
        "rows": {name: asdict(Timing.of(times)) for name, times in seconds.items()},
        "provenance": provenance(),
    }
    Path(settings.out).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return result


def markdown(result: dict[str, Any]) -> str:
    """The rows as a table."""
    best = result["roofline_seconds"]
    lines = [
        f"{result['target']}, {result['drafts']} drafts a round of which {result['accepted']} are kept by force, context {result['context']}, "
        f"{result['dtype']}, random weights. Roofline of a round: {1e3 * best:.2f} ms.",
        "",
        "| loop | round, ms | quartiles | × roofline |",
        "|---|--:|--:|--:|",
    ]
    for name, row in result["rows"].items():
        low, median, high = (1e3 * row[part] for part in ("low", "median", "high"))
        lines.append(f"| {name} | {median:.2f} | {low:.2f} … {high:.2f} | {median / 1e3 / best:.2f} |")
    return "\n".join(lines)


def main() -> None:
    """The command."""
    parser = single_bench(__doc__, context="tokens of the prompt", repeats=7, out="rounds.json")
    parser.add_argument("--accepted", type=int, default=5, help="drafts that every round keeps")
    args = parser.parse_args()
    settings = BenchSettings(
        target=args.target,
        drafter=args.drafter,
        dtype=args.dtype,
        contexts=[args.context],
        repeats=args.repeats,
        out=args.out,
    )
    print(markdown(time_rounds(settings, args.accepted)))


if __name__ == "__main__":
    main()
