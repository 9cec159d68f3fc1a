"""A watched call: its rounds are the drafter's own, its time is put where it was spent, and it is otherwise untouched."""

import time

import pytest
import torch
from domino.evaluation.methods import METHODS, Models, StockDFlash
from domino.evaluation.watch import Watch
from tiny import make_draft, make_target

IDS = torch.arange(3, 13)[None]


def watched(target, drafter, new=14, **options):
    with Watch(target, drafter) as watch:
        ids = target.generate(IDS, max_new_tokens=new, do_sample=False, eos_token_id=None, **options)
    return ids, watch.call(IDS.shape[1], ids.shape[1] - IDS.shape[1])


def test_rounds_are_those_of_the_drafter(target, draft):
    ids, call = watched(target, draft, assistant_model=draft)
    assert call.advanced == [n + 1 for n in draft.statistics.accepted]
    assert call.drafted == draft.statistics.drafted
    assert 1 + sum(call.advanced) == call.new_tokens == 14
    assert call.prefill > 0
    assert call.overhead > 0
    assert call.setup > 0
    assert "rollout" not in draft.__dict__
    assert not target._forward_hooks
    assert not draft._forward_pre_hooks


def test_plain_generate_advances_by_one(target):
    _, call = watched(target, None)
    assert call.advanced == [1] * 13
    assert call.drafted == [0] * 13
    assert call.draft == call.head == 0


@pytest.mark.parametrize("shift_label", [True, False])
def test_the_stock_methods_are_counted_and_equal_plain(target, shift_label):
    draft = make_draft(shift_label=shift_label)
    plain, _ = watched(target, None)
    models = Models(target, None, draft, make_target(seed=3))
    for name in ("prompt-lookup", "dflash", "assistant", "domino", "engine"):
        method = METHODS[name]
        ids, call = watched(target, method.drafter(models), **method.options(models))
        assert torch.equal(ids, plain), name
        assert sum(call.advanced) < call.new_tokens == 14
        assert (call.draft > 0) == (name != "prompt-lookup")
        assert (call.head > 0) == (name in ("domino", "engine"))
        assert max(call.drafted) > 0


def test_stock_dflash_reads_the_slots_of_both_layouts(target):
    """What it proposes first is the backbone's choice for the token after the anchor."""
    for shift_label in (True, False):
        draft = make_draft(shift_label=shift_label)
        embeds = torch.randn(1, 5, draft.config.hidden_size, dtype=torch.float64)
        features = torch.randn(1, 3, 2 * draft.config.hidden_size, dtype=torch.float64)
        own = draft(embeds, features).last_hidden_state
        seen = StockDFlash(draft)(embeds, features).last_hidden_state[:, 1:]
        first = draft.config.first_slot
        assert torch.equal(seen, own[:, first : first + 4])


@pytest.mark.flaky(reruns=2)  # compares times, of a machine that may stand still for a second
def test_time_planted_in_a_stage_shows_up_there(target, monkeypatch):
    draft = make_draft()

    def slow(function):
        def slower(*args, **kwargs):
            time.sleep(0.02)
            return function(*args, **kwargs)

        return slower

    for stage, owner, name in (("head", draft, "rollout"), ("draft", draft, "forward"), ("verify", target, "forward")):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, slow(getattr(owner, name)), raising=False)
            _, call = watched(target, draft, assistant_model=draft)
        rounds = len(call.advanced)
        times = {s: getattr(call, s) for s in ("verify", "draft", "head", "overhead")}
        assert max(times, key=times.get) == stage
        assert times[stage] >= 0.02 * rounds * 0.9
        assert all(t < 0.02 * rounds * 0.6 for s, t in times.items() if s != stage)


def test_hooks_go_also_when_the_call_fails(target, draft):
    with pytest.raises(ValueError, match="num_beams"), Watch(target, draft):
        target.generate(IDS, assistant_model=draft, num_beams=2)
    assert not target._forward_hooks
    assert "rollout" not in draft.__dict__
