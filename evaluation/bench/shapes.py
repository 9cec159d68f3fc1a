"""Shapes to measure: published targets by name, any other by its config, and the drafter that belongs to them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import AutoConfig, LlamaConfig, PreTrainedConfig, Qwen3Config

from ...configuration_domino import DominoConfig, evenly_spaced_layers
from ...embedded.smollm2 import DRAFTER, NAME
from ...settings import require
from ..tasks import nearest

_QWEN3 = {
    "vocab_size": 151936,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40960,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
}
_SMOLLM2 = {
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "max_position_embeddings": 8192,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e5},
    "tie_word_embeddings": True,
}
TARGETS: dict[str, tuple[type[PreTrainedConfig], dict[str, Any]]] = {
    "qwen3-8b": (Qwen3Config, {**_QWEN3, "hidden_size": 4096, "intermediate_size": 12288}),
    "qwen3-4b": (
        Qwen3Config,
        {**_QWEN3, "hidden_size": 2560, "intermediate_size": 9728, "tie_word_embeddings": True},
    ),
    NAME: (LlamaConfig, _SMOLLM2),
}
# Targets whose drafter the package ships; all others get the published shape.
DRAFTERS = {NAME: DRAFTER}

DRAFT_LAYERS = 5  # of the published shape
# What a drafter takes over from its target, under the same names.
SHARED = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
    "rms_norm_eps",
    "rope_parameters",
)
# The counts need these of a target, each an int.
COUNTED = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")


def target_config(name: str) -> PreTrainedConfig:
    """Config of a decoder: a name of `TARGETS`, a config.json or its folder, or a Hub id `org/name`.

    Raises:
        `ValueError`: an unknown name (the nearest is offered), or a model whose layers are not dense full attention.
    """
    if name in TARGETS:
        kind, fields = TARGETS[name]
        return kind(**fields)
    if not _readable(name):
        raise ValueError(f"{nearest(name, TARGETS, 'target')} Or a config.json, its folder, or a Hub id org/name.")
    config = AutoConfig.from_pretrained(name).get_text_config()
    for field in COUNTED:
        got = getattr(config, field, None)
        require(isinstance(got, int), f"{name}: {field}", got, "must be one int: only dense decoders are counted")
    sliding = set(getattr(config, "layer_types", None) or []) - {"full_attention"}
    window = getattr(config, "sliding_window", None)
    require(
        not sliding and not window,
        f"{name}: layers",
        sorted(sliding) or f"sliding_window {window}",
        "must all be full attention: the cache of others is not counted",
    )
    return config


def drafter_config(name: str | None, target_name: str, target: PreTrainedConfig) -> DominoConfig:
    """Config of the drafter: a folder, config.json or Hub id; None takes the shipped one or else the published shape.

    The published shape: 5 layers with the target's widths, block 16, rank 256, GRU 1024, feature layers evenly spaced.

    Raises:
        `ValueError`: an unknown name, or a drafter of another vocabulary, width or number of target layers.
    """
    source = name or DRAFTERS.get(target_name)
    if source is None:
        shape = {field: getattr(target, field) for field in SHARED if getattr(target, field, None) is not None}
        shape.setdefault("head_dim", None)  # DominoConfig's own default is not derived from the widths
        shape.setdefault("num_key_value_heads", None)
        depth = target.num_hidden_layers
        ids = evenly_spaced_layers(depth, DRAFT_LAYERS)
        require(
            len(set(ids)) == len(ids), "target", depth, "has too few layers for the published drafter: name a drafter"
        )
        shape |= {"num_hidden_layers": DRAFT_LAYERS, "num_target_layers": depth, "target_layer_ids": ids}
        return DominoConfig(**shape, mask_token_id=target.vocab_size - 1)  # any id costs the same
    if not _readable(str(source)):
        raise ValueError(f"Unknown drafter {name!r}: name a folder, a config.json or a Hub id org/name.")
    draft = DominoConfig.from_pretrained(source)
    fits = {"vocab_size": "vocab_size", "hidden_size": "hidden_size", "num_target_layers": "num_hidden_layers"}
    for own, theirs in fits.items():
        wanted = getattr(target, theirs)
        require(getattr(draft, own) == wanted, f"drafter: {own}", getattr(draft, own), f"must be the target's {wanted}")
    return draft


def _readable(name: str) -> bool:
    return Path(name).exists() or (name.count("/") == 1 and not name.startswith((".", "/", "~")))
