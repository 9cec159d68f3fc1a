"""Which tokens the GRU reads while training: the true ones, or the drafter's own (training-time test, TTT)."""

from __future__ import annotations

import torch
from torch import Tensor

from ...drafting.chain import rollout


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

    def argmax(logits: Tensor, _drafts: Tensor) -> tuple[Tensor, Tensor]:
        return logits.argmax(dim=-1, keepdim=True), logits[:, :1]

    drafts, _ = rollout(draft, hidden, base_logits(hidden), anchors, embed, argmax)
    return torch.cat([anchors, drafts[:, :-1]], dim=-1)
