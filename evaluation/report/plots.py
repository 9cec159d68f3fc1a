"""The pictures of a report, as SVG text that stands in a page by itself."""

from __future__ import annotations

import io
from collections.abc import Callable

from ...installing import missing
from ..methods import PLAIN
from ..summary import ROUND_STAGES, Cell

COLOURS = ("#4c78a8", "#f58518", "#54a24b", "#b279a2", "#e45756", "#72b7b2")


def figures(cells: list[Cell]) -> dict[str, str]:
    """{title: svg}.

    Raises:
        `ValueError`: matplotlib is not installed.
    """
    try:
        import matplotlib
    except ImportError as error:
        raise ValueError(missing("The plots of a report need matplotlib", "eval")) from error
    matplotlib.use("svg")
    drafting = [cell for cell in cells if cell.method != PLAIN]
    found = {}
    groups = dict.fromkeys((cell.model, cell.temperature) for cell in drafting)
    for model, temperature in groups:
        mine = [cell for cell in drafting if (cell.model, cell.temperature) == (model, temperature)]
        for title, draw in PICTURES.items():
            found[f"{title}: {model}, T = {temperature:g}"] = _svg(draw, mine)
    return found


def _svg(draw: Callable, cells: list[Cell]) -> str:
    from matplotlib import pyplot

    with pyplot.rc_context(
        {"svg.fonttype": "none", "font.size": 10, "axes.spines.top": False, "axes.spines.right": False}
    ):
        figure, axes = pyplot.subplots(figsize=(8, 3.6), layout="constrained")
        draw(axes, cells)
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None})
        pyplot.close(figure)
    svg = text.getvalue()
    return svg[svg.index("<svg") :]  # the XML head has no place inside a page


def _methods(cells: list[Cell]) -> dict[str, str]:
    return {name: COLOURS[n % len(COLOURS)] for n, name in enumerate(dict.fromkeys(c.method for c in cells))}


def _speedup(axes, cells: list[Cell]) -> None:
    methods, tasks = _methods(cells), list(dict.fromkeys(cell.task for cell in cells))
    width = 0.8 / len(methods)
    for place, (method, colour) in enumerate(methods.items()):
        mine = [cell for cell in cells if cell.method == method]
        at = [tasks.index(cell.task) + (place - (len(methods) - 1) / 2) * width for cell in mine]
        values = [cell.speedup for cell in mine]
        spans = [cell.speedup_interval for cell in mine]
        errors = [[v - low for v, (low, _) in zip(values, spans, strict=True)]]
        errors.append([high - v for v, (_, high) in zip(values, spans, strict=True)])
        axes.bar(at, values, width, label=method, color=colour, yerr=errors, capsize=2, error_kw={"lw": 0.8})
    axes.axhline(1, color="grey", lw=0.8, ls="--")
    axes.set_xticks(range(len(tasks)), tasks)
    axes.set_ylabel("times plain generate")
    axes.legend(frameon=False)


def _positions(axes, cells: list[Cell]) -> None:
    for cell, colour in _drafted(_pooled(cells)):
        axes.plot(range(1, len(cell.by_position) + 1), cell.by_position, marker="o", label=cell.method, color=colour)
    axes.set_xlabel("draft position")
    axes.set_ylabel("share of rounds that get there")
    axes.set_ylim(0, 1)
    axes.legend(frameon=False)


def _lengths(axes, cells: list[Cell]) -> None:
    pooled = _drafted(_pooled(cells))
    width = 0.8 / len(pooled)
    for place, (cell, colour) in enumerate(pooled):
        rounds = sum(cell.lengths) or 1
        at = [k + (place - (len(pooled) - 1) / 2) * width for k in range(len(cell.lengths))]
        axes.bar(at, [n / rounds for n in cell.lengths], width, label=cell.method, color=colour)
    axes.set_xlabel("accepted drafts")
    axes.set_ylabel("share of rounds")
    axes.legend(frameon=False)


def _time(axes, cells: list[Cell]) -> None:
    pooled, left = _pooled(cells), [0.0] * len(_methods(cells))
    for stage, colour in zip(ROUND_STAGES, COLOURS, strict=False):
        times = [cell.round_split.get(stage, 0.0) for cell, _ in pooled]
        axes.barh([cell.method for cell, _ in pooled], times, left=left, label=stage, color=colour)
        left = [a + b for a, b in zip(left, times, strict=True)]
    axes.set_xlabel("milliseconds of a round")
    axes.legend(frameon=False)


def _drafted(pooled: list[tuple[Cell, str]]) -> list[tuple[Cell, str]]:
    """Methods that draft; all where none does."""
    return [(cell, colour) for cell, colour in pooled if cell.drafts] or pooled


def _pooled(cells: list[Cell]) -> list[tuple[Cell, str]]:
    """A cell a method, all its tasks together, and its colour."""
    pooled = []
    for method, colour in _methods(cells).items():
        mine = [cell for cell in cells if cell.method == method]
        calls = [call for cell in mine for call in cell.calls]
        plain = [call for cell in mine for call in cell.plain]
        questions = [f"{cell.task} {question}" for cell in mine for question in cell.questions]
        pooled.append((Cell("", "", mine[0].temperature, method, calls, plain, questions, [], [], []), colour))
    return pooled


PICTURES = {
    "Speedup by task": _speedup,
    "Acceptance by position": _positions,
    "Accepted lengths": _lengths,
    "Where the time goes": _time,
}
