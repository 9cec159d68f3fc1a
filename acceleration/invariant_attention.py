"""Attention in bfloat16 on a CPU in which a token's output does not depend on what is read with it, registered with transformers.

Fused attention orders its sums by the number of queries and keys. Two batched products and a softmax between them do not, as long as
the products have a shape that `summation.py` found to share one order. Prompts, single tokens and drafts all go through here.
"""

from contextlib import nullcontext

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

from . threads import THREADS_SLEEP, one_thread  # fmt: skip  # isort: skip
from . tree_values import TreeValues  # fmt: skip  # isort: skip

NAME = "domino_invariant"
QUICK = 2**18  # scores of one layer: for fewer, to wake a thread that sleeps takes longer than its share of the work
STEP = 64  # keys come in multiples of this: softmax adds another number of them in another order
TURNED = range(
    33, 49
)  # rows whose sums over 512 and more keys AMX orders as those of others only in the transposed product
KEPT = "_domino_bias"  # attribute of a mask: from which key on something is added to the scores, and what
TREE = "_domino_tree"  # attribute of a mask: a `TreeValues` if the queries are the nodes of trees


def attention(module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor, scaling=None, **kwargs):
    """Attention whose rows have the same bits whatever is read with them.

    Args:
        query: [R, H, n, d]. key, value: [R, G, L, d], L a multiple of 64.
        attention_mask: [R or 1, 1, n, L], True where a query may look. Of trees: by position, as for chains; `TREE` knows the slots.
        scaling: of the scores, 1 / √d if None.

    Returns:
        [R, n, H, d] and None.

    Worked example: H = 9, G = 3, n = 2: query heads 0, 1, 2 share key head 0 and become its six queries, so that keys are not copied.
    """
    quick = THREADS_SLEEP and query.shape[:3].numel() * key.shape[2] < QUICK
    with one_thread() if quick else nullcontext():
        return _attention(query, key, value, attention_mask, scaling), None


def _attention(query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor, scaling: float | None) -> Tensor:
    rows, heads, n, width = query.shape
    groups, keys = key.shape[1], key.shape[2]
    shared = heads // groups
    tree: TreeValues | None = attention_mask.__dict__.get(TREE)
    key, value = key.flatten(0, 1), value.flatten(0, 1)
    query = (query * (width**-0.5 if scaling is None else scaling)).reshape(rows * groups, shared * n, width)
    scores = torch.bmm(query, key.transpose(1, 2))
    if tree is not None:
        tree.put_in_order(scores, groups, shared)
    first, bias = _bias(attention_mask, scores.dtype)
    scores.view(rows, groups, shared, n, keys)[..., first:] += bias
    weights = scores.softmax(-1)
    if tree is not None:
        weights, value = tree.spread(weights, value, groups, shared)
    return weighted(weights, value).reshape(rows, heads, n, width).transpose(1, 2).contiguous()


def weighted(weights: Tensor, value: Tensor) -> Tensor:
    """weights [B, m, L] · value [B, L, d] -> [B, m, d]."""
    if weights.shape[1] in TURNED:
        return torch.bmm(value.transpose(1, 2), weights.transpose(1, 2)).transpose(1, 2)
    return torch.bmm(weights, value)


def _bias(mask: Tensor, dtype: torch.dtype) -> tuple[int, Tensor]:
    """The first key that is hidden from a query, and 0 and -inf [R or 1, 1, 1, n, L - first] from there.

    Made by a forward's first layer and kept with the mask.
    """
    kept = mask.__dict__.get(KEPT)
    if kept is None:
        whole = mask.flatten(0, 2).all(0).int()
        first = int(whole.argmin()) if not whole.all() else mask.shape[-1]
        seen = mask[:, None, ..., first:]
        kept = first, seen.new_zeros(seen.shape, dtype=dtype).masked_fill_(~seen, -torch.inf)
        mask.__dict__[KEPT] = kept
    return kept


AttentionInterface.register(NAME, attention)
AttentionMaskInterface.register(NAME, sdpa_mask)
