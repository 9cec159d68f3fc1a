"""What every drafter brings besides its architecture: the ways into `generate`, strict loading, and saving with its nested code."""

import inspect
import os
import shutil
import uuid
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor
from transformers import Cache, GenerationConfig, PreTrainedConfig, PreTrainedModel
from transformers.dynamic_module_utils import get_relative_import_files
from transformers.generation import BaseStreamer, GenerateDecoderOnlyOutput, LogitsProcessorList, StoppingCriteriaList

from .. drafting.drafter import DraftSession  # fmt: skip  # isort: skip
from . candidate_generator import DominoCandidateGenerator  # fmt: skip  # isort: skip
from . checks import check_mode, check_own_loop, check_streamer, check_target  # fmt: skip  # isort: skip
from . loop import decode  # fmt: skip  # isort: skip
from . request import OnRound, OnTokens  # fmt: skip  # isort: skip
from . settings import EngineSettings  # fmt: skip  # isort: skip
from . statistics import DraftStatistics  # fmt: skip  # isort: skip

# Other names the same tensors go by in published checkpoints.
WEIGHT_ALIASES = {
    r"^model\.": "",
    r"^(?:model\.)?encoder\.fc\.": "fc.",
    r"^(?:model\.)?encoder\.output_norm_enc\.": "hidden_norm.",
}


def _takes_engine_settings(loop: Callable) -> Callable:
    """The fields of `EngineSettings` as arguments of a loop: `generate` hands a custom loop what its signature names."""
    signature = inspect.signature(loop)
    named = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    settings = [inspect.Parameter(f.name, inspect.Parameter.KEYWORD_ONLY, default=None) for f in fields(EngineSettings)]
    rest = [p for p in signature.parameters.values() if p.kind is p.VAR_KEYWORD]
    vars(loop)["__signature__"] = signature.replace(parameters=[*named, *settings, *rest])
    return loop


class DrafterModel(PreTrainedModel):
    """Base of all drafters. A subclass is the architecture; the counts of the `generate` that ended last are in `statistics`."""

    generator_class = DominoCandidateGenerator
    RESULTS = ("statistics", "row_statistics")  # attributes that calls leave behind (`acceleration/view.py`)

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__(config)
        self.settings = EngineSettings()
        self.statistics = DraftStatistics()
        self.row_statistics: list[DraftStatistics] = []
        self._context_key = f"{config.model_type}_context_{uuid.uuid4().hex}"

    def make_candidate_generator(
        self,
        target: PreTrainedModel,
        input_ids: Tensor,
        generation_config: GenerationConfig,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        model_kwargs: dict[str, Any],
        **kwargs: Any,
    ) -> DominoCandidateGenerator:
        """The generator for one call of transformers' assisted loop, and the mark of our drafters (see `generation/dispatch.py`)."""
        cache, context = model_kwargs["past_key_values"], self.context_of(model_kwargs["past_key_values"], input_ids)
        self.statistics = DraftStatistics()
        self.row_statistics = [self.statistics]
        generator = self.generator_class(
            self, target, generation_config, logits_processor, stopping_criteria, context, self.statistics
        )
        self.keep_context(cache, generator.session.cache)
        return generator

    def open(
        self, target: PreTrainedModel, rows: int, device: torch.device, *settings: Any, **named: Any
    ) -> DraftSession:
        """The drafter's state of one call, which a subclass brings; see `drafting/drafter.py`."""
        raise NotImplementedError(f"{type(self).__name__} lacks open(): see drafting/drafter.py.")

    def context_of(self, cache: Cache | None, input_ids: Tensor | None) -> Any:
        """What this drafter read of the text in a target's cache; None where that is unknown, or of another text than input_ids [1, P].

        It rides on the cache, so that a cache continued over turns, or copied, keeps it. A wrong one costs drafts, not losslessness.
        """
        context = getattr(cache, self._context_key, None)
        if context is None or input_ids is None or context.verified_ids is None:
            return context
        seen = context.verified_ids
        return context if torch.equal(seen, input_ids[:, : seen.shape[1]]) else None

    def keep_context(self, cache: Cache, context: Any) -> None:
        """See `context_of`."""
        setattr(cache, self._context_key, context)

    def configure(self, **settings: Any) -> "DrafterModel":
        """Say how calls with this drafter decode: fields of `EngineSettings`, kept until the next `configure`.

            draft.configure(budget=24)
            draft.configure(loop="transformers")

        Returns:
            the drafter.
        """
        self.settings = EngineSettings(**settings)
        return self

    def decode_assisted(
        self,
        model: PreTrainedModel,
        input_ids: Tensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        **kwargs: Any,
    ) -> Tensor | GenerateDecoderOnlyOutput:
        """What `generate(assistant_model=draft)` runs (`generation/dispatch.py`)."""
        return decode(
            model, self, input_ids, logits_processor, stopping_criteria, generation_config, self.settings, **kwargs
        )

    @_takes_engine_settings
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
        """The same as a `custom_generate` loop, for those who want nothing of transformers wrapped:

            target.generate(**inputs, custom_generate=draft.decode)

        The fields of `EngineSettings` are arguments, too; None is what `configure` said. transformers hands a custom loop neither
        `streamer` nor `tokenizer`: pass `drafter_streamer` instead of the first; `stop_strings` need the second and so
        `assistant_model` or `domino.generate`.
        """
        check_mode(generation_config)
        check_own_loop(generation_config)
        check_target(self, model)
        given = {field.name: kwargs.pop(field.name, None) for field in fields(EngineSettings)}
        settings = replace(self.settings, **{name: value for name, value in given.items() if value is not None})
        check_streamer(len(input_ids), drafter_streamer)
        if drafter_streamer is not None:
            drafter_streamer.put(input_ids.cpu())  # as `generate` does with its own
        return decode(
            model,
            self,
            input_ids,
            logits_processor,
            stopping_criteria,
            generation_config,
            settings,
            streamer=drafter_streamer,
            on_tokens=on_tokens,
            on_round=on_round,
            **kwargs,
        )

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str | os.PathLike | None,
        *args: Any,
        output_loading_info: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Load a drafter in our layout or in the published one.

        Raises:
            `ValueError`: a tensor is absent, unknown or of another shape (all are listed), or the file is damaged.
        """
        kwargs.setdefault("key_mapping", WEIGHT_ALIASES)
        kwargs["ignore_mismatched_sizes"] = True  # so that they are reported below, by name
        try:
            loaded: Any = super().from_pretrained(
                pretrained_model_name_or_path, *args, output_loading_info=True, **kwargs
            )
        except SafetensorError as error:
            raise ValueError(
                f"The weights in {str(pretrained_model_name_or_path)!r} are damaged or truncated ({error}): fetch them again."
            ) from error
        model, info = loaded  # as it is with output_loading_info
        absent, unknown = sorted(info["missing_keys"]), sorted(info["unexpected_keys"])
        misshapen = sorted(key for key, *_ in info["mismatched_keys"])
        if absent or unknown or misshapen:
            raise ValueError(
                f"The weights in {str(pretrained_model_name_or_path)!r} are not those of this {model.config.model_type} drafter. "
                f"Absent: {absent or 'none'}. Unknown: {unknown or 'none'}. Of another shape: {misshapen or 'none'}."
            )
        return (model, info) if output_loading_info else model

    def save_pretrained(self, save_directory: str | os.PathLike, *args: Any, **kwargs: Any) -> None:
        """As transformers, and the nested code files are put where the imports look for them."""
        super().save_pretrained(save_directory, *args, **kwargs)
        top, out = Path(inspect.getfile(type(self).architecture())).resolve(), Path(save_directory)
        for source in map(Path, get_relative_import_files(str(top))):
            relative = source.relative_to(top.parent)
            if len(relative.parts) == 1:
                continue
            (out / relative.name).unlink(missing_ok=True)  # transformers copied it flat
            (out / relative.parent).mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, out / relative)

    @classmethod
    def architecture(cls) -> type:
        """The class whose file is a repository's top: the one right below this base, whatever was derived from it."""
        return next(kind for kind in cls.__mro__ if DrafterModel in kind.__bases__)
