"""How plain `generate(assistant_model=draft)` reaches a drafter that brings its own candidate generator.

transformers picks the candidate generator in a closed chain of cases. Two methods of `GenerationMixin` are wrapped; both
act only when the assistant has `make_candidate_generator` and otherwise call through:
- `_validate_generation_mode`, for refusals before any work is done;
- `_assisted_decoding`, to run it over a view of the target whose `_get_candidate_generator` is the drafter's.

`install` is idempotent, also across copies of this file loaded as remote code: the test is a method's name, not a class.
`uninstall` puts the originals back.
"""

import functools

from transformers import GenerationMixin

from . checks import check_batch, check_mode, check_target  # fmt: skip  # isort: skip

MARK = "_domino_original"


def decode(
    model,
    input_ids,
    logits_processor,
    stopping_criteria,
    generation_config,
    drafter,
    drafter_streamer=None,
    **model_kwargs,
):
    """Assisted decoding with `drafter` and nothing wrapped: `target.generate(**inputs, custom_generate=decode, drafter=draft)`.

    transformers hands neither `assistant_model` nor `streamer` nor `tokenizer` to a custom loop, hence the argument names;
    `stop_strings` need the tokenizer and so `assistant_model`.

    Args:
        model: the target. drafter: the `DominoModel`. drafter_streamer: a streamer, if tokens are to be streamed.
        input_ids: [1, length]. The other arguments are what `generate` prepared.

    Returns:
        What transformers' assisted decoding returns: ids [1, length] or a `GenerateDecoderOnlyOutput`.
    """
    check_mode(generation_config)
    check_target(drafter, model)
    original = _original("_assisted_decoding")
    return _run(
        original,
        model,
        drafter,
        input_ids,
        logits_processor=logits_processor,
        stopping_criteria=stopping_criteria,
        generation_config=generation_config,
        streamer=drafter_streamer,
        **model_kwargs,
    )


def _run(original, target, draft, input_ids, logits_processor, stopping_criteria, **kwargs):
    check_batch(input_ids)
    make = functools.partial(draft.make_candidate_generator, target=target, stopping_criteria=stopping_criteria)
    # A view shares everything with the target but this one attribute, so concurrent calls do not meet.
    view = object.__new__(type(target))
    view.__dict__ = {**target.__dict__, "_get_candidate_generator": make}
    return original(view, input_ids, logits_processor=logits_processor, stopping_criteria=stopping_criteria, **kwargs)


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
