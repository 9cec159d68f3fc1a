"""transformers' own assisted loop with our candidate generator: for one row, where the engine cannot serve or was not wanted."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import Cache, GenerationMixin, PreTrainedModel
from transformers.generation import (
    GenerateDecoderOnlyOutput,
    LogitsProcessorList,
    StoppingCriteria,
    StoppingCriteriaList,
)

from . checks import check_batch, check_continued  # fmt: skip  # isort: skip
from . loop_drafter import LoopDrafter  # fmt: skip  # isort: skip

MARK = "_domino_original"  # on a method that `dispatch.py` has wrapped: the one below


def original(name: str) -> Callable[..., Any]:
    """transformers' own method of `GenerationMixin`."""
    method = getattr(GenerationMixin, name)
    return getattr(method, MARK, method)


def assisted_loop(
    target: PreTrainedModel,
    draft: LoopDrafter,
    input_ids: Tensor,
    logits_processor: LogitsProcessorList,
    stopping_criteria: StoppingCriteriaList,
    **kwargs: Any,
) -> Tensor | GenerateDecoderOnlyOutput:
    """transformers' assisted decoding of `target` with `draft`, whether or not the dispatch is installed.

    Args:
        target: the model that verifies. draft: the `DrafterModel`. input_ids: [1, length].
        kwargs: what `generate` hands to a decoding loop.

    Returns:
        ids [1, length] or a `GenerateDecoderOnlyOutput`.
    """
    check_batch(input_ids)
    check_continued(input_ids, kwargs)
    make = functools.partial(draft.make_candidate_generator, target=target, stopping_criteria=stopping_criteria)
    prepare = functools.partial(_prepare_inputs, target)
    # A view shares everything with the target but these two attributes, so concurrent calls do not meet.
    view = object.__new__(type(target))
    view.__dict__ = {**target.__dict__, "_get_candidate_generator": make, "prepare_inputs_for_generation": prepare}
    criteria = _AfterPrompt(stopping_criteria, input_ids.shape[1])
    loop = original("_assisted_decoding")
    return loop(view, input_ids, logits_processor=logits_processor, stopping_criteria=criteria, **kwargs)


class _AfterPrompt(StoppingCriteriaList):
    """Criteria that only look at sequences longer than the prompt.

    transformers 5.17 asks them about the candidates too, which in the prefill are the prompt itself: one that ends in an end
    token would lose its first new token.
    """

    def __init__(self, criteria: list[StoppingCriteria], prompt_length: int) -> None:
        super().__init__(criteria)
        self.prompt_length = prompt_length

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        if input_ids.shape[1] <= self.prompt_length:
            return torch.zeros(input_ids.shape[0], dtype=torch.bool, device=input_ids.device)
        return super().__call__(input_ids, scores, **kwargs)


def _prepare_inputs(
    target: PreTrainedModel,
    input_ids: Tensor,
    next_sequence_length: int | None = None,
    past_key_values: Cache | None = None,
    is_first_iteration: bool = False,
    **kwargs: Any,
) -> dict[str, Any]:
    """`prepare_inputs_for_generation`, cutting off what a continued cache holds already.

    Plain decoding cuts it in its prefill; the assisted loop of transformers 5.17 … 5.23 reads the whole conversation again.
    """
    model: Any = target  # transformers' type of a model that generates is its own
    cached = 0 if past_key_values is None else past_key_values.get_seq_length()
    if is_first_iteration and next_sequence_length is None and cached > 0:
        next_sequence_length = input_ids.shape[1] - cached
    return model.prepare_inputs_for_generation(
        input_ids,
        next_sequence_length=next_sequence_length,
        past_key_values=past_key_values,
        is_first_iteration=is_first_iteration,
        **kwargs,
    )
