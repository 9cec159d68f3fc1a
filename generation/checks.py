"""Refusals before any work: one sentence that says what was got, what is allowed and what to do."""

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor
from transformers import Cache, DynamicCache, GenerationConfig, PreTrainedModel, StaticCache
from transformers.cache_utils import DynamicLayer, StaticSlidingWindowLayer
from transformers.generation import (
    BaseStreamer,
    LogitsProcessorList,
    SynthIDTextWatermarkLogitsProcessor,
    UnbatchedClassifierFreeGuidanceLogitsProcessor,
)

from .. drafting.drafter import Drafter  # fmt: skip  # isort: skip
from . outputs import layer_kinds  # fmt: skip  # isort: skip
from . past import READABLE, extents  # fmt: skip  # isort: skip


def check_target(draft: Drafter, target: PreTrainedModel) -> None:
    """Raise `ValueError` unless `target` is a model this drafter can serve.

    Args:
        draft: the `DominoModel`.
        target: the model whose `generate` was called.
    """
    name, config = type(target).__name__, target.config.get_text_config()
    if target.config.is_encoder_decoder:
        raise ValueError(f"A Domino drafter needs a decoder-only target, got the encoder-decoder {name}.")
    if target._is_stateful:
        raise ValueError(
            f"A Domino drafter needs a target whose cache can be cropped, got {name}, which keeps a recurrent state: "
            "generate without assistant_model."
        )
    for field in ("vocab_size", "hidden_size"):
        ours, theirs = getattr(draft.config, field), getattr(config, field)
        if ours != theirs:
            raise ValueError(
                f"This drafter was trained for a target with {field}={ours}, got {name} with {field}={theirs}: "
                "use the target named in the drafter's card, or a drafter trained for this target."
            )
    if max(draft.config.target_layer_ids) >= config.num_hidden_layers:
        raise ValueError(
            f"This drafter reads the target's layers {draft.config.target_layer_ids}, but {name} has only "
            f"{config.num_hidden_layers} (0 … {config.num_hidden_layers - 1}): use the target named in the drafter's card."
        )
    _check_whole(draft)
    if target.get_output_embeddings() is None:
        raise ValueError(f"A Domino drafter needs a target with a language-model head, got {name}.")
    embedding: Any = target.get_input_embeddings()  # a module, for transformers
    rows = embedding.weight.shape[0]
    if draft.config.mask_token_id >= rows:
        raise ValueError(
            f"The drafter's mask_token_id is {draft.config.mask_token_id}, but the embedding of {name} has {rows} rows."
        )


_whole: WeakSet = WeakSet()  # drafters that were found whole: looking at every weight on each call takes its time


def _check_whole(draft: Drafter) -> None:
    """Raise `ValueError` for a drafter with offloaded weights."""
    if draft in _whole:
        return
    if any(p.is_meta for p in draft.parameters()):
        raise ValueError("The drafter has offloaded weights; it is small: load it whole, without device_map.")
    _whole.add(draft)


# Ways of decoding that are neither greedy nor sampling, and other drafters: an argument that is set to something else than these asks for one.
OTHER_MODES: dict[str, tuple] = {
    "num_beams": (None, 1),
    "num_beam_groups": (None, 1),
    "constraints": (None,),
    "force_words_ids": (None,),
    "penalty_alpha": (None, 0),
    "dola_layers": (None,),
    "prompt_lookup_num_tokens": (None,),
    "assistant_early_exit": (None,),
    "use_mtp": (None, False),
    "is_assistant": (None, False),
}
# Where the keys and values of a call may lie; transformers makes None of "hybrid".
CACHES = (None, "dynamic", "static")


def check_mode(generation_config: GenerationConfig) -> None:
    """Raise `ValueError` for decoding modes that cannot be drafted for."""
    for name, plain in OTHER_MODES.items():
        given = getattr(generation_config, name, None)
        if given not in plain:
            raise ValueError(
                f"assistant_model works with greedy decoding and sampling, got {name}={given}: drop {name}, or assistant_model."
            )
    if generation_config.assistant_ensemble_weight is not None:
        raise ValueError("assistant_ensemble_weight makes verification lossy; a Domino drafter is lossless: drop it.")
    if generation_config.speculation_type not in (None, "dflash"):
        raise ValueError(
            f"A Domino drafter speculates its own way, got speculation_type={generation_config.speculation_type!r}: drop it."
        )
    if generation_config.use_cache is False:
        raise ValueError("Verifying drafts needs the keys and values of the text before, got use_cache=False: drop it.")
    if generation_config.cache_implementation not in CACHES:
        raise ValueError(
            "The keys and values of a call with drafts lie whole on the target's device, got "
            f'cache_implementation={generation_config.cache_implementation!r}: use "dynamic" or "static", or drop assistant_model.'
        )


def check_call(input_ids: Tensor, processors: LogitsProcessorList, model_kwargs: dict) -> None:
    """Raise `ValueError` for what neither loop can do."""
    check_processors(processors)
    if input_ids.shape[1] == 0 or model_kwargs.get("inputs_embeds") is not None:
        raise ValueError("A Domino drafter needs token ids: pass input_ids instead of inputs_embeds.")
    cache = model_kwargs.get("past_key_values")
    if cache is None:
        return
    allowed = READABLE if cache.get_seq_length() > 0 else (*READABLE, StaticSlidingWindowLayer)
    kinds = {type(layer) for layer in cache.layers} | {getattr(cache, "layer_class_to_replicate", None) or DynamicLayer}
    odd = sorted(kind.__name__ for kind in kinds if kind not in allowed)
    own = type(cache).update not in (Cache.update, DynamicCache.update, StaticCache.update)
    if odd or own or getattr(cache, "offloading", False):
        raise ValueError(
            f"A call with drafts continues a DynamicCache or a StaticCache of full attention, got {type(cache).__name__}"
            f"{' with ' + ', '.join(odd) if odd else ' with an update of its own' if own else ' with offloading'}: pass one of those, or drop assistant_model."
        )


def check_batch(input_ids: Tensor) -> None:
    """Raise `ValueError` for more than one sequence: transformers' assisted loop takes one."""
    if input_ids.shape[0] > 1:
        raise ValueError(
            f"transformers' assisted loop takes one sequence at a time, got a batch of {input_ids.shape[0]}: "
            "call it once per prompt, or drop assistant_model."
        )


def check_continued(input_ids: Tensor, kwargs: dict) -> None:
    """Raise `ValueError` when transformers' assisted loop is to continue a cache with the new tokens alone: it needs all of them."""
    cached, given, covered = extents(input_ids, kwargs["generation_config"], kwargs)
    if cached == 0 or (cached < given and covered == given):
        return
    raise ValueError(
        f"The cache holds {cached} tokens but only {given} were passed: transformers' assisted loop continues a cache with "
        "the whole sequence, the cached tokens included."
    )


def check_processors(logits_processor: LogitsProcessorList) -> None:
    """Raise `ValueError` for processors that remember the tokens they were asked about: rejected drafts would stay in them."""
    for processor in logits_processor:
        if isinstance(processor, (UnbatchedClassifierFreeGuidanceLogitsProcessor, SynthIDTextWatermarkLogitsProcessor)):
            raise ValueError(
                f"{type(processor).__name__} keeps a state that rejected drafts would spoil: drop guidance_scale or the "
                "SynthID watermark, or assistant_model."
            )


def check_streamer(rows: int, streamer: BaseStreamer | None) -> None:
    """Raise `ValueError` for a streamer of several texts."""
    if streamer is not None and rows > 1:
        raise ValueError(f"A streamer follows one text, got {rows}: pass on_tokens=function(row, tokens) instead.")


def check_padding(mask: Tensor) -> None:
    """Raise `ValueError` for a mask [R, P] of prompts that are padded on the right."""
    if not bool(mask[:, -1].all()):
        raise ValueError(
            "Prompts must be padded on the left, got a row whose last token is padding: set padding_side='left'."
        )


# What `generate` adds by itself, or what changes nothing of the text.
_HARMLESS = {
    "attention_mask",
    "past_key_values",
    "position_ids",
    "use_cache",
    "cache_position",
    "logits_to_keep",
    "output_attentions",
    "output_hidden_states",
    "synced_gpus",
    "inputs_tensor",
    "tokenizer",
    "assistant_tokenizer",
}


def obstacle(target: PreTrainedModel, generation_config: GenerationConfig, model_kwargs: dict) -> str | None:
    """Why the engine cannot decode a call that transformers' assisted loop may be able to; None: it can."""
    others = sorted(name for name, value in model_kwargs.items() if value is not None and name not in _HARMLESS)
    if others:
        return f"The engine reads token ids alone, got {', '.join(others)}"
    if model_kwargs.get("synced_gpus"):
        return "The engine does not keep several processes in step, got synced_gpus=True"
    mask, positions = model_kwargs.get("attention_mask"), model_kwargs.get("position_ids")
    if positions is not None and not _usual(positions, mask):
        return "The engine counts positions itself, got other position_ids"
    # transformers counts a window in columns, gaps included, and the engine in tokens
    if mask is not None and _has_gaps(mask) and "sliding_attention" in layer_kinds(target.config.get_text_config()):
        return "The engine's sliding windows know no gaps inside a text, got an attention_mask with some"
    return _odd_attention(target)


def _usual(positions: Tensor, mask: Tensor | None) -> bool:
    """Whether position_ids [R or 1, P] are what `generate` would make of the mask."""
    if mask is None:
        return torch.equal(positions, torch.arange(positions.shape[1], device=positions.device).expand_as(positions))
    real = mask.bool()
    if positions.shape[-1] != mask.shape[1]:
        return False
    return torch.equal(positions.expand_as(mask)[real], (mask.cumsum(-1) - 1)[real])


def _has_gaps(mask: Tensor) -> bool:
    """Whether a row of the mask [R, P] hides something behind its first token, other than padding at its end."""
    real = mask.bool()
    return bool((~real & real.cummax(dim=1).values & real.flip(1).cummax(dim=1).values.flip(1)).any())


def _odd_attention(target: PreTrainedModel) -> str | None:
    config, name = target.config.get_text_config(), type(target).__name__
    if config._attn_implementation not in ("sdpa", "eager"):
        return (
            "The engine needs a target that takes ready masks (sdpa, eager), got "
            f"attn_implementation={config._attn_implementation!r}"
        )
    kinds = set(getattr(config, "layer_types", None) or []) - {"full_attention", "sliding_attention"}
    if kinds:
        return f"The engine knows full and sliding attention, got {name} with {', '.join(sorted(kinds))}"
    taken = _arguments(type(target).forward)
    # GPT-Neo cuts its own mask by the number of keys; alibi counts them
    odd = getattr(config, "alibi", False) or config.model_type == "gpt_neo"
    if odd or not {"position_ids", "past_key_values"} <= taken:
        return f"The engine needs a target that takes position_ids, past_key_values and ready masks, got {name}"
    return None


@cache
def _arguments(forward: Callable) -> frozenset[str]:
    """The names it takes; asked of a class, whose functions stay."""
    return frozenset(inspect.signature(forward).parameters)


def check_own_loop(generation_config: GenerationConfig) -> None:
    """Raise `ValueError` when a custom loop is asked for transformers' own way to speculate, which only its own loop has."""
    if generation_config.speculation_type is not None:
        raise ValueError(
            "custom_generate=draft.decode drafts with the head, got "
            f"speculation_type={generation_config.speculation_type!r}: drop it, or pass assistant_model=draft instead."
        )


def check_head_off(draft: Drafter) -> None:
    """Raise `ValueError` when transformers' dflash would misread the slots of this drafter."""
    if draft.config.shift_label:
        raise ValueError(
            'speculation_type="dflash" reads the fill-in layout (shift_label false); this drafter has shift_label true: '
            "drop speculation_type."
        )
