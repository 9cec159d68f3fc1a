"""The measured table of docs/results.md, as HTML."""

from __future__ import annotations

from itertools import dropwhile, takewhile
from pathlib import Path

from .markup import text

PAGE = Path(__file__).resolve().parent.parent / "docs" / "results.md"
COLUMNS = ("task", "method", "answers", "τ", "tok/s", "speedup")


def rows(page: str) -> list[dict[str, str]]:
    """The first table of a Markdown page, one mapping a row."""
    before = dropwhile(lambda line: not line.startswith("|"), page.splitlines())
    lines = takewhile(lambda line: line.startswith("|"), before)
    table = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [dict(zip(table[0], cells, strict=True)) for cells in table[2:]]


def results() -> str:
    """Greedy rows, the figures without their intervals; "" where the page did not come along."""
    if not PAGE.is_file():
        return ""
    found = [row for row in rows(PAGE.read_text(encoding="utf-8")) if row["T"] == "0"]
    head = "".join(f'<th scope="col">{text(name)}</th>' for name in COLUMNS)
    body = "".join(
        f'<tr class="{text(row["method"])}">'
        + "".join(f"<td>{text(row[name].split(' [')[0].strip('*'))}</td>" for name in COLUMNS)
        + "</tr>"
        for row in found
    )
    return (
        '<div class="scroll" tabindex="0" role="region" aria-label="Measured results"><table class="results">'
        "<caption>Measured with <code>domino eval</code> on a two-core CPU, 128 new tokens, greedy. dflash and domino went through "
        "transformers' assisted loop, with chains of drafts. Intervals, machine and versions are in docs/results.md.</caption>"
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )
