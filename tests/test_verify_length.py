"""The number of drafts: costs, calibration, and that the choice is the best of all lengths."""

import random

import pytest
from domino.generation.budget import PAUSES, STALE, TRIAL, Calibration, Costs, Round, VerifyLength, Worth


def costs(block, step, verify):
    found = Costs()
    found.block.append(block)
    found.step.append(step)
    for tokens, seconds in verify.items():
        for time in (1e9, seconds, seconds):  # the first of each length does not count
            found.saw_verify(tokens, time)
    return found


def test_times_between_and_beyond_measured_ones():
    known = costs(3.0, 0.5, {1: 27.0, 9: 31.0})
    assert known.of_verify(5) == 29.0
    assert known.of_verify(17) == 35.0
    assert known.of_draft(4) == 5.0
    assert costs(0, 0, {3: 2.0}).of_verify(1) == 2.0


def test_one_slow_moment_is_no_news():
    known = costs(3.0, 0.5, {1: 27.0})
    for seconds in (27.0, 300.0, 27.0):
        known.saw_verify(1, seconds)
    assert known.of_verify(1) == 27.0


def test_calibration_learns_what_confidence_is_worth():
    calibration = Calibration()
    assert calibration.chance(0.9) == pytest.approx(0.9, abs=0.05)
    for _ in range(300):
        calibration.observe([0.9, 0.9], 0)  # always wrong at once; the second says nothing
    assert calibration.chance(0.9) < 0.1
    assert calibration.chance(0.3) == pytest.approx(0.3, abs=0.1)
    for _ in range(300):
        calibration.observe([0.9], 1)
    assert calibration.chance(0.9) > 0.9


@pytest.mark.parametrize("confidence", [0.2, 0.5, 0.8, 0.97])
@pytest.mark.parametrize("times", [(3.0, 0.5, {1: 27.0, 9: 31.0}), (3.0, 0.5, {1: 27.0, 9: 60.0})])
def test_the_place_to_stop_is_the_best(confidence, times):
    calibration, known = Calibration(), costs(*times)
    choice = Round(calibration, known, [8])
    while choice.pays([confidence]):
        pass
    chance = calibration.chance(confidence)
    rates = [sum(chance**i for i in range(n + 1)) / (known.of_draft(n) + known.of_verify(n + 1)) for n in range(9)]
    assert choice.rate == pytest.approx(max(rates))
    assert rates.index(max(rates)) == choice.drafts


def test_rows_without_room_do_not_count():
    choice = Round(Calibration(), costs(0, 0, {1: 10.0, 9: 10.0}), [1, 0])
    assert choice.pays([0.9, 0.9])
    assert choice.tokens == pytest.approx(2 + Calibration().chance(0.9))
    assert not choice.pays([0.9, 0.9])


def see(length, rows, tokens, seconds):
    for _ in range(3):
        length.at(rows).saw_verify(tokens, seconds)


def test_lengths_are_measured_before_they_are_judged():
    length, asked = VerifyLength(), []
    while (drafts := length.unknown(3, 8)) is not None:
        asked.append(drafts)
        length.at(4).saw_verify(drafts + 1, 1.0)  # 3 and 4 rows share their costs
    assert asked == [8] * 3 + [0] * 3 + [4] * 3
    assert length.unknown(5, 8) == 8


def test_a_length_that_once_looked_slow_is_measured_again():
    length = VerifyLength()
    for tokens, seconds in ((1, 17.0), (5, 19.0), (9, 90.0)):
        see(length, 1, tokens, seconds)
    for _ in range(STALE - 3):  # the last of the others was three rounds later
        assert length.unknown(1, 8) in (None, 0)
        length.at(1).saw_verify(5, 19.0)
        length.at(1).saw_verify(1, 17.0) if length.unknown(1, 8) == 0 else None
    while length.unknown(1, 8) != 8:
        length.at(1).saw_verify(5, 19.0)
    for _ in range(2):
        assert length.unknown(1, 8) == 8
        length.at(1).saw_verify(9, 21.0)
    assert length.at(1).of_verify(9) == 21.0
    assert length.unknown(1, 8) != 8


def test_drafting_that_does_not_pay_pauses_longer_and_longer():
    length = VerifyLength()
    for tokens in (1, 5, 9):
        see(length, 3, tokens, 1.0)
    length.at(3).block.append(5.0)  # drafting takes five times what it could save
    worth = length.worth(4)  # 3 and 4 rows share it
    for failures, pause in enumerate([*PAUSES, PAUSES[-1]]):
        for trial in range(TRIAL):
            assert worth.drafts_now()
            assert length.unknown(3, 8) == (
                4 if failures and not trial else None
            )  # after a pause it is tried out again
            length.judge(Round(length.calibration, length.at(3), [8] * 3), 3)
        assert worth.pause == pause
        while worth.pause:
            assert not worth.drafts_now()
    assert length.worth(1) == Worth()  # which says nothing of a single row
    length.at(3).block.extend([0.0] * 9)
    for _ in range(2 * TRIAL):
        assert worth.drafts_now()
        choice = Round(length.calibration, length.at(3), [8] * 3)
        while choice.pays([0.99] * 3):
            pass
        length.judge(choice, 3)
    assert worth.failures == 0


def test_bad_rounds_among_good_ones_are_no_reason_to_pause():
    """Seven of ten rounds lose half a token, the others win three: drafting pays, by 0.55 tokens a round."""
    worth, dice = Worth(), random.Random(0)
    drafted = 0
    for _ in range(2000):
        if worth.drafts_now():
            drafted += 1
            worth.judge(3.0 if dice.random() < 0.3 else -0.5)
    assert drafted > 1900


def test_what_loses_little_is_left_for_long():
    worth, drafted = Worth(), 0
    for _ in range(2000):
        if worth.drafts_now():
            drafted += 1
            worth.judge(-0.1)
    assert drafted < 200


def test_confidence_that_is_no_number_counts_as_none():
    assert Calibration().chance(float("nan")) == Calibration().chance(0.0)
