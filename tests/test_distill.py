"""`domino distill`: what it stores is what the target says and computes, however it was interrupted or shared out."""

import errno
import json
import signal
import subprocess
import sys
import time
from argparse import ArgumentParser
from collections import namedtuple
from pathlib import Path

import datasets
import pyarrow.parquet
import pytest
import torch
from accelerate.state import AcceleratorState
from corpus import VOCAB, make_tokenizer, save_target
from domino import cli
from domino.training import distill as module
from domino.training import prompts as reading
from domino.training import shards
from domino.training.answers import encode
from domino.training.distill import distill
from domino.training.distill_settings import DistillSettings, add_options
from domino.training.shards import DistilledAnswers
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, GenerationConfig

WORDS = {3, *range(5, VOCAB - 1)}  # neither special nor the reserved row
STORE = ["--features", "0,2", "--last-hidden"]


@pytest.fixture(autouse=True)
def _a_state_of_its_own():
    AcceleratorState._reset_state(reset_partial_state=True)
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with a target and prompts of 1 to 9 words."""
    folder = tmp_path_factory.mktemp("distill")
    save_target(folder / "target")
    rows = [{"turns": [" ".join(f"w{5 + (7 * i + j) % 40}" for j in range(1 + i % 9))]} for i in range(40)]
    (folder / "prompts.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    return folder


def options(home: Path, out: Path, *more) -> list[str]:
    given = {"--target": home / "target", "--prompts": home / "prompts.jsonl", "--out": out}
    plain = ["--dtype", "float32", "--max-new-tokens", "6", "--batch-size", "3", *more]
    return [*(str(part) for pair in given.items() for part in pair), *plain]


def run(home: Path, out: Path, *more) -> dict:
    parser = ArgumentParser()
    add_options(parser)
    return distill(DistillSettings(**vars(parser.parse_args(options(home, out, *more)))))


def content(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(out.iterdir()) if path.name != "provenance.json"}


def rows_of(out: Path) -> list[dict]:
    return [row for path in sorted(out.glob("*.parquet")) for row in pyarrow.parquet.read_table(path).to_pylist()]


def provenance(out: Path) -> dict:
    return json.loads((out / "provenance.json").read_text())


def command(monkeypatch, *argv) -> None:
    monkeypatch.setattr(sys, "argv", ["domino", "distill", *argv])
    cli.main()


def test_answers_and_features_are_the_targets(home, tmp_path):
    totals = run(home, tmp_path, *STORE)
    target = AutoModelForCausalLM.from_pretrained(home / "target", dtype=torch.float32)
    seen = 0
    for path in sorted(tmp_path.glob("*.parquet")):
        stored, at = safe_open(path.with_suffix(".safetensors"), framework="pt"), 0
        for row in pyarrow.parquet.read_table(path).to_pylist():
            ids, prompt = torch.tensor(row["input_ids"])[None], row["prompt_length"]
            said = target.generate(ids[:, :prompt], max_new_tokens=6, do_sample=False)
            assert said.tolist() == ids.tolist()
            assert row["finished"] == (row["input_ids"][-1] == 2)
            assert row["answer"].split() == [f"w{i}" for i in row["input_ids"][prompt:] if i in WORDS]
            full = target.model(ids[:, :-1], output_hidden_states=True)
            expected = {
                "features": torch.cat([full.hidden_states[1], full.hidden_states[3]], dim=-1)[0],
                "last_hidden": full.last_hidden_state[0],
            }
            for name, value in expected.items():
                kept = stored.get_slice(name)[at : at + ids.shape[1]]
                assert kept.dtype == torch.bfloat16
                assert torch.allclose(kept[:-1].float(), value, rtol=2**-8, atol=1e-5)
                assert not kept[-1].any()
            at, seen = at + ids.shape[1], seen + 1
        assert stored.get_slice("features").get_shape()[0] == at
    assert seen == totals["answers"] == totals["prompts"] - totals["empty"] > 30


def test_shards_are_read_back(home, tmp_path):
    run(home, tmp_path, *STORE)
    paths = sorted(tmp_path.glob("*.parquet"))
    data = DistilledAnswers(paths, max_length=512, min_answer=1, layer_ids=[0, 2], last_hidden=True)
    table = datasets.Dataset.from_parquet([str(path) for path in paths], cache_dir=str(tmp_path / "cache"))
    assert len(data) == len(table) > 30
    assert [item["input_ids"].tolist() for item in data] == table["input_ids"][:]
    assert all(len(item["features"]) == len(item["last_hidden"]) == len(item["input_ids"]) for item in data)
    assert table.features["input_ids"].feature.dtype == "int32"
    lines = (home / "prompts.jsonl").read_text().splitlines()
    assert set(table["prompt"]) <= {json.loads(line)["turns"][0] for line in lines}


@pytest.fixture(scope="module")
def whole(home, tmp_path_factory):
    """Shards of an uninterrupted run, sampled, so that seeds matter."""
    out = tmp_path_factory.mktemp("whole")
    run(home, out, *STORE, "--temperature", "0.9", "--batch-size", "1", "--max-new-tokens", "40")
    return out


def same_again(home, out):
    return options(home, out, *STORE, "--temperature", "0.9", "--batch-size", "1", "--max-new-tokens", "40")


def same_shards(out, other):
    """The same answers to the byte, and features as equal as two processes make them."""
    ours, theirs = content(out), content(other)
    assert ours.keys() == theirs.keys()
    for name in ours:
        if name.endswith(".parquet"):
            assert ours[name] == theirs[name]
        else:  # the last bit of float32, and so now and then of bfloat16, is not the same in every process
            a, b = load_file(out / name), load_file(other / name)
            assert a.keys() == b.keys()
            assert all(torch.allclose(a[key].float(), b[key].float(), rtol=2**-7, atol=1e-5) for key in a)


def test_killed_and_resumed(home, whole, tmp_path, monkeypatch):
    process = subprocess.Popen([sys.executable, "-m", "domino", "distill", *same_again(home, tmp_path)])
    while process.poll() is None and len(list(tmp_path.glob("*.parquet"))) < 3:
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()
    made = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.parquet")}
    assert 3 <= len(made) < 40
    (tmp_path / "shard-00039.safetensors").write_bytes(b"of a batch whose table was never written")
    command(monkeypatch, *same_again(home, tmp_path))
    same_shards(tmp_path, whole)
    assert all(path.stat().st_mtime_ns == before for path, before in made.items())  # not made again


def test_two_processes_make_the_same(home, whole, tmp_path):
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    subprocess.run([*launch, "-m", "domino", "distill", *same_again(home, tmp_path)], check=True)
    assert provenance(tmp_path)["totals"]["last_run"]["processes"] == 2
    same_shards(tmp_path, whole)


def test_interrupted(home, tmp_path, monkeypatch, capsys):
    answer, calls = module.answer, []

    def interrupted(*args):
        calls.append(args)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return answer(*args)

    monkeypatch.setattr(module, "answer", interrupted)
    with pytest.raises(SystemExit) as stopped:
        command(monkeypatch, *options(home, tmp_path))
    assert stopped.value.code == 130
    assert "resume with the same command" in capsys.readouterr().err
    assert len(list(tmp_path.glob("*.parquet"))) == 2


def full_disk(tensors, path):
    Path(path).write_bytes(b"a part")
    raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")


def full_disk_for_tables(self, data):
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("place", [(shards, "save_file", full_disk), (Path, "write_bytes", full_disk_for_tables)])
def test_full_disk(home, tmp_path, monkeypatch, place):
    with monkeypatch.context() as broken:
        broken.setattr(*place)
        with pytest.raises(
            OSError, match=r"is full. The 14 batches left .* need up to .* GB.*resume with the same command"
        ):
            run(home, tmp_path, *STORE)
    assert not [path for path in tmp_path.iterdir() if path.name.endswith((".part", ".parquet"))]
    assert run(home, tmp_path, *STORE)["answers"] > 30


def test_too_little_space_is_seen_before(home, tmp_path, monkeypatch):
    usage = namedtuple("usage", "free")
    monkeypatch.setattr(module.shutil, "disk_usage", lambda _: usage(10_000))
    with pytest.raises(ValueError, match=r"0.00 GB free and the features may take"):
        run(home, tmp_path, *STORE)
    assert run(home, tmp_path / "tokens")["answers"] > 30


def test_other_settings_are_refused(home, tmp_path):
    run(home, tmp_path, "--limit", "6")
    with pytest.raises(ValueError, match=r"(?s)other settings:.*max_new_tokens: 6 there, 7 now.*seed: 0 there, 4"):
        run(home, tmp_path, "--limit", "6", "--max-new-tokens", "7", "--seed", "4")
    with pytest.raises(ValueError, match="prompts_sha256"):
        run(home, tmp_path, "--limit", "7")
    (tmp_path / "provenance.json").unlink()
    with pytest.raises(ValueError, match=r"no provenance\.json"):
        run(home, tmp_path, "--limit", "6")


def test_provenance_and_counts(home, tmp_path):
    more = ["--max-prompt-tokens", "8", "--features", "auto:1", "--no-thinking"]
    totals = run(home, tmp_path, *more)
    written, rows = provenance(tmp_path), rows_of(tmp_path)
    assert (written["target_layer_ids"], written["last_hidden"], written["thinking"]) == ([2], False, False)
    assert written["sources"] == [{"source": str(home / "prompts.jsonl"), "found": 40, "taken": 40}]
    assert {"command", "versions", "revision", "chat_template_sha256"} <= set(written)
    counted = {name: value for name, value in written["totals"].items() if name != "last_run"}
    assert counted == totals
    assert totals["answers"] == len(rows) == 40 - totals["too_long"] - totals["empty"]
    assert totals["too_long"] == sum(i % 9 > 5 for i in range(40))
    assert totals["answer_tokens"] == sum(len(row["input_ids"]) - row["prompt_length"] for row in rows)
    assert run(home, tmp_path, *more) == totals  # nothing left to do


def test_empty_answers_are_left_out(home, tmp_path):
    run(home, tmp_path / "all")
    first = rows_of(tmp_path / "all")[0]
    target = AutoModelForCausalLM.from_pretrained(home / "target")
    ends = [2, first["input_ids"][first["prompt_length"]]]
    target.generation_config = GenerationConfig(eos_token_id=ends, pad_token_id=0)
    target.save_pretrained(tmp_path / "mute" / "target")
    make_tokenizer().save_pretrained(tmp_path / "mute" / "target")
    (tmp_path / "mute" / "prompts.jsonl").write_bytes((home / "prompts.jsonl").read_bytes())
    totals = run(tmp_path / "mute", tmp_path / "out", *STORE)
    rows = rows_of(tmp_path / "out")
    assert 0 < totals["empty"] == 40 - len(rows)
    assert all(row["input_ids"][row["prompt_length"]] not in ends for row in rows)
    assert DistilledAnswers(sorted((tmp_path / "out").glob("*.parquet")), 512, 1, [0, 2])[0]["features"].any()


def test_a_checkpoints_own_decoding_is_not_mixed_in(home, tmp_path):
    target = AutoModelForCausalLM.from_pretrained(home / "target")
    target.generation_config = GenerationConfig(
        eos_token_id=2, pad_token_id=0, do_sample=True, repetition_penalty=5.0, top_k=1
    )
    target.save_pretrained(tmp_path / "target")
    make_tokenizer().save_pretrained(tmp_path / "target")
    (tmp_path / "prompts.jsonl").write_bytes((home / "prompts.jsonl").read_bytes())
    run(home, tmp_path / "plain")
    run(tmp_path, tmp_path / "out")
    assert rows_of(tmp_path / "out") == rows_of(tmp_path / "plain")


def test_broken_lines(home, tmp_path):
    lines = [
        b'{"turns": ["w5"]}',
        b'{"turns": ["w6"',
        b"",
        b'{"turns": [" "]}',
        b'{"turns": ["\xff"]}',
        b'{"text": "w7"}',
    ]
    (tmp_path / "prompts.jsonl").write_bytes(b"\n".join(lines))
    (tmp_path / "target").symlink_to(home / "target")
    with pytest.raises(ValueError, match=r"4 line\(s\) hold no prompt") as refused:
        run(tmp_path, tmp_path / "out")
    for number, reason in ((2, "Expecting"), (4, "the prompt is empty"), (5, "utf-8"), (6, "has no turns")):
        assert f"prompts.jsonl, line {number}: " in str(refused.value)
        assert reason in str(refused.value)
    totals = run(tmp_path, tmp_path / "out", "--bad-lines", "skip")
    assert (totals["prompts"], totals["bad_lines"]) == (1, 4)
    assert [row["prompt"] for row in rows_of(tmp_path / "out")] == ["w5"]


def test_a_tokenizer_that_does_not_fit(home, tmp_path):
    (tmp_path / "prompts.jsonl").write_bytes((home / "prompts.jsonl").read_bytes())
    save_target(tmp_path / "target")
    tokenizer = make_tokenizer()
    tokenizer.add_tokens([f"more{i}" for i in range(9)])
    tokenizer.save_pretrained(tmp_path / "target")
    with pytest.raises(ValueError, match="56 ids but the model has 48"):
        run(tmp_path, tmp_path / "out")
    tokenizer = make_tokenizer()
    tokenizer.chat_template = None
    with pytest.raises(ValueError, match="has no chat template"):
        encode([("w5", 0.0)], tokenizer, 9, None)


def test_thinking_reaches_the_template():
    tokenizer = make_tokenizer()
    tokenizer.chat_template = "{{ messages[0].content }} {% if enable_thinking is not defined %}w7{% elif enable_thinking %}w8{% else %}w9{% endif %}"
    for thinking, token in ((None, 7), (True, 8), (False, 9)):
        assert encode([("w5", 0.0)], tokenizer, 9, thinking)[0].ids == [5, token]


ROWS = [
    {"turns": ["w5", "w6"]},
    {"prompt": "w5", "answer": "w6"},
    {"prompt": [{"role": "user", "content": "w5"}]},
    {"messages": [{"role": "system", "content": "w9"}, {"role": "user", "content": "w5"}]},
    {"prompt": "ignored", "messages": [{"role": "user", "content": "w5"}]},
    {"conversations": [{"from": "human", "value": "w5"}, {"from": "gpt", "value": "w6"}]},
]


@pytest.mark.parametrize("row", ROWS)
def test_layouts_of_rows(row):
    assert reading.user_message(row) == "w5"


def test_a_dataset(home, tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    folder = tmp_path / "chats"
    folder.mkdir()
    rows = [{"messages": [{"role": "user", "content": f"w{i}"}]} for i in (5, 6, 7)]
    (folder / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    totals = run(home, tmp_path / "out", "--prompts", str(folder))
    assert totals["answers"] == 3
    assert sorted(row["prompt"] for row in rows_of(tmp_path / "out")) == ["w5", "w6", "w7"]
    assert provenance(tmp_path / "out")["sources"] == [{"source": str(folder), "found": 3, "taken": 3}]


def test_a_mix(home, tmp_path):
    (tmp_path / "mix.yaml").write_text(
        "seed: 3\nprompts:\n"
        "  - {file: prompts.jsonl, limit: 4, temperatures: [0.0, 0.7]}\n"
        "  - {file: prompts.jsonl, containing: w44}\n"
    )
    more = ["--prompts", str(tmp_path / "mix.yaml"), "--prompts-root", str(home)]
    run(home, tmp_path / "out", *more, "--temperature", "1.5")
    rows = rows_of(tmp_path / "out")
    by_temperature = {t: [r["prompt"] for r in rows if r["temperature"] == pytest.approx(t)] for t in (0.0, 0.7, 1.5)}
    assert by_temperature[1.5]
    assert all("w44" in prompt for prompt in by_temperature[1.5])
    assert provenance(tmp_path / "out")["seed"] == 3
    assert provenance(tmp_path / "out")["sources"][0]["taken"] == 8
    sources, _ = reading.read_mix(str(tmp_path / "mix.yaml"))
    pairs = reading.read_prompts(sources[:1], home, 3, 1.5, skip_bad=False).pairs
    assert len({prompt for prompt, _ in pairs}) == 4
    assert set(pairs) == {(prompt, t) for prompt, _ in pairs for t in (0.0, 0.7)}


MISTAKES = {
    "prompts: [{file: a.jsonl, limt: 3}]": "source 1: limt: did you mean",
    "sead: 1\nprompts: [{file: a.jsonl}]": "sead: did you mean",
    "prompts: [{limit: 3}]": "either a `file` or a `dataset`",
    "prompts: [a.jsonl]": "must be a mapping",
    "prompts: [{file: a.jsonl, temperatures: [-1]}]": "temperatures must be 0",
    "prompts: []": "must hold `prompts`",
    "prompts: [": "not valid YAML",
}


@pytest.mark.parametrize("text", MISTAKES)
def test_mistakes_in_a_mix(tmp_path, text):
    (tmp_path / "mix.yaml").write_text(text)
    with pytest.raises(ValueError, match="mix.yaml|file|temperatures") as refused:
        reading.read_mix(str(tmp_path / "mix.yaml"))
    assert MISTAKES[text] in str(refused.value)


def test_the_shipped_mix_is_read():
    sources, seed = reading.read_mix(str(Path(reading.__file__).parent / "configs" / "smollm2-135m-prompts.yaml"))
    assert sources
    assert all(source.file for source in sources)
    assert seed == 0


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--features", "1,9"], "0 … 3"),
        (["--features", "auto:x"], "auto:N"),
        (["--last-hidden"], "goes with --features"),
        (["--top-p", "0"], "--top-p"),
        (["--batch-size", "0"], "--batch-size must be at least 1"),
        (["--max-new-tokens", "4000"], "reads at most 2048 tokens"),
        (["--max-prompt-tokens", "1"], "has no prompt to answer: 40 prompts, 0 bad lines, 40 too long"),
    ],
)
def test_options_that_cannot_be(home, tmp_path, monkeypatch, more, message):
    with pytest.raises(SystemExit, match="domino: ") as refused:
        command(monkeypatch, *options(home, tmp_path, *more))
    assert message in refused.value.code


def test_help(monkeypatch, capsys):
    with pytest.raises(SystemExit) as stopped:
        command(monkeypatch, "--help")
    assert stopped.value.code == 0
    assert "--bad-lines {fail,skip}" in capsys.readouterr().out
