"""How plain `generate(assistant_model=draft)` reaches a drafter that brings its own candidate generator.

transformers picks the candidate generator in a closed chain of cases. Two methods of `GenerationMixin` are wrapped; both
act only when the assistant has `make_candidate_generator` and otherwise call through:
- `_validate_generation_mode`, for refusals before any work is done;
- `_assisted_decoding`, to run it over a view of the target whose `_get_candidate_generator` is the drafter's.

`install` is idempotent, also across copies of this file loaded as remote code: the test is a method's name, not a class.
`uninstall` puts the originals back.
"""

import functools

import torch
from transformers import GenerationMixin, StoppingCriteriaList

from . checks import check_batch, check_continued, check_head_off, check_mode  # fmt: skip  # isort: skip
from . checks import check_processors, check_target  # fmt: skip  # isort: skip

MARK = "_domino_original"


def assisted_decoding(target, draft, input_ids, **kwargs):
    """transformers' assisted decoding of `target` with `draft`, whether or not the dispatch is installed.

    Args:
        target: the model that verifies. draft: the `DominoModel`. input_ids: [1, length].
        kwargs: what `generate` hands to a decoding loop.

    Returns:
        ids [1, length] or a `GenerateDecoderOnlyOutput`.
    """
    check_mode(kwargs["generation_config"])
    check_target(draft, target)
    return _run(_original("_assisted_decoding"), target, draft, input_ids, **kwargs)


def _run(original, target, draft, input_ids, logits_processor, stopping_criteria, **kwargs):
    if input_ids.shape[0] > 1 and hasattr(draft, "decode_rows"):
        return draft.decode_rows(
            target,
            input_ids,
            logits_processor,
            stopping_criteria,
            drafter_streamer=kwargs.pop("streamer", None),
            **kwargs,
        )
    check_batch(input_ids)
    check_continued(input_ids, kwargs)
    check_processors(logits_processor)
    make = functools.partial(draft.make_candidate_generator, target=target, stopping_criteria=stopping_criteria)
    prepare = functools.partial(_prepare_inputs, target)
    # A view shares everything with the target but these two attributes, so concurrent calls do not meet.
    view = object.__new__(type(target))
    view.__dict__ = {**target.__dict__, "_get_candidate_generator": make, "prepare_inputs_for_generation": prepare}
    criteria = _AfterPrompt(stopping_criteria, input_ids.shape[1])
    return original(view, input_ids, logits_processor=logits_processor, stopping_criteria=criteria, **kwargs)


class _AfterPrompt(StoppingCriteriaList):
    """Criteria that only look at sequences longer than the prompt.

    transformers 5.17 asks them about the candidates too, which in the prefill are the prompt itself: one that ends in an end
    token would lose its first new token.
    """

    def __init__(self, criteria, prompt_length: int):
        super().__init__(criteria)
        self.prompt_length = prompt_length

    def __call__(self, input_ids, scores, **kwargs):
        if input_ids.shape[1] <= self.prompt_length:
            return torch.zeros(input_ids.shape[0], dtype=torch.bool, device=input_ids.device)
        return super().__call__(input_ids, scores, **kwargs)


def _prepare_inputs(
    target, input_ids, next_sequence_length=None, past_key_values=None, is_first_iteration=False, **kwargs
):
    """`prepare_inputs_for_generation`, cutting off what a continued cache holds already.

    Plain decoding cuts it in its prefill; the assisted loop of transformers 5.17 … 5.23 reads the whole conversation again.
    """
    if is_first_iteration and next_sequence_length is None and past_key_values.get_seq_length() > 0:
        next_sequence_length = input_ids.shape[1] - past_key_values.get_seq_length()
    return target.prepare_inputs_for_generation(
        input_ids,
        next_sequence_length=next_sequence_length,
        past_key_values=past_key_values,
        is_first_iteration=is_first_iteration,
        **kwargs,
    )


def _original(name: str):
    method = getattr(GenerationMixin, name)
    return getattr(method, MARK, method)


def _brings_own_generator(assistant) -> bool:
    return hasattr(assistant, "make_candidate_generator")


def install() -> None:
    """Wrap the two methods, once."""
    validate, assisted = GenerationMixin._validate_generation_mode, GenerationMixin._assisted_decoding
    if hasattr(assisted, MARK):
        return

    @functools.wraps(validate)
    def _validate_generation_mode(self, generation_mode, generation_config, generation_mode_kwargs):
        assistant = generation_mode_kwargs.get("assistant_model")
        if _brings_own_generator(assistant):
            check_mode(generation_config)
            check_target(assistant, self)
            if generation_config.speculation_type == "dflash":
                check_head_off(assistant)
        return validate(self, generation_mode, generation_config, generation_mode_kwargs)

    @functools.wraps(assisted)
    def _assisted_decoding(self, input_ids, *args, assistant_model=None, **kwargs):
        speculation = getattr(kwargs.get("generation_config"), "speculation_type", None)
        if speculation is not None or not _brings_own_generator(assistant_model):
            return assisted(self, input_ids, *args, assistant_model=assistant_model, **kwargs)
        return _run(assisted, self, assistant_model, input_ids, *args, **kwargs)

    setattr(_validate_generation_mode, MARK, validate)
    setattr(_assisted_decoding, MARK, assisted)
    GenerationMixin._validate_generation_mode = _validate_generation_mode
    GenerationMixin._assisted_decoding = _assisted_decoding


def uninstall() -> None:
    """Put transformers' own methods back; `install()` wraps them again."""
    GenerationMixin._validate_generation_mode = _original("_validate_generation_mode")
    GenerationMixin._assisted_decoding = _original("_assisted_decoding")
