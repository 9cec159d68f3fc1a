"""The head's share of a verification, by kernel and pool: `python -m domino.evaluation.bench.head --target qwen3-8b`.

Times the rollout of a block, greedy, over the whole vocabulary and over a pool, in torch and where there is a GPU in Triton, beside
one verification of the drafts and the bonus token. Random weights: nothing is downloaded.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from ...configuration_domino import DominoConfig
from ...drafting.fused_chain import Plan as Picking
from ...generation.engine import EngineSettings
from ...kernels.seam import forced
from ...modeling_domino import DominoModel
from ..provenance import provenance
from .ceilings import Ceilings, measure_ceilings, random_values
from .counts import Work, gru_weights
from .latency import Plan, Point, build_target, random_model, time_target
from .options import BenchSettings, counts, single_bench
from .run import how, make_plan, whole
from .shapes import drafter_config, target_config
from .timing import Timing, measure


class Greedy:
    """The engine's greedy pick without processors."""

    compact, samples = True, False

    def __init__(self, embedding: nn.Module):
        self.plan = Picking(embedding)

    def __call__(self, logits: Tensor, drafts: Tensor) -> tuple[Tensor, Tensor]:
        return logits.argmax(dim=-1, keepdim=True), logits


def rollout_work(draft: DominoConfig, batch: int, pool: int, itemsize: int, triton: bool) -> Work:
    """Bytes and FLOPs of a rollout whose weights are read anew in each step, as if no cache held them.

    Triton reads a token's input projection out of a table; torch multiplies. A pool costs reading all base logits (float32) and
    its rows of W2 once, then rows that each text has for itself.
    """
    gru, rank, drafts = draft.gru_hidden_dim, draft.emb_dim, draft.num_drafts
    corrected = drafts - draft.pure_draft_prefix_len
    state = 3 * gru * gru if triton else gru_weights(draft)
    size = pool or draft.vocab_size
    rows = (batch if pool else 1) * size * rank
    weights = drafts * state + corrected * (rank * gru + rows) + (batch * size * rank if pool else 0)
    logits = batch * drafts * draft.vocab_size * 4 if pool else batch * corrected * size * 4
    flops = 2 * batch * (drafts * state + corrected * rank * (gru + size) + drafts * rank * draft.hidden_size)
    return Work(bytes=(weights + rank * draft.hidden_size) * itemsize + logits, flops=flops)


def rollouts(draft: DominoModel, plan: Plan, pools: list[int]) -> Iterator[tuple[dict[str, Any], Callable[[], Any]]]:
    """Every variant: how it is named, and what runs it."""
    config, dtype, device = draft.config, plan.dtype, plan.device
    embedding = nn.Embedding(config.vocab_size, config.hidden_size, dtype=dtype, device=device).requires_grad_(False)
    pick = Greedy(embedding)
    for batch in plan.batches:
        hidden = random_values((batch, config.num_drafts, config.hidden_size), dtype, device)
        base = torch.randn(batch, config.num_drafts, config.vocab_size, device=device)
        anchors = torch.randint(config.vocab_size, (batch, 1), device=device)
        for pool in pools:
            for kernels in ("torch", "triton") if device.type == "cuda" else ("torch",):
                run = partial(draft.rollout, hidden, base, anchors, embedding, pick, pool)
                yield {"batch": batch, "pool": pool, "kernels": kernels}, run


def verifications(settings: BenchSettings, target: Any, plan: Plan) -> dict[Point, Timing]:
    """Verifications of the whole target, from as many layers as fit."""
    found = []
    with tqdm(total=len(plan.depths) * len(plan.batches) * len(plan.contexts) * len(plan.tokens), unit="point") as bar:
        for layers in plan.depths:
            model = build_target(target, layers, plan.dtype, plan.device)
            found.append(time_target(model, plan, bar))
            del model
    return whole(found, plan.depths, target.num_hidden_layers)


def shape(drafter: str | None, target: str, drafts: int | None) -> DominoConfig:
    """The drafter's configuration, with blocks of this many drafts; None: its own."""
    config = drafter_config(drafter, target, target_config(target))
    if drafts is not None:
        config.block_size += drafts - config.num_drafts
    return config


def head_share(settings: BenchSettings, config: DominoConfig, pools: list[int]) -> dict[str, Any]:
    """Measure, and write `settings.out`; returns what it holds, times in seconds.

    Raises:
        `ValueError`: see `run.bench`.
    """
    target = target_config(settings.target)
    plan = make_plan(settings, target, config)
    ceilings = measure_ceilings(plan.dtype, plan.device, settings.repeats)
    verify = verifications(settings, target, plan)
    draft = random_model(lambda: DominoModel._from_config(config, dtype=plan.dtype), plan.device)
    rows = []
    for name, run in rollouts(draft, plan, pools):
        with forced(name["kernels"]):
            seconds = measure(run, plan.device, settings.repeats)
        point = Point("target", settings.contexts[0], name["batch"], config.num_drafts + 1)
        rows.append(_row(name, seconds, verify[point], config, plan, ceilings))
    result = {
        "what": "rollout of the head beside one verification, on random weights",
        "target": settings.target,
        "drafts": config.num_drafts,
        "context": settings.contexts[0],
        "how": how(plan, target),
        "dtype": settings.dtype,
        "ceilings": asdict(ceilings),
        "rows": rows,
        "provenance": provenance(),
    }
    Path(settings.out).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return result


def _row(name: dict, seconds: Timing, verify: Timing, config: DominoConfig, plan: Plan, ceilings: Ceilings) -> dict:
    work = rollout_work(config, name["batch"], name["pool"], plan.dtype.itemsize, name["kernels"] == "triton")
    return {
        **name,
        "head_seconds": asdict(seconds),
        "verify_seconds": asdict(verify),
        "share": seconds.median / verify.median,
        "bytes": work.bytes,
        "of_roofline": ceilings.seconds(work) / seconds.median,
    }


def markdown(result: dict[str, Any]) -> str:
    """The rows as a table."""
    lines = [
        f"{result['target']}, {result['drafts']} drafts, context {result['context']}, {result['dtype']}. {result['how']}",
        "",
        "| batch | pool | kernels | head, ms | verify, ms | share | of the memory roofline |",
        "|--:|--:|---|--:|--:|--:|--:|",
    ]
    for row in result["rows"]:
        head, verify = row["head_seconds"]["median"] * 1e3, row["verify_seconds"]["median"] * 1e3
        lines.append(
            f"| {row['batch']} | {row['pool'] or 'all'} | {row['kernels']} | {head:.2f} | {verify:.2f} | {row['share']:.1%} | "
            f"{row['of_roofline']:.0%} |"
        )
    return "\n".join(lines)


def main() -> None:
    """The command."""
    parser = single_bench(__doc__, context="tokens in the target's cache", repeats=21, out="head.json")
    parser.add_argument("--batches", type=counts, default=[1, 8, 32], metavar="N,…")
    parser.add_argument(
        "--pools", type=counts, default=[0, EngineSettings().candidate_pool], metavar="N,…", help="0: all"
    )
    parser.add_argument("--drafts", type=int, metavar="N", help="of a block; by default the drafter's own")
    args = parser.parse_args()
    config = shape(args.drafter, args.target, args.drafts)
    settings = BenchSettings(
        args.target,
        args.drafter,
        args.dtype,
        [args.context],
        args.batches,
        [config.num_drafts + 1],
        [1],
        None,
        args.repeats,
        args.out,
    )
    print(markdown(head_share(settings, config, args.pools)))


if __name__ == "__main__":
    main()
