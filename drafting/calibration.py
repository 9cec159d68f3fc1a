"""The chance that a node is kept once its parent is, by what is known before: stated by its source, corrected by what was observed.

Every candidate child of a place the text went through is an observation, verified or not: the text says whether it was right. A cell is
a class of nodes that share a record:
- chosen by the drafter: rank among its siblings (0, 1, 2-3, 4 …) and the head's probability of it;
- sampled from the drafter: its turn among its siblings, and how sure the backbone is of the place;
- found by lookup: how many tokens before it matched, and whether all matches went on alike.
"""

import numpy as np
import torch
from torch import Tensor

BINS, LOW, HIGH = 16, -6.0, 4.0  # of log-odds
RANKS = 4
TURNS = 8
MATCHES = 8  # 1, 2, … matching tokens, the last class is 8 and more
PRIOR = 6.0  # observations that a cell's first guess counts as
MEMORY = 0.99  # weight that is left of a cell's observations after the next
SAMPLED = RANKS * BINS  # the first cell of each kind
LOOKUP = SAMPLED + TURNS * BINS
CELLS = LOOKUP + 2 * MATCHES
CENTRES = LOW + (HIGH - LOW) * np.arange(BINS) / (BINS - 1)  # of the bins, in log-odds
EDGES = torch.from_numpy(1 / (1 + np.exp(-(CENTRES[1:] + CENTRES[:-1]) / 2)))  # between them, as probabilities
CLASSES = torch.tensor([0, 1, 2, 2] + [3] * 128) * BINS  # first cell of each rank among siblings


class Calibration:
    """Hits and tries of all cells; `chances` [CELLS] in float64."""

    def __init__(self) -> None:
        centres = 1 / (1 + np.exp(-CENTRES))
        # a flat q is often a flat p, too: the first draw is kept more often than any one token is likely
        turns = [0.25 + 0.75 * centres] + [(1 - centres) * 0.2 / turn for turn in range(1, TURNS)]
        # matches are believed once they were right: pessimistic
        matches = np.array([0.05, 0.1, 0.2, 0.3, 0.3, 0.4, 0.4, 0.5])
        self.chances = np.concatenate([np.tile(centres, RANKS), *turns, matches, matches])
        self.tries = np.full(CELLS, PRIOR)

    def chosen(self, p: Tensor) -> tuple[Tensor, Tensor]:
        """Chances and cells [R, W, k] of children with the head's probabilities p [R, W, k], the largest first.

        No child is put above a likelier sibling, and siblings share at most one.
        """
        cells = torch.bucketize(p, EDGES.to(p)) + CLASSES[: p.shape[-1]].to(p.device)
        chances = torch.as_tensor(self.chances[:SAMPLED], dtype=p.dtype, device=p.device)[cells]
        chances = chances.cummin(dim=-1).values
        return chances / chances.sum(dim=-1, keepdim=True).clamp(min=1), cells

    def sampled(self, turn: int, confidence: float) -> tuple[float, int]:
        """Chance and cell of the `turn`-th child drawn at a place whose likeliest token has this probability before the draft is known."""
        place = int(np.searchsorted(EDGES.numpy(), confidence))
        cell = SAMPLED + min(turn, TURNS - 1) * BINS + place
        return float(self.chances[cell]), cell

    def lookup(self, matched: int, alike: bool) -> tuple[float, int]:
        """Chance and cell of what followed `matched` tokens the last time they were said."""
        cell = LOOKUP + alike * MATCHES + min(matched, MATCHES) - 1
        return float(self.chances[cell]), cell

    def observe(self, cell: int, hit: bool) -> None:
        """A node of this cell, whose parent was kept, was the target's choice or not."""
        # a cell remembers at least what its first guess was worth
        tries = self.tries[cell] * (MEMORY if self.tries[cell] > PRIOR / MEMORY else 1.0)
        self.chances[cell] = (self.chances[cell] * tries + hit) / (tries + 1)
        self.tries[cell] = tries + 1
