"""Chances of nodes: what cells say at first, and what they learn."""

import pytest
import torch
from domino.drafting.calibration import BINS, CELLS, LOOKUP, MATCHES, MEMORY, PRIOR, RANKS, SAMPLED, TURNS, Calibration
from hypothesis import given, settings
from hypothesis import strategies as st

OBSERVED = st.lists(st.tuples(st.integers(0, CELLS - 1), st.booleans()), max_size=300)


def taught(observed) -> Calibration:
    calibration = Calibration()
    for cell, hit in observed:
        calibration.observe(cell, hit)
    return calibration


@settings(max_examples=80, deadline=None, derandomize=True)
@given(
    observed=OBSERVED,
    p=st.lists(st.lists(st.floats(0, 1), min_size=1, max_size=9), min_size=1, max_size=4),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_chances_of_chosen_siblings(observed, p, dtype):
    """Between 0 and 1, together at most 1, and never above a likelier sibling's."""
    calibration = taught(observed)
    width = max(map(len, p))
    rows = [sorted([*row, *[0.0] * (width - len(row))], reverse=True) for row in p]
    table = torch.tensor([rows], dtype=dtype)
    chances, cells = calibration.chosen(table / table.sum(-1, keepdim=True).clamp(min=1))
    assert chances.dtype == dtype
    assert chances.shape == cells.shape == table.shape
    assert bool((chances >= 0).all())
    assert bool((chances.sum(-1) <= 1 + 1e-6).all())
    assert bool((chances.diff(dim=-1) <= 0).all())
    ranks = cells // BINS
    assert ranks.tolist() == [[[0, 1, 2, 2, 3, 3, 3, 3, 3][:width] for _ in rows]]


def test_the_first_guess_is_the_drafters_own_probability():
    p = torch.tensor([[[0.9], [0.5], [0.1], [1.0], [0.0], [1e-9]]], dtype=torch.float64)
    chances, cells = Calibration().chosen(p)
    assert chances.flatten().tolist() == pytest.approx([0.9, 0.5, 0.1, 0.98, 0.0025, 0.0025], abs=0.09)
    assert cells.flatten()[-3:].tolist() == [BINS - 1, 0, 0]
    assert Calibration().sampled(0, 0.5)[0] == pytest.approx(
        0.25 + 0.75 * 0.5, abs=0.09
    )  # a draw is kept more often than that


@settings(max_examples=60, deadline=None, derandomize=True)
@given(observed=OBSERVED, turn=st.integers(0, 12), confidence=st.floats(0, 1), matched=st.integers(1, 30))
def test_chances_of_the_other_kinds_lie_between_0_and_1_in_cells_of_their_own(observed, turn, confidence, matched):
    calibration = taught(observed)
    chance, cell = calibration.sampled(turn, confidence)
    assert 0 <= chance <= 1
    assert chance == calibration.chances[cell]
    first = SAMPLED + min(turn, TURNS - 1) * BINS
    assert first <= cell < first + BINS
    for alike in (False, True):
        chance, cell = calibration.lookup(matched, alike)
        assert 0 <= chance <= 1
        assert cell == LOOKUP + alike * MATCHES + min(matched, MATCHES) - 1 < CELLS


def test_kinds_share_no_cell():
    calibration = Calibration()
    p = (torch.arange(0, 200) / 199).sort(descending=True).values[:, None].expand(-1, 9)[None]
    kinds = {
        "chosen": set(calibration.chosen(p.double())[1].flatten().tolist()),
        "sampled": {calibration.sampled(turn, c / 200)[1] for turn in range(TURNS) for c in range(201)},
        "lookup": {calibration.lookup(matched, alike)[1] for matched in range(1, 9) for alike in (False, True)},
    }
    assert [len(cells) for cells in kinds.values()] == [RANKS * BINS, TURNS * BINS, 2 * MATCHES]
    assert set.union(*kinds.values()) == set(range(CELLS))


def test_lookup_trusts_longer_matches_more_from_the_start():
    chances = [Calibration().lookup(matched, False)[0] for matched in range(1, 12)]
    assert chances == sorted(chances)
    assert max(chances) <= 0.5


@pytest.mark.parametrize(("hits", "limit"), [([True], 1.0), ([False], 0.0), ([True, False, False, False], 0.25)])
def test_a_cell_moves_towards_what_was_seen(hits, limit):
    calibration, cell = Calibration(), 5
    others = [c for c in range(CELLS) if c != cell]
    before, rest = calibration.chances[cell], calibration.chances[others].copy()
    for hit in hits:
        old = calibration.chances[cell]
        calibration.observe(cell, hit)
        assert old < calibration.chances[cell] <= 1 if hit else 0 <= calibration.chances[cell] < old
    for _ in range(400):
        for hit in hits:
            calibration.observe(cell, hit)
    assert calibration.chances[cell] == pytest.approx(limit, abs=0.02)
    assert abs(calibration.chances[cell] - limit) < abs(before - limit) or before == pytest.approx(limit, abs=0.02)
    assert (calibration.chances[others] == rest).all()


def test_the_first_observations_count_as_a_mean_with_the_prior():
    calibration, cell = Calibration(), 7
    calibration.chances[cell] = 0.5
    for hit in (True, True, False):
        calibration.observe(cell, hit)
    tries, hits = PRIOR, PRIOR * 0.5
    for hit in (True, True, False):
        fade = MEMORY if tries > PRIOR / MEMORY else 1.0
        tries, hits = tries * fade + 1, hits * fade + hit
    assert calibration.chances[cell] == pytest.approx(hits / tries)
    assert calibration.tries[cell] == pytest.approx(tries)


def test_what_was_seen_long_ago_fades():
    """A thousand misses are forgotten after some hundred hits: a cell remembers about 1 / (1 - MEMORY) observations."""
    calibration, cell = Calibration(), 9
    for _ in range(1000):
        calibration.observe(cell, False)
    assert calibration.tries[cell] <= 1 / (1 - MEMORY) + 1
    for _ in range(300):
        calibration.observe(cell, True)
    assert calibration.chances[cell] > 0.9
