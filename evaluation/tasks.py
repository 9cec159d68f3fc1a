"""The ten tasks of the protocol: packaged where their licence allows, else a local file or the Hub."""

from __future__ import annotations

import difflib
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import templates

PACKAGED = Path(__file__).resolve().parent / "prompts"


@dataclass(frozen=True)
class Question:
    """One row: its user turns, and what its answer is checked by (`answer`, or tests)."""

    id: str
    turns: list[str]
    checks: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Task:
    """Where a task's rows come from.

    Attributes:
        count: rows the protocol takes (of `shuffle(seed=0)`). hub, config, split: of `datasets.load_dataset`; `files` instead
        of a config for sets that are plain files. template: row -> (turns, checks).
    """

    count: int
    hub: str
    split: str
    template: Callable[[templates.Row], templates.Turns]
    config: str | None = None
    files: str | None = None

    def rows(self) -> list[templates.Row]:
        """All rows, from the Hub."""
        from datasets import load_dataset

        if self.files:
            return list(load_dataset("json", data_files=f"hf://datasets/{self.hub}/{self.files}", split="train"))
        return list(load_dataset(self.hub, self.config, split=self.split))


TASKS = {
    "gsm8k": Task(128, "openai/gsm8k", "test", templates.gsm8k, config="main"),
    "math500": Task(128, "HuggingFaceH4/MATH-500", "test", templates.problem),
    "aime24": Task(30, "HuggingFaceH4/aime_2024", "train", templates.problem),
    "aime25": Task(30, "MathArena/aime_2025", "train", templates.problem),
    "humaneval": Task(164, "openai/openai_humaneval", "test", templates.humaneval),
    "mbpp": Task(128, "google-research-datasets/mbpp", "test", templates.mbpp, config="sanitized"),
    "livecodebench": Task(
        128, "livecodebench/code_generation_lite", "test", templates.livecodebench, files="test*.jsonl"
    ),
    "swe_bench": Task(128, "princeton-nlp/SWE-bench_Lite", "test", templates.swe_bench),
    "mt_bench": Task(80, "HuggingFaceH4/mt_bench_prompts", "train", templates.mt_bench),
    "alpaca": Task(128, "tatsu-lab/alpaca", "train", templates.alpaca),
}
EMBEDDED = tuple(name for name in TASKS if (PACKAGED / f"{name}.jsonl").is_file())


def nearest(got: str, allowed, what: str) -> str:
    """The message for a name that is not one of `allowed`."""
    near = difflib.get_close_matches(got, allowed, n=1, cutoff=0.5)
    return f"Unknown {what} {got!r}{f'; did you mean {near[0]!r}?' if near else ':'} Allowed: {', '.join(allowed)}."


def load(name: str, count: int | None = None, data: Path | None = None, shuffle: int | None = None) -> list[Question]:
    """The first `count` questions of a task, or all there are.

    Looked for in `data`/<name>.jsonl (one object a line: `id`, `turns` and the fields an answer is checked by), in the
    package, and on the Hub. The packaged sets are the first rows of theirs; asking for more goes to the Hub.

    Args:
        shuffle: seed of `datasets`' shuffle over all rows before the first are taken, as the protocol does with 0; all rows are
            those of `data` or the Hub.

    Raises:
        `ValueError`: an unknown task (the nearest is named), rows that are none, fewer rows than asked for, or no source.
    """
    if name not in TASKS:
        raise ValueError(nearest(name, TASKS, "task"))
    if count is not None and count < 1:
        raise ValueError(f"{name}: ask for at least one question, got {count}.")
    questions = _local(name, count, data, shuffle) or _hub(name)
    if count is not None and count > len(questions):
        raise ValueError(f"{name} has {len(questions)} questions; ask for 1 … {len(questions)}, got {count}.")
    if shuffle is not None:
        from datasets import Dataset

        order = Dataset.from_dict({"place": list(range(len(questions)))}).shuffle(seed=shuffle)["place"]
        questions = [questions[place] for place in order]
    return questions[:count]


def _local(name: str, count: int | None, data: Path | None, shuffle: int | None) -> list[Question] | None:
    if data is not None:
        file = data / f"{name}.jsonl"
        if not file.is_file():
            raise ValueError(f"{file} is not there: put {name}'s questions in it, or leave --data out.")
        return read(file)
    if name not in EMBEDDED or shuffle is not None:
        return None
    questions = read(PACKAGED / f"{name}.jsonl")
    return None if count is not None and count > len(questions) else questions


def read(file: Path) -> list[Question]:
    """Questions of a JSON-lines file. Raises `ValueError`: a line that is none, by number, or no line at all."""
    questions = []
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        turns = row.pop("turns", None) if isinstance(row, dict) else None
        if not isinstance(turns, list) or not turns or not all(isinstance(t, str) and t.strip() for t in turns):
            raise ValueError(f"{file}, line {number}: must be an object with `turns`, a list of texts.")
        questions.append(Question(str(row.pop("id", f"{file.stem}/{number}")), turns, row))
    if not questions:
        raise ValueError(f"{file} holds no questions.")
    twice = [name for name, times in Counter(question.id for question in questions).items() if times > 1]
    if twice:
        raise ValueError(f"{file} uses an id twice: {', '.join(twice[:3])}.")
    return questions


def _hub(name: str) -> list[Question]:
    task = TASKS[name]
    try:
        rows = task.rows()
    except Exception as error:  # datasets raises a dozen kinds, all of which mean the same to the user
        packaged = f"{len(read(PACKAGED / f'{name}.jsonl'))} questions of it" if name in EMBEDDED else "none of it"
        raise ValueError(
            f"{name} could not be read from the Hub data set {task.hub} ({type(error).__name__}: {error}); "
            f"the package has {packaged}: ask for no more, or pass --data with a folder that holds {name}.jsonl."
        ) from error
    # Rows that are packaged, too, keep the name they have there: a run that grows beyond them counts none twice. A text that
    # comes twice (MBPP's 71 and 141) has it once, and places are no numbers of the packaged names (row 71 is not mbpp/71).
    known = {tuple(q.turns): q.id for q in read(PACKAGED / f"{name}.jsonl")} if name in EMBEDDED else {}
    found = [(f"{name}/{task.split}/{place}", *task.template(row)) for place, row in enumerate(rows)]
    return [Question(known.pop(tuple(turns), own), turns, checks) for own, turns, checks in found]


def parse(text: str, data: Path | None = None, shuffle: int | None = None) -> dict[str, list[Question]]:
    """{task: questions} of "gsm8k=30,humaneval=20"; no count means all, "all=20" stands for every packaged task.

    Raises:
        `ValueError`: not in this form, a task named twice, or what `load` refuses.
    """
    found: dict[str, list[Question]] = {}
    for part in text.split(","):
        task, equals, count = part.strip().partition("=")
        if equals and not count.isdecimal():
            raise ValueError(f"--tasks takes task=count, e.g. gsm8k=30,humaneval=20 or all=20, got {part!r}.")
        for name in EMBEDDED if task == "all" else [task]:
            if name in found:
                raise ValueError(f"--tasks names {name} twice.")
            found[name] = load(name, int(count) if equals else None, data, shuffle)
    return found
