"""The engine: our own decode loop, for any number of rows.

It keeps the semantics of `generate` (processors, stopping, streaming, output) and has none of the limits of transformers' assisted
loop: rows may be many and ragged, drafts may end the text and branch, and their number follows what pays.
"""

import copy
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.generation import (
    BaseStreamer,
    GenerateDecoderOnlyOutput,
    LogitsProcessorList,
    StoppingCriteriaList,
    StopStringCriteria,
)

from . call import Call  # fmt: skip  # isort: skip
from . choosing import draws_nodes  # fmt: skip  # isort: skip
from . checks import check_padding, check_streamer  # fmt: skip  # isort: skip
from . learnt import borrowed  # fmt: skip  # isort: skip
from . outputs import Outputs  # fmt: skip  # isort: skip
from . loop_drafter import LoopDrafter  # fmt: skip  # isort: skip
from . past import Past  # fmt: skip  # isort: skip
from . processing import Processing  # fmt: skip  # isort: skip
from . request import OnRound, OnTokens, Request  # fmt: skip  # isort: skip
from . sequences import Rows  # fmt: skip  # isort: skip
from . settings import EngineSettings  # fmt: skip  # isort: skip
from . statistics import DraftStatistics  # fmt: skip  # isort: skip


class Engine:
    """A target and its drafter.

    Args:
        target: the model that verifies. draft: a `DrafterModel`. settings: see `EngineSettings`.
    """

    def __init__(self, target: PreTrainedModel, draft: LoopDrafter, settings: EngineSettings) -> None:
        self.target, self.draft, self.settings = target, draft, settings

    @torch.no_grad()
    def decode(
        self,
        input_ids: Tensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        streamer: BaseStreamer | None = None,
        on_tokens: OnTokens | None = None,
        on_round: OnRound | None = None,
        **model_kwargs: Any,
    ) -> Tensor | GenerateDecoderOnlyOutput:
        """The loop, as `generate` calls it.

        Args:
            input_ids: [R, P], padded on the left where `attention_mask` is 0. streamer: for one row; it has been told the prompt.
            on_tokens: told (row, new tokens) after every round. on_round: told (row, `Round`) before that.
            model_kwargs: `attention_mask` and `past_key_values`, see `Past`; the rest is `generate`'s own.

        Returns:
            ids [R, longest], padded on the right, or a `GenerateDecoderOnlyOutput`. The counts of each row are in
            `draft.row_statistics`, all together in `draft.statistics`.

        Raises:
            `ValueError`: rows or a cache the engine cannot serve.
        """
        past = Past.of(input_ids, generation_config, model_kwargs)
        check_streamer(len(input_ids), streamer)
        check_padding(past.own_mask)
        rows = Rows(
            input_ids, past.own_mask, generation_config.max_length, stopping_criteria, _telling(streamer, on_tokens)
        )
        outputs = Outputs(generation_config, past, self.target.config.get_text_config())
        processing = Processing(logits_processor, len(input_ids))
        request = Request(
            self.target, self.draft, self.settings, generation_config, rows, processing, past, outputs, on_round
        )
        with borrowed(self.draft, self.target, *kind(self.settings, generation_config)) as known:
            Call(request, known).run()
        if streamer is not None:
            streamer.end()
        self.draft.row_statistics = rows.statistics
        self.draft.statistics = DraftStatistics.together(rows.statistics)
        pad = generation_config._pad_token_tensor
        return outputs.result(rows.output(None if pad is None else int(pad)))


def _telling(streamer: BaseStreamer | None, on_tokens: OnTokens | None) -> OnTokens | None:
    if streamer is None:
        return on_tokens

    def tell(row: int, tokens: list[int]) -> None:
        streamer.put(torch.tensor(tokens))
        if on_tokens is not None:
            on_tokens(row, tokens)

    return tell


def kind(settings: EngineSettings, generation_config: GenerationConfig) -> tuple:
    """What a chain brings says nothing of what a tree would: calls that are alike in this learn from each other."""
    how = settings.shape, settings.lookup, settings.compile, settings.pack, settings.invariant
    return bool(generation_config.do_sample), draws_nodes(settings, generation_config), *how


def generate(
    target: PreTrainedModel,
    draft: LoopDrafter,
    inputs: Tensor | None = None,
    *,
    streamer: BaseStreamer | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    stop_strings: str | list[str] | None = None,
    **kwargs: Any,
) -> Any:  # what transformers says of `generate` is wider: encoders, beams
    """`target.generate(assistant_model=draft)` with settings of this one call.

    Args:
        target: the model. draft: its `DominoModel`. inputs, kwargs: of `generate`, and the fields of `EngineSettings`, and
            `on_tokens`, told (row, new tokens) after every round.

    Returns:
        as `generate`.
    """
    config = kwargs.get("generation_config")
    if stop_strings is None and config is not None and config.stop_strings is not None:
        stop_strings, kwargs["generation_config"] = config.stop_strings, copy.deepcopy(config)
        kwargs["generation_config"].stop_strings = None
    if stop_strings is not None:  # transformers gives a custom loop no tokenizer, so the criterion is built here
        if tokenizer is None:
            raise ValueError("stop_strings are looked for by their tokens, got no tokenizer: pass tokenizer=, too.")
        criteria = StoppingCriteriaList(kwargs.pop("stopping_criteria", None) or [])
        criteria.append(StopStringCriteria(stop_strings=stop_strings, tokenizer=tokenizer))
        kwargs["stopping_criteria"] = criteria
    model: Any = target  # transformers' type of a model that generates is its own
    return model.generate(inputs, custom_generate=draft.decode, drafter_streamer=streamer, **kwargs)
