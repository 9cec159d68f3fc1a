"""The number of drafts: costs, calibration, and that the choice is the best of all lengths."""

import pytest
from domino.generation.verify_length import PATIENCE, PAUSES, Calibration, Costs, Round, VerifyLength


def costs(block, step, verify):
    found = Costs()
    found.block.append(block)
    found.step.append(step)
    for tokens, seconds in verify.items():
        found.saw_verify(tokens, seconds)
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


def test_drafting_that_does_not_pay_pauses_longer_and_longer():
    length = VerifyLength()
    assert [length.unknown(3, 8), length.at(3).saw_verify(9, 1.0), length.unknown(3, 8)] == [8, None, 0]
    length.at(3).saw_verify(1, 1.0)
    assert length.unknown(4, 8) == 4  # 3 and 4 rows share their costs
    length.at(3).saw_verify(5, 1.0)
    assert length.unknown(3, 8) is None
    length.at(3).block.append(5.0)  # drafting takes five times what it could save
    for failures in range(1, PATIENCE + len(PAUSES) + 1):
        assert length.drafts_now()
        length.judge(Round(length.calibration, length.at(3), [8] * 3), 3)
        expected = 0 if failures < PATIENCE else PAUSES[min(failures - PATIENCE, len(PAUSES) - 1)]
        assert length.pause == expected
        while length.pause:
            assert not length.drafts_now()
    length.at(3).block.extend([0.0] * 9)
    choice = Round(length.calibration, length.at(3), [8] * 3)
    choice.pays([0.99] * 3)
    length.judge(choice, 3)
    assert length.failures == 0
