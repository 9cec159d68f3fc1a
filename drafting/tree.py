"""The best tree of a given size: nodes in order of reach, the product of chances along their path.

Since a child's reach is never above its parent's, the B nodes of largest reach form a tree, and it has the most expected tokens of all
trees of B nodes. It is grown depth by depth, all lanes of a depth in one step, and still exact: the best node of rank r at depth d has
r - 1 betters there and d - 1 ancestors in the tree, so r ≤ B - d + 1, and a node with children in the tree r ≤ B - d.

Letters: R rows, W lanes (nodes that may have children), k children of a lane, B nodes, D depths.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from . proposal import DRAFTER, Tree  # fmt: skip  # isort: skip


class Frontier(Protocol):
    """What a drafter brings: lanes that are asked for their children, then replaced by some of them."""

    def children(self, depth: int, most: int) -> tuple[Tensor, Tensor, Tensor]:
        """Chances, tokens and calibration cells [R, W, k] of each lane's k ≤ most likeliest children at this depth, from 1."""

    def advance(self, lanes: Tensor, tokens: Tensor) -> None:
        """The lanes are now the children `tokens` [R, W'] of the lanes numbered `lanes` [R, W']."""


@dataclass(frozen=True)
class Grown:
    """The best nodes of a row in order of reach, parents first: reach, number of the parent (-1: anchor), token, cell; lists of R."""

    reach: list[list[float]]
    parents: list[list[int]]
    tokens: list[list[int]]
    cells: list[list[int]]

    def tree(self, row: int, depths: int) -> Tree:
        """One row's nodes that are no deeper than it has room for."""
        tree, level, number = Tree(), [0], {-1: -1}
        for node, parent in enumerate(self.parents[row]):
            level.append(level[parent + 1] + 1)
            if level[-1] <= depths:
                made = self.tokens[row][node], number[parent], self.reach[row][node], DRAFTER, self.cells[row][node]
                number[node] = tree.add(*made)
        return tree


@dataclass(frozen=True)
class _Ledger:
    """Nodes seen so far: reach [R, N], and [R, N, 4] their parent, token, cell and a number that stays."""

    reach: Tensor
    facts: Tensor

    def best(self, other: "_Ledger", nodes: int) -> "_Ledger":
        """The best of both, in order of reach; of equals the earlier, so that parents stay before children."""
        reach, facts = torch.cat([self.reach, other.reach], dim=1), torch.cat([self.facts, other.facts], dim=1)
        reach, order = reach.sort(dim=1, descending=True, stable=True)
        return _Ledger(reach[:, :nodes], _take(facts, order[:, :nodes]))


PARENT, TOKEN, CELL, NAME = range(4)


def _take(facts: Tensor, at: Tensor) -> Tensor:
    """[R, N, 4] at places [R, n]."""
    if len(facts) == 1:
        return facts[:, at[0]]
    return facts[torch.arange(len(facts), device=facts.device)[:, None], at]


def best_first(
    frontier: Frontier, rows: int, nodes: int, depths: int, floor: float, ends: Tensor, branch: int | None = None
) -> Grown:
    """The best tree of each row.

    Args:
        nodes: B. depths: D. floor: nodes of less reach are not worth verifying. ends: tokens after which a text is over; they have no
            children. branch: children a node may have, 1 makes a chain; None: as many as are among the best.

    Worked example, B = 3: the anchor's children have chances .6 and .3, those of the first .5 and .4, of the second .9: reaches are .6,
    .3 | .3, .24 | .27. The tree is .6, .3 and the first's child of .3: of equal reach the shallower node goes first.
    """
    ledger: _Ledger | None = None
    reach: Tensor | None = None
    name, said = torch.empty(0), 0
    for depth in range(1, min(depths, nodes) + 1):
        chance, token, cell = frontier.children(depth, min(nodes - depth + 1, branch or nodes))
        (lanes, children), device = chance.shape[1:], chance.device
        if reach is None:
            reach, name = chance.new_ones(rows, 1), torch.full((rows, 1), -1, device=device)
        names = torch.arange(said, said + lanes * children, device=device).view(lanes, children)
        facts = [name[..., None].expand_as(token), token, cell, names.expand_as(token)]
        new = _Ledger((reach[..., None] * chance).flatten(1), torch.stack(facts, dim=-1).flatten(1, 2))
        said += lanes * children
        # the first is sorted, too
        ledger = (ledger or _Ledger(new.reach[:, :0], new.facts[:, :0])).best(new, nodes)
        # what is not among the best so far, or below the floor, has no child there either
        least = ledger.reach[:, -1:].clamp(min=floor) if ledger.reach.shape[1] == nodes else floor
        alive = (new.reach >= least) & (new.reach > 0) & ~torch.isin(new.facts[..., TOKEN], ends)
        width = min(int(alive.sum(dim=1).max()), nodes - depth)
        if width == 0 or depth == depths:
            break
        reach, place = torch.where(alive, new.reach, 0).sort(dim=1, descending=True, stable=True)
        reach, place = reach[:, :width], place[:, :width]
        lane = _take(new.facts, place)
        name = lane[..., NAME]
        frontier.advance(place // children, lane[..., TOKEN])
    assert ledger is not None  # there is one depth, at least
    return _on_the_host(ledger, floor)


def _on_the_host(ledger: _Ledger, floor: float) -> Grown:
    grown = Grown([], [], [], [])
    for reach, facts in zip(ledger.reach.tolist(), ledger.facts.tolist(), strict=True):
        count = sum(r >= floor and r > 0 for r in reach)  # they fall
        number = {-1: -1} | {fact[NAME]: place for place, fact in enumerate(facts[:count])}
        grown.reach.append(reach[:count])
        grown.parents.append([number[fact[PARENT]] for fact in facts[:count]])
        grown.tokens.append([fact[TOKEN] for fact in facts[:count]])
        grown.cells.append([fact[CELL] for fact in facts[:count]])
    return grown
