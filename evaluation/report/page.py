"""A self-contained HTML page: no script, nothing fetched."""

from __future__ import annotations

import html

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; color: #222; background: #fff; }
table { border-collapse: collapse; font-size: .85rem; display: block; overflow-x: auto; }
th, td { padding: .25rem .6rem; border-bottom: 1px solid #ddd; text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
figure { margin: 1.5rem 0; background: #fff; }
figure svg { max-width: 100%; height: auto; }
p { max-width: 50rem; }
@media (prefers-color-scheme: dark) { body { color: #ddd; background: #181818; } th, td { border-color: #444; } }
"""


def page(title: str, sections: list[tuple[str, str]]) -> str:
    """The page. `sections`: (heading, HTML)."""
    body = "\n".join(f"<h2>{html.escape(heading)}</h2>\n{content}" for heading, content in sections)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{html.escape(title)}</title><style>{STYLE}</style></head>\n<body><h1>{html.escape(title)}</h1>\n{body}\n"
        "</body></html>\n"
    )


def paragraph(text: str) -> str:
    return f"<p>{html.escape(text)}</p>"


def table(markdown: str) -> str:
    """A Markdown table as HTML; its cells are plain text."""
    if not markdown:
        return ""
    head, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in markdown.splitlines()]
    lines = [_row(head, "th"), *(_row(row, "td") for row in rows)]
    return "<table>\n" + "\n".join(lines) + "\n</table>"


def _row(cells: list[str], tag: str) -> str:
    return "<tr>" + "".join(f"<{tag}>{html.escape(cell.replace('*', ''))}</{tag}>" for cell in cells) + "</tr>"


def figure(title: str, svg: str) -> str:
    return f'<figure role="img" aria-label="{html.escape(title, quote=True)}"><figcaption>{html.escape(title)}</figcaption>{svg}</figure>'
