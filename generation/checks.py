"""Refusals before any work: one sentence that says what was got, what is allowed and what to do."""

import inspect
from collections.abc import Callable
from functools import cache
from weakref import WeakSet

import torch
from torch import Tensor
from transformers.generation import (
    SynthIDTextWatermarkLogitsProcessor,
    UnbatchedClassifierFreeGuidanceLogitsProcessor,
)


def check_target(draft, target) -> None:
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
    rows = target.get_input_embeddings().weight.shape[0]
    if draft.config.mask_token_id >= rows:
        raise ValueError(
            f"The drafter's mask_token_id is {draft.config.mask_token_id}, but the embedding of {name} has {rows} rows."
        )


_whole: WeakSet = WeakSet()  # drafters that were found whole: looking at every weight on each call takes its time


def _check_whole(draft) -> None:
    """Raise `ValueError` for a drafter with offloaded weights."""
    if draft in _whole:
        return
    if any(p.is_meta for p in draft.parameters()):
        raise ValueError("The drafter has offloaded weights; it is small: load it whole, without device_map.")
    _whole.add(draft)


def check_mode(generation_config) -> None:
    """Raise `ValueError` for decoding modes that cannot be drafted for."""
    if (generation_config.num_beams or 1) > 1:
        raise ValueError(
            f"assistant_model works with greedy decoding and sampling, got num_beams={generation_config.num_beams}: "
            "set num_beams=1 or drop assistant_model."
        )
    if generation_config.assistant_ensemble_weight is not None:
        raise ValueError("assistant_ensemble_weight makes verification lossy; a Domino drafter is lossless: drop it.")


def check_batch(input_ids: Tensor) -> None:
    """Raise `ValueError` for more than one sequence, transformers' assisted loop is batch 1, or for none (inputs_embeds)."""
    if input_ids.shape[1] == 0:
        raise ValueError("A Domino drafter needs token ids: pass input_ids instead of inputs_embeds.")
    if input_ids.shape[0] > 1:
        raise ValueError(
            f"generate(assistant_model=...) takes one sequence at a time, got a batch of {input_ids.shape[0]}: "
            "call it once per prompt, or drop assistant_model."
        )


def check_continued(input_ids: Tensor, kwargs: dict) -> None:
    """Raise `ValueError` when a cache is continued with the new tokens alone: the assisted loop needs all of them."""
    cache, mask = kwargs.get("past_key_values"), kwargs.get("attention_mask")
    cached, given = (cache.get_seq_length() if cache is not None else 0), input_ids.shape[1]
    # transformers drops a mask of ones and keeps its length
    masked = mask.shape[1] if mask is not None else getattr(kwargs["generation_config"], "_mask_length", given)
    if cached == 0 or (cached < given and masked == given):
        return
    raise ValueError(
        f"The cache holds {cached} tokens but only {given} were passed: continue a cache with "
        "the whole sequence, the cached tokens included."
    )


def check_processors(logits_processor) -> None:
    """Raise `ValueError` for processors that remember the tokens they were asked about: rejected drafts would stay in them."""
    for processor in logits_processor:
        if isinstance(processor, (UnbatchedClassifierFreeGuidanceLogitsProcessor, SynthIDTextWatermarkLogitsProcessor)):
            raise ValueError(
                f"{type(processor).__name__} keeps a state that rejected drafts would spoil: drop guidance_scale or the "
                "SynthID watermark, or assistant_model."
            )


def check_engine(target, input_ids: Tensor, processors, generation_config, streamer, model_kwargs: dict) -> None:
    """Raise `ValueError` for what the engine cannot do (`engine.py`)."""
    check_mode(generation_config)
    check_processors(processors)
    if input_ids.shape[1] == 0:
        raise ValueError("A Domino drafter needs token ids: pass input_ids instead of inputs_embeds.")
    cache = model_kwargs.get("past_key_values")
    if cache is not None and cache.get_seq_length() > 0:
        raise ValueError("The engine starts from an empty cache: pass the whole text, and no past_key_values.")
    _check_inputs(input_ids, model_kwargs)
    rows = input_ids.shape[0]
    if streamer is not None and rows > 1:
        raise ValueError(f"A streamer follows one text, got {rows}: pass on_tokens=function(row, tokens) instead.")
    for name in ("output_scores", "output_logits", "output_attentions", "output_hidden_states"):
        if getattr(generation_config, name):
            raise ValueError(
                f"The engine keeps no {name.removeprefix('output_')}: drop {name}, or pass one prompt at a time."
            )
    _check_attention(target)


# What `generate` adds by itself, or what changes nothing of the text.
_HARMLESS = {
    "attention_mask",
    "past_key_values",
    "position_ids",
    "use_cache",
    "cache_position",
    "logits_to_keep",
    "synced_gpus",
    "inputs_tensor",
}


def _check_inputs(input_ids: Tensor, model_kwargs: dict) -> None:
    """Raise `ValueError` for inputs the engine would not hand on, and for masks it cannot read."""
    others = sorted(name for name, value in model_kwargs.items() if value is not None and name not in _HARMLESS)
    if others:
        raise ValueError(f"The engine reads token ids alone, got {', '.join(others)}: pass one prompt at a time.")
    mask = model_kwargs.get("attention_mask")
    if mask is None:
        return
    if not bool(mask[:, -1].all()):
        raise ValueError(
            "Prompts must be padded on the left, got a row whose last token is padding: set padding_side='left'."
        )
    positions = model_kwargs.get("position_ids")
    real = mask.bool()
    if positions is not None and not torch.equal(positions.expand_as(mask)[real], (mask.cumsum(-1) - 1)[real]):
        raise ValueError(
            "The engine counts positions itself, got other position_ids: drop them, or pass one prompt at a time."
        )


def _check_attention(target) -> None:
    config, name = target.config.get_text_config(), type(target).__name__
    if config._attn_implementation not in ("sdpa", "eager"):
        raise ValueError(
            f"The engine needs a target that takes ready masks, got attn_implementation={config._attn_implementation!r}: "
            'load the target with attn_implementation="sdpa".'
        )
    kinds = set(getattr(config, "layer_types", None) or []) - {"full_attention", "sliding_attention"}
    if kinds:
        raise ValueError(f"The engine knows full and sliding attention, got {name} with {', '.join(sorted(kinds))}.")
    taken = _arguments(type(target).forward)
    # GPT-Neo cuts its own mask by the number of keys; alibi counts them
    odd = getattr(config, "alibi", False) or config.model_type == "gpt_neo"
    if odd or not {"position_ids", "past_key_values"} <= taken:
        raise ValueError(
            f"The engine needs a target that takes position_ids, past_key_values and ready masks, got {name}: "
            "pass one prompt at a time."
        )


@cache
def _arguments(forward: Callable) -> frozenset[str]:
    """The names it takes; asked of a class, whose functions stay."""
    return frozenset(inspect.signature(forward).parameters)


def check_head_off(draft) -> None:
    """Raise `ValueError` when transformers' dflash would misread the slots of this drafter."""
    if draft.config.shift_label:
        raise ValueError(
            'speculation_type="dflash" reads the fill-in layout (shift_label false); this drafter has shift_label true: '
            "drop speculation_type."
        )
