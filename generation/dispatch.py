"""How plain `generate(assistant_model=draft)` reaches a drafter of this package.

transformers picks its assisted loop's candidate generator in a closed chain of cases. Two methods of `GenerationMixin` are
wrapped; both act only when the assistant is a drafter of ours and otherwise call through:
- `_validate_generation_mode`, for refusals before any work is done;
- `_assisted_decoding`, to hand the call to `loop.py`.

`install` is idempotent, also across copies of this file loaded as remote code: the test is a method's name, not a class.
`uninstall` puts the originals back.
"""

import copy
import functools
from collections.abc import Callable
from typing import Any

from torch import Tensor
from transformers import GenerationConfig, GenerationMixin, PreTrainedModel
from transformers.generation.configuration_utils import GenerationMode

from . assisted_loop import MARK, original  # fmt: skip  # isort: skip
from . checks import check_head_off, check_mode, check_target  # fmt: skip  # isort: skip


def _is_ours(assistant: Any) -> bool:
    return hasattr(assistant, "make_candidate_generator")


def install() -> None:
    """Wrap the two methods, once."""
    validate: Callable[..., Any] = GenerationMixin._validate_generation_mode
    assisted: Callable[..., Any] = GenerationMixin._assisted_decoding
    if hasattr(assisted, MARK):
        return

    @functools.wraps(validate)
    def _validate_generation_mode(
        self: PreTrainedModel,
        generation_mode: GenerationMode,
        generation_config: GenerationConfig,
        generation_mode_kwargs: dict[str, Any],
    ) -> None:
        assistant: Any = generation_mode_kwargs.get("assistant_model")
        if not _is_ours(assistant):
            return validate(self, generation_mode, generation_config, generation_mode_kwargs)
        check_mode(generation_config)
        check_target(assistant, self)
        if generation_config.speculation_type == "dflash":
            check_head_off(assistant)
        else:  # the engine takes any number of rows, which is all that transformers asks for here
            generation_config = copy.copy(generation_config)
            generation_config.num_return_sequences = 1
        return validate(self, generation_mode, generation_config, generation_mode_kwargs)

    @functools.wraps(assisted)
    def _assisted_decoding(
        self: PreTrainedModel, input_ids: Tensor, *args: Any, assistant_model: Any = None, **kwargs: Any
    ) -> Any:
        speculation = getattr(kwargs.get("generation_config"), "speculation_type", None)
        if speculation is not None or not _is_ours(assistant_model):
            return assisted(self, input_ids, *args, assistant_model=assistant_model, **kwargs)
        return assistant_model.decode_assisted(self, input_ids, *args, **kwargs)

    setattr(_validate_generation_mode, MARK, validate)
    setattr(_assisted_decoding, MARK, assisted)
    _exchange(_validate_generation_mode, _assisted_decoding)


def uninstall() -> None:
    """Put transformers' own methods back; `install()` wraps them again."""
    _exchange(original("_validate_generation_mode"), original("_assisted_decoding"))


def _exchange(*methods: Callable[..., Any]) -> None:
    for method in methods:
        setattr(GenerationMixin, method.__name__, method)
