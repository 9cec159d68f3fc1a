"""`domino eval` and `domino report` on a tiny pair: what they write, how they go on, and what they refuse."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from corpus import make_tokenizer, save_target
from datasets import Dataset
from domino import cli
from domino.evaluation import answering
from domino.evaluation import run as running
from domino.evaluation.acceptance import acceptance
from domino.evaluation.accuracy import sandbox
from domino.evaluation.answering import answer, encode
from domino.evaluation.losslessness import first_gap
from domino.evaluation.methods import METHODS, Method, Models
from domino.evaluation.report import plots, table
from domino.evaluation.report.write import write
from domino.evaluation.results import Results, read
from domino.evaluation.run import evaluate
from domino.evaluation.settings import EvalSettings, load
from domino.evaluation.summary import cells
from domino.evaluation.tasks import Question
from domino.evaluation.watch import Call
from tiny import make_draft


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A pair on disk and two tasks of its own."""
    folder = tmp_path_factory.mktemp("eval")
    save_target(folder / "target")
    make_draft().float().save_pretrained(folder / "drafter")
    data = folder / "data"
    data.mkdir()
    rows = {"gsm8k": [["w5 w6"], ["w7"], ["w8 w9 w10"]], "mt_bench": [["w11 w12", "w13"], ["w14", "w15"]]}
    for task, questions in rows.items():
        lines = [json.dumps({"id": f"{task}/{n}", "turns": turns, "answer": "7"}) for n, turns in enumerate(questions)]
        (data / f"{task}.jsonl").write_text("\n".join(lines))
    return folder


def flags(home, out, **more):
    pair = {"target": str(home / "target"), "drafter": str(home / "drafter")}
    return {
        "out": str(out),
        "models": [pair],
        "data": str(home / "data"),
        "dtype": "float32",
        "max_new_tokens": 8,
    } | more


def settings(home, out, **more) -> EvalSettings:
    return load(None, flags(home, out, tasks="gsm8k,mt_bench", **more))


def test_everything_is_measured_once_and_written(home, tmp_path):
    asked = settings(home, tmp_path / "r", temperatures=[1, 0], methods=["domino", "dflash"], repeats=2)
    results = evaluate(asked)
    assert len(results.rows) == 2 * (3 + 2) * 3
    assert [row["method"] for row in results.rows[:3]] == ["plain", "domino", "dflash"]
    greedy = [row for row in results.rows if row["temperature"] == 0]
    assert all(turn["same"] for row in greedy for turn in row["turns"])
    assert all(len(turn["runs"]) == 2 for row in results.rows for turn in row["turns"])
    sampled = [row for row in results.rows if row["temperature"] == 1]
    assert all(turn["same"] is None for row in sampled for turn in row["turns"])
    assert {len(row["turns"]) for row in results.rows if row["task"] == "mt_bench"} == {2}
    assert all(row["correct"] is False for row in results.rows if row["task"] == "gsm8k")  # no text says 7
    lines = Dataset.from_parquet(str(tmp_path / "r" / "samples.parquet"))
    assert len(lines) == 2 * 3 * 2 * (3 + 2 * 2)
    (session,) = json.loads((tmp_path / "r" / "provenance.json").read_text())
    assert {"machine", "threads", "torch", "transformers", "command", "commit"} <= session.keys()


def test_every_method_reads_plain_generates_answer_as_history(home):
    models = running.load_models(settings(home, "x").models[0], "float32")
    prompts = {name: [] for name in ("plain", "lossy")}

    def spy(name, **options):
        def arguments(models):
            prompts[name].append(None)
            return options

        return Method(name, arguments)

    methods = {"plain": spy("plain"), "lossy": spy("lossy", suppress_tokens=list(range(5, 30)))}
    found = answer(models, methods, Question("q", ["w5 w6", "w7"]), 0, 6, 1, 0)
    assert found["plain"][0].text != found["lossy"][0].text
    lengths = {name: [turn.runs[0].prompt_tokens for turn in turns] for name, turns in found.items()}
    assert lengths["plain"] == lengths["lossy"]


def test_a_lossy_generator_is_caught_with_its_margin(home):
    models = running.load_models(settings(home, "x").models[0], "float32")
    lossy = Method("forbids what plain likes best", lambda models: {"suppress_tokens": list(range(3, 40))})
    found = answer(models, {"plain": METHODS["plain"], "lossy": lossy}, Question("q", ["w5 w6 w7"]), 0, 8, 1, 0)
    (turn,) = found["lossy"]
    assert turn.same is False
    assert turn.gap > 0
    (plain,) = found["plain"]
    assert plain.same is True
    assert plain.gap is None


@pytest.mark.parametrize("temperature", [0, 1])
def test_the_targets_own_penalties_are_left_out(home, temperature):
    """All methods would bear them, but τ and the gap are told of the target's own logits."""
    models = running.load_models(settings(home, "x").models[0], "float32")
    asked = ({"plain": METHODS["plain"]}, Question("q", ["w5 w6 w7"]), temperature, 8, 1, 0)
    own = answer(models, *asked)["plain"][0].text
    models.target.generation_config.update(repetition_penalty=1.7, top_k=1)
    assert answer(models, *asked)["plain"][0].text == own


def test_gap_is_infinite_where_one_text_is_a_prefix_of_the_other(target):
    import torch

    ids = torch.arange(3, 9)[None]
    assert first_gap(target, ids, ids[:, :4]) == float("inf")
    other = ids.clone()
    other[0, 3] = 20
    logits = target(ids[:, :3]).logits[0, -1]
    assert first_gap(target, ids, other) == pytest.approx(float((logits[6] - logits[20]).abs()))


def test_sampled_answers_depend_on_the_seed_alone(home, tmp_path):
    def texts(name, seed):
        rows = evaluate(settings(home, tmp_path / name, temperatures=[1.0], seed=seed)).rows
        return [turn["text"] for row in rows for turn in row["turns"]]

    assert texts("a", 0) == texts("b", 0)
    assert texts("a", 0) != texts("c", 1)


def test_a_torn_file_is_mended_and_nothing_counted_twice(home, tmp_path):
    whole = evaluate(settings(home, tmp_path / "r"))
    file = tmp_path / "r" / "samples.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    assert len(lines) == 10
    # a question of one method only, a line twice, a line cut short by the kill, and one that is no row
    file.write_text("".join([*lines[:3], lines[0], lines[4], lines[5], "{}\n", lines[6][: len(lines[6]) // 2]]))
    again = evaluate(settings(home, tmp_path / "r"))
    rows, torn = read(file, again.methods)
    assert not torn
    assert rows == again.rows
    assert len(rows) == 10
    names = [(row["task"], row["question"], row["method"]) for row in rows]
    assert sorted(names) == sorted((row["task"], row["question"], row["method"]) for row in whole.rows)
    assert len(json.loads((tmp_path / "r" / "provenance.json").read_text())) == 2


def test_more_is_added_but_other_settings_are_refused(home, tmp_path, monkeypatch):
    evaluate(load(None, flags(home, tmp_path / "r", tasks="gsm8k=2")))
    asked = []
    monkeypatch.setattr(running, "answer", lambda *args: asked.append(args[2].id) or answer(*args))
    results = evaluate(load(None, flags(home, tmp_path / "r", tasks="gsm8k=3,mt_bench=1")))
    assert asked == ["gsm8k/2", "mt_bench/0"]
    assert len(results.rows) == 8
    with pytest.raises(ValueError, match="other settings: max_new_tokens was 8, now 9. Name another --out"):
        evaluate(settings(home, tmp_path / "r", max_new_tokens=9))
    with pytest.raises(ValueError, match="methods was"):
        evaluate(settings(home, tmp_path / "r", methods=["dflash"]))


def test_a_models_name_stands_for_one_drafter(home, tmp_path):
    evaluate(load(None, flags(home, tmp_path / "r", tasks="gsm8k=1")))
    make_draft(5).float().save_pretrained(home / "other")
    pair = {"target": str(home / "target"), "drafter": str(home / "other")}
    with pytest.raises(ValueError, match="models was .*drafter.* now .*other"):
        evaluate(load(None, flags(home, tmp_path / "r", tasks="gsm8k=2", models=[pair])))
    both = [{**pair, "drafter": str(home / "drafter")}, {**pair, "name": "other"}]
    results = evaluate(load(None, flags(home, tmp_path / "r", tasks="gsm8k=1", models=both)))
    assert {row["model"] for row in results.rows} == {"target", "other"}


def test_a_line_without_its_end_does_not_swallow_the_next(home, tmp_path):
    evaluate(load(None, flags(home, tmp_path / "r", tasks="gsm8k=1")))
    file = tmp_path / "r" / "samples.jsonl"
    file.write_text(file.read_text().rstrip("\n"))
    results = evaluate(load(None, flags(home, tmp_path / "r", tasks="gsm8k=2")))
    assert len(results.rows) == len(read(file, results.methods)[0]) == 4


def test_a_first_start_that_failed_pins_nothing(home, tmp_path):
    wrong = [{"target": str(home / "nowhere"), "drafter": str(home / "drafter")}]
    with pytest.raises((ValueError, OSError)):
        evaluate(load(None, flags(home, tmp_path / "r", tasks="gsm8k=1", models=wrong)))
    assert evaluate(load(None, flags(home, tmp_path / "r", tasks="gsm8k=1", max_new_tokens=5))).rows


def test_kill_and_interrupt_lose_at_most_the_question_at_hand(home, tmp_path):
    (tmp_path / "eval.yaml").write_text(yaml.safe_dump(flags(home, tmp_path / "r", tasks="gsm8k,mt_bench", repeats=60)))
    command = [sys.executable, "-m", "domino", "eval", str(tmp_path / "eval.yaml")]
    file, seen = tmp_path / "r" / "samples.jsonl", 0
    for stop in (signal.SIGKILL, signal.SIGINT):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        deadline = time.monotonic() + 90
        while process.poll() is None and time.monotonic() < deadline:
            if file.is_file() and file.read_text().count("\n") > seen:
                break
            time.sleep(0.02)
        process.send_signal(stop)
        _, errors = process.communicate(timeout=60)
        assert "Traceback" not in errors
        now = file.read_text().count("\n")
        assert now > seen
        seen = now
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    rows, torn = read(file, ["plain", "domino"])
    assert len(rows) == 10
    assert not torn
    assert "| gsm8k | 0 | domino |" in done.stdout


def test_empty_answers_do_not_break_the_figures(home, tmp_path):
    models = running.load_models(settings(home, "x").models[0], "float32")
    models.target.generation_config.eos_token_id = list(range(48))  # whatever comes first ends the answer
    results = Results(tmp_path / "r", ["plain", "domino"], {})
    methods = {name: METHODS[name] for name in results.methods}
    found = answer(models, methods, Question("q", ["w5"]), 0, 8, 1, 0)
    assert found["domino"][0].runs[0].advanced == []
    results.add(("m", "gsm8k", 0.0, "q"), found, dict.fromkeys(methods))
    plain, domino = cells(results.rows)
    assert domino.tau == 0.0
    assert domino.by_position == []
    assert domino.round_split == {}
    assert len(plots.figures([plain, domino])) == 4
    Results(tmp_path / "r", results.methods, {})
    line = next(
        line for line in write(tmp_path / "r")[0].read_text().splitlines() if line.startswith("| gsm8k | 0 | domino")
    )
    assert "nan" not in line


def test_the_results_page_says_what_was_measured():
    """All three tables, from the samples beside it."""
    docs = Path(running.__file__).parents[1] / "docs"
    rows: dict[tuple, dict] = {}
    for line in Dataset.from_parquet(str(docs / "measurements" / "smollm2-cpu-bfloat16.parquet")):
        names = {name: line.pop(name) for name in ("model", "task", "temperature", "question", "method", "correct")}
        told = {name: line.pop(name) for name in ("turn", "same", "gap", "text")}
        row = rows.setdefault(tuple(names.values()), {**names, "turns": []})
        if told.pop("turn") == len(row["turns"]):
            row["turns"].append({**told, "runs": []})
        line.pop("repeat")
        row["turns"][-1]["runs"].append(line)
    found = cells(list(rows.values()))
    page = (docs / "results.md").read_text()
    for measured in (table.markdown(found), table.positions(found), table.split(found)):
        assert measured in page


def test_report_is_one_page_that_needs_nothing(home, tmp_path, capsys, monkeypatch):
    out = tmp_path / "r"
    evaluate(settings(home, out, temperatures=[0, 1], methods=["domino", "dflash"]))
    monkeypatch.setattr(sys, "argv", ["domino", "report", str(out)])
    cli.main()
    assert "report.html" in capsys.readouterr().out
    page = (out / "report.html").read_text()
    assert page.count("<svg") == 8
    assert "<script" not in page
    assert "src=" not in page
    assert "<link" not in page
    text = (out / "report.md").read_text()
    for part in ("| gsm8k | 0 | domino | 3 |", "τ per sample", "| Qwen3-8B | Domino | 0 |"):
        assert part in text
    entries = yaml.safe_load((out / "eval_results.yaml").read_text())
    assert {"dataset", "value", "notes"} <= entries[0].keys()
    assert entries[0]["dataset"] == {"id": "openai/gsm8k", "task_id": "gsm8k_acceptance_length"}


def test_report_of_a_stopped_run_says_how_much_there_is(home, tmp_path, monkeypatch):
    """Before its last question, of T = 1; and one earlier still."""

    def stopped(models, methods, question, temperature, *rest):
        if temperature == 1 and question.id == "mt_bench/1":
            raise KeyboardInterrupt
        return answer(models, methods, question, temperature, *rest)

    monkeypatch.setattr(running, "answer", stopped)
    with pytest.raises(KeyboardInterrupt):
        evaluate(settings(home, tmp_path / "r", temperatures=[0, 1]))
    text = write(tmp_path / "r")[0].read_text()
    assert "| mt_bench | 0 | domino | 4 |" in text
    assert "| mt_bench | 1 | domino | 2 |" in text
    lines = (tmp_path / "r" / "samples.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "r" / "samples.jsonl").write_text("".join(lines[:-2]))
    text = write(tmp_path / "r")[0].read_text()
    assert "| **average** | 0 | domino | 2 tasks |" in text
    assert "| mt_bench | 1 |" not in text
    assert "| **average** | 1 |" not in text


def test_methods_take_turns_and_the_throw_away_question_is_seen_by_none(home, tmp_path, monkeypatch):
    order, watched = [], answering.run

    def spy(models, method, inputs, seed, **options):
        order.append(method.about)
        return watched(models, method, inputs, seed, **options)

    monkeypatch.setattr(answering, "run", spy)
    monkeypatch.setattr(running, "run", spy)
    asked = flags(home, tmp_path / "r", tasks="gsm8k=1", methods=["dflash", "domino"], repeats=3)
    results = evaluate(load(None, asked))
    a, b, c = (METHODS[name].about for name in ("plain", "dflash", "domino"))
    assert order == [a, b, c, *(a, b, c), *(b, c, a), *(c, a, b)]
    assert [len(row["turns"][0]["runs"]) for row in results.rows] == [3, 3, 3]


def test_report_without_results(tmp_path):
    with pytest.raises(ValueError, match="holds no evaluation"):
        write(tmp_path)
    Results(tmp_path, ["plain"], {})
    with pytest.raises(ValueError, match="no answered question yet"):
        write(tmp_path)


MISTAKES = [
    ({"methods": ["domio"]}, "Unknown method 'domio'; did you mean 'domino'\\?"),
    ({"tasks": "gsm8=1"}, "Unknown task 'gsm8'; did you mean 'gsm8k'\\?"),
    ({"methods": ["assistant"]}, "Method 'assistant' needs an assistant for smollm2"),
    ({"models": [{"target": "a"}]}, "Method 'domino' needs a drafter for a"),
    ({"models": [{"drafter": "a"}]}, "name the target, too"),
    ({"models": [{"target": "x/a", "drafter": "d"}, {"target": "y/a", "drafter": "d"}]}, "must have different names"),
    ({"models": [{"targt": "a"}]}, "targt: did you mean"),
    ({"temperatures": [-1]}, "temperatures must be numbers, 0 \\(greedy\\) or more"),
    ({"repeats": 0}, "repeats must be positive"),
    ({"dtype": "int8"}, "dtype must be one of"),
    ({"max_tokens": 3}, "max_tokens: did you mean max_new_tokens"),
    ({"out": None}, "out must name a folder|--out"),
]


@pytest.mark.parametrize(("change", "message"), MISTAKES)
def test_mistakes_are_named_before_any_work(tmp_path, change, message):
    values = {"out": str(tmp_path / "r"), **change}
    with pytest.raises(ValueError, match=message):
        evaluate(load(None, values))
    assert not (tmp_path / "r").exists()


ASSERTS = {"test_imports": [], "test_list": ["assert f(1) == 2"]}


@pytest.mark.parametrize(
    ("task", "checks", "message"),
    [
        ("gsm8k", {"answer": "many"}, "b cannot be scored: .*must be a number, got 'many'"),
        ("mbpp", {**ASSERTS, "test_list": ["assert f("]}, "b cannot be scored"),
        ("mbpp", {**ASSERTS, "test_list": 3}, "b cannot be scored"),
    ],
)
def test_questions_that_cannot_be_scored_are_named_before_any_work(tmp_path, task, checks, message):
    right = {"gsm8k": {"answer": 3}, "mbpp": ASSERTS}[task]
    rows = [{"id": "a", "turns": ["One?"], **right}, {"id": "b", "turns": ["Two?"], **checks}]
    (tmp_path / f"{task}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    asked = {"out": str(tmp_path / "r"), "tasks": task, "data": str(tmp_path), "execute_code": True}
    with pytest.raises(ValueError, match=message):
        evaluate(load(None, asked))
    assert not (tmp_path / "r").exists()


def test_a_machine_that_cannot_score_says_so_before_any_work(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "math_verify", None)
    with pytest.raises(ValueError, match="math-verify"):
        evaluate(load(None, {"out": str(tmp_path / "r"), "tasks": "gsm8k=1,math500=1"}))
    monkeypatch.setattr(sandbox, "layers", lambda: [])
    with pytest.raises(ValueError, match="cannot be executed safely here"):
        evaluate(load(None, {"out": str(tmp_path / "r"), "tasks": "gsm8k=1,mbpp=1", "execute_code": True}))
    assert not (tmp_path / "r").exists()


ATTACKS = {
    "loops": "while True: pass",
    "forks": "import os\nfor _ in range(50): os.fork()",
    "takes 10 GB": "x = bytearray(10 * 2**30)",
    "writes": "open('OUT/planted', 'w')",
    "opens a socket": "import socket\nsocket.socket()",
}


@pytest.mark.skipif(not sandbox.layers(), reason="no seccomp on this platform")
def test_an_evaluation_goes_on_after_programs_that_attack(home, tmp_path, monkeypatch):
    """The answers are planted: an attack a question, and a right program as the last."""
    right = "def f(x):\n    return x + 1\n"
    programs = {name: right + attack.replace("OUT", str(tmp_path)) for name, attack in ATTACKS.items()}
    programs["is right"] = right
    rows = [{"id": name, "turns": ["w5"], **ASSERTS} for name in programs]
    (tmp_path / "mbpp.jsonl").write_text("\n".join(map(json.dumps, rows)))

    def planted(models, methods, question, *rest):
        found = answer(models, methods, question, *rest)
        for turns in found.values():
            turns[0].text = f"```python\n{programs[question.id]}\n```"
        return found

    def patient(program):  # a machine may stand still: only what never ends is ended soon
        return run(program, seconds=1 if "while True" in program else 60)

    run = sandbox.run
    monkeypatch.setattr(sandbox, "run", patient)
    monkeypatch.setattr(running, "answer", planted)
    asked = flags(home, tmp_path / "r", tasks="mbpp", data=str(tmp_path), methods=["plain"], execute_code=True)
    results = evaluate(load(None, asked))
    assert {row["question"]: row["correct"] for row in results.rows} == {name: name == "is right" for name in programs}
    assert not (tmp_path / "planted").exists()


def test_chains_trees_and_lookup_are_told_apart(home, tmp_path):
    """Every way of the engine, from what it writes to the report's tables and pictures."""
    engines = ["engine-plain", "engine-chain", "engine-tree", "engine-24", "engine"]
    asked = flags(home, tmp_path / "r", tasks="gsm8k=2", methods=engines, max_new_tokens=24)
    results = evaluate(load(None, asked))
    assert all(turn["same"] for row in results.rows for turn in row["turns"])
    found = {cell.method: cell for cell in cells(results.rows)}
    assert (found["engine-plain"].tau, found["engine-plain"].drafts, found["engine-plain"].by_position) == (1, 0, [])
    assert found["engine-24"].drafts == 24
    calls = {name: [call for turns in row for call in turns] for name, row in _calls(results.rows).items()}
    assert all(call["depths"] == call["drafted"] for call in calls["engine-chain"])
    assert any(call["depths"] != call["drafted"] for call in calls["engine-24"])
    for name in engines:
        assert all(len(call["lookup"]) == len(call["advanced"]) for call in calls[name])
        assert name in ("engine", "engine-24") or not any(sum(call["lookup"]) for call in calls[name])
    for cell in found.values():
        assert len(cell.by_position) == max((n for call in cell.calls for n in call.depths), default=0)
        assert all(0 <= share <= 1 for share in cell.by_position)
    text = write(tmp_path / "r")[0].read_text()
    assert "| gsm8k | 0 | engine-plain | 2 | 1.00" in text
    by_position = text.split("## Acceptance by position")[1].split("##")[0]
    assert "engine-24" in by_position
    assert "engine-plain" not in by_position


def _calls(rows):
    found = {}
    for row in rows:
        found.setdefault(row["method"], []).append([run for turn in row["turns"] for run in turn["runs"]])
    return found


def test_results_from_before_there_were_trees_are_chains():
    assert Call(3, 5, 1.0, 0.1, 0.5, 0.1, 0.1, None, [3, 1], [4, 2]).depths == [4, 2]


@pytest.mark.parametrize("name", ["engine", "results", "trees"])
def test_the_configs_are_evaluations(name):
    asked = load(Path(running.__file__).parent / "configs" / f"{name}.yaml", {})
    assert asked.methods[0] == "plain"
    assert asked.out == f"runs/{name}"


def test_flags_go_over_the_yaml(tmp_path):
    (tmp_path / "e.yaml").write_text("out: a\ntasks: {gsm8k: 3, mbpp: }\nrepeats: 2\n")
    asked = load(tmp_path / "e.yaml", {"repeats": 3, "seed": None})
    assert (asked.out, asked.asked(), asked.repeats, asked.seed) == ("a", "gsm8k=3,mbpp", 3, 0)
    (tmp_path / "e.yaml").write_text("out: [")
    with pytest.raises(ValueError, match="is not valid YAML"):
        load(tmp_path / "e.yaml", {})


def test_acceptance_pools_the_rounds_of_all_questions(target, draft):
    tokenizer = make_tokenizer()
    questions, single = ["w5 w6", "w7 w8 w9"], []
    for question in questions:
        inputs, how = encode(tokenizer, question, "cpu"), {"custom_generate": draft.decode, "loop": "transformers"}
        target.generate(**inputs, **how, max_new_tokens=12, do_sample=False)
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


def test_models_without_a_drafter_can_be_measured_plainly(home, tmp_path):
    models = [{"target": str(home / "target")}]
    results = evaluate(load(None, flags(home, tmp_path / "r", models=models, tasks="gsm8k=1", methods=["plain"])))
    assert [row["method"] for row in results.rows] == ["plain"]
    assert isinstance(running.load_models(settings(home, "x").models[0], "float32"), Models)
