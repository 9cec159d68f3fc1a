"""A drafter as the loops see it: besides drafting it makes candidates for transformers' loop, and calls leave their counts on it."""

from typing import Any, Protocol

from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel
from transformers.generation import (
    BaseStreamer,
    CandidateGenerator,
    GenerateDecoderOnlyOutput,
    LogitsProcessorList,
    StoppingCriteriaList,
)

from .. drafting.drafter import Drafter  # fmt: skip  # isort: skip
from . request import OnRound, OnTokens  # fmt: skip  # isort: skip
from . statistics import DraftStatistics  # fmt: skip  # isort: skip


class LoopDrafter(Drafter, Protocol):
    """What `DrafterModel` is; it imports the loops, which so cannot name it.

    Attributes:
        statistics: of the call that ended last. row_statistics: the same, of each row.
    """

    statistics: DraftStatistics
    row_statistics: list[DraftStatistics]

    def make_candidate_generator(
        self,
        target: PreTrainedModel,
        input_ids: Tensor,
        generation_config: GenerationConfig,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        model_kwargs: dict[str, Any],
        **kwargs: Any,
    ) -> CandidateGenerator:
        """What drafts in one call of transformers' assisted loop."""

    def decode(
        self,
        model: PreTrainedModel,
        input_ids: Tensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        drafter_streamer: BaseStreamer | None = None,
        on_tokens: OnTokens | None = None,
        on_round: OnRound | None = None,
        **kwargs: Any,
    ) -> Tensor | GenerateDecoderOnlyOutput:
        """A loop as `custom_generate` takes one."""
