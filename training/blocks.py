"""Blocks of a training batch: anchors, what the backbone reads, what it must predict (DFlash's random anchors)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


def draw_anchors(lengths: Tensor, prompt_lengths: Tensor, index: Tensor, count: int, seed: int) -> Tensor:
    """Anchors of each sequence, uniform without replacement over the answer's positions that have a successor, sorted.

    Each sequence has a generator of its own, seeded by `seed` (of the step) and its index in the data set: the draw depends
    neither on how sequences are spread over processes nor on whether the run was resumed.
    Worked example: prompt of 3 tokens, 4 answer tokens at positions 3 … 6: anchors come from 3, 4, 5 (position 6 has no
    label after it).

    Args:
        lengths, prompt_lengths, index: [batch], on the CPU.

    Returns:
        [batch, count], -1 where an answer has fewer positions.
    """
    anchors = torch.full((len(lengths), count), -1)
    for row, (end, start, i) in enumerate(zip(lengths.tolist(), prompt_lengths.tolist(), index.tolist(), strict=True)):
        generator = torch.Generator().manual_seed((seed * 1_000_003 + i) % 2**63)
        drawn = start + torch.randperm(max(end - 1 - start, 0), generator=generator)[:count].sort().values
        anchors[row, : len(drawn)] = drawn
    return anchors


@dataclass
class Blocks:
    """Blocks of a batch, one per anchor; A anchors, n drafts per block, T positions.

    Attributes:
        block_ids: [batch, A, B] anchor and masks. prefix_ids: [batch, A, n] true tokens a … a+n-1, read by the GRU.
        labels: [batch, A, n] true tokens a+1 … a+n. exists: [batch, A, n], False beyond the sequence or without an anchor.
        sources: [batch, A, n] positions a … a+n-1, where the target predicts the labels.
        position_ids: [batch, T + A*B]. anchors: [batch, A].
    """

    block_ids: Tensor
    prefix_ids: Tensor
    labels: Tensor
    exists: Tensor
    sources: Tensor
    position_ids: Tensor
    anchors: Tensor


def build_blocks(input_ids: Tensor, lengths: Tensor, anchors: Tensor, config) -> Blocks:
    """Blocks for given anchors.

    Both label layouts read the same way: draft i (1-based) is to predict token a+i; slots are cut out later.
    Worked example, n = 4, sequence of 10 tokens (positions 0 … 9), anchor 7: labels stand at 8, 9, 10, 11, of which 10 and
    11 do not exist.

    Args:
        input_ids: [batch, T]. lengths: [batch]. anchors: [batch, A], -1 for none.
    """
    batch, total = input_ids.shape
    block, n, device = config.block_size, config.num_drafts, input_ids.device
    valid, a = anchors >= 0, anchors.clamp(min=0)

    offsets = a[..., None] + torch.arange(n + 1, device=device)
    inside = offsets.clamp(max=total - 1)
    tokens = input_ids.gather(1, inside.flatten(1)).view(*a.shape, n + 1)
    exists = (offsets[..., 1:] < lengths[:, None, None]) & valid[..., None]

    block_ids = torch.full((*a.shape, block), config.mask_token_id, device=device)
    block_ids[..., 0] = tokens[..., 0]
    own = (a[..., None] + torch.arange(block, device=device)).flatten(1)
    positions = torch.cat([torch.arange(total, device=device).expand(batch, -1), own], dim=1)
    return Blocks(block_ids, tokens[..., :-1], tokens[..., 1:], exists, inside[..., :-1], positions, anchors)


def block_mask(anchors: Tensor, total: int, block: int, attention: str):
    """Who sees whom: a block sees features strictly before its anchor and itself, whole; blocks do not see each other.

    The anchor's own feature is left out because at inference it is not known yet.

    Args:
        anchors: [batch, A]. total: T. attention: "flex" for a `BlockMask`, otherwise a bool mask.

    Returns:
        [batch, 1, A*B, T + A*B], True where attention is allowed; for "eager" 0 there and -inf elsewhere, in float32; for "flex"
        the `BlockMask` of the same.
    """
    batch, count = anchors.shape
    a = anchors.clamp(min=0).repeat_interleave(block, dim=1)  # [batch, A*B], the anchor of each query's block
    if attention == "flex":
        from torch.nn.attention.flex_attention import create_block_mask

        def allowed(b, _head, query, key):
            own = (key >= total) & ((key - total) // block == query // block)
            return ((key < total) & (key < a[b, query])) | own

        return create_block_mask(allowed, batch, None, count * block, total + count * block, device=anchors.device)
    owner = torch.arange(count, device=anchors.device).repeat_interleave(block)
    context = torch.arange(total, device=anchors.device) < a[..., None]
    own = (owner[:, None] == owner).expand(batch, -1, -1)
    mask = torch.cat([context, own], dim=-1)[:, None]
    return mask if attention == "sdpa" else torch.where(mask, 0.0, torch.finfo(torch.float32).min)
