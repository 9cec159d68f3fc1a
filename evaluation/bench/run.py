"""`domino bench`: from settings to a file of timed stages, their rooflines and projected speedups."""

from __future__ import annotations

import json
import statistics
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from ...configuration_domino import DominoConfig
from ...settings import require
from ..provenance import provenance
from . import counts
from .ceilings import Ceilings, measure_ceilings
from .latency import POOL, Plan, Point, depths, time_stages
from .options import BenchSettings
from .projection import NOTES, PROJECTION, break_even, extrapolate, markdown, speedup
from .shapes import drafter_config, target_config
from .timing import Timing


def bench(settings: BenchSettings) -> dict[str, Any]:
    """Measure, project, and write `settings.out` and the Markdown beside it; returns what the JSON holds, times in seconds.

    Raises:
        `ValueError`: unknown names, a context or τ beyond what the models can do, a drafter that does not fit, or a target
            whose work cannot be counted; all but the last before anything is built.
    """
    target = target_config(settings.target)
    draft = drafter_config(settings.drafter, settings.target, target)
    plan = make_plan(settings, target, draft)
    out = Path(settings.out)
    out.parent.mkdir(parents=True, exist_ok=True)

    ceilings = measure_ceilings(plan.dtype, plan.device, settings.repeats)
    found = time_stages(target, draft, plan)
    timings = whole(found, plan.depths, target.num_hidden_layers)
    result = {
        "what": "latency model: stages timed on random weights; speedups are projections",
        "target": {"name": settings.target, "weights": counts.target_weights(target), "config": target.to_dict()},
        "drafter": {
            "name": settings.drafter or "default for the target",
            "backbone_weights": counts.backbone_weights(draft),
            "head_weights": counts.head_weights(draft),
            "num_drafts": draft.num_drafts,
            "config": draft.to_dict(),
        },
        "dtype": settings.dtype,
        "new_tokens": plan.new_tokens,
        "depths": {
            "built": plan.depths,
            "layers": target.num_hidden_layers,
            "how": how(plan, target),
            "timed": [[{**asdict(point), "seconds": asdict(t)} for point, t in part.items()] for part in found],
        },
        "ceilings": {**asdict(ceilings), "bandwidth": ceilings.bandwidth},
        "stages": stage_rows(timings, target, draft, plan, ceilings),
        "projections": {"what": PROJECTION, "rows": projections(timings, settings, draft)},
        "notes": list(NOTES),
        "settings": asdict(settings),
        "provenance": provenance(),
    }
    out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    out.with_suffix(".md").write_text(markdown(result), encoding="utf-8")
    return result


def make_plan(settings: BenchSettings, target: Any, draft: DominoConfig) -> Plan:
    """What to time. Raises `ValueError`: more positions or a larger τ than the models have."""
    tokens = sorted({1, *settings.verify, draft.num_drafts + 1})
    needed = max(settings.contexts) + max(*tokens, draft.block_size)
    limit = min(target.max_position_embeddings, draft.max_position_embeddings)
    require(
        needed <= limit,
        "contexts",
        max(settings.contexts),
        f"and the tokens after it must fit into max_position_embeddings = {limit} but take {needed}",
    )
    require(
        max(settings.tau) <= draft.num_drafts + 1,
        "tau",
        max(settings.tau),
        f"cannot exceed the drafter's {draft.num_drafts} drafts and the bonus token",
    )
    device, dtype = torch.device("cuda" if torch.cuda.is_available() else "cpu"), getattr(torch, settings.dtype)
    return Plan(
        settings.contexts,
        settings.batches,
        tokens,
        depths(target, settings.layers, dtype, device),
        round(statistics.median(settings.tau)),  # a round verifies τ tokens, whose features the next draft reads
        settings.repeats,
        dtype,
        device,
    )


def how(plan: Plan, target: Any) -> str:
    """One sentence on whether the target was built whole."""
    if len(plan.depths) == 1:
        return f"The target was built whole: {target.num_hidden_layers} layers."
    fewer, more = plan.depths
    return (
        f"The target was NOT built whole: {fewer} and {more} of its {target.num_hidden_layers} layers were timed, and its times "
        "extrapolated linearly to all of them; embedding and LM head are the part that does not grow."
    )


def whole(found: list[dict[Point, Timing]], built: list[int], layers: int) -> dict[Point, Timing]:
    """Timings of the whole target and of the drafter, which is always whole."""
    if len(built) == 1:
        return found[0]
    shallow, deep = found
    return {
        point: extrapolate(shallow[point], timing, (built[0], built[1]), layers) if point in shallow else timing
        for point, timing in deep.items()
    }


def stage_rows(
    timings: dict[Point, Timing], target: Any, draft: DominoConfig, plan: Plan, ceilings: Ceilings
) -> list[dict[str, Any]]:
    """One row a point: its time beside its roofline."""
    rows = []
    for point, timing in timings.items():
        work = _work(point, target, draft, plan)
        roofline = ceilings.seconds(work)
        rows.append(
            {
                **asdict(point),
                "seconds": asdict(timing),
                "bytes": work.bytes,
                "flops": work.flops,
                "roofline_seconds": roofline,
                "bound": ceilings.bound(work),
                "over_roofline": timing.median / roofline,
            }
        )
    return rows


def _work(point: Point, target: Any, draft: DominoConfig, plan: Plan) -> counts.Work:
    itemsize = plan.dtype.itemsize
    if point.stage == "target":
        return counts.target_work(target, point.tokens, point.context, point.batch, itemsize)
    if point.stage == "draft":
        new = min(plan.new_tokens, point.context)
        return counts.draft_work(draft, new, point.context, point.batch, itemsize)
    if point.stage == "tree":
        return counts.tree_work(draft, point.tokens, point.batch, POOL, itemsize)
    return counts.head_work(draft, point.batch, itemsize)


def projections(timings: dict[Point, Timing], settings: BenchSettings, draft: DominoConfig) -> list[dict[str, Any]]:
    """One row a context and batch: the round's time, and what it would bring at each τ."""
    rows, drafts = [], draft.num_drafts
    for context in settings.contexts:
        for batch in settings.batches:
            plain, drafting, head, verify = (
                timings[point].median
                for point in (
                    Point("target", context, batch, 1),
                    Point("draft", context, batch, drafts),
                    Point("head", 0, batch, drafts),
                    Point("target", context, batch, drafts + 1),
                )
            )
            rows.append(
                {
                    "context": context,
                    "batch": batch,
                    "round_seconds": drafting + head + verify,
                    "projected_break_even_tau": break_even(plain, drafting, head, verify),
                    "projected_speedup": {
                        f"{tau:g}": speedup(tau, plain, drafting, head, verify) for tau in settings.tau
                    },
                }
            )
    return rows
