"""Which path of a verified draft tree to keep: pure functions of one row, on the host. All are lossless.

Letters: n nodes; slot 0 the anchor, slot i + 1 node i; m tokens of the support, which are the drafter's candidates and
the nodes' tokens; p the target's probabilities after the processors; q what sampled nodes were drawn from; w the
probability with which a slot is to be kept.

Only + - * /, comparisons and sums are used: what arrays of float64 run, arrays of `fractions.Fraction` prove.

Which nodes there are may depend on the context (text, q, costs) and, for one node, on values drawn before it in
depth-first order, with siblings in test order. It may not depend on the node's own value or on later ones: nodes pruned
by their own q no longer follow q. So a chosen node may be left out where a sampled sibling has its token: the sampled
one stands for both, is tested once, as sampled, and chosen nodes below the other become its children, tested after its
own sampled ones.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

# True with the probability it is given, never for 0: a uniform number of [0, 1) is compared with <.
Flip = Callable[[float], bool]


class Rows(Protocol):
    """An array, or what makes its rows when they are asked for: rules look at few."""

    def __getitem__(self, slot: int) -> Any: ...


@dataclass(frozen=True)
class Tables:
    """One row's tree as the rules see it. Arrays are float64, or objects (fractions).

    Siblings have different tokens, and sampled ones were drawn without replacement. A node that only pads is nobody's
    child.
    """

    children: list[list[int]]  # [n + 1] nodes below each slot in test order: sampled ones as drawn, then chosen ones
    column: list[int]  # [n] place of each node's token among the m
    sampled: list[bool]  # [n] drawn from q; else chosen, a function of the context
    p: Rows  # [n + 1, m] of the support's tokens after each slot
    rest: Rows  # [n + 1] of all other tokens together: p.sum(1) + rest = 1
    q: Rows  # [n + 1, m] of the first sampled child below each slot; not read where there is none


@dataclass(frozen=True)
class Verdict:
    """What a rule keeps, and the law of the token that follows."""

    path: list[int]  # nodes from below the anchor down
    weights: np.ndarray  # [m] of the support's tokens; unnormalised
    outside: float  # of all other tokens together, in the same units; among themselves as p has them


class _Slot:
    """A slot while its children are tested, one after the other.

    It is to be kept, itself or a node below it, with probability w, and what follows it is to have the law p. `law` [m]
    and `rest` are w p, or what misses left of it, and w is their sum. `drafter` [m] are the weights of the tokens not
    drawn yet.
    """

    def __init__(self, tables: Tables, slot: int, w: float) -> None:
        self.law, self.rest, self.w, self.drafter = tables.p[slot] * w, tables.rest[slot] * w, w, tables.q[slot]

    def offer(self, token: int, sampled: bool) -> float:
        """The probability with which the next child, of this token (a place in the support), is to be kept."""
        if not sampled:
            self.taken = None
            return self.law[token]
        total = self.drafter.sum()
        self.taken = self.drafter / total if total > 0 else self.drafter  # this child's law, given those drawn before
        self.drafter = _without(self.drafter, token)
        mine, drawn = self.law[token], self.taken[token]
        return (mine / drawn if mine < drawn else 1) if drawn > 0 else 0

    def miss(self, token: int) -> None:
        """The child just offered was not kept.

        Drawn from t and kept with min(1, w p / t), it took min(t, w p) of w p. Still due is max(w p - t, 0), of mass R.
        A miss has probability 1 - w + R, so after one max(w p - t, 0) / (1 - w + R) is due. For a chosen child t is a
        point mass.
        """
        left = _without(self.law, token) if self.taken is None else np.maximum(self.law - self.taken, 0)
        missing = left.sum() + self.rest
        missed = missing + (1 - self.w)
        if missed > 0:  # else this miss has probability zero, and anything may follow: what is left stays as it is
            self.law, self.rest, self.w = left / missed, self.rest / missed, missing / missed


def _without(law: np.ndarray, token: int) -> np.ndarray:
    """law [m] with one entry zero, as a copy."""
    law = law.copy()
    law[token] = 0
    return law


def recursive(tables: Tables, flip: Flip) -> Verdict:
    """Recursive rejection without replacement, from the anchor down (arXiv 2402.14160; Sequoia, 2402.12374).

    A sampled child is kept with min(1, p / q), else p ← max(p - q, 0) and q ← q without it, both normalised; a chosen
    one with p, else p ← p without it, normalised. Below a kept child all starts anew. On a chain it is the rule of arXiv 2211.17192.

    Worked example: p = (.5, .3, .2) after the anchor, children 1 and 0 drawn from q = (.2, .6, .2). Child 1 is kept
    with .3 / .6 = 1/2. Else p = (.3, 0, 0) / .3 and q = (.5, 0, .5), and child 0 is kept with min(1, 1 / .5) = 1.
    """
    path: list[int] = []
    slot = 0
    while True:
        here = _Slot(tables, slot, 1)
        for child in tables.children[slot]:
            token = tables.column[child]
            if flip(here.offer(token, tables.sampled[child])):
                path.append(child)
                slot = child + 1
                break
            here.miss(token)
        else:
            return Verdict(path, here.law, here.rest)


def walk(tables: Tables, flip: Flip) -> Verdict:
    """Sample the target and step to the child with that token, child by child. Reads no q; P(v kept) = p(path to v).

    Lossless for any tree that does not look at what the target samples; of chosen nodes no rule keeps more.

    Worked example: p = (.5, .3, .2), children 0 and 1. Child 0 is kept with .5, else child 1 with .3 / .5 = .6, else
    token 2 follows.
    """
    return recursive(replace(tables, sampled=[False] * len(tables.sampled)), flip)


def traversal(tables: Tables, flip: Flip) -> Verdict:
    """Traversal verification, from the leaves up (arXiv 2505.12398), here with chosen nodes among the sampled ones.

    On a chain it is `block`; on chosen nodes alone it keeps what `walk` keeps; else mostly, not always, more than both.

    Proof, by induction: visit(slot, w) keeps the slot or a node below it with probability exactly w, and what follows
    the slot then has the law p. A child drawn from t is visited with min(1, w p / t). After its miss the same task is
    left with w' = R / (1 - w + R) and p' = max(w p - t, 0) / R (see `_Slot.miss`); with no child left one flip does it.
    At the anchor w = 1 = w'. t must be the child's law given all that was drawn before it in depth-first order; hence
    the condition above.

    Worked example: p = (.6, .4), q = (.3, .7) after the anchor, child 1: visited with w = .4 / .7 = 4/7. p = (.5, .5),
    q = (.9, .1) after it, and below it child 0, kept with w (.5 / .9) = 20/63. Else (0, 2/7 - .1) = (0, 13/70) is left,
    and child 1 is kept with 13/70 / (13/70 + 3/7) = 13/43; token 1 follows. Else (.3, 0) is left at the anchor: token 0
    follows.
    """

    def visit(slot: int, w: float) -> Verdict | None:
        if not w:
            return None
        here = _Slot(tables, slot, w)
        for child in tables.children[slot]:
            token = tables.column[child]
            found = visit(child + 1, here.offer(token, tables.sampled[child]))
            if found:
                return replace(found, path=[child, *found.path])
            here.miss(token)
        return Verdict([], here.law, here.rest) if slot == 0 or flip(here.w) else None

    verdict = visit(0, 1)
    assert verdict  # the anchor is always kept
    return verdict


def greedy_walk(choices: list[int], tokens: list[int], parents: list[int], count: int) -> tuple[list[int], int]:
    """Follow the target's own choices from the anchor as long as a node has them: all rules at temperature 0.

    Args:
        choices: [n + 1] the target's argmax after each slot. tokens, parents: [n]; parents before their children, -1 the
            anchor. count: nodes that count, the first ones.

    Returns:
        the nodes kept, and the token that follows them.

    Worked example: nodes 5, 7 below the anchor and 9 below 7; choices [7, 3, 9, 4]: nodes 1 and 2 are kept, then 4.
    """
    path: list[int] = []
    at = -1
    for node in range(count):
        if parents[node] == at and tokens[node] == choices[at + 1]:
            path.append(node)
            at = node
    return path, choices[at + 1]


RULES = {"traversal": traversal, "recursive": recursive, "walk": walk}
