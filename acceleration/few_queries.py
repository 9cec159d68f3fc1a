"""Attention of a few queries over grouped keys on a CPU, registered with transformers as an attention implementation.

transformers copies keys and values for every query head wherever there are several queries and a mask. Here the g query heads that
share a key head become g times as many queries of it, so nothing is copied and the CPU's kernel has more rows to work on.
"""

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

NAME = "domino_few_queries"
FEW = 65  # queries, the nodes of a large tree and their anchor; beyond, as when a prompt is read, copying is cheap


def few_queries(module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs):
    """As transformers' `sdpa_attention_forward`, which also takes every other case.

    Args:
        query: [R, H, n, d]. key, value: [R, G, L, d].
        attention_mask: [R or 1, 1, n, L], True where a query may look, or what is added to the scores.

    Returns:
        [R, n, H, d] and None.

    Worked example: H = 9, G = 3, n = 2: query heads 0, 1, 2 share key head 0 and become its six queries, head by head:
    (0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1), so the mask's two rows are repeated three times.
    """
    rows, heads, n, width = query.shape
    groups = heads // key.shape[1]
    odd = kwargs.get("position_bias") is not None or kwargs.get("softcap") is not None
    if attention_mask is None or attention_mask.shape[1:3] != (1, n) or n > FEW or odd:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
    out = F.scaled_dot_product_attention(
        query if groups == 1 else query.reshape(rows, key.shape[1], groups * n, width),
        key,
        value,
        attn_mask=_for_groups(attention_mask, groups, query.dtype),
        scale=kwargs.get("scaling"),
        dropout_p=kwargs.get("dropout", 0.0),
    )
    return out.reshape(rows, heads, n, -1).transpose(1, 2).contiguous(), None


def _for_groups(mask: Tensor, groups: int, dtype: torch.dtype) -> Tensor:
    """[R or 1, 1, g n, L], as the CPU's kernel takes it: 0 and -inf. Made by the first layer of a forward and kept with the mask.

    In float32 where the model is narrower: the kernel adds to float32 scores, and need not widen the mask for each block of them.
    """
    if torch.compiler.is_compiling():
        return mask.repeat(1, 1, groups, 1)
    mask_of_all = mask[:1] if mask.stride(0) == 0 else mask  # rows that share one, shown as many
    count = None if mask.is_inference() else mask._version  # a mask filled anew is another
    made = mask.__dict__.setdefault("_for_groups", {})
    known = groups, dtype, count
    if known not in made:
        made.clear()
        made[known] = _additive(mask_of_all, torch.promote_types(dtype, torch.float32)).repeat(1, 1, groups, 1)
    return made[known]


def _additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    if mask.dtype != torch.bool:
        return mask.to(dtype)
    return mask.new_zeros(mask.shape, dtype=dtype).masked_fill_(~mask, -torch.inf)


AttentionInterface.register(NAME, few_queries)
AttentionMaskInterface.register(NAME, sdpa_mask)
