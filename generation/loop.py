"""Which loop decodes a call: the engine, or transformers' assisted loop where the engine cannot."""

from typing import Any

from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel
from transformers.generation import BaseStreamer, GenerateDecoderOnlyOutput, LogitsProcessorList, StoppingCriteriaList
from transformers.utils import logging

from . assisted_loop import assisted_loop  # fmt: skip  # isort: skip
from . checks import check_call, obstacle  # fmt: skip  # isort: skip
from . engine import Engine  # fmt: skip  # isort: skip
from . loop_drafter import LoopDrafter  # fmt: skip  # isort: skip
from . request import OnRound, OnTokens  # fmt: skip  # isort: skip
from . settings import EngineSettings  # fmt: skip  # isort: skip

logger = logging.get_logger(__name__)


def decode(
    target: PreTrainedModel,
    draft: LoopDrafter,
    input_ids: Tensor,
    logits_processor: LogitsProcessorList,
    stopping_criteria: StoppingCriteriaList,
    generation_config: GenerationConfig,
    settings: EngineSettings,
    streamer: BaseStreamer | None = None,
    on_tokens: OnTokens | None = None,
    on_round: OnRound | None = None,
    **model_kwargs: Any,
) -> Tensor | GenerateDecoderOnlyOutput:
    """Decode by the loop that the settings and the call ask for.

    Args:
        target: the model that verifies. draft: the `DrafterModel`. input_ids: [R, P]. settings: see `EngineSettings`.
        streamer, on_tokens, on_round: see `Engine.decode`. model_kwargs: what `generate` hands to a loop besides.

    Raises:
        `ValueError`: what no loop can do, or not the one that was asked for.
    """
    check_call(input_ids, logits_processor, model_kwargs)
    why = None if settings.loop == "transformers" else obstacle(target, generation_config, model_kwargs)
    if why is not None:
        _leave_the_engine(why, settings, len(input_ids))
    elif settings.loop != "transformers":
        return Engine(target, draft, settings).decode(
            input_ids,
            logits_processor,
            stopping_criteria,
            generation_config,
            streamer=streamer,
            on_tokens=on_tokens,
            on_round=on_round,
            **model_kwargs,
        )
    if on_tokens is not None or on_round is not None:
        raise ValueError(
            "on_tokens and on_round are told by the engine alone; this call goes through transformers' loop."
        )
    return assisted_loop(
        target,
        draft,
        input_ids,
        logits_processor=logits_processor,
        stopping_criteria=stopping_criteria,
        generation_config=generation_config,
        streamer=streamer,
        **model_kwargs,
    )


def _leave_the_engine(why: str, settings: EngineSettings, rows: int) -> None:
    """The engine cannot decode a call: a log line says why, or a `ValueError` where transformers' loop may or can not take it."""
    if settings.loop == "engine":
        raise ValueError(f'{why}: do without, or set loop="auto".')
    if rows > 1:
        raise ValueError(f"{why}: pass one prompt at a time, which goes through transformers' assisted loop.")
    logger.warning_once(f"{why}: this call goes through transformers' assisted loop, which is slower.")
