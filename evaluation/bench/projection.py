"""From timed stages to projected speedups, and the tables. Pure arithmetic: nothing here runs a model."""

from __future__ import annotations

from dataclasses import astuple
from typing import Any

from .timing import Timing

PROJECTION = (
    "PROJECTION, not a measurement: η = τ · T_target(1) / (T_draft + T_head + T_verify(drafts + 1)), out of the medians above, "
    "for τ that are assumed. Left out: acceptance, stopping criteria, logits processors, cropping of caches, and the prefill."
)
NOTES = (
    "Weights are random: times are those of the shapes, drafts mean nothing.",
    "Bytes and FLOPs are counted from the configs: each weight matrix read once per forward (by the head once per step, since "
    "a step waits for the one before), the KV cache read once, activations neglected.",
    "Roofline: the longer of bytes over the bandwidth and FLOPs over the peak, both measured on this device in this run. "
    "Weights or caches that stay in the processor's cache between runs can beat it.",
    "T_draft: backbone over a block, new features included, and base logits through the target's LM head. T_head: greedy "
    "chain over the whole vocabulary, without processors and stops. T_tree(n): the likeliest tree of n nodes, as deep as the block, "
    "over the engine's candidate pool. T_verify(n): forward of the target over n tokens, all logits.",
    "Time: median [quartiles] of the repeats, in ms. Above batch 1 all sequences move in step, which `generate` does not do.",
)


def extrapolate(shallow: Timing, deep: Timing, depths: tuple[int, int], layers: int) -> Timing:
    """Time of a stack of `layers` equal layers from two depths: exact where each layer takes the same time.

    Embedding and LM head are the part that does not grow. Worked example: 4 s with 2 layers and 6 s with 4 are 1 s a layer
    and 2 s besides, so 36 layers take 38 s. The quartiles are the worst case: low takes the deep stack's low and the shallow
    one's high.
    """
    more, fewer = depths[1], depths[0]
    up, down = (layers - fewer) / (more - fewer), (layers - more) / (more - fewer)
    median, low, high, fastest = (
        up * of_deep - down * of_shallow
        for of_deep, of_shallow in zip(
            astuple(deep), (shallow.median, shallow.high, shallow.low, shallow.fastest), strict=True
        )
    )
    return Timing(median, low, high, fastest)


def speedup(tau: float, plain: float, draft: float, head: float, verify: float) -> float:
    """η = τ · T_target(1) / (T_draft + T_head + T_verify): tokens of a round over the tokens plain decoding makes meanwhile."""
    return tau * plain / (draft + head + verify)


def break_even(plain: float, draft: float, head: float, verify: float) -> float:
    """The τ at which drafting costs as much as it saves."""
    return (draft + head + verify) / plain


def markdown(result: dict[str, Any]) -> str:
    """The Markdown page of what `run.bench` returns."""
    target, drafter, ceilings = result["target"], result["drafter"], result["ceilings"]
    return "\n".join(
        [
            f"# Latency of {target['name']} with a Domino drafter (random weights)",
            "",
            f"{result['provenance']['machine']}, {result['provenance']['device']}, {result['provenance']['threads']} threads, "
            f"{result['dtype']}. Ceilings: {ceilings['bandwidth'] / 1e9:.1f} GB/s, {ceilings['compute'] / 1e12:.2f} TFLOP/s.",
            "",
            f"Target: {target['weights'] / 1e9:.2f} billion weights read per forward. Drafter: backbone "
            f"{drafter['backbone_weights'] / 1e6:.1f} million, head {drafter['head_weights'] / 1e6:.2f} million, "
            f"{drafter['num_drafts']} drafts per round, {result['new_tokens']} new features per draft.",
            "",
            result["depths"]["how"],
            "",
            "## Stages",
            "",
            *_stages(result["stages"]),
            "",
            *(f"- {note}" for note in result["notes"]),
            "",
            "## Projected speedup",
            "",
            result["projections"]["what"],
            "",
            *_projections(result["projections"]["rows"]),
            "",
        ]
    )


def _stages(rows: list[dict[str, Any]]) -> list[str]:
    lines = [
        "| stage | context | batch | time, ms | GB | GFLOP | roofline, ms | bound by | time / roofline |",
        "|---|--:|--:|--:|--:|--:|--:|---|--:|",
    ]
    for row in rows:
        median, low, high = (row["seconds"][name] * 1e3 for name in ("median", "low", "high"))
        lines.append(
            f"| {_label(row)} | {row['context'] or '–'} | {row['batch']} | {median:.2f} [{low:.2f}, {high:.2f}] | "
            f"{row['bytes'] / 1e9:.3f} | {row['flops'] / 1e9:.2f} | {row['roofline_seconds'] * 1e3:.2f} | {row['bound']} | "
            f"{row['over_roofline']:.2f} |"
        )
    return lines


def _label(row: dict[str, Any]) -> str:
    if row["stage"] == "tree":
        return f"T_tree({row['tokens']})"
    if row["stage"] != "target":
        return f"T_{row['stage']}"
    return "T_target(1)" if row["tokens"] == 1 else f"T_verify({row['tokens']})"


def _projections(rows: list[dict[str, Any]]) -> list[str]:
    taus = list(dict.fromkeys(tau for row in rows for tau in row["projected_speedup"]))
    lines = [
        "| context | batch | round, ms | projected break-even τ | "
        + " | ".join(f"projected η at τ {tau}" for tau in taus)
        + " |",
        "|--:|--:|--:|--:|" + "--:|" * len(taus),
    ]
    for row in rows:
        speedups = " | ".join(f"{row['projected_speedup'][tau]:.2f}×" for tau in taus)
        lines.append(
            f"| {row['context']} | {row['batch']} | {row['round_seconds'] * 1e3:.2f} | "
            f"{row['projected_break_even_tau']:.2f} | {speedups} |"
        )
    return lines
