"""Prompts to distil on: JSON lines, Hub datasets, and mixes of both."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from ..settings import build, known

SHOWN = 5  # bad lines that a message lists


@dataclass
class Source:
    """One file or dataset of a mix.

    Attributes:
        file: JSON lines, relative to the mix. dataset: Hub id or folder for `datasets.load_dataset`, with its `name` (the
            configuration) and `split`. limit: prompts taken after shuffling; None is all. temperatures: each prompt is
            answered once at each; None is the run's. containing: keep only prompts with this text.
    """

    file: str | None = None
    dataset: str | None = None
    name: str | None = None
    split: str = "train"
    limit: int | None = None
    temperatures: list[float] | None = None
    containing: str | None = None

    def __post_init__(self):
        if (self.file is None) == (self.dataset is None):
            raise ValueError(
                f"A source of prompts is either a `file` or a `dataset`, got {self.file!r} and {self.dataset!r}."
            )
        if any(t < 0 for t in self.temperatures or []):
            raise ValueError(f"temperatures must be 0 (greedy) or more, got {self.temperatures} for {self.label}.")

    @property
    def label(self) -> str:
        return str(self.file or self.dataset)


@dataclass
class Prompts:
    """What was read: shuffled (user message, temperature) pairs, counts per source, and the lines that are no prompt."""

    pairs: list[tuple[str, float]] = field(default_factory=list)
    counts: list[dict] = field(default_factory=list)
    bad: list[str] = field(default_factory=list)


def read_prompts(sources: list[Source], root: Path, seed: int, temperature: float, skip_bad: bool) -> Prompts:
    """Read a mix.

    Raises:
        `ValueError`: lines that are no prompt, unless `skip_bad`; the first few are named by number.
    """
    prompts = Prompts()
    for source in sources:
        rows = _messages(source, root, prompts.bad)
        found = len(rows)
        rows = [row for row in rows if source.containing is None or source.containing in row]
        random.Random(seed).shuffle(rows)
        pairs = [(row, float(t)) for t in source.temperatures or [temperature] for row in rows[: source.limit]]
        prompts.counts.append({"source": source.label, "found": found, "taken": len(pairs)})
        prompts.pairs += pairs
    if prompts.bad and not skip_bad:
        raise ValueError(
            f"{len(prompts.bad)} line(s) hold no prompt:\n{first_bad(prompts.bad)}\n"
            "Mend them, or leave them out with --bad-lines skip."
        )
    random.Random(seed).shuffle(prompts.pairs)
    return prompts


def first_bad(bad: list[str]) -> str:
    """The first few bad lines, one a line."""
    more = [f"  … and {len(bad) - SHOWN} more"] if len(bad) > SHOWN else []
    return "\n".join([*(f"  {line}" for line in bad[:SHOWN]), *more])


def read_mix(prompts: str) -> tuple[list[Source], int | None]:
    """Sources and seed of what `--prompts` names: a mix (.yaml), a file (.jsonl) or a dataset.

    Raises:
        `ValueError`: broken YAML or an unknown key; the nearest known one is named.
    """
    if prompts.endswith((".jsonl", ".json")):
        return [Source(file=str(Path(prompts).resolve()))], None
    if not prompts.endswith((".yaml", ".yml")):
        return [Source(dataset=prompts)], None
    try:
        mix = yaml.safe_load(Path(prompts).read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ValueError(f"{prompts} is not valid YAML: {error}") from error
    if not isinstance(mix, dict) or not isinstance(mix.get("prompts"), list) or not mix["prompts"]:
        raise ValueError(f"{prompts} must hold `prompts`, a list of sources, and may hold `seed`.")
    for key in mix:
        known(key, {"seed", "prompts"}, f"{prompts}: ")
    sources = [build(Source, source, f"{prompts}, source {i}: ") for i, source in enumerate(mix["prompts"], 1)]
    return sources, mix.get("seed")


def _messages(source: Source, root: Path, bad: list[str]) -> list[str]:
    """The user messages of a source; what is none is added to `bad`, with its place."""
    messages = []
    for place, row in _lines(root / source.file) if source.file else _dataset(source):
        message = row if isinstance(row, Exception) else user_message(row)
        if isinstance(message, str) and message.strip():
            messages.append(message)
        else:
            bad.append(f"{place}: {message if isinstance(message, Exception) else 'the prompt is empty'}")
    return messages


def _lines(path: Path) -> Iterator[tuple[str, Any]]:
    """(file and line number, row, or the error in its stead) of each line that is not blank."""
    with path.open("rb") as lines:  # bytes end lines at \n alone; text mode stops at the first byte that is not UTF-8
        for number, line in enumerate(lines, 1):
            if line.strip():
                try:
                    row = json.loads(line.decode("utf-8-sig"))
                except ValueError as error:
                    row = error
                yield f"{path}, line {number}", row


def _dataset(source: Source) -> Iterator[tuple[str, Any]]:
    from datasets import load_dataset

    rows = load_dataset(source.dataset, source.name, split=source.split)
    return ((f"{source.dataset}, {source.split} row {number}", row) for number, row in enumerate(rows))


def user_message(row: Any) -> str | Exception | None:
    """The first user message of a row in any of the usual layouts; an error when it is in none."""
    if not isinstance(row, dict):
        return ValueError(f"expected a JSON object, got {type(row).__name__}")
    for key, role, value in (
        ("messages", "role", "content"),
        ("conversations", "from", "value"),
        ("prompt", "role", "content"),
    ):
        if isinstance(row.get(key), list):
            said = [m.get(value) for m in row[key] if isinstance(m, dict) and m.get(role) in ("user", "human")]
            return said[0] if said else None
    if isinstance(row.get("turns"), list):
        return row["turns"][0] if row["turns"] else None
    if isinstance(row.get("prompt"), str):
        return row["prompt"]
    return ValueError(f"has no turns, prompt, messages or conversations, but {', '.join(map(repr, row)) or 'nothing'}")
