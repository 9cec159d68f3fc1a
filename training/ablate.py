"""`domino ablate`: train the rows of an ablation, then answer the same prompts with every drafter, in turn."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import yaml

from ..evaluation.methods import METHODS, PLAIN, Method, Models
from ..evaluation.results import Results
from ..evaluation.run import measure, to_do
from ..evaluation.settings import EvalSettings
from ..evaluation.summary import Cell, cells
from ..evaluation.tasks import Question
from ..modeling_domino import DominoModel
from .config import TrainConfig, load
from .target import load_target
from .train import check_same, train

MODEL = "target"  # the one model of an ablation's results


@dataclass
class Row:
    """One line of the table: its name, its folder, and the config it trains with."""

    name: str
    folder: Path
    config: TrainConfig


def read_rows(path: Path, out: Path, overrides: list[str]) -> list[Row]:
    """The rows of an ablation file: `config` (beside it), `set` (for all rows) and `rows` (name: overrides)."""
    plan = yaml.safe_load(path.read_text(encoding="utf-8"))
    if not isinstance(plan, dict) or not {"config", "rows"} <= plan.keys() <= {"config", "set", "rows"}:
        raise ValueError(f"{path} must hold `config` and `rows`, and may hold `set`.")
    rows = []
    for name, changes in plan["rows"].items():
        folder = out / re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
        every = [*plan.get("set", []), *changes, *overrides, f"output_dir={folder}"]
        rows.append(Row(name, folder, load(path.parent / plan["config"], every)))
    return rows


def ablate(rows: list[Row], questions: dict[str, list[Question]], out: Path, max_new_tokens: int) -> str:
    """Train what is not trained yet, measure what is not measured yet (into `out`), and return the table."""
    for row in rows:
        if (row.folder / "drafter" / "model.safetensors").is_file():
            check_same(row.config, row.folder)
            continue
        print(f"Training: {row.name}", flush=True)
        train(row.config, resume=True)
    settings = EvalSettings(str(out), methods=[PLAIN], max_new_tokens=max_new_tokens, dtype=rows[0].config.target_dtype)
    names = [row.name for row in rows]
    results = Results(out, [PLAIN, *names], settings.fixed())
    work = to_do(results, MODEL, questions, settings.temperatures)
    if work:
        models, methods = _load(rows)
        measure(models, methods, work, MODEL, results, settings)
    return markdown(names, [cell for cell in cells(results.rows) if cell.method != PLAIN])


def _load(rows: list[Row]) -> tuple[Models, dict[str, Method]]:
    """The target, and a method for the drafter of each row."""
    target, tokenizer = load_target(rows[0].config.target, rows[0].config.target_dtype)
    target.to("cuda" if torch.cuda.is_available() else "cpu")
    methods = {PLAIN: METHODS[PLAIN]}
    for row in rows:
        draft = DominoModel.from_pretrained(row.folder / "drafter", dtype=target.dtype).to(target.device).eval()
        methods[row.name] = replace(METHODS["assisted"], options=_assisting(draft), drafter=_always(draft))
    return Models(target, tokenizer), methods


def _assisting(draft):
    return lambda models: METHODS["assisted"].options(replace(models, draft=draft))


def _always(draft):
    return lambda models: draft


def markdown(names: list[str], found: list[Cell]) -> str:
    """τ and speedup of each row on each task, and their means over tasks."""
    tasks = list(dict.fromkeys(cell.task for cell in found))
    lines = ["| row | " + " | ".join([*tasks, "average"]) + " |", "|---" + "|--:" * (len(tasks) + 1) + "|"]
    for name in names:
        figures = [(cell.tau, cell.speedup) for cell in found if cell.method == name]
        mean = tuple(sum(values) / len(figures) for values in zip(*figures, strict=True))
        lines.append(f"| {name} | " + " | ".join(f"{tau:.2f} / {speed:.2f}×" for tau, speed in [*figures, mean]) + " |")
    return "\n".join(lines)
