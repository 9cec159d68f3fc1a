"""The Markdown tables of a report."""

from __future__ import annotations

import math
from statistics import mean

from ..methods import PLAIN
from ..summary import ROUND_STAGES, Cell

CONVENTIONS = (
    "τ per step: mean over rounds of accepted drafts + 1, a round being a forward of the target after the prefill; τ per sample: mean "
    "over answers of each one's mean. Speedup: ratio of tokens per second of whole calls to plain `generate`, prefill "
    "included, the methods in turn on each question after a throw-away one; median: of the answers' ratios; decode: prefill left out. In "
    "brackets the 95 % bootstrap interval over questions, with all turns and repetitions of one. Same: greedy token ids equal to plain `generate`'s; gap: the target's largest logit difference at a first "
    "difference."
)


def markdown(cells: list[Cell]) -> str:
    """One line a model, task, temperature and method, and the mean over tasks where there are several.

    A run that was stopped may have fewer tasks at one temperature than at another: how many stands beside the mean.
    """
    several = len({cell.model for cell in cells}) > 1
    lines = [
        f"| {'model | ' if several else ''}task | T | method | answers | τ | τ per sample | drafts | tok/s | speedup "
        "| median | decode | same | gap | correct |",
        "|---|" + ("---|" if several else "") + "--:|---|" + "--:|" * 11,
    ]
    for cell in cells:
        lines.append(f"| {f'{cell.model} | ' if several else ''}{_line(cell)} |")
    return "\n".join([*lines, *_averages(cells, several)])


def _line(cell: Cell) -> str:
    plain = cell.method == PLAIN
    figures = [
        cell.task,
        f"{cell.temperature:g}",
        cell.method,
        str(len(cell.calls)),
        "1" if plain else _with(cell.tau, cell.tau_interval),
        "1" if plain else _with(cell.tau_per_sample, cell.tau_per_sample_interval),
        str(cell.drafts),
        f"{cell.tokens_per_second:.1f}",
        "1" if plain else _with(cell.speedup, cell.speedup_interval, "×"),
        "1" if plain else _number(cell.median_speedup, "×"),
        "1" if plain else _number(cell.decode_speedup, "×"),
        "–" if plain or not cell.same else f"{sum(cell.same)}/{len(cell.same)}",
        f"{max(cell.gaps):.3f}" if cell.gaps else "–",
        "–" if cell.accuracy is None else f"{sum(cell.correct)}/{len(cell.correct)}",
    ]
    return " | ".join(figures)


def _with(value: float, interval: tuple[float, float], unit: str = "") -> str:
    low, high = interval
    return _number(value, unit) + (f" [{low:.2f}, {high:.2f}]" if math.isfinite(low) else "")


def _number(value: float, unit: str = "") -> str:
    """A dash where nothing was there to be measured, as after empty answers."""
    return f"{value:.2f}{unit}" if math.isfinite(value) else "–"


def _averages(cells: list[Cell], several: bool) -> list[str]:
    lines = []
    for model, temperature, method in dict.fromkeys((c.model, c.temperature, c.method) for c in cells):
        mine = [c for c in cells if (c.model, c.temperature, c.method) == (model, temperature, method)]
        if len(mine) < 2 or method == PLAIN:
            continue
        tau, sample, speed, decode = (
            mean(getattr(c, name) for c in mine) for name in ("tau", "tau_per_sample", "speedup", "decode_speedup")
        )
        lines.append(
            f"| {f'{model} | ' if several else ''}**average** | {temperature:g} | {method} | {len(mine)} tasks | {tau:.2f} | {sample:.2f} | | "
            f"| {_number(speed, '×')} | | {_number(decode, '×')} | | | |"
        )
    return lines


def positions(cells: list[Cell]) -> str:
    """Share of rounds that keep a path of at least k drafts, of those that drafted as deep."""
    drafting = [cell for cell in cells if cell.drafts]
    if not drafting:
        return ""
    most = max(len(cell.by_position) for cell in drafting)
    lines = [
        "| task | T | method | " + " | ".join(str(k) for k in range(1, most + 1)) + " | used |",
        "|---|--:|---|" + "--:|" * (most + 1),
    ]
    for cell in drafting:
        shares = [f"{share:.2f}" for share in cell.by_position] + [""] * (most - len(cell.by_position))
        lines.append(
            f"| {_where(cell, cells)} | {cell.temperature:g} | {cell.method} | {' | '.join(shares)} | {cell.used:.0%} |"
        )
    return "\n".join(lines)


def split(cells: list[Cell]) -> str:
    """Where a round's milliseconds go, those of a token, those once a call (set-up, prefill), and the peak of memory."""
    lines = [
        "| task | T | method | "
        + " | ".join(ROUND_STAGES)
        + " | round, ms | token, ms | set-up, ms | prefill, ms | peak, GB |",
        "|---|--:|---|" + "--:|" * (len(ROUND_STAGES) + 5),
    ]
    for cell in cells:
        times = cell.round_split
        if not times:
            continue
        figures = " | ".join(f"{times[stage]:.1f}" for stage in ROUND_STAGES)
        token, prefill = 1000 * cell.time_per_token, 1000 * cell.prefill_seconds
        setup = f"{cell.call_setup:.1f}" if cell.call_setup else "–"  # in the overhead of older results
        peak = "–" if cell.peak is None else f"{cell.peak / 1e9:.2f}"
        lines.append(
            f"| {_where(cell, cells)} | {cell.temperature:g} | {cell.method} | {figures} | {sum(times.values()):.1f} "
            f"| {token:.1f} | {setup} | {prefill:.1f} | {peak} |"
        )
    return "\n".join(lines)


def _where(cell: Cell, cells: list[Cell]) -> str:
    """The task, and whose where there are several models."""
    return f"{cell.model}, {cell.task}" if len({c.model for c in cells}) > 1 else cell.task
