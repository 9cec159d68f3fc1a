"""Any decoder-only target: its embedding and LM head, a mask token, and a drafter shaped after it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from ..configuration_domino import DominoConfig, evenly_spaced_layers
from ..embedded.smollm2 import locate
from ..modeling_domino import DominoModel
from .config import DrafterSettings
from .warm_start import warm_start

# Fields a drafter shares with its target, under the target's names; a family that lacks one leaves DominoConfig's default.
SHARED = ("vocab_size", "hidden_size", "rms_norm_eps", "rope_parameters", "max_position_embeddings")
SPECIAL = ("bos_token_id", "eos_token_id", "pad_token_id")
SHAPE = ("intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim")
OWN = ("num_hidden_layers", "block_size", "shift_label", "pure_draft_prefix_len", "gru_hidden_dim", "emb_dim")


def load_target(name: str, dtype: str):
    """The frozen target and its tokenizer; "smollm2" is the embedded one.

    Raises:
        `ValueError`: an encoder-decoder or recurrent model, layers that cannot be found, or a tokenizer with more ids than
            the model has embeddings.
    """
    source, _ = locate(name)
    config = AutoConfig.from_pretrained(source)
    if config.is_encoder_decoder:
        raise ValueError(
            f"{name} is an encoder-decoder model ({config.model_type}); a drafter needs a decoder-only one."
        )
    target = AutoModelForCausalLM.from_pretrained(source, dtype=getattr(torch, dtype)).eval().requires_grad_(False)
    if target._is_stateful:
        raise ValueError(
            f"{name} ({config.model_type}) keeps a recurrent state that rejected drafts would spoil: a drafter needs a "
            "target whose cache can be cropped."
        )
    if not hasattr(target.get_decoder(), "layers"):
        raise ValueError(
            f"{name} ({config.model_type}) does not call its layers `layers`, so features cannot be read from it: take a "
            "target of another family."
        )
    tokenizer = AutoTokenizer.from_pretrained(source)
    rows = target.get_input_embeddings().weight.shape[0]
    if _size(tokenizer) > rows:
        raise ValueError(
            f"The tokenizer of {name} has {_size(tokenizer)} ids but the model has {rows} embeddings: mismatched."
        )
    return target, tokenizer


def _size(tokenizer) -> int:
    """One more than the highest id; `len(tokenizer)` counts tokens and is too small where ids are left out."""
    return max(tokenizer.get_vocab().values()) + 1


@dataclass
class TargetHead:
    """The target's embedding and LM head as drafting uses them: the modules themselves, so that families which scale their
    embeddings (Gemma) are right; logit caps and scales behind the LM head are not part of drafting, so not of training."""

    embedding: nn.Module
    lm_head: nn.Module

    @classmethod
    def of(cls, target) -> TargetHead:
        return cls(target.get_input_embeddings(), target.get_output_embeddings())

    def to(self, device) -> None:
        self.embedding.to(device)
        self.lm_head.to(device)

    @torch.no_grad()
    def embed(self, ids: Tensor) -> Tensor:
        """[..., D] of ids [...]."""
        return self.embedding(ids)

    def logits(self, hidden: Tensor, ids: Tensor | None = None) -> Tensor:
        """[..., C] of hidden [..., D], for the vocabulary ids [C] or all of it; the head gets no gradient."""
        weight, bias = self.lm_head.weight.detach(), getattr(self.lm_head, "bias", None)
        if torch.is_autocast_enabled(hidden.device.type):  # now, or the whole head would be widened first
            hidden = hidden.to(torch.get_autocast_dtype(hidden.device.type))
        if ids is not None:
            weight, bias = weight[ids], bias[ids] if bias is not None else None
        return F.linear(hidden, weight.to(hidden.dtype), None if bias is None else bias.detach().to(hidden.dtype))


def choose_mask_token(tokenizer, target, requested: int | str) -> int:
    """A reserved id for the undrafted slots, one that answers never use.

    "auto" takes the tokenizer's mask token, else the first embedding row beyond the tokenizer's ids (a padded vocabulary),
    else the last added special token that neither marks ends nor stands in the chat template.

    Raises:
        `ValueError`: an id outside the embedding, an id with another use, or none is free.
    """
    rows = min(target.get_input_embeddings().weight.shape[0], target.config.get_text_config().vocab_size)
    used = _used_ids(tokenizer, target)
    if requested != "auto":
        return _checked(int(requested), tokenizer, rows, used)
    if tokenizer.mask_token_id is not None and tokenizer.mask_token_id < rows:
        return tokenizer.mask_token_id
    if _size(tokenizer) < rows:
        return _size(tokenizer)
    free = [i for i, token in tokenizer.added_tokens_decoder.items() if token.special and i not in used]
    if free:
        return max(free)
    raise ValueError(
        f"The tokenizer has no reserved token left for masks ({_size(tokenizer)} ids, {rows} embeddings): "
        "set drafter.mask_token_id to a special token that answers never use."
    )


def _used_ids(tokenizer, target) -> set[int]:
    """Ids with a use of their own: bos, eos, pad, unk, and what the chat template writes."""
    used = {tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.unk_token_id}
    eos = target.generation_config.eos_token_id
    used |= set(eos) if isinstance(eos, list) else {eos}
    if tokenizer.chat_template is not None:
        chat = [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "b"},
            {"role": "user", "content": "c"},
        ]
        used |= set(tokenizer.apply_chat_template(chat, add_generation_prompt=True)["input_ids"])
    return {i for i in used if i is not None}


def _checked(requested: int, tokenizer, rows: int, used: set[int]) -> int:
    if not 0 <= requested < rows:
        raise ValueError(
            f"drafter.mask_token_id must be inside the target's vocabulary, 0 … {rows - 1}, got {requested}."
        )
    if requested in used:
        raise ValueError(
            f"drafter.mask_token_id {requested} is {tokenizer.convert_ids_to_tokens(requested)!r}, which marks ends or stands "
            "in the chat template: choose a reserved token, or 'auto'."
        )
    added = tokenizer.added_tokens_decoder
    if requested < _size(tokenizer) and not (requested in added and added[requested].special):
        raise ValueError(
            f"drafter.mask_token_id {requested} is the ordinary token {tokenizer.convert_ids_to_tokens(requested)!r}: "
            "choose a special or reserved one, or 'auto'."
        )
    return requested


def check_tokens(counts: Counter, target) -> None:
    """Raises `ValueError`: the data has ids the target does not know, so another tokenizer made it."""
    vocab_size = target.config.get_text_config().vocab_size
    if counts and max(counts) >= vocab_size:
        raise ValueError(
            f"The data holds token id {max(counts)} but the target's vocabulary has {vocab_size}: it was distilled with "
            "another tokenizer. Distil with this target."
        )


def check_soft_labels(target) -> None:
    """Raises `ValueError`: the target scales or caps its logits behind the LM head, so their softmax is not its distribution."""
    text = target.config.get_text_config()
    for name in ("logit_scale", "logits_scaling", "final_logit_softcapping", "lm_head_multiplier"):
        if getattr(text, name, None) not in (None, 1, 1.0):
            raise ValueError(
                f"objective.labels: soft labels need the plain logits of the LM head, but {text.model_type} has {name} = "
                f"{getattr(text, name)}: use objective.labels: hard."
            )


def make_drafter(target, settings: DrafterSettings, mask_token_id: int) -> DominoModel:
    """A new drafter shaped after its target, or an existing one to continue.

    A new one has W2 = 0: its untrained head changes nothing.

    Raises:
        `ValueError`: `start: target` with other shapes than the target's, or a drafter to continue that was made otherwise.
    """
    config = DominoConfig(**_shape(target.config.get_text_config(), settings), mask_token_id=mask_token_id)
    if settings.start not in ("target", "random"):
        return _continued(settings.start, config)
    draft = DominoModel(config)
    nn.init.zeros_(draft.embed_proj[2].weight)
    if settings.start == "target":
        warm_start(draft, target)
    return draft


def _shape(text, settings: DrafterSettings) -> dict:
    """Fields of the drafter's config, from the target's text config and the settings."""
    shape = {name: getattr(text, name) for name in (*SHARED, *SPECIAL) if getattr(text, name, None) is not None}
    # Families with sliding layers keep one set of rotary parameters per kind; draft layers are full attention.
    rope = shape.get("rope_parameters", {})
    shape["rope_parameters"] = rope.get("full_attention", rope) or None
    for name in SHAPE:
        own = getattr(settings, name)
        shape[name] = own if own is not None else getattr(text, name, None)
    if not isinstance(shape["intermediate_size"], int):
        raise ValueError(
            f"A {text.model_type} target has intermediate_size {shape['intermediate_size']}, not one number: "
            "set drafter.intermediate_size."
        )
    layers, count = text.num_hidden_layers, settings.num_feature_layers
    ids = settings.target_layer_ids or evenly_spaced_layers(layers, count)
    if settings.target_layer_ids is None and len(set(ids)) < count:
        raise ValueError(
            f"drafter.num_feature_layers is {count}, too many for the target's {layers} layers: lower it, or name "
            "drafter.target_layer_ids."
        )
    shape |= {name: getattr(settings, name) for name in OWN}
    return {**shape, "num_target_layers": layers, "target_layer_ids": ids}


def _continued(start: str, config: DominoConfig) -> DominoModel:
    if not Path(start).exists() and start.count("/") != 1:
        raise ValueError(f"drafter.start must be 'target', 'random', a folder or a Hub id, got {start!r}.")
    draft = DominoModel.from_pretrained(start, dtype=torch.float32)
    names = ("vocab_size", "hidden_size", *SHAPE, *OWN, "target_layer_ids", "mask_token_id")
    other = {n: (getattr(draft.config, n), getattr(config, n)) for n in names}
    wrong = [f"{n} is {a!r} there, {b!r} here" for n, (a, b) in other.items() if a != b]
    if wrong:
        raise ValueError(f"The drafter in {start} does not fit the config: {'; '.join(wrong)}.")
    return draft
