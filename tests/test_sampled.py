"""Trees whose nodes are drawn: their shape, the law of the draws, and the record of what each was drawn from."""

import itertools
import random
from types import SimpleNamespace

import pytest
import torch
from domino.drafting import sampled
from domino.drafting.calibration import TURNS, Calibration
from domino.drafting.head import BlockHead, HeadWeights
from domino.drafting.sampled import Shape, draw, shape
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import HIDDEN, VOCAB, make_draft, make_target
from torch import Tensor

TOKENS = 4
LOGITS = torch.randn(
    3, (TOKENS + 1) ** 3, TOKENS, generator=torch.Generator().manual_seed(0), dtype=torch.float64
)  # by depth and path


class Told:
    """Chances by turn, the same everywhere; the cell says who asked."""

    def __init__(self, *chances: float):
        self.chances = chances

    def sampled(self, turn: int, confidence: float) -> tuple[float, int]:
        return self.chances[min(turn, len(self.chances) - 1)] * confidence, turn


class FakeHead:
    """Logits of four tokens from a table, by the path: a lane's state is its path as a number of base 5."""

    def __init__(self, rows: int, ids: Tensor | None = None, logits: Tensor = LOGITS):
        self.table, self.ids, self.base = logits, ids, logits.new_zeros(rows, len(logits), TOKENS)

    def lanes(self, state: Tensor):
        row = torch.arange(len(state))[:, None]
        return SimpleNamespace(state=state, pick=lambda lanes: self.lanes(state[row, lanes]))

    def begin(self, anchors: Tensor):
        return self.lanes(torch.zeros_like(anchors)[..., None])

    def step(self, lanes, tokens: Tensor):
        places = tokens if self.ids is None else torch.searchsorted(self.ids, tokens.contiguous())
        return self.lanes(lanes.state * (TOKENS + 1) + places[..., None] + 1)

    def logits(self, place: int, lanes) -> Tensor:
        return self.table[place, lanes.state[..., 0]]

    def ids_of(self, places: Tensor) -> Tensor:
        return places if self.ids is None else self.ids.gather(1, places)


def as_they_are(logits: Tensor, paths) -> Tensor:
    return logits


def q_after(path: tuple[int, ...], logits: Tensor = LOGITS) -> list[float]:
    state = 0
    for token in path:
        state = state * (TOKENS + 1) + token + 1
    return logits[len(path), state].softmax(-1).tolist()


def anchors(rows: int) -> Tensor:
    return torch.zeros(rows, 1, dtype=torch.long)


def plain_shape(parents: list[int], turns: list[int]) -> Shape:
    depths: list[int] = []
    for parent in parents:
        depths.append(1 if parent < 0 else depths[parent] + 1)
    return Shape(parents, depths, turns, [0.9**n for n in range(len(parents))], list(range(len(parents))))


def test_the_worked_example_of_a_shape():
    found = shape(Told(0.5, 0.2), [1.0, 1.0, 1.0], 3, 0.0, None)
    assert (found.parents, found.turns) == ([-1, 0, 1], [0, 0, 0])
    assert found.reach == [0.5, 0.25, 0.125]
    # .5, .25 below it, then .1 for the second; of two with .05 the one of the earlier parent goes first
    found = shape(Told(0.5, 0.2, 0.01), [1.0, 1.0], 5, 0.0, None)
    assert (found.parents, found.turns, found.depths) == ([-1, 0, -1, 0, 2], [0, 0, 1, 1, 0], [1, 2, 1, 2, 2])
    assert found.reach == pytest.approx([0.5, 0.25, 0.1, 0.05, 0.05])


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    chances=st.lists(st.floats(0.01, 0.95), min_size=1, max_size=5).map(lambda c: sorted(c, reverse=True)),
    confidences=st.lists(st.floats(0.05, 1.0), min_size=1, max_size=4),
    nodes=st.integers(1, 24),
    floor=st.sampled_from([0.0, 0.02, 0.2]),
    branch=st.sampled_from([None, 1, 2]),
)
def test_a_shape_has_the_largest_reaches_there_are(chances, confidences, nodes, floor, branch):
    told = Told(*chances)
    width = min(branch or TURNS, TURNS)
    every: list[float] = []

    def below(depth: int, reach: float) -> None:
        for turn in range(width if depth < len(confidences) else 0):
            chance = told.sampled(turn, confidences[depth])[0]
            every.append(reach * chance)
            below(depth + 1, reach * chance)
            reach *= 1 - chance

    below(0, 1.0)
    found = shape(told, confidences, nodes, floor, branch)
    wanted = sorted((reach for reach in every if reach >= floor), reverse=True)[:nodes]
    assert found.reach == pytest.approx(wanted)
    check_shape(found, len(confidences), width)


def check_shape(found: Shape, deepest: int, width: int) -> None:
    seen: dict[int, int] = {}
    for node, (parent, depth, turn) in enumerate(zip(found.parents, found.depths, found.turns, strict=True)):
        assert parent < node
        assert depth == (1 if parent < 0 else found.depths[parent] + 1) <= deepest
        assert turn == seen.get(parent, 0) < width  # siblings in turn
        seen[parent] = turn + 1
    assert found.reach == sorted(found.reach, reverse=True)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    confidences=st.lists(st.floats(0.0, 1.0), min_size=1, max_size=8),
    nodes=st.integers(1, 32),
    seed=st.integers(0, 1000),
)
def test_whatever_was_learnt_reaches_fall_so_that_the_last_can_be_cut(confidences, nodes, seed):
    """A later turn may have turned out better than the first."""
    dice, calibration = random.Random(seed), Calibration()
    for _ in range(seed % 200):
        turn, confidence = dice.randrange(TURNS), dice.random()
        calibration.observe(calibration.sampled(turn, confidence)[1], dice.random() < 0.5)
    found = shape(calibration, confidences, nodes, 0.001, None)
    check_shape(found, len(confidences), TURNS)
    for count in range(len(found.reach) + 2):
        assert found.first(count) == shape(calibration, confidences, min(count, nodes), 0.001, None)


def noise_limit(truth: Tensor, samples: int) -> float:
    """Total variation that honest samples of this size stay within: the worst of 200, and a tenth."""
    drawn = [
        torch.bincount(torch.multinomial(truth, samples, True), minlength=len(truth)) / samples for _ in range(200)
    ]
    return float(((torch.stack(drawn) - truth).abs().sum(-1) / 2).max() * 1.1)


def total_variation(found: list[tuple[int, ...]], truth: dict[tuple[int, ...], float]) -> tuple[float, float]:
    """Of what was found from its law, and the limit."""
    place = {key: number for number, key in enumerate(truth)}
    law = torch.tensor(list(truth.values()), dtype=torch.float64)
    assert float(law.sum()) == pytest.approx(1.0)
    counts = torch.bincount(torch.tensor([place[key] for key in found]), minlength=len(law)) / len(found)
    return float((counts - law).abs().sum() / 2), noise_limit(law, len(found))


# two children of the anchor, one below each: first a, then b, then x below a and y below b
PAIR = plain_shape([-1, -1, 0, 1], [0, 1, 0, 0])


def in_order(trees) -> list[tuple[int, ...]]:
    found = []
    for tree in trees:
        assert (tree.parents, tree.drawn) == ([-1, -1, 0, 1], [0, 1, 0, 0])
        found.append(tuple(tree.tokens))
    return found


def test_children_are_drawn_without_replacement_and_grandchildren_after_their_own_path():
    torch.manual_seed(0)
    rows = 12_000
    trees, _ = draw(FakeHead(rows), anchors(rows), [PAIR] * rows, as_they_are, set())
    said = in_order(trees)
    q = q_after(())
    pairs = {(a, b): q[a] * q[b] / (1 - q[a]) for a, b in itertools.permutations(range(TOKENS), 2)}
    distance, limit = total_variation([tokens[:2] for tokens in said], pairs)
    assert distance < limit
    truth = {
        (a, b, x, y): chance * q_after((a,))[x] * q_after((b,))[y]
        for (a, b), chance in pairs.items()
        for x, y in itertools.product(range(TOKENS), repeat=2)
    }
    distance, limit = total_variation(said, truth)
    assert distance < limit
    # the other order, as if siblings were sorted by token, is another law
    swapped = [(b, a) if a > b else (a, b) for a, b, *_ in said]
    distance, limit = total_variation(swapped, pairs)
    assert distance > 3 * limit


def test_three_children_of_a_pool():
    """Tokens are the pool's, by place."""
    torch.manual_seed(1)
    rows, ids = 6_000, torch.tensor([3, 8, 9, 40])
    trees, law = draw(
        FakeHead(rows, ids.expand(rows, -1)), anchors(rows), [plain_shape([-1] * 3, [0, 1, 2])] * rows, as_they_are, {8}
    )
    assert torch.equal(law.ids, ids.expand(rows, -1))
    q = dict(zip(ids.tolist(), q_after(()), strict=True))
    truth = {(a, b, c): q[a] * q[b] / (1 - q[a]) * q[c] / (1 - q[a] - q[b]) for a, b, c in itertools.permutations(q, 3)}
    distance, limit = total_variation([tuple(tree.tokens) for tree in trees], truth)
    assert distance < limit


def test_what_is_put_to_the_target_does_not_depend_on_the_draws():
    plan = plain_shape([-1, 0, -1, 1, 0, 2], [0, 0, 1, 0, 1, 0])
    trees = []
    for seed in range(40):
        torch.manual_seed(seed)
        trees += draw(FakeHead(1), anchors(1), [plan], as_they_are, set())[0]
    assert len({tuple(tree.tokens) for tree in trees}) > 10
    for name in ("parents", "reach", "cells", "drawn", "source"):
        assert len({tuple(getattr(tree, name)) for tree in trees}) == 1
    tree = trees[0]
    # nodes stand depth by depth, each with what the shape said of it
    assert tree.depths() == sorted(plan.depths)
    assert sorted(zip(tree.depths(), tree.reach, tree.cells, tree.drawn, strict=True)) == sorted(
        zip(plan.depths, plan.reach, [(cell,) for cell in plan.cells], plan.turns, strict=True)
    )


def test_end_tokens_have_no_children():
    torch.manual_seed(0)
    rows = 200
    trees, law = draw(FakeHead(rows), anchors(rows), [PAIR] * rows, as_they_are, {0, 2})
    ended = 0
    for tree, laws in zip(trees, law.rows, strict=True):
        for node, nodes in enumerate(tree.children()[1:]):
            ends = tree.tokens[node] in (0, 2)
            assert len(nodes) == (0 if ends or tree.parents[node] >= 0 else 1)
            assert (laws[node + 1] >= 0) == bool(nodes)
            ended += ends
    assert ended > rows


@pytest.mark.parametrize("possible", [0, 1, 2])
def test_no_more_children_than_q_has_tokens(possible):
    def process(logits: Tensor, paths) -> Tensor:
        return logits.masked_fill(torch.arange(TOKENS) >= possible, -torch.inf)

    plan = plain_shape([-1, -1, -1, 0, 0, 1], [0, 1, 2, 0, 1, 0])
    for seed in range(20):
        torch.manual_seed(seed)
        (tree,), law = draw(FakeHead(1), anchors(1), [plan], process, set())
        children = tree.children()
        assert sorted(tree.tokens[node] for node in children[0]) == list(range(possible))
        assert all(tree.tokens[node] < possible for node in range(len(tree)))
        below = [len(children[node + 1]) for node in children[0]]
        assert below == [[], [1], [2, 1]][possible]
        for node, own in zip([-1, *children[0]], law.rows[0], strict=False):
            q = law.q[0, own]
            assert q.isfinite().all()
            assert (q > 0).tolist() == [token < possible for token in range(TOKENS)], node


def test_a_drafter_that_overflows_draws_nothing():
    logits = LOGITS.clone()
    logits[0, 0, 1] = torch.nan
    (tree,), law = draw(FakeHead(1, logits=logits), anchors(1), [PAIR], as_they_are, set())
    assert len(tree) == 0
    assert not law.q.any()


def against_paths(logits: Tensor, paths) -> Tensor:
    """A processor that reads each lane's own path."""
    changed = logits.clone()
    for row, lanes in enumerate(paths):
        for lane, path in enumerate(lanes):
            for place, token in enumerate(path):
                changed[row, lane, token % logits.shape[-1]] -= 1 + place
    return changed


SEVERAL = [
    plain_shape([], []),
    plain_shape([-1, 0, 1], [0, 0, 0]),
    plain_shape([-1, -1, -1, 1, 1, 3], [0, 1, 2, 0, 1, 0]),
    plain_shape([-1], [0]),
    PAIR,
]


@pytest.mark.parametrize("ends", [set(), {1}])
def test_rows_of_different_shapes_know_the_laws_of_their_slots(ends):
    for seed in range(10):
        torch.manual_seed(seed)
        trees, law = draw(FakeHead(len(SEVERAL)), anchors(len(SEVERAL)), SEVERAL, against_paths, ends)
        assert [len(tree) for tree in trees] == [len(plan.parents) for plan in SEVERAL] or ends
        for row, tree in enumerate(trees):
            assert len(law.rows[row]) == len(tree) + 1
            for slot, nodes in enumerate(tree.children()):
                assert (law.rows[row][slot] >= 0) == bool(nodes)
                if nodes:
                    path = [tree.tokens[node] for node in tree.path(slot - 1)]
                    state = sum((token + 1) * (TOKENS + 1) ** at for at, token in enumerate(reversed(path)))
                    logits = against_paths(LOGITS[len(path), state][None, None], [[path]])
                    torch.testing.assert_close(law.q[row, law.rows[row][slot]], logits.softmax(-1)[0, 0])
                    drawn = [tree.drawn[node] for node in nodes]
                    assert sorted(drawn) == list(range(len(nodes)))
                    assert len({tree.tokens[node] for node in nodes}) == len(nodes)


def test_nothing_is_drawn_where_no_row_has_a_shape():
    trees, law = draw(FakeHead(2), anchors(2), [plain_shape([], [])] * 2, as_they_are, set())
    assert [len(tree) for tree in trees] == [0, 0]
    assert law.rows == [[-1], [-1]]
    assert law.q.shape == (2, 0, TOKENS)


@torch.no_grad()
@pytest.mark.parametrize("pool", [0, 9])
@pytest.mark.parametrize("prefix", [0, 1, 2])
def test_the_laws_of_a_domino_head_are_its_own_after_each_path(pool, prefix):
    """The head steps all lanes together; walked down one path alone it says the same."""
    target, draft = make_target(), make_draft(pure_draft_prefix_len=prefix)
    torch.manual_seed(prefix)
    rows, places = len(SEVERAL), draft.config.num_drafts
    hidden, base = (torch.randn(rows, places, width, dtype=torch.float64) for width in (HIDDEN, VOCAB))
    head = BlockHead(HeadWeights(draft), hidden, base, target.get_input_embeddings(), pool)
    first = torch.randint(3, VOCAB, (rows, 1))
    trees, law = draw(head, first, SEVERAL, as_they_are, set())
    checked = 0
    for row, tree in enumerate(trees):
        own = BlockHead(
            HeadWeights(draft), hidden[row : row + 1], base[row : row + 1], target.get_input_embeddings(), pool
        )
        assert pool == 0 or torch.equal(own.ids[0], law.ids[row])
        for slot, number in enumerate(law.rows[row]):
            if number < 0:
                continue
            path = [tree.tokens[node] for node in tree.path(slot - 1)]
            lanes = own.begin(first[row : row + 1])
            for token in path:
                lanes = own.step(lanes, torch.tensor([[token]]))
            q = own.logits(len(path), lanes)[0, 0].softmax(-1)
            torch.testing.assert_close(law.q[row, number], q, rtol=0, atol=1e-12)
            checked += 1
    assert checked == sum(len(set(plan.parents)) for plan in SEVERAL)


def test_the_race_says_when_q_has_no_more():
    torch.manual_seed(0)
    q = torch.tensor([[[0.5, 0.0, 0.5, 0.0], [0.0, 0.0, 0.0, 0.0], [0.25, 0.25, 0.25, 0.25]]])
    tokens = sampled._race(FakeHead(1), q, 6)[0].tolist()
    assert sorted(tokens[0][:2]) == [0, 2]
    assert tokens[0][2:] == [-1] * 4
    assert tokens[1] == [-1] * 6
    assert sorted(tokens[2][:4]) == [0, 1, 2, 3]
    assert tokens[2][4:] == [-1, -1]
