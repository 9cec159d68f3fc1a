"""The folder of an evaluation: `samples.jsonl`, written question by question, and what it was measured with.

A question's rows (one a method) are written in one go after its last run, so a killed run leaves whole questions and at most one torn
line. Opening the folder again drops what is torn or incomplete; nothing is counted twice.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .answering import Turn
from .provenance import provenance
from .watch import Call

Key = tuple[str, str, float, str]  # model, task, temperature, question
SAMPLES, SETTINGS, PROVENANCE = "samples.jsonl", "settings.json", "provenance.json"


def key(row: dict[str, Any]) -> Key:
    return row["model"], row["task"], float(row["temperature"]), row["question"]


def turns(row: dict[str, Any]) -> list[Turn]:
    """The turns of a row, as objects again."""
    return [Turn(**{**turn, "runs": [Call(**call) for call in turn["runs"]]}) for turn in row["turns"]]


class Results:
    """An evaluation's folder, new or continued.

    Args:
        settings: what must not change between sessions, e.g. the methods and the dtype. models: what each model's name stands
            for; others may join later.

    Raises:
        `ValueError`: the folder was measured with other settings (those that differ are listed).
    """

    def __init__(
        self, folder: Path, methods: list[str], settings: dict[str, Any], models: dict[str, Any] | None = None
    ):
        self.folder, self.methods = folder, methods
        folder.mkdir(parents=True, exist_ok=True)
        self.rows, torn = read(folder / SAMPLES, methods)
        self._check({"methods": methods, **settings, "models": models or {}})
        self._sessions()
        if torn:
            _replace(folder / SAMPLES, "".join(_line(row) for row in self.rows))
        self.done = {key(row) for row in self.rows}

    def _check(self, settings: dict[str, Any]) -> None:
        file, settings = self.folder / SETTINGS, json.loads(json.dumps(settings))
        samples = self.folder / SAMPLES
        begun = file.is_file() and samples.is_file() and samples.stat().st_size > 0
        before = json.loads(file.read_text(encoding="utf-8")) if begun else settings
        settings["models"] = {**before["models"], **settings["models"]}
        joined = {
            **before,
            "models": {name: before["models"].get(name, now) for name, now in settings["models"].items()},
        }
        names = [name for name in {**before, **settings} if joined.get(name) != settings.get(name)]
        if not names:
            _replace(file, json.dumps(settings, indent=1) + "\n")
        else:
            list_of = "; ".join(f"{n} was {joined.get(n)!r}, now {settings.get(n)!r}" for n in names)
            raise ValueError(f"{self.folder} holds results of other settings: {list_of}. Name another --out.")

    def _sessions(self) -> None:
        file = self.folder / PROVENANCE
        sessions = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else []
        _replace(file, json.dumps([*sessions, provenance()], indent=1) + "\n")

    def add(self, where: Key, found: dict[str, list[Turn]], scores: dict[str, bool | None]) -> None:
        """Write one question, answered by all methods."""
        model, task, temperature, question = where
        head = {"model": model, "task": task, "temperature": temperature, "question": question}
        rows = [
            {**head, "method": name, "correct": scores[name], "turns": [asdict(turn) for turn in found[name]]}
            for name in self.methods
        ]
        with (self.folder / SAMPLES).open("a", encoding="utf-8") as file:
            file.write("".join(map(_line, rows)))
            file.flush()
            os.fsync(file.fileno())
        self.rows += rows
        self.done.add(where)

    def to_parquet(self) -> Path:
        """`samples.parquet`: one line a run, its counts and times beside the row's names."""
        from datasets import Dataset

        lines = []
        for row in self.rows:
            names = {name: row[name] for name in ("model", "task", "temperature", "question", "method", "correct")}
            for place, turn in enumerate(row["turns"]):
                told = {"turn": place, "same": turn["same"], "gap": turn["gap"], "text": turn["text"]}
                lines += [{**names, **told, "repeat": n, **call} for n, call in enumerate(turn["runs"])]
        file = self.folder / "samples.parquet"
        Dataset.from_list(lines).to_parquet(str(file))
        return file


def read(file: Path, methods: list[str]) -> tuple[list[dict[str, Any]], bool]:
    """Rows of the questions that every method answered, once each; and whether the file holds anything else."""
    if not file.is_file():
        return [], False
    groups: dict[Key, dict[str, dict]] = defaultdict(dict)
    data = file.read_bytes()
    lines, torn = (
        data.split(b"\n"),
        not data.endswith(b"\n"),
    )  # the next line would be glued to a last one without an end
    for line in lines:
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            turns(row)
            group = groups[key(row)]
            torn |= row["method"] in group
            group[row["method"]] = row
        except (ValueError, KeyError, TypeError):
            torn = True
    whole = [group for group in groups.values() if set(group) == set(methods)]
    return [group[name] for group in whole for name in methods], torn or len(whole) < len(groups)


def _line(row: dict[str, Any]) -> str:
    return json.dumps(row, ensure_ascii=False) + "\n"


def _replace(file: Path, text: str) -> None:
    """All of the text or none of it."""
    new = file.with_suffix(file.suffix + ".new")
    new.write_text(text, encoding="utf-8")
    new.replace(file)
