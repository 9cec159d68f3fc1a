"""How near a tie is where two texts differ."""

from __future__ import annotations

import torch
from torch import Tensor


@torch.no_grad()
def first_gap(target, left: Tensor, right: Tensor) -> float:
    """The target's logit gap at the first difference of two continuations.

    Args:
        left, right: [1, n] and [1, m], different, with a common prefix.

    Returns:
        |logit(a) - logit(b)| of the target after the common prefix, a and b the two next tokens; infinite
        where one continuation is a prefix of the other, which no tie explains.
    """
    shared = min(left.shape[1], right.shape[1])
    different = (left[0, :shared] != right[0, :shared]).nonzero()
    if len(different) == 0:
        return float("inf")
    at = int(different[0])
    logits = target(left[:, :at]).logits[0, -1].float()
    return float((logits[left[0, at]] - logits[right[0, at]]).abs())
