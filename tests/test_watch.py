"""A watched call: its rounds are the drafter's own, its time is put where it was spent, and it is otherwise untouched."""

from functools import wraps
from types import SimpleNamespace

import pytest
import torch
from domino import DominoModel
from domino.drafting.domino import DominoSession
from domino.evaluation import clock, watch
from domino.evaluation.methods import METHODS, Models, StockDFlash
from domino.evaluation.watch import Watch
from domino.generation.sequences import Rows
from tiny import OracleGenerator, RightDraft, make_draft, make_target

ENGINES = ("engine-plain", "engine-chain", "engine-tree", "engine", "engine-24")
IDS = torch.arange(3, 13)[None]


def watched(target, drafter, new=14, **options):
    with Watch(target, drafter) as watch:
        ids = target.generate(IDS, max_new_tokens=new, do_sample=False, eos_token_id=None, **options)
    return ids, watch.call(IDS.shape[1], ids.shape[1] - IDS.shape[1])


def test_rounds_are_those_of_the_drafter(target, draft):
    ids, call = watched(target, draft, custom_generate=draft.decode, loop="transformers")
    assert call.advanced == [n + 1 for n in draft.statistics.accepted]
    assert call.drafted == draft.statistics.drafted
    assert 1 + sum(call.advanced) == call.new_tokens == 14
    assert call.prefill > 0
    assert call.overhead > 0
    assert call.setup > 0
    assert call.depths == call.drafted
    assert call.lookup == []
    assert not target._forward_hooks
    assert not draft._forward_pre_hooks


@pytest.mark.parametrize("budget", [6, 24, "auto"])
def test_rounds_of_trees_are_those_of_the_engine(target, draft, budget):
    """A tree's nodes are drafted, its depth is the longest path that could be kept."""
    deepest = []
    ids, call = watched(
        target,
        draft,
        30,
        custom_generate=draft.decode,
        budget=budget,
        on_round=lambda row, told: deepest.append(max(told.tree.depths(), default=0)),
    )
    assert call.advanced == [n + 1 for n in draft.statistics.accepted]
    assert call.drafted == draft.statistics.drafted
    assert budget == "auto" or max(call.drafted) == budget
    assert call.depths == deepest
    assert call.lookup == draft.statistics.lookup
    assert len(call.lookup) == len(call.advanced)
    assert budget == "auto" or any(depth < nodes for depth, nodes in zip(call.depths, call.drafted, strict=True))
    plain, other = watched(target, draft, 30)
    assert torch.equal(ids, plain)
    assert other.lookup == []  # what the drafter said of an earlier call


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
    for name in ("prompt-lookup", "dflash", "assistant", "assisted", *ENGINES):
        method = METHODS[name]
        ids, call = watched(target, method.drafter(models), **method.options(models))
        assert torch.equal(ids, plain), name
        assert sum(call.advanced) < call.new_tokens == 14
        assert (call.draft > 0) == (name not in ("prompt-lookup", "engine-plain"))
        assert (call.head > 0) == (name in ("assisted", *ENGINES) and name != "engine-plain")
        assert (max(call.drafted) > 0) == (name != "engine-plain")
        assert max(call.depths) <= max(call.drafted)


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


@pytest.mark.parametrize("loop", ["transformers", "engine"])
@pytest.mark.parametrize("stage", ["head", "propose", "draft", "base", "verify", "overhead"])
def test_time_planted_in_a_stage_shows_up_there_and_nowhere_else(stage, loop, monkeypatch):
    """On a clock that only the planted sleeps move, since a machine may stand still at any place.

    "propose" is a proposal as a whole and "base" the LM head, which the backbone's block ends with: each counts once.
    """
    draft, target, now = make_draft(), make_target(), 0.0

    def slow(function):
        @wraps(function)
        def slower(*args, **kwargs):
            nonlocal now
            now += 2.0
            return function(*args, **kwargs)

        return slower

    places = {
        "head": (DominoSession, "walk"),
        "propose": (DominoSession, "propose"),
        "draft": (draft, "forward"),
        "base": (target.get_output_embeddings(), "forward"),
        "verify": (target, "forward"),
        "overhead": (Rows, "say") if loop == "engine" else (target, "_update_model_kwargs_for_generation"),
    }
    owner, name = places[stage]
    monkeypatch.setattr(owner, name, slow(getattr(owner, name)), raising=False)
    for module in (watch, clock):
        monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: now))
    how = {"custom_generate": draft.decode, "loop": "transformers"}
    if loop == "engine":
        how = {"custom_generate": draft.decode, "budget": 4, "shape": "chain", "lookup": False}
    _, call = watched(target, draft, **how)
    drafting, rounds = sum(n > 0 for n in call.drafted), len(call.advanced)  # the last has no room for drafts
    expected = dict.fromkeys(("verify", "draft", "head", "overhead"), 0.0)
    expected |= {
        "head": {"head": 2.0 * drafting},
        "propose": {"head": 2.0 * drafting},
        "draft": {"draft": 2.0 * drafting},
        "base": {"draft": 2.0 * drafting, "verify": 2.0 * rounds},
        "verify": {"verify": 2.0 * rounds},
        "overhead": {"overhead": 2.0 * (rounds + 1)},
    }[stage]
    assert drafting > 3
    assert {name: getattr(call, name) for name in expected} == expected
    assert call.prefill == (2.0 if stage in ("verify", "base") else 0.0)
    assert call.seconds == sum(expected.values()) + call.prefill


@pytest.mark.parametrize("name", ["plain", "prompt-lookup", "dflash", "assistant", "assisted", *ENGINES])
def test_a_block_that_ends_in_eos_counts_what_it_added(target, name):
    """Plain `generate` says the end token as its tenth: 1 of the prefill and, with five right drafts a round, 6 and 3."""
    twin, prompt = make_target(), torch.arange(15, 25)[None]  # the twin drafts what the target will say, unwatched
    draft = make_draft(cls=RightDraft)
    draft.generator_class = type("Twin", (OracleGenerator,), {"_draft_block": _by(twin)})
    models, method = Models(target, None, draft, twin), METHODS[name]
    plain = target.generate(prompt, max_new_tokens=14, do_sample=False, eos_token_id=None)
    end = int(plain[0, 19])
    with Watch(target, method.drafter(models)) as watching:
        ids = target.generate(prompt, max_new_tokens=14, do_sample=False, eos_token_id=end, **method.options(models))
    call = watching.call(10, ids.shape[1] - 10)
    assert torch.equal(ids, plain[:, :20])
    assert call.new_tokens == 10
    assert all(0 < n <= m + 1 for n, m in zip(call.advanced, call.drafted, strict=True))
    if name not in ("assistant", "prompt-lookup"):  # these draft within the prefill, too
        assert sum(call.advanced) == 9
    if name == "assisted":
        assert call.advanced == [6, 3]


def _by(twin):
    def drafted(self, *args):
        own, self.target = self.target, twin
        try:
            return OracleGenerator._draft_block(self, *args)
        finally:
            self.target = own

    return drafted


def test_hooks_go_also_when_the_call_fails(target, draft):
    with pytest.raises(ValueError, match="num_beams"), Watch(target, draft):
        target.generate(IDS, assistant_model=draft, num_beams=2)
    assert not target._forward_hooks
    assert not target.get_output_embeddings()._forward_hooks


class Heir(DominoModel):
    """Its `open` is inherited."""


@pytest.mark.parametrize("kind", [DominoModel, Heir])
def test_the_drafters_class_is_as_it_was_also_when_the_call_fails(target, kind):
    draft, before = make_draft(cls=kind), dict(vars(kind))
    with Watch(target, draft):
        assert vars(kind)["open"] is not before.get("open")
    assert dict(vars(kind)) == before
    with pytest.raises(ValueError, match="num_beams"), Watch(target, draft):
        target.generate(IDS, assistant_model=draft, num_beams=2)
    assert dict(vars(kind)) == before
    assert "open" not in draft.__dict__
