"""Drafts from the text itself: the search against a naive one, its tree, and merging it into another."""

import random

import numpy as np
import pytest
from domino.drafting.calibration import LOOKUP as FIRST
from domino.drafting.calibration import MATCHES, Calibration
from domino.drafting.lookup import APART, BRANCHES, LONGEST, PLACES, Lookup, Memory, merge
from domino.drafting.proposal import DRAFTER, LOOKUP, Tree
from hypothesis import given, settings
from hypothesis import strategies as st

Found = list[tuple[int, bool, list[int]]]


def naive(text: list[int], begin: int) -> Found:
    """What `find` promises, place by place; the row's own text begins at `begin`."""

    def matched(place: int) -> int:
        count = 1
        while (
            count < MATCHES
            and place - count >= 0
            and len(text) - 1 - count >= begin
            and text[place - count] == text[-1 - count]
        ):
            count += 1
        return count

    places = [at for at in range(len(text) - 1) if text[at] == text[-1] and text[at + 1] != APART][-PLACES:]
    places.sort(key=lambda at: (matched(at), at), reverse=True)
    if not places:
        return []
    longest = [at for at in places if matched(at) == matched(places[0])]
    alike = len(longest) > 1 and len({text[at + 1] for at in longest}) == 1
    found: Found = []
    for at in places:
        following = text[at + 1 : at + 1 + LONGEST]
        following = following[: following.index(APART)] if APART in following else following
        if len(found) < BRANCHES and following[0] not in [tokens[0] for *_, tokens in found]:
            found.append((matched(at), alike and not found, following))
    return found


def texts(size: int, most: int):
    return st.lists(st.integers(0, size - 1), min_size=1, max_size=most)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(data=st.data(), size=st.integers(1, 4), keep=st.sampled_from([0, 7, 1000]))
def test_it_finds_what_a_naive_search_finds(data, size, keep):
    memory = Memory(keep)
    for answer in data.draw(st.lists(texts(size, 30), max_size=3)):
        memory.add(answer)
    prompt, pieces = data.draw(texts(size, 60)), data.draw(st.lists(texts(size, 4), max_size=4))
    lookup = Lookup(prompt, len(prompt) + sum(map(len, pieces)), memory)
    before = [*memory.text.tolist(), APART]
    text = before + prompt
    assert lookup.find() == naive(text, len(before))
    for piece in pieces:
        lookup.say(piece)
        text += piece
        assert lookup.find() == naive(text, len(before))


def test_long_texts_and_many_places():
    dice = random.Random(0)
    for size in (1, 2, 3):
        text = [dice.randrange(size) for _ in range(400)]
        lookup = Lookup(text[:300], 400)
        assert lookup.find() == naive(text[:300], 0)
        lookup.say(text[300:])
        assert lookup.find() == naive(text, 0)


def test_the_worked_example():
    a, b, c, d, e = range(5)
    assert Lookup([a, b, c, d, a, b, c, e, a, b], 10).find() == [(2, True, [c, e, a, b])]


def test_two_continuations_the_longer_match_first():
    assert Lookup([9, 1, 2, 5, 8, 1, 2, 6, 9, 1, 2], 20).find() == [
        (3, False, [5, 8, 1, 2, 6, 9, 1, 2]),
        (2, False, [6, 9, 1, 2]),
    ]
    assert Lookup([1, 2, 3], 5).find() == []
    assert Lookup([4], 5).find() == []


def test_nothing_matches_or_goes_on_across_answers():
    memory = Memory(100)
    memory.add([5, 6, 1, 2])  # ends as the text does: says nothing of what follows
    memory.add([2, 8, 6, 1, 2, 7, 7])
    assert Lookup([6, 1, 2], 10, memory).find() == [(3, False, [7, 7]), (1, False, [8, 6, 1, 2, 7, 7])]
    # 5 ends the memory and 1 begins the text: "5 1" was never said
    memory = Memory(100)
    memory.add([1, 9, 5])
    assert Lookup([1], 10, memory).find() == [(1, False, [9, 5])]
    # two longest matches that end their answers are no agreement on what follows a shorter one
    memory = Memory(100)
    for answer in ([3, 1, 2], [4, 1, 2], [2, 9]):
        memory.add(answer)
    assert Lookup([8, 1, 2], 10, memory).find() == [(1, False, [9])]


def test_a_memory_keeps_the_latest_tokens_only():
    memory = Memory(5)
    for answer in ([1, 2, 3], [4, 5]):
        memory.add(answer)
    assert memory.text.tolist() == [2, 3, APART, 4, 5]
    memory.add(list(range(100)))
    assert memory.text.tolist() == [95, 96, 97, 98, 99]
    memory = Memory()
    memory.add([1, 2, 3])
    assert len(memory.text) == 0
    assert memory.text.dtype == np.int64


TEXT = [9, 1, 2, 5, 8, 1, 2, 6, 9, 1, 2]  # see above: two continuations


def test_its_tree_in_numbers():
    """Each token that comes true makes the match one longer; the second continuation has what the first leaves."""
    calibration = Calibration()
    calibration.chances[FIRST : FIRST + MATCHES] = np.array([0.1, 0.3, 0.8, 0.5, 0.5, 0.5, 0.5, 0.4])
    tree = Lookup(TEXT, 20).tree(calibration, 3, 0.0, set())
    assert (tree.tokens, tree.parents) == ([5, 8, 1, 6, 9, 1], [-1, 0, 1, -1, 3, 4])
    # .8 after a match of 3, then .5 after 4 and 5; the other has .2 at most, where its own .3 would be more
    assert tree.reach == pytest.approx([0.8, 0.4, 0.2, 0.2, 0.16, 0.08])
    assert tree.cells == [(FIRST + matched - 1,) for matched in (3, 4, 5, 2, 3, 4)]
    assert set(tree.source) == {LOOKUP}
    assert set(tree.drawn) == {-1}
    alike = Lookup([0, 1, 2, 3, 0, 1, 2, 4, 0, 1], 20).tree(calibration, 2, 0.0, set())
    assert alike.cells[:2] == [(FIRST + MATCHES + 1,), (FIRST + MATCHES + 2,)]


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    text=texts(3, 60),
    depth=st.integers(0, 20),
    floor=st.sampled_from([0.0, 0.01, 0.1]),
    ends=st.sets(st.integers(0, 2), max_size=1),
    observed=st.lists(st.tuples(st.integers(FIRST, FIRST + 2 * MATCHES - 1), st.booleans()), max_size=60),
)
def test_its_tree_is_what_was_found_as_far_as_it_is_worth(text, depth, floor, ends, observed):
    calibration = Calibration()
    for cell, hit in observed:
        calibration.observe(cell, hit)
    lookup = Lookup(text, len(text))
    tree = lookup.tree(calibration, depth, floor, ends)
    wanted: dict[tuple[int, ...], float] = {}
    left = 1.0
    for matched, alike, tokens in lookup.find():
        reach = min(calibration.lookup(matched, alike)[0], left)
        for place in range(min(depth, len(tokens))):
            if place:
                reach *= calibration.lookup(matched + place, alike)[0]
            if reach < floor:
                break
            wanted[tuple(tokens[: place + 1])] = reach
            left -= reach if place == 0 else 0.0
            if tokens[place] in ends:
                break
    assert {path: reach for path, (reach, _) in paths_of(tree).items()} == pytest.approx(wanted)
    assert len(tree) == len(wanted)
    assert sum(reach for reach, parent in zip(tree.reach, tree.parents, strict=True) if parent < 0) <= 1 + 1e-9


def paths_of(tree: Tree) -> dict[tuple[int, ...], tuple[float, list[int]]]:
    """{path: (reach, cells)}; parents are before their children."""
    assert all(parent < node for node, parent in enumerate(tree.parents))
    found = {}
    for node in range(len(tree)):
        path = tuple(tree.tokens[n] for n in tree.path(node))
        assert path not in found  # no path twice
        found[path] = tree.reach[node], sorted(tree.cells[node])
    return found


@st.composite
def trees(draw, source: int) -> Tree:
    tree = Tree()
    children: dict[int, set[int]] = {}
    for number in range(draw(st.integers(0, 12))):
        parent = draw(st.integers(-1, number - 1))
        token = draw(st.integers(0, 3))
        if parent < len(tree) and token not in children.setdefault(parent, set()):
            children[parent].add(token)
            above = tree.reach[parent] if parent >= 0 else 1.0
            drawn = len(children[parent]) - 1 if source == DRAFTER else -1
            tree.add(token, parent, above * draw(st.floats(0.1, 1.0)), source, draw(st.integers(0, 50)), drawn)
    return tree


@settings(max_examples=200, deadline=None, derandomize=True)
@given(tree=trees(DRAFTER), other=trees(LOOKUP))
def test_merging_two_trees(tree, other):
    before = tree.take(list(range(len(tree)))), other.take(list(range(len(other))))
    both = merge(tree, other)
    assert (tree, other) == before  # neither is changed
    wanted = paths_of(tree)
    for path, (reach, cells) in paths_of(other).items():
        mine, own = wanted.get(path, (0.0, []))
        wanted[path] = max(mine, reach), sorted([*own, *cells])
    assert paths_of(both) == wanted
    # the first tree's nodes keep their numbers, which laws of drawn nodes go by, and who made them
    assert both.tokens[: len(tree)] == tree.tokens
    assert both.parents[: len(tree)] == tree.parents
    assert both.source == [DRAFTER] * len(tree) + [LOOKUP] * (len(both) - len(tree))
    assert both.drawn == tree.drawn + [-1] * (len(both) - len(tree))
    # nodes of largest reach are a tree, whatever the size
    best = sorted(range(len(both)), key=lambda node: -both.reach[node])
    for size in range(len(both)):
        assert all(both.parents[node] in [-1, *best[:size]] for node in best[:size])


def test_merging_in_numbers():
    tree, other = Tree(), Tree()
    tree.add(7, -1, 0.5, DRAFTER, 1)
    tree.add(8, 0, 0.4, DRAFTER, 2)
    other.add(7, -1, 0.3, LOOKUP, 100)
    other.add(9, 0, 0.2, LOOKUP, 101)
    other.add(8, 0, 0.25, LOOKUP, 102)
    both = merge(tree, other)
    assert both == Tree(
        [7, 8, 9], [-1, 0, 0], [0.5, 0.4, 0.2], [DRAFTER, DRAFTER, LOOKUP], [(1, 100), (2, 102), (101,)], [-1] * 3
    )
