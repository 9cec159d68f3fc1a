"""How much each draft of a block counts in the loss."""

from __future__ import annotations

import torch
from torch import Tensor


def decay(count: int, gamma: float, like: Tensor) -> Tensor:
    """Domino's own weights [count]: draft i counts exp(-(i - 1) / γ), in slots k exp(-(k - o) / γ) (`o`: first slot).

    Worked example, γ = 4: 1, 0.78, 0.61, 0.47, … .
    """
    return torch.exp(-torch.arange(count, device=like.device, dtype=like.dtype) / gamma)


def auf(weights: Tensor, hit: Tensor) -> Tensor:
    """Spec-AUF (arXiv 2607.01893): cut the loss after a block's first failure, since nothing behind it can be accepted.

    Worked example: hits yes, yes, no, yes keep the weights of drafts 1, 2 and 3.

    Args:
        weights: [blocks, n]. hit: [blocks, n], whether the drafter's argmax is the label.
    """
    before = torch.cat([torch.ones_like(hit[:, :1]), hit[:, :-1]], dim=-1)
    return weights * before.cumprod(dim=-1)


def dpace(nll: Tensor, exists: Tensor, alpha: float = 0.5) -> Tensor:
    """D-PACE (arXiv 2605.18810): each draft counts as much as its probability moves the expected accepted length.

    With p_k the probability of label k, p̃_k = (1 - α) p_k + α and P_k = Π_{j≤k} p̃_j, the weight is w_k = Σ_{j≥k} P_j.
    Worked example, α = 0, p = 0.5 throughout, n = 3: P = .5, .25, .125; w = .875, .375, .125.

    Args:
        nll: [blocks, n], -log p_k. exists: [blocks, n], False where there is no label: P is 0 from there on.
    """
    smooth = ((1 - alpha) * torch.exp(-nll) + alpha) * exists
    reach = smooth.cumprod(dim=-1)
    return reach.flip(-1).cumsum(dim=-1).flip(-1) * exists
