"""Which tokens the GRU reads while training: the true ones, or the drafter's own (training-time test, TTT)."""

from __future__ import annotations

import torch
from torch import Tensor

from ...drafting.head import BlockHead, HeadWeights, greedy_chain


@torch.no_grad()
def self_generated(draft, hidden: Tensor, anchors: Tensor, embed, base_logits) -> Tensor:
    """Prefixes as at inference: the anchor and the drafter's own greedy drafts. Labels stay the target's tokens.

    Worked example, n = 3, anchor x, greedy drafts d1, d2, d3: the prefix is x, d1, d2.

    Args:
        hidden: [blocks, n, hidden], H of the drafting slots. anchors: [blocks, 1] token ids.
        embed: ids -> embeddings. base_logits: hidden -> [blocks, n, vocab].

    Returns:
        [blocks, n] token ids.
    """
    base = base_logits(hidden)
    head = BlockHead(HeadWeights(draft), hidden, base.to(torch.promote_types(base.dtype, torch.float32)), embed)
    return torch.cat([anchors, greedy_chain(head, anchors)[:, :-1]], dim=-1)
