"""Start a drafter from its target's last layers instead of from noise.

Where the shapes agree, draft layer i takes the weights of target layer L - n + i, and the context projection passes on the
last feature alone: with that feature next to these layers, a draft layer begins by attending to the context almost as the
target's own layer does. The input norm's weight is folded into q, k and v, because the context enters k and v without
passing that norm.
"""

from __future__ import annotations

import torch

NORMS = {"input_layernorm", "post_attention_layernorm"}
PROJECTIONS = {"self_attn": ("q_proj", "k_proj", "v_proj", "o_proj"), "mlp": ("gate_proj", "up_proj", "down_proj")}


@torch.no_grad()
def warm_start(draft, target) -> None:
    """Copy what fits from `target` into `draft`, in place. Leaves the head as it is.

    Raises:
        `ValueError`: the layers of target and drafter differ in shape, or the target's are built otherwise.
    """
    decoder = target.get_decoder()
    _check(decoder, len(draft.layers))
    draft.norm.weight.copy_(decoder.norm.weight)
    width = draft.config.hidden_size
    draft.fc.weight.zero_()
    draft.fc.weight[:, -width:] = torch.eye(width)
    for ours, theirs in zip(draft.layers, decoder.layers[-len(draft.layers) :], strict=True):
        for name in PROJECTIONS["self_attn"]:
            source = getattr(theirs.self_attn, name).weight.float()
            if name != "o_proj":
                source = source * theirs.input_layernorm.weight.float()
            _copy(getattr(ours.self_attn, name).weight, source, name)
        for name in ("q_norm", "k_norm"):  # Qwen3 has them, Llama starts from ones
            if hasattr(theirs.self_attn, name):
                _copy(getattr(ours.self_attn, name).weight, getattr(theirs.self_attn, name).weight, name)
        for name in PROJECTIONS["mlp"]:
            _copy(getattr(ours.mlp, name).weight, getattr(theirs.mlp, name).weight, name)
        ours.post_attention_layernorm.weight.copy_(theirs.post_attention_layernorm.weight)


def _check(decoder, wanted: int) -> None:
    layers = getattr(decoder, "layers", [])
    if not layers or not _plain(getattr(decoder, "norm", None)) or not all(map(_alike, layers[-wanted:])):
        raise ValueError(
            f"The layers of {type(decoder).__name__} are not built like a draft layer (two plain RMS norms, separate q_proj, "
            "k_proj, v_proj and o_proj, a gated MLP), so none can start from them: set drafter.start: random."
        )
    if wanted > len(layers):
        raise ValueError(
            f"drafter.num_hidden_layers is {wanted} but the target has {len(layers)} layers to start from: "
            "lower it, or set drafter.start: random."
        )


def _alike(layer) -> bool:
    """Whether a layer of the target is built like a draft layer; Gemma 2, for one, has norms behind its parts, too."""
    parts = dict(layer.named_children())
    if {name for name in parts if "norm" in name} != NORMS or not PROJECTIONS.keys() <= parts.keys():
        return False
    separate = all(hasattr(parts[part], name) for part, names in PROJECTIONS.items() for name in names)
    return separate and all(_plain(parts[name]) for name in NORMS)


def _plain(norm) -> bool:
    """Whether a norm multiplies by its weight: a LayerNorm centres first, Gemma's multiplies by 1 + weight."""
    weight = getattr(norm, "weight", None)
    return weight is not None and torch.allclose(norm(torch.ones_like(weight)), weight, rtol=1e-2)


def _copy(parameter, source, name: str) -> None:
    if parameter.shape != source.shape:
        raise ValueError(
            f"warm_start: {name} is {tuple(parameter.shape)} in the drafter but {tuple(source.shape)} in the target; "
            "give the drafter the target's head counts, head_dim and intermediate_size, or set drafter.start: random."
        )
    parameter.copy_(source)
