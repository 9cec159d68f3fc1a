"""The Markdown tables of a report."""

from __future__ import annotations

import math
from statistics import mean

from ..methods import PLAIN
from ..summary import ROUND_STAGES, Cell

CONVENTIONS = (
    "τ per step: mean over rounds of accepted drafts + 1, a round being a forward of the target after the prefill; τ per sample: mean "
    "over answers of each one's mean. Speedup: ratio of tokens per second of whole calls to plain `generate`, prefill "
    "included, the methods in turn on each question after a throw-away one; decode: prefill left out. In brackets the 95 % bootstrap "
    "interval over answers. Same: greedy token ids equal to plain `generate`'s; gap: the target's largest logit difference at a first "
    "difference."
)


def markdown(cells: list[Cell]) -> str:
    """One line a model, task, temperature and method, and the mean over tasks where there are several."""
    several = len({cell.model for cell in cells}) > 1
    lines = [
        f"| {'model | ' if several else ''}task | T | method | answers | τ | τ per sample | drafts | tok/s | speedup "
        "| decode | same | gap | correct |",
        "|---|" + ("---|" if several else "") + "--:|---|" + "--:|" * 10,
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
        "1" if plain else f"{cell.tau_per_sample:.2f}",
        str(cell.drafts),
        f"{cell.tokens_per_second:.1f}",
        "1" if plain else _with(cell.speedup, cell.speedup_interval, "×"),
        "1" if plain else f"{cell.decode_speedup:.2f}×",
        "–" if plain or not cell.same else f"{sum(cell.same)}/{len(cell.same)}",
        f"{max(cell.gaps):.3f}" if cell.gaps else "–",
        "–" if cell.accuracy is None else f"{sum(cell.correct)}/{len(cell.correct)}",
    ]
    return " | ".join(figures)


def _with(value: float, interval: tuple[float, float], unit: str = "") -> str:
    low, high = interval
    return f"{value:.2f}{unit} [{low:.2f}, {high:.2f}]" if math.isfinite(low) else f"{value:.2f}{unit}"


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
            f"| {f'{model} | ' if several else ''}**average** | {temperature:g} | {method} | | {tau:.2f} | {sample:.2f} | | "
            f"| {speed:.2f}× | {decode:.2f}× | | | |"
        )
    return lines


def positions(cells: list[Cell]) -> str:
    """Share of rounds that accept at least k drafts, of those that drafted as many."""
    drafting = [cell for cell in cells if cell.drafts]
    if not drafting:
        return ""
    most = max(cell.drafts for cell in drafting)
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
    """Where a round's milliseconds go, those before a call's first forward, and the peak of memory."""
    lines = [
        "| task | T | method | " + " | ".join(ROUND_STAGES) + " | round, ms | set-up, ms | peak, GB |",
        "|---|--:|---|" + "--:|" * (len(ROUND_STAGES) + 3),
    ]
    for cell in cells:
        times = cell.round_split
        if not times:
            continue
        figures = " | ".join(f"{times[stage]:.1f}" for stage in ROUND_STAGES)
        peak = "–" if cell.peak is None else f"{cell.peak / 1e9:.2f}"
        lines.append(
            f"| {_where(cell, cells)} | {cell.temperature:g} | {cell.method} | {figures} | {sum(times.values()):.1f} | {cell.call_setup:.1f} | {peak} |"
        )
    return "\n".join(lines)


def _where(cell: Cell, cells: list[Cell]) -> str:
    """The task, and whose where there are several models."""
    return f"{cell.model}, {cell.task}" if len({c.model for c in cells}) > 1 else cell.task
