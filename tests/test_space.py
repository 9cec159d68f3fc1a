"""The Space without a browser: requests, tickets, token texts, traces, rounds, one block, markup."""

import json
import os
import threading
import time

import pytest
import torch
from corpus import save_target
from domino.drafting.proposal import LOOKUP, chain
from domino.embedded.smollm2 import target_folder
from domino.evaluation.answering import encode, run
from domino.evaluation.methods import METHODS
from domino.evaluation.settings import ModelSettings
from domino.generation import learnt
from domino.generation.settings import MOST
from domino.generation.statistics import Round
from domino.space import ticket as tickets
from domino.space.app import leave_a_core
from domino.space.block import one_block
from domino.space.compare import Runner
from domino.space.decode import Done, Step, _compare, measure, options
from domino.space.limits import LIMITS, Ask, Refused
from domino.space.markup import text
from domino.space.observe import bonus, chance, said
from domino.space.pairs import ANY_MODEL, Shelf
from domino.space.panes import body, panes
from domino.space.pieces import Pieces
from domino.space.results import PAGE, rows
from domino.space.ticket import Desk, Halt
from domino.space.trace import Token, Trace
from domino.space.verdict import verdict
from tiny import make_draft
from transformers import AutoTokenizer


@pytest.fixture(scope="module")
def runner(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    save_target(folder / "target")
    make_draft().float().save_pretrained(folder / "draft")
    shelf = Shelf(ModelSettings(str(folder / "target"), str(folder / "draft"), name="tiny"), "float32")
    shelf.load(shelf.first)
    assert shelf.failed == {}
    return Runner(shelf, Desk())


@pytest.fixture
def models(runner):
    return runner.shelf.loaded["tiny"]


@pytest.fixture
def forget():
    """Trees follow what earlier calls taught the engine: it is forgotten at first, and where the test says so."""
    learnt._learnt.clear()
    return learnt._learnt.clear


def last(runner, ask):
    *_, now = runner.compare(ask, runner.desk.issue("test"))
    return now


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"prompt": " \n"}, "empty"),
        ({"prompt": "x" * 100_000}, "100,000 characters"),
        ({"temperature": -1}, "Temperature"),
        ({"temperature": float("nan")}, "Temperature"),
        ({"top_p": 0}, "Top-p"),
        ({"seed": 0.5}, "Seed"),
        ({"max_new_tokens": None}, "New tokens"),
        ({"max_new_tokens": LIMITS.new_tokens + 1}, "New tokens"),
        ({"drafts": True}, "Drafts"),
        ({"drafts": MOST + 1}, f"Drafts per round must be a number from 0 to {MOST}"),
        ({"seed": 10**400}, "Seed"),
        ({"temperature": float("inf")}, "Temperature"),
        ({"prompt": "half \ud83d"}, "lone surrogate"),
        ({"head": "no"}, "Head"),
        ({"pair": None}, "model must be a name"),
    ],
)
def test_what_is_too_much_is_said(changes, words):
    with pytest.raises(Refused, match=words):
        Ask(**{"prompt": "w3", **changes})


def test_too_many_tokens(runner):
    with pytest.raises(Refused, match="tokens long"):
        last(runner, Ask("w3 " * (LIMITS.prompt_tokens + 1)))


def test_models_are_those_of_the_list(runner, monkeypatch):
    with pytest.raises(Refused, match="no model 'other'"):
        last(runner, Ask("w3", pair="other"))
    with pytest.raises(Refused, match="only runs the models it lists"):
        runner.shelf.find("", "org/target", "org/drafter")
    monkeypatch.setenv(ANY_MODEL, "1")
    assert runner.shelf.find("", "org/target", "org/drafter").drafter == "org/drafter"
    for name in ("/etc", "../x", "tests/tiny.py", "org/a/b", ""):
        with pytest.raises(Refused, match="no Hub id"):
            runner.shelf.find("", name, "org/drafter")


def test_a_pair_that_cannot_be_loaded_is_said_and_can_be_tried_again(tmp_path):
    shelf = Shelf(ModelSettings(str(tmp_path / "target"), str(tmp_path / "draft"), name="nothing"), "float32")
    runner = Runner(shelf, Desk())
    for _ in range(2):
        with pytest.raises(Refused, match="could not be loaded"):
            last(runner, Ask("w3"))
    save_target(tmp_path / "target")
    make_draft().float().save_pretrained(tmp_path / "draft")
    assert last(runner, Ask("w3", max_new_tokens=4)).phase == "done"


@pytest.mark.parametrize("head", [True, False])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_figures_are_those_of_domino_eval(runner, models, forget, head, temperature):
    """The same call by `answering.run`, which `domino eval` makes: tokens, rounds and drafts."""
    ask = Ask("w5 w6 w7", temperature, 0.9, seed=3, max_new_tokens=40, drafts=4 if head else 0, head=head)
    now = last(runner, ask)
    inputs = encode(models.tokenizer, ask.prompt, "cpu")
    forget()
    for trace, method in ((now.plain, "plain"), (now.ours, "engine" if head else "dflash")):
        ids, call = run(models, METHODS[method], inputs, 3, **options(ask, method))
        assert [token.id for token in trace.tokens] == ids[0, inputs["input_ids"].shape[1] :].tolist()
        assert (trace.call.advanced, trace.call.drafted) == (call.advanced, call.drafted)
        assert trace.rounds == len(call.advanced)
        by_round = [sum(token.round == r for token in trace.tokens) for r in range(1, trace.rounds + 1)]
        assert by_round == call.advanced
        live = (len(trace.tokens) - 1) / trace.rounds
        assert trace.tau == pytest.approx(live)
        assert trace.tokens_per_second == pytest.approx(call.new_tokens / trace.call.seconds)
    assert now.phase == "done"
    ours, plain = now.ours.tokens_per_second, now.plain.tokens_per_second
    assert now.speedup == pytest.approx(ours / plain)
    # transformers' own loop draws other random numbers than plain generate
    assert (now.compared is None) == (temperature > 0 and not head)
    assert now.compared is None or now.compared.same
    assert ("same distribution" in verdict(now, "float32", "CPU")) == (now.compared is None)
    if temperature == 0:
        assert now.compared.same  # float32


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("drafts", [2, 9])
def test_the_rounds_are_those_of_the_run(runner, models, forget, drafts, temperature):
    """Every token is on its round's path or the target's own; chances and lookup's share are the tree's."""
    now = last(runner, Ask("w5 w6 w7", temperature, max_new_tokens=40, drafts=drafts))
    found, told = now.figures()["domino"], now.ours.told
    assert len(told) == now.ours.rounds
    assert [len(one.tree) for one in told] == found["drafted"]
    assert max(found["drafted"]) == drafts
    assert found["lookup"] == models.draft.statistics.lookup
    assert found["found_by_lookup"] == sum(found["lookup"]) == sum(token.lookup for token in now.ours.tokens)
    for number, one in enumerate(told, 1):
        these = [token for token in now.ours.tokens if token.round == number]
        tree = one.tree
        assert [token.id for token in these] == one.tokens
        assert [token.id for token in these[: len(one.path)]] == [tree.tokens[node] for node in one.path]
        assert [token.bonus for token in these] == [False] * len(one.path) + [True] * (len(these) - len(one.path))
        assert len(one.path) >= len(these) - 1
        assert found["depths"][number - 1] == max(tree.depths(), default=0)
        above = 1.0
        for token, node in zip(these, one.path, strict=False):
            assert 0 < token.chance <= 1
            assert above * token.chance == pytest.approx(tree.reach[node])
            assert token.lookup == (tree.source[node] == LOOKUP)
            above = tree.reach[node]
        assert all(token.chance is None and not token.lookup for token in these if token.bonus)
    if temperature == 0 and drafts == 9:
        assert found["found_by_lookup"] > 0
    assert now.plain.told == []
    assert now.plain.figures()["found_by_lookup"] == 0


def test_what_nobody_estimated_has_no_chance():
    """A chain of one launch on a GPU tells no probabilities, and what hangs on it has none either."""
    tree = chain([5, 6], [1.0, 1.0], [-1, -1], drawn=False)
    lower = tree.add(7, 0, 0.2, LOOKUP, 3)
    other = tree.add(8, -1, 0.3, LOOKUP, 3)
    assert [chance(tree, node) for node in (0, 1, lower)] == [None] * 3
    assert chance(tree, other) == 0.3


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_where_plain_generate_parts_domino_is_compared_with_itself_without_drafts(models, temperature):
    """Another plain text, as at a near tie: what Domino's loop says without drafts is computed, not assumed."""
    ask = Ask("w5 w6 w7", temperature, 0.9, seed=3, max_new_tokens=12)
    inputs = encode(models.tokenizer, ask.prompt, "cpu")
    ours, _ = run(models, METHODS["engine"], inputs, 3, **options(ask, "engine"))
    prompt = inputs["input_ids"].shape[1]
    plain, other = ours.clone(), ours.clone()
    plain[0, prompt + 4] = (plain[0, prompt + 4] + 1) % 40
    other[0, prompt + 2] = (other[0, prompt + 2] + 1) % 40
    found = _compare(models, ask, inputs, plain, ours)
    assert (found.same, found.place, found.own) == (False, 4, True)
    assert (found.gap is None) == (temperature > 0)
    assert _compare(models, ask, inputs, ours, other).own is False


def test_an_answer_may_end_within_what_was_kept():
    tree = chain([5, 2], [0.5, 0.25], [0, 0], drawn=False)
    whole = Round(tree, [0, 1], [5, 2, 9])
    assert bonus(whole) == 9
    assert bonus(said(whole, 2)) is None
    assert said(whole, 1) == Round(tree, [0], [5])
    trace = Trace("engine", Pieces(AutoTokenizer.from_pretrained(target_folder())))
    trace.add(Step("engine", 0.1, [4]))
    trace.add(Step("engine", 0.2, [5, 2], said(whole, 2)))
    assert [token.bonus for token in trace.tokens] == [True, False, False]


def test_the_block_is_the_one_that_the_engine_drafts(models, forget):
    """Computed again at each round of a run without branches and lookup: the same drafts, as many kept, the same bonus token."""
    inputs, rounds = encode(models.tokenizer, "w5 w6 w7", "cpu"), []
    deepest = models.draft.config.num_drafts
    options = {"do_sample": False, "max_new_tokens": 40, "shape": "chain", "lookup": False, "budget": deepest}
    ids, _ = run(models, METHODS["engine"], inputs, 0, **options, on_round=lambda row, one: rounds.append(one))
    end, kept = inputs["input_ids"].shape[1] + 1, 0
    for one in rounds:
        block = one_block(models, ids[0, :end].tolist())
        assert block.anchor == ids[0, end - 1]
        drafts = [place.corrected.id for place in block.places]
        assert len(drafts) == deepest
        assert drafts[: len(one.tree)] == one.tree.tokens  # a round has less room near the end
        if len(one.tree) == deepest:
            assert (block.accepted, block.bonus.id) == (len(one.path), one.tokens[-1])
        assert all(0 < choice.chance <= 1 for p in block.places for choice in (p.base, p.corrected, p.target))
        assert [place.corrects for place in block.places] == [n >= 1 for n in range(deepest)]
        end, kept = end + len(one.tokens), kept + len(one.path)
    assert kept > 0


def test_an_answer_of_one_token_is_an_answer(runner):
    now = last(runner, Ask("w5", max_new_tokens=1))
    assert now.phase == "done"
    assert now.ours.rounds == 0
    json.dumps(now.figures(), allow_nan=False)
    shown = "".join((*panes(now), verdict(now, "float32", "CPU")))
    assert "nan" not in shown
    assert "same text" in shown


@pytest.mark.parametrize(("method", "asked"), [("plain", 7), ("engine", 45)])
def test_stop_ends_within_a_round(runner, models, monkeypatch, method, asked):
    """Plain says 40 tokens and asks after each; the engine asks after each token, too, and says no more of that round."""
    ticket = runner.desk.issue("test")
    calls = []

    class Revoking(Halt):
        def __call__(self, input_ids, scores, **kwargs):
            calls.append(None)
            if len(calls) == asked:
                self.ticket.revoke()
            return super().__call__(input_ids, scores, **kwargs)

    monkeypatch.setattr("domino.space.decode.Halt", Revoking)
    ask = Ask("w5 w6 w7", max_new_tokens=40)
    events = list(measure(models, ask, encode(models.tokenizer, ask.prompt, "cpu"), ticket))
    assert isinstance(events[-1], Done)
    assert events[-1].halted == "stopped"
    assert events[-1].method == method
    assert sum(len(event.tokens) for event in events if isinstance(event, Step)) == asked


@pytest.mark.parametrize("head", [True, False])
def test_nobody_reading_ends_the_generation(runner, models, head):
    """Closing the iterator returns only when the worker has ended, so that the slot is free."""
    ticket = runner.desk.issue("test")
    events = measure(models, Ask("w5", max_new_tokens=500, head=head), encode(models.tokenizer, "w5", "cpu"), ticket)
    for event in events:
        if event.method != "plain":
            break
    events.close()
    assert not ticket.valid
    assert not models.target._forward_hooks


@pytest.mark.parametrize("head", [True, False])
def test_a_seed_repeats_an_answer(runner, head):
    """With drafts fixed; trees otherwise follow the clock and earlier answers."""
    answers = []
    for seed in (3, 3, 4):
        answers.append(last(runner, Ask("w5 w6 w7", 1.0, 0.9, seed, 40, 3, head)).figures())
    first, again, other = answers
    for name in ("plain", "domino"):
        assert first[name]["token_ids"] == again[name]["token_ids"] != other[name]["token_ids"]


def test_the_lease_begins_with_the_device(runner, models, monkeypatch):
    """A wait longer than a lease between a request's turn and its device does not end it; a stop meanwhile does."""
    ask, inputs = Ask("w5", max_new_tokens=4), encode(models.tokenizer, "w5", "cpu")
    waited, stopped = runner.desk.issue("a"), runner.desk.issue("b")
    for ticket in (waited, stopped):
        os.utime(ticket.path, (0, 0))
        assert not ticket.valid
    stopped.revoke()
    ends = [[e.halted for e in measure(models, ask, inputs, t) if isinstance(e, Done)] for t in (waited, stopped)]
    assert ends == [[None, None], ["stopped"]]


def test_a_core_is_left_to_the_page(monkeypatch):
    before, seen = torch.get_num_threads(), []
    try:
        torch.set_num_threads(3)
        monkeypatch.setenv("OMP_NUM_THREADS", "3")
        leave_a_core()
        assert torch.get_num_threads() == 3
        monkeypatch.delenv("OMP_NUM_THREADS")
        leave_a_core()
        worker = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
        worker.start()
        worker.join()
        assert seen == [2]
        leave_a_core()
        leave_a_core()
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


def test_time_is_up():
    desk = Desk()
    halt = Halt(desk.issue("a"), -1)
    assert bool(halt(torch.zeros(1, 3), None).all())
    assert halt.reason == "time"


def test_tickets(monkeypatch):
    desk = Desk()
    first, other = desk.issue("a"), desk.issue("b")
    second = desk.issue("a")
    assert not first.valid
    assert second.valid
    desk.give_back("a", first)
    assert "a" in desk.held  # the second one's
    assert desk.begin("a", first.name) is None
    assert desk.begin("b", second.name) is None
    assert desk.begin("a", second.name) is second
    assert desk.stop("a")
    assert not second.valid
    assert not desk.stop("a")
    assert not desk.stop("nobody")
    assert other.valid
    desk.give_back("a", second)
    assert desk.begun == set()
    assert "a" not in desk.held
    monkeypatch.setattr(tickets, "LEASE", 0.05)
    time.sleep(0.1)
    assert not other.valid  # nobody renewed it
    assert desk.begin("b", other.name) is other  # its lease begins with its turn
    assert other.valid


def test_stop_in_line_leaves_nothing_behind():
    desk = Desk()
    ticket = desk.issue("a")
    assert desk.stop("a")
    assert desk.held == {}
    assert desk.begin("a", ticket.name) is None
    assert not ticket.valid


@pytest.mark.parametrize(
    "words", ["plain words, and more", "👍🏽 ok — naïve", "שלום עולם", "a\n\n  b\tc", "中文字符", "🧑‍🚀"]
)
def test_pieces_make_the_whole(words):
    tokenizer = AutoTokenizer.from_pretrained(target_folder())
    ids = tokenizer(words, add_special_tokens=False)["input_ids"]
    pieces = Pieces(tokenizer)
    found = [pieces.add(token) for token in ids]
    assert "".join(found) + pieces.rest() == words
    assert not any("\ufffd" in piece for piece in found)
    cut = Pieces(tokenizer)
    ids = tokenizer("👍", add_special_tokens=False)["input_ids"][:-1]
    assert [cut.add(token) for token in ids] == [""] * len(ids)
    assert "\ufffd" in cut.rest()


def test_text_stays_text():
    assert text("<b a='1'>&\"") == "&lt;b a=&#x27;1&#x27;&gt;&amp;&quot;"
    assert text("a\0b\x1bc\nd\te\x7f") == "a␀b␛c\nd\te␡"
    assert "\u202e" not in text("x\u202ey")
    trace = Trace("engine", Pieces(None))
    trace.tokens = [
        Token(1, "<script>alert(1)</script>", 0.1, 0, 1, True, None),
        Token(2, '"><img>', 0.2, 1, 1, False, 0.5),
    ]
    markup = body(trace, True)
    assert "<script" not in markup
    assert "<img" not in markup
    assert "drafted and kept · chance of being kept 0.50" in markup
    assert 'class="t kept"' in markup
    trace.tokens = [Token(3, "<b>", 0.3, 1, 2, False, None, lookup=True)]
    markup = body(trace, True)
    assert 'class="t kept found" title="round 1 · token 2, found by lookup and kept"' in markup
    assert "&lt;b&gt;" in markup


def test_lookup_is_told_in_words(runner, forget):
    now = last(runner, Ask("w5 w6 w7", max_new_tokens=40, drafts=9))
    found, (_, ours) = now.ours.found_by_lookup, panes(now)
    assert found > 0
    assert ours.count('class="t kept found"') == found + 1  # and the legend's
    assert f'<b data-tile="found">{found}</b> of <b data-tile="said">40</b> tokens were found by lookup' in ours
    assert f"{found} of 40 tokens found by lookup" in verdict(now, "float32", "CPU")
    off = last(runner, Ask("w5 w6 w7", max_new_tokens=8, head=False))
    assert "tokens were found by lookup" not in panes(off)[1]
    assert "found by lookup" not in verdict(off, "float32", "CPU")


def test_results_are_those_of_the_page():
    table = rows(PAGE.read_text(encoding="utf-8"))
    (row,) = [row for row in table if (row["task"], row["T"], row["method"]) == ("gsm8k", "0", "domino")]
    assert row["speedup"].startswith("1.89×")
    assert {row["method"] for row in table} >= {"plain", "dflash", "domino"}
