"""The best-first tree of all rows at once equals a plain heap, row by row."""

import heapq
import random
from dataclasses import dataclass

import pytest
import torch
from domino.drafting.tree import Grown, best_first
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

CHANCES = (1.0, 0.75, 0.5, 0.5, 0.25, 0.125, 0.0)  # few and dyadic: equal reach is frequent, and products are exact
NOTHING = torch.empty(0, dtype=torch.long)


@dataclass(frozen=True)
class Table:
    """Children of any path, made up from a seed: (chance, token, cell), the likeliest first."""

    seed: int
    tokens: int

    def below(self, row: int, path: tuple[int, ...]) -> list[tuple[float, int, int]]:
        dice = random.Random(repr((self.seed, row, path)))
        chances = sorted((dice.choice(CHANCES) for _ in range(self.tokens)), reverse=True)
        return [
            (chance, token, dice.randrange(1000))
            for chance, token in zip(chances, dice.sample(range(self.tokens), self.tokens), strict=True)
        ]


class TableFrontier:
    """A `Frontier` that reads a table; it notes how many lanes and children it was asked for."""

    def __init__(self, table: Table, rows: int):
        self.table, self.paths = table, [[()] for _ in range(rows)]
        self.asked: list[tuple[int, int]] = []

    def children(self, depth: int, most: int) -> tuple[Tensor, Tensor, Tensor]:
        assert all(len(path) == depth - 1 for paths in self.paths for path in paths)
        self.asked.append((len(self.paths[0]), most))
        found = [[self.table.below(row, path)[:most] for path in paths] for row, paths in enumerate(self.paths)]
        parts = torch.tensor(found, dtype=torch.float64).unbind(-1)
        return parts[0], parts[1].long(), parts[2].long()

    def advance(self, lanes: Tensor, tokens: Tensor) -> None:
        self.paths = [
            [(*paths[lane], token) for lane, token in zip(*pair, strict=True)]
            for paths, pair in zip(self.paths, zip(lanes.tolist(), tokens.tolist(), strict=True), strict=True)
        ]


def by_heap(
    table: Table, row: int, nodes: int, depths: int, floor: float, ends: set[int], branch: int | None
) -> list[tuple[tuple[int, ...], float, int]]:
    """(path, reach, cell) of the best nodes, by (-reach, depth, order): of one depth, in the order of parents, then siblings."""
    heap: list[tuple] = []

    def push(path: tuple[int, ...], reach: float, order: tuple) -> None:
        for rank, (chance, token, cell) in enumerate(table.below(row, path)[:branch]):
            heapq.heappush(heap, (-reach * chance, len(path) + 1, (order, rank), (*path, token), cell))

    found: list[tuple[tuple[int, ...], float, int]] = []
    push((), 1.0, ())
    while heap and len(found) < nodes:
        reach, depth, order, path, cell = heapq.heappop(heap)
        if -reach < floor or reach == 0:
            break
        found.append((path, -reach, cell))
        if depth < depths and path[-1] not in ends:
            push(path, -reach, (reach, order))
    return found


def nodes_of(grown: Grown, row: int) -> list[tuple[tuple[int, ...], float, int]]:
    paths: list[tuple[int, ...]] = []
    for token, parent in zip(grown.tokens[row], grown.parents[row], strict=True):
        assert parent < len(paths)  # parents first
        paths.append((*(paths[parent] if parent >= 0 else ()), token))
    return list(zip(paths, grown.reach[row], grown.cells[row], strict=True))


def grow(table: Table, rows: int, nodes: int, depths: int, floor=0.0, ends=NOTHING, branch=None) -> Grown:
    return best_first(TableFrontier(table, rows), rows, nodes, depths, floor, ends, branch)


SHAPES = {
    "table": st.builds(Table, st.integers(0, 10**6), st.integers(1, 6)),
    "rows": st.integers(1, 3),
    "nodes": st.integers(1, 48),
    "depths": st.integers(1, 8),
}


@settings(max_examples=120, deadline=None, derandomize=True)
@given(
    **SHAPES,
    floor=st.sampled_from([0.0, 0.0, 1 / 64, 0.1, 0.25, 0.5]),
    ends=st.sets(st.integers(0, 5), max_size=2),
    branch=st.sampled_from([None, None, 1, 2]),
)
def test_it_equals_a_heap(table, rows, nodes, depths, floor, ends, branch):
    grown = grow(table, rows, nodes, depths, floor, torch.tensor(sorted(ends), dtype=torch.long), branch)
    for row in range(rows):
        assert nodes_of(grown, row) == by_heap(table, row, nodes, depths, floor, ends, branch)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(**SHAPES)
def test_a_larger_tree_begins_with_the_smaller(table, rows, nodes, depths):
    smaller, larger = (grow(table, rows, count, depths) for count in (nodes, nodes + 1))
    for row in range(rows):
        assert nodes_of(larger, row)[: len(smaller.tokens[row])] == nodes_of(smaller, row)
        assert len(larger.tokens[row]) - len(smaller.tokens[row]) in (0, 1)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(**SHAPES)
def test_one_branch_is_the_greedy_chain(table, rows, nodes, depths):
    grown = grow(table, rows, nodes, depths, branch=1)
    for row in range(rows):
        path, reach, chain = (), 1.0, []
        while len(path) < min(nodes, depths):
            chance, token, _ = table.below(row, path)[0]
            path, reach = (*path, token), reach * chance
            if reach == 0:
                break
            chain.append((path, reach))
        assert [node[:2] for node in nodes_of(grown, row)] == chain
        assert grown.tree(row, depths).is_chain()


@pytest.mark.parametrize("nodes", [1, 5, 12])
def test_it_asks_for_no_more_than_can_be_in_the_tree(nodes):
    frontier = TableFrontier(Table(3, 6), 2)
    best_first(frontier, 2, nodes, 8, 0.0, NOTHING)
    assert frontier.asked[0] == (1, nodes)
    for depth, (lanes, most) in enumerate(frontier.asked[1:], 2):
        assert lanes <= nodes - depth + 1
        assert most == nodes - depth + 1
    assert len(frontier.asked) <= nodes


class Written:
    """A frontier whose chances are written down: {path: (chances)}, tokens are 0, 1, …"""

    def __init__(self, chances: dict[tuple[int, ...], tuple[float, ...]]):
        self.chances, self.paths = chances, [()]

    def children(self, depth: int, most: int) -> tuple[Tensor, Tensor, Tensor]:
        rows = [(*self.chances.get(path, ()), 0.0, 0.0)[: min(most, 2)] for path in self.paths]
        chance = torch.tensor([rows], dtype=torch.float64)
        token = torch.arange(chance.shape[2]).expand(chance.shape)
        return chance, token, torch.zeros_like(token)

    def advance(self, lanes: Tensor, tokens: Tensor) -> None:
        self.paths = [
            (*self.paths[lane], token) for lane, token in zip(lanes[0].tolist(), tokens[0].tolist(), strict=True)
        ]


def test_the_worked_example_parents_and_shallower_nodes_first_among_equals():
    chances = {(): (0.6, 0.3), (0,): (0.5, 0.4), (1,): (0.9,)}
    grown = best_first(Written(chances), 1, 3, 2, 0.0, NOTHING)
    assert (grown.parents, grown.tokens) == ([[-1, -1, 0]], [[0, 1, 0]])
    assert grown.reach[0] == pytest.approx([0.6, 0.3, 0.3])
    # every child is certain, so all have their parent's reach
    grown = best_first(Written({(): (0.5, 0.5), (0,): (1.0,), (1,): (1.0,), (0, 0): (1.0,)}), 1, 5, 3, 0.0, NOTHING)
    assert grown.parents == [[-1, -1, 0, 1, 2]]
    assert grown.reach == [[0.5] * 5]


def test_a_row_is_cut_to_the_depth_it_has_room_for():
    table = Table(5, 4)
    grown = grow(table, 2, 30, 6)
    for depths in range(7):
        tree = grown.tree(1, depths)
        wanted = [node for node in nodes_of(grown, 1) if len(node[0]) <= depths]
        paths = [tuple(tree.tokens[n] for n in tree.path(node)) for node in range(len(tree))]
        assert list(zip(paths, tree.reach, [cell for (cell,) in tree.cells], strict=True)) == wanted
        assert set(tree.drawn) <= {-1}
