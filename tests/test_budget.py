"""The number of nodes: what verifications cost, that the choice is the best of all sizes, and when the drafter is left out."""

import random
from functools import partial

import numpy as np
import pytest
import torch
from domino import generate
from domino.generation import budget as module
from domino.generation import call, proposing
from domino.generation.budget import ASKED, FADE, FIRST, MEASURED, NEWEST, RETRY, SIZES, STALE, Budget, Choice, Costs
from domino.verification.target import RowTarget
from hypothesis import given
from hypothesis import strategies as st
from oracles import OracleSession, both, oracle, taught
from tiny import VOCAB, make_draft


def costs(seconds: dict[int, float], times: int = 1) -> Costs:
    """Each size measured so often, all the same; the first of each does not count."""
    found = Costs()
    for _ in range(times + 1):
        for size, value in seconds.items():
            found.saw(size, value)
    return found


def test_the_worked_example():
    known = costs({0: 30.0, 8: 40.0, 16: 36.0})
    # the last was seen last, so it weighs a little more
    assert known.line() == [(0, 30.0), (8, pytest.approx(38, abs=0.1)), (16, pytest.approx(38, abs=0.1))]
    assert known.upto(16)[[0, 4, 8, 12, 16]] == pytest.approx([30, 34, 38, 38, 38], abs=0.1)


def test_times_between_and_beyond_measured_ones():
    known = costs({0: 27.0, 8: 31.0})
    assert known.upto(64)[[0, 2, 8, 16, 64]] == pytest.approx([27, 28, 31, 35, 59])
    assert costs({8: 2.0}).upto(3).tolist() == [2.0] * 4
    assert Costs().upto(2).tolist() == [0.0] * 3


def test_the_first_of_a_size_does_not_count():
    known = Costs()
    known.saw(8, 1e9)
    assert known.line() == []
    known.saw(8, 2.0)
    assert known.line() == [(8, 2.0)]


@pytest.mark.parametrize(("nodes", "size"), [(0, 0), (1, 1), (5, 6), (7, 8), (21, 24), (63, 64), (64, 64), (1000, 64)])
def test_sizes_that_are_kept_apart(nodes, size):
    assert costs({nodes: 3.0}).line() == [(size, 3.0)]


def test_one_slow_moment_counts_as_three_times_the_usual():
    known = costs({4: 10.0}, times=5)
    weight = known.weight[4] * FADE
    known.saw(4, 5000.0)
    assert known.mean[4] == pytest.approx((10 * weight + 30) / (weight + 1))


def test_old_times_fade():
    """A machine that became twice as slow is known to be after some fifty rounds, also of sizes that are not measured meanwhile."""
    known = costs({0: 10.0, 8: 20.0}, times=200)
    for _ in range(60):
        known.saw(0, 20.0)
    assert known.mean[0] == pytest.approx(20, abs=2)
    before = known.weight[8]
    known.saw(0, 20.0)
    assert known.weight[8] == before * FADE


def test_a_size_that_noise_made_slow_is_not_slow_for_ever():
    """Larger ones that are faster take it down, though it is never measured again."""
    known = costs({0: 10.0, 8: 50.0})
    for _ in range(60):
        known.saw(16, 12.0)
    assert dict(known.line())[8] < 20


@given(st.lists(st.tuples(st.integers(0, 64), st.floats(0.001, 10.0)), max_size=60))
def test_more_nodes_are_never_faster(seen):
    known = Costs()
    for nodes, seconds in seen:
        known.saw(nodes, seconds)
    line = known.upto(64)
    assert (np.diff(line) >= -1e-9).all()
    assert [size for size, _ in known.line()] == sorted(known.mean)
    # sharing keeps the total
    total = sum(known.weight[size] * mean for size, mean in known.line())
    assert total == pytest.approx(sum(known.weight[size] * known.mean[size] for size in known.mean))


def test_sizes_are_measured_before_anything_is_decided():
    known, asked = Costs(), []
    while (nodes := known.unknown(32)) is not None:
        asked.append(nodes)
        known.saw(nodes, 1.0)
    assert asked == [n for n in FIRST for _ in range(MEASURED + 1)]


def test_fewer_nodes_are_measured_where_no_more_are_allowed():
    known, asked = Costs(), []
    while (nodes := known.unknown(5)) is not None:
        asked.append(nodes)
        known.saw(nodes, 1.0)
    assert asked == [5] * 3 + [0] * 3
    assert known.unknown(32) == 24


def brute_force(reaches, spent, seconds, most) -> tuple[int, float]:
    """The first of the best sizes, and its rate."""
    rates = []
    for size in range(min(max(map(len, reaches)), most) + 1):
        expected = sum(1 + sum(sorted(reach, reverse=True)[:size]) for reach in reaches)
        rates.append(expected / (spent + seconds[size]))
    return int(np.argmax(rates)), max(rates)


def test_the_choice_is_the_best_of_all_sizes():
    dice, chosen = random.Random(0), set()
    for _ in range(300):
        rows, most = dice.randint(1, 4), dice.choice([3, 16, 32])
        reaches = [sorted((dice.random() ** 3 for _ in range(dice.randint(0, 40))), reverse=True) for _ in range(rows)]
        step = dice.choice([0.1, 0.5, 2.0, 20.0])
        known = costs({n: 20 + step * n + dice.random() * 5 for n in dice.sample(SIZES, 4)})
        spent = dice.choice([0.0, 3.0])
        choice = Budget(known).choose(reaches, spent, most)
        size, rate = brute_force(reaches, spent, known.upto(64), most)
        assert choice.nodes == size
        assert choice.rate == pytest.approx(rate)
        chosen.add(size)
    assert len(chosen) > 10


def test_a_step_in_the_cost_is_jumped_over():
    """The first node is not worth its time, sixteen are."""
    known = Budget(costs({0: 10.0, 1: 20.0, 16: 20.0}))
    assert known.choose([[0.3] * 16], 0.0, 32).nodes == 16
    assert known.choose([[0.3] * 2], 0.0, 32).nodes == 0


def test_rows_share_one_size():
    """A row that has nothing pays for the others, and rows that end in mid-tree gain nothing there."""
    known = Budget(costs({0: 10.0, 4: 16.0}))
    assert known.choose([[0.9] * 4], 0.0, 32).nodes == 4
    assert known.choose([[0.9] * 4, [], [], [], [], [], [], [], []], 0.0, 32).nodes == 0
    assert known.choose([], 0.0, 32) == Choice(0, 0.0, 10.0)


def test_the_drafter_is_left_out_where_it_does_not_pay_and_tried_again():
    known, without = Budget(), Choice(0, 1.0, 1.0)
    assert known.drafts_now(without)
    known.drafted(Choice(8, 1.0, 2.0))
    for _ in range(3):
        assert [known.drafts_now(without) for _ in range(RETRY + 1)] == [False] * RETRY + [True]
    for _ in range(30):
        known.drafted(Choice(8, 3.0, 2.0))
    assert known.rate == pytest.approx(1.5, abs=0.02)
    assert all(known.drafts_now(without) for _ in range(3 * RETRY))


def test_what_drafting_brings_is_an_average_of_late_rounds():
    known = Budget()
    known.drafted(Choice(8, 4.0, 2.0))
    assert known.rate == 2.0
    known.drafted(Choice(8, 8.0, 2.0))
    assert known.rate == pytest.approx(2 + 2 * NEWEST)
    known.took(3.0)
    known.took(5.0)
    assert known.drafting == pytest.approx(3 + 2 * NEWEST)


def test_the_floor_is_half_of_what_a_node_costs():
    known = Budget(costs({0: 10.0, 20: 14.0}))
    assert known.floor(1, 20) == 0.0
    known.drafted(Choice(8, 2.0, 10.0))
    # 0.2 tokens a second, 0.2 seconds a node
    assert known.floor(1, 20) == pytest.approx(0.2 * 0.2 / 2)
    assert known.floor(4, 20) == pytest.approx(0.2 * 0.2 / 2 / 4)


class Clock:
    """Seconds that pass only where a verification or a proposal says so."""

    def __init__(self, patch, verify, draft):
        self.now, self.widths, self.asked = 0.0, [], []
        patch.setattr(call.time, "perf_counter", lambda: self.now)
        run, propose, ask = RowTarget.verify, proposing.Proposer.propose, OracleSession.propose

        def timed(reader, anchors, proposal):
            self.now += verify(proposal.width)
            self.widths.append(proposal.width)
            return run(reader, anchors, proposal)

        def decided(proposer, *args):
            before = self.now
            found = propose(proposer, *args)
            self.asked.append(self.now > before)
            return found

        def late(session, *args):
            self.now += draft
            return ask(session, *args)

        patch.setattr(RowTarget, "verify", timed)
        patch.setattr(proposing.Proposer, "propose", decided)
        patch.setattr(OracleSession, "propose", late)


@pytest.fixture
def clock(monkeypatch):
    return partial(Clock, monkeypatch)


PROMPT = torch.arange(3, 12)[None]
ONES = torch.ones_like(PROMPT)
LONG = {"max_new_tokens": 120, "eos_token_id": None}


def test_wrong_drafts_end_in_plain_decoding_and_are_tried_again(target, clock):
    """After the measurements rounds have no nodes; after RETRY of them the drafter is asked, and one node at most is tried.

    A large tree is verified after STALE rounds without one.
    """
    times = clock(lambda width: 1.0 + 0.1 * width, 0.5)
    text, ours = both(target, oracle("wrong", learns=True), PROMPT, ONES, LONG, lookup=False)
    assert torch.equal(ours, text)
    tried = [place for place, asked in enumerate(times.asked) if asked]
    assert len(times.asked) > 100
    late = [place for place in tried if place > 30]
    large = [place for place in late if times.widths[place] > 1]
    assert 1 <= len(large) <= 2
    assert all(b - a == RETRY + 1 for a, b in zip(late, late[1:], strict=False) if not {a, b} & set(large))
    assert len(late) > 3
    assert not any(width for width, asked in zip(times.widths, times.asked, strict=True) if not asked)


def test_right_drafts_that_are_cheap_are_all_verified(target, clock):
    times = clock(lambda width: 1.0 + 0.01 * width, 0.1)
    draft = oracle("right", learns=True)
    text, ours = both(target, draft, PROMPT, ONES, LONG, lookup=False)
    assert torch.equal(ours, text)
    assert all(times.asked[len(times.asked) // 2 : -1])
    assert draft.statistics.acceptance_length > 3


def test_right_drafts_that_are_dear_are_not_asked_for(target, clock):
    """Seven tokens a round are less than one, where drafting takes ten times a round's time."""
    times = clock(lambda width: 1.0 + 0.01 * width, 10.0)
    text, ours = both(target, oracle("right", learns=True), PROMPT, ONES, LONG, lookup=False)
    assert torch.equal(ours, text)
    assert sum(times.asked[-17:]) <= 1
    assert sum(times.asked) <= ASKED * 2 + 2 + len(times.asked) // RETRY


def test_lookup_stays_where_the_drafter_does_not_pay(target, clock):
    """A text that repeats itself: rounds without the drafter have nodes, and they are kept."""
    times = clock(lambda width: 1.0 + 0.01 * width, 5.0)
    plain = LONG | {"repetition_penalty": 0.5}
    draft = oracle("wrong", learns=True)
    text, ours = both(target, draft, PROMPT, ONES, plain)
    assert torch.equal(ours, text)
    alone = [width for width, asked in zip(times.widths, times.asked, strict=True) if not asked]
    assert max(alone) > 3
    assert draft.statistics.acceptance_length > 1.5
    assert sum(draft.statistics.lookup) == sum(draft.statistics.accepted)


def test_more_rows_have_fewer_nodes_each(target, clock):
    """A node costs eight times as much for eight rows as for one."""
    sizes = []
    for rows, step in ((1, 0.02), (8, 0.5)):
        times = clock(lambda width, step=step: 1.0 + step * width, 0.01)
        draft = oracle("hidden", learns=True)
        ids = torch.randint(3, VOCAB - 1, (rows, 9), generator=torch.Generator().manual_seed(0))
        text, ours = both(target, draft, ids, torch.ones_like(ids), LONG, lookup=False)
        assert torch.equal(ours, text)
        late = times.widths[len(times.widths) // 2 :]
        sizes.append(sum(late) / len(late))
    assert sizes[1] < sizes[0] / 2


def test_what_was_learnt_outlives_the_call(target):
    """The second call measures nothing; one with another number of rows does."""
    draft = make_draft()
    options = {"max_new_tokens": 60, "eos_token_id": None, "do_sample": False}
    generate(target, draft, PROMPT, **options)
    known = taught(draft, target)
    assert known.budget(1).costs.unknown(32) is None
    costs = known.budget(1).costs
    asked = dict(costs.asked)
    generate(target, draft, PROMPT, **options)
    assert sum(costs.asked.values()) - sum(asked.values()) <= costs.rounds // STALE
    assert known.budget(2).costs.unknown(32) == FIRST[0] // 2
    assert known.budget(5) is known.budget(8)


def test_chains_are_decided_on_though_they_are_shorter_than_what_is_asked_first(target):
    """A size that a drafter never reaches is asked for a few times, not for ever."""
    draft = make_draft()
    options = {"max_new_tokens": 60, "eos_token_id": None, "do_sample": False, "shape": "chain", "lookup": False}
    generate(target, draft, PROMPT, **options)
    known = taught(draft, target, shape="chain", lookup=False).budget(1)
    assert known.costs.unknown(module.SIZES[-1]) is None
    assert known.costs.asked[FIRST[0]] == ASKED
    assert known.rate is not None
