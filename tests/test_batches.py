"""Batches: plain batched `generate` beside the ways of the engine, in turn."""

import re

import pytest
from corpus import make_tokenizer
from domino.evaluation import batches
from domino.evaluation.methods import Models
from tiny import make_draft, make_target


@pytest.fixture
def pair():
    tokenizer = make_tokenizer()
    tokenizer.padding_side = "left"
    return Models(make_target(), tokenizer, make_draft())


def test_all_say_the_same_and_are_told_apart(pair):
    names = ["engine", "plain", "engine-plain", "engine-chain"]
    found = batches.answer_all(pair, ["w5 w6 w7", "w8", "w9 w10"], 12, names)
    assert list(found) == names
    assert all((batch.same, batch.rows) == (3, 3) for batch in found.values())
    assert all(batch.speed > 0 for batch in found.values())
    assert found["plain"].tau == found["engine-plain"].tau == 1
    assert found["engine"].tau > 1


def test_a_line_by_hand():
    plain, ours = [batches.Batch(10, 1, 2, 2), batches.Batch(20, 1, 2, 2)], [(30, 2, 2), (40, 3, 1)]
    found = [{"plain": p, "engine": batches.Batch(*o, 2)} for p, o in zip(plain, ours, strict=True)]
    assert batches.line("gsm8k", ["engine"], found) == "| gsm8k | 2 | 15.0 | 35.0 | 2.50 | 2.50× | 3/4 |"


def test_the_command(pair, monkeypatch, capsys):
    monkeypatch.setattr(batches, "load_models", lambda *_: pair)
    orders, answer = [], batches.answer_all

    def spy(models, texts, new, names):
        orders.append(names)
        return answer(models, [f"w{n + 5}" for n in range(len(texts))], min(new, 6), names)

    monkeypatch.setattr(batches, "answer_all", spy)
    monkeypatch.setattr("sys.argv", ["batches", "--rows", "2", "--tasks", "gsm8k", "--methods", "engine,engine-plain"])
    batches.main()
    table = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in table}) == 1
    assert re.match(r"\| gsm8k \| 2 \|", table[-1])
    a, b, c = "plain", "engine", "engine-plain"
    assert orders == [[a, b, c], [a, b, c], [b, c, a]]  # the first is thrown away


def test_an_unknown_method_is_named(monkeypatch):
    monkeypatch.setattr("sys.argv", ["batches", "--methods", "engine-tre"])
    with pytest.raises(SystemExit, match="did you mean 'engine-tree'"):
        batches.main()
