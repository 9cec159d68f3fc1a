"""`domino ablate`: train the rows of an ablation, then answer the same prompts with every drafter, in turn."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import yaml
from tqdm.auto import tqdm

from ..evaluation.compare import Comparison, Sample, answer_twice, encode, timed
from ..evaluation.measure import provenance, read_questions
from ..modeling_domino import DominoModel
from .config import TrainConfig, load
from .target import load_target
from .train import train


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


def ablate(rows: list[Row], tasks: dict[str, int], out: Path, max_new_tokens: int) -> str:
    """Train what is not trained yet, measure all, write `ablation.json` and return the table."""
    for row in rows:
        if not (row.folder / "drafter" / "config.json").is_file():
            print(f"Training: {row.name}", flush=True)
            train(row.config, resume=True)
    target, tokenizer = load_target(rows[0].config.target, rows[0].config.target_dtype)
    target.to("cuda" if torch.cuda.is_available() else "cpu")
    drafters = [DominoModel.from_pretrained(r.folder / "drafter", dtype=target.dtype).to(target.device) for r in rows]
    results = {
        task: compare_drafters(
            target, [d.eval() for d in drafters], tokenizer, task, read_questions(task, count), max_new_tokens
        )
        for task, count in tasks.items()
    }
    table = markdown([row.name for row in rows], results)
    record = {
        "provenance": provenance(),
        "table": table,
        "tasks": {
            task: {row.name: [asdict(s) for s in c.samples] for row, c in zip(rows, found, strict=True)}
            for task, found in results.items()
        },
    }
    (out / "ablation.json").write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return table


def compare_drafters(
    target, drafters, tokenizer, task: str, questions: list[str], max_new_tokens: int
) -> list[Comparison]:
    """Each question once plainly and once with each drafter, all in turn, after a throw-away question."""
    options = {"max_new_tokens": max_new_tokens, "do_sample": False}
    for draft in drafters:
        answer_twice(target, draft, encode(tokenizer, questions[0], target.device), **{**options, "max_new_tokens": 16})
    samples: list[list[Sample]] = [[] for _ in drafters]
    for question in tqdm(questions, desc=task):
        inputs = encode(tokenizer, question, target.device)
        length = inputs["input_ids"].shape[1]
        plain, plain_s = timed(target, inputs, **options)
        for draft, mine in zip(drafters, samples, strict=True):
            ids, seconds = timed(target, inputs, assistant_model=draft, **options)
            tokens = (plain.shape[1] - length, ids.shape[1] - length)
            mine.append(Sample(plain_s, seconds, *tokens, draft.statistics.accepted, torch.equal(plain, ids), None))
    return [Comparison(task, mine) for mine in samples]


def markdown(names: list[str], results: dict[str, list[Comparison]]) -> str:
    """τ and speedup of each row on each task, and their means over tasks."""
    lines = ["| row | " + " | ".join([*results, "average"]) + " |", "|---" + "|--:" * (len(results) + 1) + "|"]
    for place, name in enumerate(names):
        found = [comparisons[place] for comparisons in results.values()]
        cells = [(c.acceptance_length, c.speedup) for c in found]
        mean = tuple(sum(values) / len(cells) for values in zip(*cells, strict=True))
        lines.append(f"| {name} | " + " | ".join(f"{tau:.2f} / {speed:.2f}×" for tau, speed in [*cells, mean]) + " |")
    return "\n".join(lines)
