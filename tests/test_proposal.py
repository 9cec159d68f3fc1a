"""Trees of all rows: numbering, masks, and which keys and values a kept path moves."""

import random

import numpy as np
import pytest
import torch
from domino.drafting.proposal import DRAFTER, Proposal, Tree, chain
from domino.verification.cache import RowCache, RowLayer
from domino.verification.mask import tree_mask
from hypothesis import given, settings
from hypothesis import strategies as st

CPU = torch.device("cpu")


def tree_of(parents: list[int], reach: list[float] | None = None) -> Tree:
    tree = Tree()
    for node, parent in enumerate(parents):
        tree.add(10 + node, parent, reach[node] if reach else 1.0 / (node + 1), DRAFTER, node, node % 3 - 1)
    return tree


@st.composite
def trees(draw, most: int = 10) -> Tree:
    parents, reach = [], []
    for node in range(draw(st.integers(0, most))):
        parents.append(draw(st.integers(-1, node - 1)))
        above = reach[parents[-1]] if parents[-1] >= 0 else 1.0
        reach.append(above * draw(st.sampled_from([0.25, 0.5, 1.0])))
    return tree_of(parents, reach)


def above(tree: Tree, node: int) -> list[int]:
    """The nodes from the anchor to this one, by recursion."""
    return [] if node < 0 else [*above(tree, tree.parents[node]), node]


def test_the_worked_example():
    tree = Tree()
    for token, parent in ((5, -1), (6, -1), (7, 0)):  # cat, dog, sat
        tree.add(token, parent, 0.5, DRAFTER, 3)
    assert (tree.tokens, tree.parents, tree.depths()) == ([5, 6, 7], [-1, -1, 0], [1, 1, 2])
    assert tree.children() == [[0, 1], [2], [], []]
    assert (tree.path(2), tree.path(-1)) == ([0, 2], [])
    assert not tree.is_chain()
    assert chain([5, 6], [0.9, 0.8], [1, 2], drawn=True).is_chain()
    assert chain([5, 6], [0.9, 0.8], [1, 2], drawn=True).drawn == [0, 0]
    assert chain([5, 6], [0.9, 0.8], [1, 2], drawn=False).drawn == [-1, -1]
    assert Tree().is_chain()


@settings(max_examples=100, deadline=None, derandomize=True)
@given(tree=trees())
def test_paths_depths_and_children_agree(tree):
    for node in range(len(tree)):
        assert tree.path(node) == above(tree, node)
        assert tree.depths()[node] == len(above(tree, node))
    below = tree.children()
    assert len(below) == len(tree) + 1
    for slot, nodes in enumerate(below):
        assert nodes == [node for node in range(len(tree)) if tree.parents[node] == slot - 1]
    assert tree.is_chain() == (tree.depths() == list(range(1, len(tree) + 1)))


@st.composite
def closed(draw) -> tuple[Tree, list[int]]:
    """A tree, and some of its nodes with all that is above them, in the order they stand."""
    tree = draw(trees())
    wanted = draw(st.sets(st.integers(0, max(len(tree) - 1, 0)), max_size=len(tree))) if len(tree) else set()
    return tree, sorted({n for node in wanted for n in above(tree, node)})


@settings(max_examples=150, deadline=None, derandomize=True)
@given(case=closed())
def test_taking_some_nodes_spine_first(case):
    tree, nodes = case
    order = tree.spine_first(nodes)
    assert sorted(order) == nodes
    taken = tree.take(order)
    for number, node in enumerate(order):
        assert [order[n] for n in taken.path(number)] == above(tree, node)
        assert taken.parents[number] < number
        for name in ("tokens", "reach", "source", "cells", "drawn"):
            assert getattr(taken, name)[number] == getattr(tree, name)[node]
    # the spine: the likeliest child each time, of equals the first; then all others as they stand
    spine, at = [], -1
    while siblings := [node for node in nodes if tree.parents[node] == at]:
        at = max(siblings, key=lambda node: (tree.reach[node], -node))
        spine.append(at)
    assert order[: len(spine)] == spine
    assert taken.parents[: len(spine)] == list(range(-1, len(spine) - 1))
    assert order[len(spine) :] == [node for node in nodes if node not in spine]


def some_proposal(seed: int, rows: int, most: int = 7) -> Proposal:
    dice = random.Random(seed)
    return Proposal([tree_of([dice.randrange(-1, n) for n in range(dice.randrange(most + 1))]) for _ in range(rows)])


@settings(max_examples=100, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**6), rows=st.integers(1, 4))
def test_rows_of_different_sizes(seed, rows):
    proposal = some_proposal(seed, rows)
    width = max(map(len, proposal.trees))
    assert (proposal.width, proposal.counts) == (width, [len(tree) for tree in proposal.trees])
    assert proposal.is_chain() == all(tree.is_chain() for tree in proposal.trees)
    tokens, depths, ancestors = proposal.tokens(CPU), proposal.depths(), proposal.ancestors()
    assert tokens.shape == (rows, width)
    assert tokens.dtype == torch.long
    assert depths.shape == (rows, width + 1)
    assert ancestors.shape == (rows, width + 1, width + 1)
    for row, tree in enumerate(proposal.trees):
        count = len(tree)
        assert tokens[row, :count].tolist() == tree.tokens
        assert depths[row].tolist() == [0, *tree.depths(), *[1] * (width - count)]
        for slot in range(width + 1):
            seen = {0, slot} if slot > count else {0, *(node + 1 for node in above(tree, slot - 1))}
            assert set(np.flatnonzero(ancestors[row, slot])) == seen


def test_nothing_to_verify():
    proposal = Proposal([Tree(), Tree()])
    assert proposal.width == 0
    assert proposal.is_chain()
    assert proposal.tokens(CPU).shape == (2, 0)
    assert proposal.ancestors().tolist() == [[[True]], [[True]]]
    assert proposal.depths().tolist() == [[0], [0]]


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 10**6),
    lengths=st.lists(st.integers(0, 9), min_size=1, max_size=4),
    window=st.one_of(st.none(), st.integers(1, 12)),
)
def test_who_sees_what(seed, lengths, window):
    proposal = some_proposal(seed, len(lengths))
    width = proposal.width + 1
    mask = tree_mask(lengths, proposal.ancestors(), proposal.depths(), CPU, window)
    assert mask.shape == (len(lengths), 1, width, max(lengths) + width)
    assert mask.dtype == torch.bool
    for row, (length, tree) in enumerate(zip(lengths, proposal.trees, strict=True)):
        depths = [0, *tree.depths()]
        for slot in range(len(tree) + 1):
            position = length + depths[slot]
            path = {0, *(node + 1 for node in above(tree, slot - 1))}
            for key in range(max(lengths) + width):
                if key < length:
                    where, seen = key, True
                else:
                    number = key - length
                    seen = number in path
                    where = length + (depths[number] if number < len(depths) else 0)
                if window is not None:
                    seen = seen and position - window < where
                assert bool(mask[row, 0, slot, key]) == seen, (row, slot, key)
        for slot in range(len(tree) + 1, width):  # padding looks at something, lest its softmax is of nothing
            assert mask[row, 0, slot].any()
            assert not mask[row, 0, : len(tree) + 1, length + slot].any()  # and nobody looks at it


def test_the_worked_examples_of_masks():
    proposal = Proposal([tree_of([-1, -1])])
    mask = tree_mask([2], proposal.ancestors(), proposal.depths(), CPU)
    assert mask[0, 0].int().tolist() == [[1, 1, 1, 0, 0], [1, 1, 1, 1, 0], [1, 1, 1, 0, 1]]
    # a window of 2: each sees itself and its parent, siblings share a position
    mask = tree_mask([2], proposal.ancestors(), proposal.depths(), CPU, 2)
    assert mask[0, 0].int().tolist() == [[0, 1, 1, 0, 0], [0, 0, 1, 1, 0], [0, 0, 1, 0, 1]]


def filled(rows: int, layers: int = 2, capacity: int = 16) -> RowCache:
    """A cache in which the value in slot s of row r of layer l is 1000 l + 100 r + s, its key one half more."""
    cache = RowCache(layers, rows, capacity)
    for number, layer in enumerate(cache.layers):
        layer.lazy_initialization(torch.zeros(rows, 2, 1, 3), torch.zeros(rows, 2, 1, 3))
        slots = 1000 * number + 100 * torch.arange(rows)[:, None] + torch.arange(capacity)[None]
        layer.values += slots[:, None, :, None]
        layer.keys += slots[:, None, :, None] + 0.5
    return cache


def held(cache: RowCache, layer: int, row: int) -> list[int]:
    """The slots whose values are now in the row's first slots."""
    keys, values = (
        part[row] - 1000 * layer - 100 * row for part in (cache.layers[layer].keys, cache.layers[layer].values)
    )
    assert torch.equal(keys, values + 0.5)
    assert torch.equal(values, values[:1, :, :1].expand_as(values))
    return values[0, :, 0].int().tolist()


def test_the_worked_example_of_a_commit():
    cache = filled(1)
    cache.lengths = [5]
    cache.commit([[1, 3]])
    assert cache.lengths == [8]
    assert held(cache, 0, 0) == held(cache, 1, 0) == [*range(7), 8, *range(8, 16)]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**6), lengths=st.lists(st.integers(0, 8), min_size=1, max_size=4))
def test_a_commit_moves_the_kept_path_and_nothing_else(seed, lengths):
    dice, cache = random.Random(seed), filled(len(lengths))
    cache.lengths = list(lengths)
    paths = [sorted(dice.sample(range(1, 8), dice.randrange(5))) for _ in lengths]
    cache.commit(paths)
    assert cache.lengths == [length + 1 + len(path) for length, path in zip(lengths, paths, strict=True)]
    for layer in range(2):
        for row, (length, path) in enumerate(zip(lengths, paths, strict=True)):
            wanted = list(range(16))
            wanted[length + 1 : length + 1 + len(path)] = [length + slot for slot in path]
            assert held(cache, layer, row) == wanted


@pytest.mark.parametrize("paths", [[[], []], [[1, 2, 3], [1]], [[1], []]])
def test_a_commit_of_the_spine_moves_nothing(paths, monkeypatch):
    def moved(*args):
        raise AssertionError("moved")

    monkeypatch.setattr(RowLayer, "move", moved)
    cache = filled(2)
    cache.lengths = [4, 6]
    versions = [part._version for layer in cache.layers for part in (layer.keys, layer.values)]
    cache.commit(paths)
    assert cache.lengths == [5 + len(paths[0]), 7 + len(paths[1])]
    assert versions == [part._version for layer in cache.layers for part in (layer.keys, layer.values)]
    with pytest.raises(AssertionError, match="moved"):
        cache.commit([[2], []])


def test_a_layer_that_was_never_written_has_nothing_to_move():
    cache = RowCache(2, 1)
    cache.commit([[2]])
    assert cache.lengths == [2]
