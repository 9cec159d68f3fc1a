"""What calls learn for later calls: how far drafts are right, what rounds cost, what was said."""

import threading
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import torch
from transformers import PreTrainedModel

from .. drafting.calibration import Calibration  # fmt: skip  # isort: skip
from .. drafting.drafter import Drafter  # fmt: skip  # isort: skip
from .. drafting.lookup import Memory  # fmt: skip  # isort: skip
from . budget import Budget, Costs  # fmt: skip  # isort: skip


@dataclass
class Learnt:
    """What calls of one kind learnt about a drafter and a target; budgets by about their number of rows."""

    calibration: Calibration = field(default_factory=Calibration)
    budgets: dict[int, Budget] = field(default_factory=dict)
    memory: Memory = field(default_factory=Memory)
    taken: threading.Lock = field(default_factory=threading.Lock)

    def budget(self, rows: int) -> Budget:
        """5, 6, 7 and 8 rows share theirs."""
        about = 1 << (rows - 1).bit_length()
        return self.budgets.setdefault(about, Budget(Costs(about)))


# It holds neither of the models.
_learnt: WeakKeyDictionary = WeakKeyDictionary()
_lock = threading.Lock()


def learnt(draft: Drafter, target: PreTrainedModel, *kind: Hashable) -> Learnt:
    """What calls of this kind with these models learnt; greedy and sampling, say, are apart, and chains and trees."""
    with _lock:
        if draft not in _learnt:
            _learnt[draft] = WeakKeyDictionary()
        kinds, key = _learnt[draft].setdefault(target, {}), (kind, torch.get_num_threads())
        if key not in kinds:
            kinds[key] = Learnt()
        return kinds[key]


@contextmanager
def borrowed(draft: Drafter, target: PreTrainedModel, *kind: Hashable) -> Iterator[Learnt]:
    """The same for one call alone: a second call at the same time begins with nothing, and what it learns is dropped."""
    kept = learnt(draft, target, *kind)
    mine = kept.taken.acquire(blocking=False)
    try:
        yield kept if mine else Learnt()
    finally:
        if mine:
            kept.taken.release()
