"""Who sees what: masks of forwards over chains and trees, for rows of different lengths."""

import numpy as np
import torch
from torch import Tensor

GROWTH = 256  # tokens by which the triangle of `Tail` grows


class Tail:
    """`causal_mask` of rows alike, cut out of one triangle that is made once.

    Worked example: made for 3 tokens after up to 4, its rows are 1111100, 1111110, 1111111. 2 tokens after 1 are its first two rows,
    columns 3 to 5: 110 and 111.
    """

    def __init__(self, device: torch.device) -> None:
        self.before = 0
        self.triangle = torch.ones(0, 0, dtype=torch.bool, device=device)

    def mask(self, before: int, tokens: int) -> Tensor:
        """[1, 1, tokens, before + tokens] for rows with this many tokens in the cache."""
        most = max(tokens, len(self.triangle))
        if before > self.before or most > len(self.triangle):
            self.before = max(self.before, before + GROWTH)
            self.triangle = torch.ones(most, self.before + most, dtype=torch.bool, device=self.triangle.device)
            self.triangle = self.triangle.tril(self.before)
        start = self.before - before
        return self.triangle[:tokens, start : start + before + tokens][None, None]


def tree_mask(
    lengths: list[int], ancestors: np.ndarray, depths: np.ndarray, device: torch.device, window: int | None = None
) -> Tensor:
    """Who sees what when rows read trees: all of the text before, and of the tree what lies above.

    Args:
        lengths: of the R texts. ancestors: [R, n, n], see `Proposal.ancestors`. depths: [R, n]. window: of a sliding-window layer, by
            position, itself included; siblings share a position but not a slot.

    Returns:
        [R, 1, n, longest + n], True where a query may look.

    Worked example: length 2, anchor a, b and c below it: a sees 11100, b 11110, c 11101.
    """
    rows, width = depths.shape
    seen = np.zeros((rows, 1, width, max(lengths) + width), dtype=bool)
    for row, length in enumerate(lengths):
        seen[row, 0, :, :length] = True
        seen[row, 0, :, length : length + width] = ancestors[row]
        if window is not None:
            at = np.concatenate([np.arange(length), length + depths[row], np.full(max(lengths) - length, -1)])
            seen[row, 0] &= at[None] > (length + depths[row])[:, None] - window
    return torch.from_numpy(seen).to(device)


def causal_mask(at: Tensor, visible: int, window: int | None = None) -> Tensor:
    """Who sees what when rows read new tokens.

    Args:
        at: [R, tokens], position of each query. window: of a sliding-window layer, itself included.

    Returns:
        [R, 1, tokens, visible], True where a query may look. Positions [[2], [4]], 5 visible: 11100 and 11111.
    """
    keys = torch.arange(visible, device=at.device)
    mask = keys <= at[..., None]
    if window is not None:
        mask &= keys > at[..., None] - window
    return mask[:, None]
