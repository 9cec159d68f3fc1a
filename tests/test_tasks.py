"""The ten tasks: templates, packaged rows, local files, the Hub's absence, and mistakes."""

import json

import pytest
from domino.evaluation import tasks
from domino.evaluation.tasks import EMBEDDED, PACKAGED, TASKS, load, parse

HUB_ROWS = {
    "gsm8k": (
        {"question": "Q?", "answer": "Well.\n#### 1,234"},
        ["Q?\nPlease reason step by step, and put your final"],
    ),
    "math500": ({"problem": "P", "answer": "\\frac12"}, ["P\nPlease reason"]),
    "aime24": ({"problem": "P", "answer": 7}, ["P\nPlease reason"]),
    "aime25": ({"problem": "P", "answer": 7}, ["P\nPlease reason"]),
    "humaneval": (
        {"prompt": "def f():\n", "entry_point": "f", "test": "…"},
        [
            "Write a solution to the following problem and make sure that it passes the tests:\n```python\ndef f():\n\n```"
        ],
    ),
    "mbpp": ({"prompt": "Write f.", "test_imports": [], "test_list": ["assert f()"]}, ["Write f."]),
    "livecodebench": (
        {"question_content": "Q", "starter_code": "class S:"},
        ["Format: Use the following code structure:\n```python\nclass S:\n```\n\n### Answer: (use the provided"],
    ),
    "swe_bench": ({"problem_statement": "It breaks."}, ["Problem Statement:\nIt breaks.\nPlease fix the issue"]),
    "mt_bench": ({"prompt": ["One.", "Two."]}, ["One.", "Two."]),
    "alpaca": ({"instruction": "Sum.", "input": "1 2"}, ["Sum.\n\nInput:\n1 2"]),
}


def test_the_protocol_has_ten():
    assert set(HUB_ROWS) == set(TASKS)
    assert {name: task.count for name, task in TASKS.items() if task.count != 128} == {
        "aime24": 30,
        "aime25": 30,
        "humaneval": 164,
        "mt_bench": 80,
    }


@pytest.mark.parametrize("name", TASKS)
def test_a_row_of_the_hub_becomes_turns(name, monkeypatch):
    row, turns = HUB_ROWS[name]
    monkeypatch.setattr(tasks, "PACKAGED", PACKAGED / "nowhere")
    monkeypatch.setattr(tasks, "EMBEDDED", ())
    monkeypatch.setattr(tasks.Task, "rows", lambda task: [row])
    (question,) = load(name)
    assert len(question.turns) == len(turns)
    assert all(part in turn for part, turn in zip(turns, question.turns, strict=True))
    if name == "gsm8k":
        assert question.checks == {"answer": "1234"}


def test_without_an_input_and_without_starter_code():
    assert TASKS["alpaca"].template({"instruction": "Sum.", "input": ""})[0] == ["Sum."]
    (text,), _ = TASKS["livecodebench"].template({"question_content": "Q", "starter_code": ""})
    assert "### Format: Write your code in the following format:\n```python\n# YOUR CODE HERE\n```" in text


def test_packaged_rows_have_the_templates_form_and_their_checks():
    checks = {"gsm8k": {"answer"}, "math500": {"answer"}, "mt_bench": set()}
    checks |= {"humaneval": {"prompt", "entry_point", "test"}, "mbpp": {"test_imports", "test_list"}}
    assert set(checks) == set(EMBEDDED)
    for name, fields in checks.items():
        questions = load(name)
        assert len({question.turns[0] for question in questions}) == len(questions) == 40
        assert all(set(question.checks) == fields for question in questions)
    question = load("humaneval", 1)[0]
    assert TASKS["humaneval"].template(question.checks)[0] == question.turns


@pytest.mark.parametrize("count", [8, 40])
def test_any_first_questions_of_mt_bench_spread_over_its_categories(count):
    """Its numbers run 81 … 160, ten to a category."""
    questions = load("mt_bench", count)
    categories = [(int(question.id.removeprefix("mt_bench/")) - 81) // 10 for question in questions]
    assert sorted(categories) == sorted(list(range(8)) * (count // 8))
    assert all(len(question.turns) == 2 for question in questions)


def test_options_are_read_and_checked():
    assert {name: len(found) for name, found in parse("gsm8k=30,humaneval=20").items()} == {
        "gsm8k": 30,
        "humaneval": 20,
    }
    assert {name: len(found) for name, found in parse("all=5").items()} == dict.fromkeys(EMBEDDED, 5)
    assert {name: len(found) for name, found in parse("mbpp, gsm8k=3").items()} == {"mbpp": 40, "gsm8k": 3}
    for text, message in (
        ("gsm8k=", "--tasks takes task=count"),
        ("gsm8k=-3", "--tasks takes task=count"),
        ("gsm8=3", "Unknown task 'gsm8'; did you mean 'gsm8k'\\? Allowed: gsm8k, math500"),
        ("", "Unknown task '': Allowed: gsm8k"),
        ("all=2,mbpp=3", "names mbpp twice"),
        ("mbpp=0", "ask for at least one question, got 0"),
    ):
        with pytest.raises(ValueError, match=message):
            parse(text)


def test_what_is_not_packaged_and_not_on_the_hub_is_said_so():
    with pytest.raises(ValueError, match="the package has 40 questions of it.*--data"):
        load("mbpp", 41)
    with pytest.raises(ValueError, match="SWE-bench_Lite.*the package has none of it"):
        load("swe_bench", 1)


def test_local_files_go_first(tmp_path):
    (tmp_path / "gsm8k.jsonl").write_text(json.dumps({"id": "a", "turns": ["One?", "Two?"], "answer": "3"}) + "\n\n")
    (question,) = load("gsm8k", data=tmp_path)
    assert (question.id, question.turns, question.checks) == ("a", ["One?", "Two?"], {"answer": "3"})
    with pytest.raises(ValueError, match="gsm8k has 1 questions; ask for 1 … 1, got 2"):
        load("gsm8k", 2, tmp_path)
    with pytest.raises(ValueError, match="mbpp.jsonl is not there"):
        load("mbpp", 1, tmp_path)
    for broken in ('{"turns": []}', '{"turns": "text"}', "[1]", "{", '{"turns": ["  "]}'):
        (tmp_path / "gsm8k.jsonl").write_text('{"turns": ["fine"]}\n' + broken)
        with pytest.raises(ValueError, match="gsm8k.jsonl, line 2: must be an object with `turns`"):
            load("gsm8k", data=tmp_path)
    (tmp_path / "gsm8k.jsonl").write_text("\n")
    with pytest.raises(ValueError, match="holds no questions"):
        load("gsm8k", data=tmp_path)


def test_a_drawn_selection_is_the_same_each_time_and_not_the_first_rows():
    first, drawn = load("gsm8k", 10, PACKAGED), load("gsm8k", 10, PACKAGED, shuffle=0)
    assert drawn == load("gsm8k", 10, PACKAGED, shuffle=0) != first
    assert len({question.id for question in drawn}) == 10


def test_growing_beyond_the_packaged_rows_keeps_their_names(monkeypatch):
    packaged = load("gsm8k", 3)
    texts = [q.turns[0].removesuffix(TASKS["gsm8k"].template({"question": "", "answer": ""})[0][0]) for q in packaged]
    rows = [{"question": text, "answer": "#### 1"} for text in [*texts, *(f"New {n}?" for n in range(50))]]
    monkeypatch.setattr(tasks.Task, "rows", lambda task: rows)
    assert [q.id for q in load("gsm8k", 50)][:4] == [*(q.id for q in packaged), "gsm8k/test/3"]


def test_every_row_of_the_hub_has_a_name_of_its_own(monkeypatch):
    """MBPP's packaged names are its own numbers, 11 and on, and two of its texts are the same."""
    packaged = [question.turns[0] for question in load("mbpp")]
    assert {"mbpp/58", "mbpp/71"} <= {question.id for question in load("mbpp")}
    texts = [*packaged, *(f"New {n}." for n in range(80)), packaged[-1]]
    rows = [{"prompt": text, "test_imports": [], "test_list": []} for text in texts]
    monkeypatch.setattr(tasks.Task, "rows", lambda task: rows)
    names = [question.id for question in load("mbpp", 121)]
    assert len(set(names)) == 121
    assert names[:40] == [question.id for question in load("mbpp", 40)]


def test_ids_are_used_once_and_a_draw_is_from_all_rows(tmp_path):
    (tmp_path / "gsm8k.jsonl").write_text('{"id": "a", "turns": ["One?"]}\n' * 2)
    with pytest.raises(ValueError, match="uses an id twice: a"):
        load("gsm8k", data=tmp_path)
    with pytest.raises(ValueError, match="could not be read from the Hub"):
        load("gsm8k", 10, shuffle=0)
