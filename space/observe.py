"""What a round put to the target and what came of it, as the engine tells it."""

from __future__ import annotations

from ..drafting.proposal import LOOKUP, Tree
from ..generation.statistics import Round


def said(told: Round, count: int) -> Round:
    """A round of which the answer took the first `count` tokens: a text may end within what was kept."""
    return Round(told.tree, told.path[:count], told.tokens[:count])


def bonus(told: Round) -> int | None:
    """The target's own token behind the kept path; None where the answer ended before it."""
    return told.tokens[-1] if len(told.tokens) > len(told.path) else None


def chance(tree: Tree, node: int) -> float | None:
    """The chance that a node is kept once the one above it is, as estimated before the target read it; None where nobody estimated it.

    Worked example: reach .6 and below it .3: the second token is kept in half of the cases in which the first is.
    """
    above = tree.parents[node]
    # a chain out of one launch on a GPU tells no probabilities: its cells are -1
    if tree.cells[node][0] < 0 or above >= 0 and tree.cells[above][0] < 0:
        return None
    return tree.reach[node] / (tree.reach[above] if above >= 0 else 1.0)


def by_lookup(tree: Tree, node: int) -> bool:
    """Whether lookup alone found a node."""
    return tree.source[node] == LOOKUP


def depth(told: Round) -> int:
    """Of the deepest node."""
    return max(told.tree.depths(), default=0)


def telling(told: Round) -> tuple[bool, int]:
    """How much a round shows, for the largest: first whether its tree has branches, then the tokens that were kept."""
    return not told.tree.is_chain(), len(told.path)
