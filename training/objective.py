"""Domino's training objective (paper, section 3): teacher-forced head, positional decay, base-anchored curriculum."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F


@dataclass
class BlockBatch:
    """Blocks of a batch, one per anchor; A anchors, n drafts per block, T positions.

    Attributes:
        block_ids: [batch, A, B] anchor and masks. prefix_ids: [batch, A, n] true tokens a … a+n-1, read by the GRU.
        labels: [batch, A, n] true tokens a+1 … a+n. weights: [batch, A, n] decay, 0 beyond the sequence.
        position_ids: [batch, T + A*B]. mask: [batch, 1, A*B, T + A*B], True where attention is allowed.
    """

    block_ids: Tensor
    prefix_ids: Tensor
    labels: Tensor
    weights: Tensor
    position_ids: Tensor
    mask: Tensor


def build_blocks(input_ids: Tensor, lengths: Tensor, anchors: Tensor, config, gamma: float) -> BlockBatch:
    """Blocks for given anchors.

    The weight of draft i is exp(-(i - 1) / gamma): in slots k that is exp(-(k - o) / gamma), o = 0 with `shift_label` and
    1 without. Worked example, n = 4, sequence of 10 tokens (positions 0 … 9), anchor 7: labels stand at 8, 9, 10, 11, of
    which 10 and 11 do not exist, so the weights are 1, exp(-1/gamma), 0, 0.

    Args:
        input_ids: [batch, T]. lengths: [batch]. anchors: [batch, A], -1 for none.
    """
    batch, total = input_ids.shape
    count, block, n = anchors.shape[1], config.block_size, config.num_drafts
    valid, a = anchors >= 0, anchors.clamp(min=0)

    offsets = a[..., None] + torch.arange(n + 1)
    tokens = input_ids.gather(1, offsets.clamp(max=total - 1).flatten(1)).view(batch, count, n + 1)
    exists = (offsets[..., 1:] < lengths[:, None, None]) & valid[..., None]
    weights = torch.exp(-torch.arange(n) / gamma) * exists

    block_ids = torch.full((batch, count, block), config.mask_token_id)
    block_ids[..., 0] = tokens[..., 0]

    owner = torch.arange(count).repeat_interleave(block)
    context = torch.arange(total) < a[:, owner, None]  # strictly before the anchor: its own feature is not known yet
    own = (owner[:, None] == owner).expand(batch, -1, -1)
    positions = torch.cat(
        [torch.arange(total).expand(batch, -1), (a[..., None] + torch.arange(block)).flatten(1)], dim=1
    )
    mask = torch.cat([context, own], dim=-1)[:, None]
    return BlockBatch(block_ids, tokens[..., :-1], tokens[..., 1:], weights, positions, mask)


def head_inputs(draft, blocks: BlockBatch, features: Tensor, embedding: Tensor) -> tuple[Tensor, Tensor]:
    """Backbone outputs H [batch, A, n, hidden] of the drafting slots and the teacher-forced low-rank codes
    SiLU(W1 [H ; S]) [batch, A, n, rank], zero in the pure prefix."""
    config = draft.config
    batch, count, block = blocks.block_ids.shape
    noise = F.embedding(blocks.block_ids, embedding).flatten(1, 2)
    out = draft(noise, features, blocks.mask, blocks.position_ids).last_hidden_state
    hidden = out.view(batch, count, block, -1)[:, :, config.first_slot : config.first_slot + config.num_drafts]
    prefix = F.embedding(blocks.prefix_ids, embedding).flatten(0, 1)
    # Autocast leaves recurrent layers alone, so the input follows the weights by hand.
    states, _ = draft.prefix_gru(prefix.to(draft.prefix_gru.weight_ih_l0.dtype))
    states = states.view(batch, count, config.num_drafts, -1)
    code = F.silu(draft.embed_proj[0](torch.cat([hidden, states.to(hidden.dtype)], dim=-1)))
    corrected = torch.arange(config.num_drafts) >= config.pure_draft_prefix_len
    return hidden, code * corrected[:, None].to(code.dtype)


def domino_loss(
    hidden, code, labels, weights, head, w2, log_weights, exact: int, lam: float
) -> tuple[Tensor, dict[str, Tensor]]:
    """L = (1 - λ) L_final + λ L_base, each a cross-entropy weighted by w and normalised by Σw.

    Args:
        hidden: [N, hidden]. code: [N, rank]. labels: [N], indices into the step's vocabulary. weights: [N].
        head: [C, hidden] and w2 [C, rank], the rows of the LM head and of W2 for that vocabulary. log_weights: [C], added to
            the logits. exact: the leading part of the vocabulary that is not sampled; argmax hits are counted there.

    Returns:
        the loss and the detached parts `final` and `base`, with the argmax hits [N] of each as `final_hit`, `base_hit`.
    """
    base = F.linear(hidden, head, log_weights.to(head.dtype))
    correction = F.linear(code, w2)
    norm = weights.sum() + 1e-6
    parts, losses = {}, {}
    for name, logits in (("final", base + correction), ("base", base)):
        nll = F.cross_entropy(logits.to(torch.promote_types(logits.dtype, torch.float32)), labels, reduction="none")
        losses[name] = (nll * weights).sum() / norm
        parts[name] = losses[name].detach()
        parts[f"{name}_hit"] = logits.detach()[:, :exact].argmax(-1) == labels
    return (1 - lam) * losses["final"] + lam * losses["base"], parts


def curriculum(step: int, total: int, start: float, decay_ratio: float) -> float:
    """λ: from `start` linearly to 0 over `decay_ratio` of the training (SpecForge's clamp)."""
    return min(max(start * (1 - step / max(total * decay_ratio, 1)), 0.0), 1.0)


def accepted_run(hit: Tensor, weights: Tensor) -> Tensor:
    """Teacher-forced acceptance length of each block: leading correct drafts + 1. hit, weights: [..., n]."""
    return (hit & (weights > 0)).long().cumprod(-1).sum(-1) + 1
