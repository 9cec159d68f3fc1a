"""A drafter as the loops see it: besides drafting it makes candidates for transformers' loop, and calls leave their counts on it."""

from typing import Any, Protocol

from torch import Tensor
from transformers.generation import CandidateGenerator, GenerateDecoderOnlyOutput

from .. drafting.drafter import Drafter  # fmt: skip  # isort: skip
from . statistics import DraftStatistics  # fmt: skip  # isort: skip


class LoopDrafter(Drafter, Protocol):
    """What `DrafterModel` is; it imports the loops, which so cannot name it.

    Attributes:
        statistics: of the call that ended last. row_statistics: the same, of each row.
    """

    statistics: DraftStatistics
    row_statistics: list[DraftStatistics]

    def make_candidate_generator(self, *args: Any, **kwargs: Any) -> CandidateGenerator:
        """What drafts in one call of transformers' assisted loop: see `DrafterModel`."""

    def decode(self, *args: Any, **kwargs: Any) -> Tensor | GenerateDecoderOnlyOutput:
        """A loop as `custom_generate` takes one: see `DrafterModel`."""
