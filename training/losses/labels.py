"""What a draft is compared with: the target's token, or the target's whole distribution."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def hard(log_q: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy with the target's token, [..., ] from log q [..., vocab] and labels [...]."""
    return -log_q.gather(-1, labels[..., None])[..., 0]


def kl(log_q: Tensor, log_p: Tensor) -> Tensor:
    """KL(p ‖ q) = Σ p (log p - log q) over the vocabulary, [...]."""
    return F.kl_div(log_q, log_p, reduction="none", log_target=True).sum(-1)


def l1(log_q: Tensor, log_p: Tensor) -> Tensor:
    """Σ |p - q|, twice the total variation: 1 - half of it is the chance that a draft from q is accepted (DSpark)."""
    return (log_p.exp() - log_q.exp()).abs().sum(-1)


SOFT = {"kl": kl, "l1": l1}


def per_draft(log_q: Tensor, labels: Tensor, log_p: Tensor | None, kind: str, soft_weight: float) -> Tensor:
    """The loss of each draft [...]: hard labels, or `soft_weight` of a soft term and the rest hard.

    Args:
        log_q: [..., vocab] of the drafter. labels: [...]. log_p: [..., vocab] of the target, None with hard labels.
    """
    if kind == "hard" or log_p is None:
        return hard(log_q, labels)
    return soft_weight * SOFT[kind](log_q, log_p) + (1 - soft_weight) * hard(log_q, labels)


def target_log_probs(logits: Tensor) -> Tensor:
    """log p [..., vocab] in at least float32."""
    return F.log_softmax(logits.to(torch.promote_types(logits.dtype, torch.float32)), dim=-1)
