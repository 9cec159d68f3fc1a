"""Start a drafter from its target's last layers instead of from noise.

Where the shapes agree, draft layer i takes the weights of target layer L - n + i, and the context projection passes on the
last feature alone: with that feature next to these layers, a draft layer begins by attending to the context almost as the
target's own layer does. The input norm's weight is folded into q, k and v, because the context enters k and v without
passing that norm.
"""

from __future__ import annotations

import torch


@torch.no_grad()
def warm_start(draft, target) -> None:
    """Copy what fits from `target` into `draft`, in place. Leaves q_norm, k_norm and the head as they are.

    Raises:
        `ValueError`: the layers of target and drafter differ in shape, or the target's are built otherwise.
    """
    decoder = target.get_decoder()
    if not all(hasattr(decoder.layers[-1], part) for part in ("self_attn", "mlp", "input_layernorm")) or not hasattr(
        getattr(decoder.layers[-1], "self_attn", None), "q_proj"
    ):
        raise ValueError(
            f"{type(decoder).__name__} has no separate q_proj, k_proj and v_proj to start a drafter from: set "
            "drafter.start: random."
        )
    draft.norm.weight.copy_(decoder.norm.weight)
    width = draft.config.hidden_size
    draft.fc.weight.zero_()
    draft.fc.weight[:, -width:] = torch.eye(width)
    for ours, theirs in zip(draft.layers, decoder.layers[-len(draft.layers) :], strict=True):
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            source = getattr(theirs.self_attn, name).weight.float()
            if name != "o_proj":
                source = source * theirs.input_layernorm.weight.float()
            _copy(getattr(ours.self_attn, name).weight, source, name)
        for name in ("gate_proj", "up_proj", "down_proj"):
            _copy(getattr(ours.mlp, name).weight, getattr(theirs.mlp, name).weight, name)
        ours.post_attention_layernorm.weight.copy_(theirs.post_attention_layernorm.weight)


def _copy(parameter, source, name: str) -> None:
    if parameter.shape != source.shape:
        raise ValueError(
            f"warm_start: {name} is {tuple(parameter.shape)} in the drafter but {tuple(source.shape)} in the target; "
            "give the drafter the target's head counts, head_dim and intermediate_size, or set drafter.start: random."
        )
    parameter.copy_(source)
