"""Packaged tasks, their options, the summary row, and the acceptance length without a plain run."""

import json

import pytest
from corpus import make_tokenizer
from domino.evaluation.acceptance import acceptance
from domino.evaluation.compare import Comparison, Sample, encode
from domino.evaluation.measure import PROMPTS, TASKS, markdown, measure, parse_tasks, read_questions
from tiny import make_draft


def test_tasks_are_read_and_checked():
    assert parse_tasks("gsm8k=30,humaneval=20") == {"gsm8k": 30, "humaneval": 20}
    assert parse_tasks("all=5") == dict.fromkeys(TASKS, 5)
    assert parse_tasks("mbpp, gsm8k=3") == {"mbpp": 40, "gsm8k": 3}
    assert all(len(set(read_questions(task))) == 40 for task in TASKS)
    assert read_questions("mbpp", 3) == read_questions("mbpp")[:3]
    for text, message in (
        ("gsm8k=", "--tasks takes task=count"),
        ("gsm8k=-3", "--tasks takes task=count"),
        ("gsm8=3", "Unknown task 'gsm8'; did you mean 'gsm8k'\\? Packaged: gsm8k, math500"),
        ("", "Unknown task '': Packaged: gsm8k"),
        ("all=2,mbpp=3", "names mbpp twice"),
        ("mbpp=41", "mbpp has 40 packaged questions; ask for 1 … 40, got 41"),
        ("mbpp=0", "got 0"),
    ):
        with pytest.raises(ValueError, match=message):
            parse_tasks(text)


@pytest.mark.parametrize("count", [8, 40])
def test_any_first_questions_of_mt_bench_spread_over_its_categories(count):
    """Its numbers run 81 … 160, ten to a category."""
    rows = [json.loads(line) for line in (PROMPTS / "mt_bench.jsonl").read_text(encoding="utf-8").splitlines()]
    categories = [(int(row["id"].removeprefix("mt_bench/")) - 81) // 10 for row in rows[:count]]
    assert sorted(categories) == sorted(list(range(8)) * (count // 8))
    assert all(len(row["turns"]) == 2 for row in rows)


def test_the_average_is_over_tasks():
    def task(name, accepted, seconds):
        return Comparison(name, [Sample(1.0, seconds, 10, 10, accepted, True, None)])

    table = markdown([task("a", [1, 1], 0.5), task("b", [3], 1.0)], 8).splitlines()
    assert table[2].startswith("| a | 1 | 2.00 | 10.0 | 20.0 | 2.00× | 1/1 | – |")
    assert table[-1] == "| average | | 3.00 | | | 1.50× | | |"
    assert len(markdown([task("a", [1], 1.0)], 8).splitlines()) == 3


def test_speed_is_tokens_per_second():
    """Half the text in half the time is no speedup."""
    sample = Sample(2.0, 1.0, 20, 10, [1], False, 0.1)
    assert sample.speedup == Comparison("a", [sample]).speedup == 1.0


def test_measure_writes_samples_and_table(target, draft, tmp_path, capsys):
    out = tmp_path / "m.json"
    measure(target, draft, make_tokenizer(), {"mbpp": 1, "gsm8k": 1}, out, max_new_tokens=6, do_sample=False)
    record = json.loads(out.read_text(encoding="utf-8"))
    assert list(record["tasks"]) == ["mbpp", "gsm8k"]
    assert "| average |" in record["table"]
    assert record["table"] in capsys.readouterr().out


def test_acceptance_pools_the_rounds_of_all_questions(target, draft):
    tokenizer = make_tokenizer()
    questions, single = ["w5 w6", "w7 w8 w9"], []
    for question in questions:
        target.generate(**encode(tokenizer, question, "cpu"), assistant_model=draft, max_new_tokens=12, do_sample=False)
        single += draft.statistics.accepted
    pooled = acceptance(target, draft, tokenizer, questions, 12)
    assert pooled.accepted == single
    assert len(pooled.drafted) == len(single)


def test_acceptance_answers_in_evaluation_mode_and_restores_the_old_one(target):
    draft, tokenizer, modes = make_draft(), make_tokenizer(), []
    draft.layers[0].register_forward_pre_hook(lambda layer, _: modes.append(layer.training))
    for training in (True, False):
        acceptance(target, draft.train(training), tokenizer, ["w5"], 6)
        assert draft.training == training
    assert modes
    assert not any(modes)
    with pytest.raises(ValueError, match="max_new_tokens"):
        acceptance(target, draft.train(), tokenizer, ["w5"], 0)
    assert draft.training
