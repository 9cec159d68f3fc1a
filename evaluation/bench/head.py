"""The head's share of a verification, by kernel and pool: `python -m domino.evaluation.bench.head --target qwen3-8b`.

Times the walk of a greedy chain over a block, over the whole vocabulary and over a pool, in torch and where there is a GPU in Triton, beside
one verification of the drafts and the bonus token. Random weights: nothing is downloaded.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from ...configuration_domino import DominoConfig
from ...generation.engine import EngineSettings
from ...kernels.seam import forced
from ...modeling_domino import DominoModel
from ..provenance import provenance
from . import counts
from .ceilings import Ceilings, measure_ceilings
from .drafting import Drafting
from .latency import Plan, Point, build_target, random_model, time_target
from .options import BenchSettings, single_bench
from .options import counts as numbers
from .run import how, make_plan, whole
from .shapes import drafter_config, target_config
from .timing import Timing, measure


def walks(
    draft: DominoModel, target: Any, plan: Plan, pools: list[int]
) -> Iterator[tuple[dict[str, Any], Callable[[], Any]]]:
    """Every variant of a chain's walk over a block: how it is named, and what runs it."""
    for batch in plan.batches:
        for pool in pools:
            drafting = Drafting(draft, target, 0, batch, 0, pool)
            run = partial(drafting.chain, drafting.random_block())
            for kernels in ("torch", "triton") if plan.device.type == "cuda" else ("torch",):
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
    shallow = build_target(target, 1, plan.dtype, plan.device)  # of which drafting uses the embedding alone
    for name, run in walks(draft, shallow, plan, pools):
        with forced(name["kernels"]):
            seconds = measure(run, plan.device, settings.repeats)
        point = Point("target", settings.contexts[0], name["batch"], config.num_drafts + 1)
        rows.append(_row(name, seconds, verify[point], config, plan, ceilings))
    result = {
        "what": "chain of the head beside one verification, on random weights",
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
    work = counts.rollout_work(config, name["batch"], name["pool"], plan.dtype.itemsize, name["kernels"] == "triton")
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
    parser.add_argument("--batches", type=numbers, default=[1, 8, 32], metavar="N,…")
    parser.add_argument(
        "--pools", type=numbers, default=[0, EngineSettings().candidate_pool], metavar="N,…", help="0: all"
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
