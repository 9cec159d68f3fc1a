"""Figures against hand-computed ones."""

import math

import pytest
from domino.evaluation import metrics
from domino.evaluation.summary import cells


def call(advanced, drafted, new, seconds=2.0, prefill=0.5, verify=0.8, draft=0.3, head=0.1):
    return {
        "prompt_tokens": 10,
        "new_tokens": new,
        "seconds": seconds,
        "prefill": prefill,
        "verify": verify,
        "draft": draft,
        "head": head,
        "peak": 5,
        "advanced": advanced,
        "drafted": drafted,
    }


def test_tau_by_step_and_by_sample_differ_where_they_should():
    samples = [[1, 1, 1, 5], [5], []]
    assert metrics.tau_per_step(samples) == 13 / 5
    assert metrics.tau_per_sample(samples) == (2 + 5) / 2
    assert metrics.tau_per_step([]) == metrics.tau_per_sample([[]]) == 0.0


def test_acceptance_by_position_counts_only_rounds_that_drafted_as_many():
    """4 drafts all right; 4 with an eos as the second (1 accepted, it came as the bonus); the last round had room for 2."""
    advanced, drafted = [5, 2, 3], [4, 4, 2]
    assert metrics.acceptance_by_position(advanced, drafted) == [3 / 3, 2 / 3, 1 / 2, 1 / 2]
    assert metrics.accepted_lengths(advanced) == [0, 1, 1, 0, 1]
    assert metrics.used_share(advanced, drafted) == 7 / 10
    assert metrics.acceptance_by_position([1, 1], [0, 0]) == []
    assert metrics.used_share([], []) == 0.0


def test_speed_is_tokens_per_second():
    """Half the text in half the time is no speedup; a sample without text adds its time but never divides by zero."""
    assert metrics.speedup([20], [2.0], [10], [1.0]) == 1.0
    assert metrics.speedup([10, 10], [1.0, 1.0], [10, 10], [0.5, 1.5]) == 1.0
    assert metrics.speedup_per_sample([10, 10, 0], [1.0, 1.0, 1.0], [10, 10, 5], [0.5, 1.5, 1.0]) == pytest.approx(
        4 / 3
    )
    assert math.isnan(metrics.speedup([0], [1.0], [5], [1.0]))
    assert metrics.seconds_per_token([0], [1.0]) == math.inf
    assert math.isnan(metrics.speedup_per_sample([0], [1.0], [5], [1.0]))


def test_bootstrap_interval():
    low, high = metrics.interval([[1]] * 50 + [[3]] * 50, metrics.tau_per_step)
    assert 1.75 < low < 1.9 < 2.1 < high < 2.25  # 2 ± 1.96 · 1/√100
    for few in ([], [[2]], [[2, 2]]):
        assert all(map(math.isnan, metrics.interval(few, metrics.tau_per_step)))
    assert metrics.interval([[1], [3]], metrics.tau_per_step) == metrics.interval([[1], [3]], metrics.tau_per_step)


def test_lossless_rate():
    assert metrics.lossless_rate([True, False, True, True]) == 0.75
    assert math.isnan(metrics.lossless_rate([]))


def test_a_cell_pools_both_turns_of_a_sample():
    """Two turns, plain 4 and 6 tokens in 2 + 2 s, Domino the same tokens in 1 + 1 s."""

    def row(method, seconds, rounds):
        turns = [
            {"text": "a", "same": True, "gap": None, "runs": [call(*rounds[0], 4, seconds)]},
            {"text": "b", "same": False, "gap": 0.25, "runs": [call(*rounds[1], 6, seconds)]},
        ]
        head = {"model": "m", "task": "mt_bench", "temperature": 0.0, "question": "q", "method": method}
        return {**head, "correct": None, "turns": turns}

    rows = [row("plain", 2.0, [([1, 1, 1], [0, 0, 0]), ([1] * 5, [0] * 5)])]
    rows.append(row("domino", 1.0, [([3], [4]), ([1, 4], [4, 4])]))
    plain, domino = cells(rows)
    assert plain.speedup == 1.0
    assert domino.speedup == domino.median_speedup == 2.0
    assert domino.decode_speedup == pytest.approx((3.0 / 8) / (1.0 / 8))  # 1.5 s against 0.5 s after the prefill
    assert domino.tau == 8 / 3
    assert domino.tau_per_sample == (3 + 2.5) / 2
    assert domino.tokens_per_second == 5.0
    assert domino.drafts == 4
    assert (domino.same, domino.gaps, domino.accuracy) == ([True, False], [0.25], None)
    assert domino.split == pytest.approx(
        {"setup": 0.0, "prefill": 1.0, "verify": 1.6, "draft": 0.6, "head": 0.2, "overhead": 2 - 1 - 1.6 - 0.6 - 0.2}
    )
    assert domino.round_split["draft"] == pytest.approx(200.0)
    assert domino.peak == 5
    assert domino.time_per_token == pytest.approx(1.0 / 8)
    assert domino.prefill_seconds == 0.5


def test_repetitions_do_not_narrow_an_interval():
    """Ten runs of a greedy question say of τ what one does."""

    def found(repeats):
        rows = []
        for question, tau, seconds in (("a", 2, 1.0), ("b", 4, 0.5), ("c", 3, 0.8)):
            head = {"model": "m", "task": "gsm8k", "temperature": 0.0, "question": question, "correct": None}
            for method, runs in (("plain", call([1] * 4, [0] * 4, 5)), ("domino", call([tau], [4], 5, seconds))):
                turn = {"text": "", "same": True, "gap": None, "runs": [runs] * repeats}
                rows.append({**head, "method": method, "turns": [turn]})
        return cells(rows)[1]

    once, often = found(1), found(10)
    assert often.tau_interval == once.tau_interval == (2.0, 4.0)
    assert often.tau_per_sample_interval == pytest.approx(once.tau_per_sample_interval)
    assert often.speedup_interval == pytest.approx(once.speedup_interval)
