"""`domino report`: `report.md`, `report.html` and `eval_results.yaml` beside an evaluation's samples."""

from __future__ import annotations

import json
import math
from pathlib import Path

import yaml
from huggingface_hub import EvalResultEntry, eval_result_entries_to_yaml

from ..methods import PLAIN
from ..results import PROVENANCE, SAMPLES, SETTINGS, read
from ..summary import Cell, cells
from ..tasks import TASKS
from . import page, paper, plots, table

SPLIT = "Mean milliseconds of a round by stage, of a token after the first, and of an answer's prefill."


def write(folder: Path) -> list[Path]:
    """Write the three files and return them.

    Raises:
        `ValueError`: the folder holds no evaluation, or not one whole question yet.
    """
    try:
        settings = json.loads((folder / SETTINGS).read_text(encoding="utf-8"))
        rows, _ = read(folder / SAMPLES, settings["methods"])
        json.loads((folder / PROVENANCE).read_text(encoding="utf-8"))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{folder} holds no evaluation: `domino eval --out {folder}` makes one.") from error
    if not rows:
        raise ValueError(f"{folder} holds no answered question yet: let `domino eval` go on.")
    found, about = cells(rows), _about(folder, settings)
    sections = [
        ("Results", table.markdown(found), table.CONVENTIONS),
        (
            "Acceptance by position",
            table.positions(found),
            "Share of rounds that keep a path of at least k drafts, of those that drafted as deep.",
        ),
        ("Where the time goes", table.split(found), SPLIT),
        ("The paper's table", paper.markdown(), paper.CONVENTION),
    ]
    files = {
        "report.md": _markdown(about, sections),
        "report.html": _page(about, sections, plots.figures(found)),
        "eval_results.yaml": yaml.safe_dump(eval_results(found), sort_keys=False, allow_unicode=True),
    }
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [folder / name for name in files]


def _about(folder: Path, settings: dict) -> str:
    sessions = json.loads((folder / PROVENANCE).read_text(encoding="utf-8"))
    told = {
        json.dumps({name: value for name, value in session.items() if name != "command"}, sort_keys=True): session
        for session in sessions
    }
    lines = [
        f"{s['machine']}, {s['device']}, {s['threads']} threads, Python {s['python']}, torch {s['torch']}, "
        f"transformers {s['transformers']}, commit {s['commit']}, `{s['command']}`"
        for s in told.values()
    ]
    options = ", ".join(f"{name} {value}" for name, value in settings.items() if name != "methods")
    return "; then ".join(lines) + f". Settings: {options}."


def _markdown(about: str, sections: list[tuple[str, str, str]]) -> str:
    parts = ["# Evaluation", about]
    for heading, content, text in sections:
        parts += [f"## {heading}", text, content]
    return "\n\n".join(part for part in parts if part) + "\n"


def _page(about: str, sections: list[tuple[str, str, str]], pictures: dict[str, str]) -> str:
    first, *others = [(h, page.table(content) + page.paragraph(text)) for h, content, text in sections]
    drawn = "\n".join(page.figure(title, svg) for title, svg in pictures.items())
    measured = ("Measured", page.paragraph(about))
    return page.page("Domino, measured", [first, ("Pictures", drawn), *others, measured])


def eval_results(found: list[Cell]) -> list[dict]:
    """Entries of a model repository's `.eval_results/` for the drafter: τ and speedup of every method but plain."""
    entries = []
    for cell in found:
        if cell.method == PLAIN:
            continue
        notes = f"{cell.method}, {cell.model}, T = {cell.temperature:g}, {len(cell.calls)} answers, {cell.drafts} drafts a round"
        dataset = TASKS[cell.task].hub if cell.task in TASKS else cell.task
        for name, value in (("acceptance_length", cell.tau), ("speedup", cell.speedup)):
            if not cell.drafts or not math.isfinite(value):
                continue
            entries.append(EvalResultEntry(dataset, f"{cell.task}_{name}", round(value, 4), notes=notes))
    return eval_result_entries_to_yaml(entries)
