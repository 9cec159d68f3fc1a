"""The figures of one model, task, temperature and method, out of an evaluation's rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import chain
from statistics import mean
from typing import Any

from . import metrics
from .methods import PLAIN
from .results import turns
from .watch import Call

ROUND_STAGES = ("verify", "draft", "head", "overhead")
STAGES = ("setup", "prefill", *ROUND_STAGES)  # the first two once a call


@dataclass
class Cell:
    """A method's calls beside plain `generate`'s on the same prompts.

    Attributes:
        calls, plain: by sample (one question, turn and repetition). questions: which one each call answered. same, gaps,
            correct: of the samples where they are known.
    """

    model: str
    task: str
    temperature: float
    method: str
    calls: list[Call]
    plain: list[Call]
    questions: list[str]
    same: list[bool]
    gaps: list[float]
    correct: list[bool]

    @property
    def advanced(self) -> list[list[int]]:
        return [call.advanced for call in self.calls]

    @property
    def tau(self) -> float:
        return metrics.tau_per_step(self.advanced)

    @property
    def tau_per_sample(self) -> float:
        return metrics.tau_per_sample(self.advanced)

    @property
    def tau_interval(self) -> tuple[float, float]:
        return self._interval(self.advanced, metrics.tau_per_step)

    @property
    def tau_per_sample_interval(self) -> tuple[float, float]:
        return self._interval(self.advanced, metrics.tau_per_sample)

    @property
    def tokens_per_second(self) -> float:
        """Whole calls, prefill included."""
        return 1 / metrics.seconds_per_token([c.new_tokens for c in self.calls], [c.seconds for c in self.calls])

    @property
    def time_per_token(self) -> float:
        """Seconds per token after the first, prefill excluded."""
        return metrics.seconds_per_token(*_decode(self.calls))

    @property
    def speedup(self) -> float:
        """Of whole calls, prefill included."""
        return _speedup(list(zip(self.plain, self.calls, strict=True)), _whole)

    @property
    def speedup_interval(self) -> tuple[float, float]:
        return self._interval(list(zip(self.plain, self.calls, strict=True)), partial(_speedup, timed=_whole))

    @property
    def decode_speedup(self) -> float:
        """Of the time per token after the first, as the papers state it."""
        return _speedup(list(zip(self.plain, self.calls, strict=True)), _decode)

    @property
    def median_speedup(self) -> float:
        """Median over samples, whole calls."""
        return metrics.speedup_per_sample(*_whole(self.plain), *_whole(self.calls))

    @property
    def by_position(self) -> list[float]:
        """Acceptance by draft position, in a tree by depth."""
        return metrics.acceptance_by_position(self._rounds()[0], [n for call in self.calls for n in call.depths])

    @property
    def lengths(self) -> list[int]:
        """Rounds that accepted 0, 1, 2, … drafts."""
        return metrics.accepted_lengths(self._rounds()[0])

    @property
    def used(self) -> float:
        """Accepted of all drafted tokens."""
        return metrics.used_share(*self._rounds())

    @property
    def drafts(self) -> int:
        """Most drafts of a round, in a tree its nodes: the convention without which τ says little."""
        return max(self._rounds()[1], default=0)

    @property
    def split(self) -> dict[str, float]:
        """Seconds by stage, over all calls."""
        return {stage: sum(getattr(call, stage) for call in self.calls) for stage in STAGES}

    @property
    def round_split(self) -> dict[str, float]:
        """Mean milliseconds of a round by stage, what comes once a call left out; empty without a round."""
        rounds = len(self._rounds()[0])
        return {s: 1000 * self.split[s] / rounds for s in ROUND_STAGES} if rounds else {}

    @property
    def call_setup(self) -> float:
        """Mean milliseconds of a call before its first forward."""
        return 1000 * mean(call.setup for call in self.calls)

    @property
    def peak(self) -> int | None:
        """Bytes at the highest, over all calls."""
        known = [call.peak for call in self.calls if call.peak is not None]
        return max(known, default=None)

    @property
    def accuracy(self) -> float | None:
        return mean(self.correct) if self.correct else None

    @property
    def prefill_seconds(self) -> float:
        """Mean of a call."""
        return self.split["prefill"] / len(self.calls)

    def _interval(self, samples: list, statistic: Callable[[list], float]) -> tuple[float, float]:
        """Of a statistic over samples. Questions are drawn again, all calls of one together: turns and repetitions of a
        question are alike, and taking them for independent would make the interval narrower than it is."""
        groups: dict[str, list] = defaultdict(list)
        for question, sample in zip(self.questions, samples, strict=True):
            groups[question].append(sample)
        return metrics.interval(list(groups.values()), lambda drawn: statistic(list(chain.from_iterable(drawn))))

    def _rounds(self) -> tuple[list[int], list[int]]:
        return [n for c in self.calls for n in c.advanced], [n for c in self.calls for n in c.drafted]


def _whole(calls: list[Call]) -> tuple[list[int], list[float]]:
    return [c.new_tokens for c in calls], [c.seconds for c in calls]


def _decode(calls: list[Call]) -> tuple[list[int], list[float]]:
    # some methods draft within the prefill: only what came after it counts
    return [sum(c.advanced) for c in calls], [c.seconds - c.prefill for c in calls]


def _speedup(pairs: list[tuple[Call, Call]], timed) -> float:
    plain, ours = [p for p, _ in pairs], [o for _, o in pairs]
    return metrics.speedup(*timed(plain), *timed(ours))


def cells(rows: list[dict[str, Any]]) -> list[Cell]:
    """Every cell of the rows, in the order they came."""
    groups: dict[tuple, dict[str, list[dict]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        groups[row["model"], row["task"], row["temperature"]][row["method"]].append(row)
    return [
        _cell(where, method, found, by_method[PLAIN])
        for where, by_method in groups.items()
        for method, found in by_method.items()
    ]


def _cell(where: tuple, method: str, rows: list[dict], plain: list[dict]) -> Cell:
    beside = {row["question"]: row for row in plain}
    calls = [call for row in rows for turn in turns(row) for call in turn.runs]
    questions = [row["question"] for row in rows for turn in row["turns"] for _ in turn["runs"]]
    plain_calls = [call for row in rows for turn in turns(beside[row["question"]]) for call in turn.runs]
    told = [turn for row in rows for turn in row["turns"] if turn["same"] is not None]
    model, task, temperature = where
    return Cell(
        model,
        task,
        temperature,
        method,
        calls,
        plain_calls,
        questions,
        same=[turn["same"] for turn in told],
        gaps=[turn["gap"] for turn in told if turn["gap"] is not None],
        correct=[row["correct"] for row in rows if row["correct"] is not None],
    )
