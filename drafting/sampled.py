"""Trees whose nodes are drawn: children of a node from the drafter's q, without replacement.

The shape is fixed before any draw, from what is known by then: how sure the backbone is of each place, and how often the first, second,
… child that was tried at such a place was kept. So nothing that is drawn decides what is put to the target, as lossless rules demand.

Letters: R rows, W lanes (nodes with children), k children of a lane, m tokens of the pool.
"""

import heapq
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from . calibration import TURNS, Calibration  # fmt: skip  # isort: skip
from . head import BlockHead  # fmt: skip  # isort: skip
from . proposal import DRAFTER, Sampled, Tree  # fmt: skip  # isort: skip


@dataclass
class Shape:
    """A tree without tokens: for each node its parent (-1: anchor), depth from 1, turn among its siblings, reach and cell; parents first."""

    parents: list[int]
    depths: list[int]
    turns: list[int]
    reach: list[float]
    cells: list[int]

    def add(self, parent: int, depth: int, turn: int, reach: float, cell: int) -> None:
        self.parents.append(parent)
        self.depths.append(depth)
        self.turns.append(turn)
        self.reach.append(reach)
        self.cells.append(cell)

    def first(self, count: int) -> "Shape":
        """The nodes of largest reach, as they stand in its order."""
        parents, depths, turns = (part[:count] for part in (self.parents, self.depths, self.turns))
        return Shape(parents, depths, turns, self.reach[:count], self.cells[:count])


def shape(calibration: Calibration, confidences: list[float], nodes: int, floor: float, branch: int | None) -> Shape:
    """The shape of most expected tokens.

    Args:
        confidences: of the places 1, 2, …, the largest probability before any draft is known; as many as the tree may be deep.
        nodes: at most. floor: nodes of less reach are not worth verifying. branch: children a node may have, 1 makes a chain.

    Worked example: chances of the first and second child .5 and .2 everywhere. Reaches: .5, then (1 - .5) x .2 = .1 for the second, .25
    for the first child of the first: three nodes are these.
    """
    found = Shape([], [], [], [], [])
    # candidates by reach; of equals the shallower, then the earlier
    heap: list[tuple[float, int, int, int, int, float, float]] = []

    def candidate(parent: int, depth: int, turn: int, left: float, most: float) -> None:
        """`left`: the chance that the parent is kept and no earlier child of it. `most`: reach of the child before, never exceeded."""
        if depth > len(confidences) or turn >= min(branch or TURNS, TURNS):
            return
        chance, cell = calibration.sampled(turn, confidences[depth - 1])
        if min(left * chance, most) >= floor:
            heapq.heappush(heap, (-min(left * chance, most), depth, parent, turn, cell, left, chance))

    candidate(-1, 1, 0, 1.0, 1.0)
    while heap and len(found.parents) < nodes:
        reach, depth, parent, turn, cell, left, chance = heapq.heappop(heap)
        found.add(parent, depth, turn, -reach, cell)
        candidate(parent, depth, turn + 1, left * (1 - chance), -reach)
        candidate(len(found.parents) - 1, depth + 1, 0, -reach, -reach)
    return found


class _Row:
    """One row's draws: the tree so far, which node of it each node of the shape became, and the law of each of its slots."""

    def __init__(self, plan: Shape) -> None:
        self.plan, self.tree = plan, Tree()
        self.law: dict[int, int] = {}
        self.number = {-1: -1}
        self.below: dict[int, list[int]] = {}
        for node, parent in enumerate(plan.parents):
            self.below.setdefault(parent, []).append(node)
        for nodes in self.below.values():
            nodes.sort(key=lambda node: plan.turns[node])
        self.lanes = [-1] if plan.parents else []

    def path(self, node: int) -> list[int]:
        """Tokens drawn from the anchor down to a node of the shape."""
        return [self.tree.tokens[n] for n in self.tree.path(self.number[node])]

    def take(self, tokens: list[list[int]], law: int, ends: set[int]) -> list[tuple[int, int]]:
        """The lanes' children, tokens [W][k], -1 where q had nothing left; law: number of the first lane's.

        Returns (lane, token) of the next lanes.
        """
        following, steps = [], []
        for lane, above in enumerate(self.lanes):
            self.law[self.number[above]] = law + lane
            for node in self.below[above]:
                turn = self.plan.turns[node]
                token = tokens[lane][turn]
                if token < 0:
                    continue
                made = (token, self.number[above], self.plan.reach[node], DRAFTER, self.plan.cells[node], turn)
                self.number[node] = self.tree.add(*made)
                if node in self.below and token not in ends:
                    following.append(node)
                    steps.append((lane, token))
        self.lanes = following
        return steps

    def laws(self) -> list[int]:
        return [self.law.get(node, -1) for node in range(-1, len(self.tree))]


def draw(
    head: BlockHead, anchors: Tensor, shapes: list[Shape], process: Callable, ends: set[int]
) -> tuple[list[Tree], Sampled]:
    """Draw the nodes of every row's shape, a depth at a time.

    Args:
        head: the `BlockHead`. anchors: [R, 1]. process: (logits [R, W, m], the path drawn above each lane [R][W]) -> logits.
        ends: tokens after which a text is over; they have no children.
    """
    rows, lanes, laws, said = [_Row(plan) for plan in shapes], head.begin(anchors), [], 0
    depth = 0
    while any(row.lanes for row in rows):
        width, most = lanes.state.shape[1], max(len(row.below[n]) for row in rows for n in row.lanes)
        paths = [[row.path(node) for node in row.lanes] + [[]] * (width - len(row.lanes)) for row in rows]
        q = law(process(head.logits(depth, lanes), paths))
        tokens = _race(head, q, most).tolist()
        steps = [row.take(tokens[at], said, ends) for at, row in enumerate(rows)]
        laws.append(q)
        said, depth, wide = said + width, depth + 1, max(map(len, steps))
        if wide:
            padded = [step + [(0, 0)] * (wide - len(step)) for step in steps]
            following = torch.tensor(padded, device=anchors.device)  # [R, W', 2]
            lanes = head.step(lanes.pick(following[..., 0].to(lanes.state.device)), following[..., 1])
    nothing = head.base[:, :0]
    return [row.tree for row in rows], Sampled(
        head.ids, torch.cat(laws, dim=1) if laws else nothing, [row.laws() for row in rows]
    )


def law(logits: Tensor) -> Tensor:
    """Probabilities of logits [..., m]; zeros, of which nothing is drawn, where processors forbid all of them or the drafter overflowed."""
    return logits.softmax(dim=-1).nan_to_num(0.0)


def _race(head: BlockHead, q: Tensor, most: int) -> Tensor:
    """Up to `most` tokens [R, W, k] of every lane, in the order in which they would be drawn without replacement; -1: q had no more.

    The first of exponential clocks with rates q rings with probability q, and of those left again: the order of ringing is the draw.
    """
    clocks = torch.empty_like(q).exponential_()
    speed, places = (q / clocks).topk(min(most, q.shape[-1]), dim=-1)
    tokens = head.ids_of(places.flatten(1)).view(places.shape)
    tokens = torch.where(speed > 0, tokens, -1)
    return torch.nn.functional.pad(tokens, (0, most - tokens.shape[-1]), value=-1)
