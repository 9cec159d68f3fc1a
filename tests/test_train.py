"""Whole training runs of a tiny drafter: overfitting, processes, resuming, switches, refusals."""

import json
import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from corpus import LAYERS, losses, save_config, save_shards, save_target
from domino import DominoModel
from domino.evaluation.tasks import Question
from domino.training import ablate
from domino.training.callbacks import last_checkpoint
from domino.training.config import load
from domino.training.objective import COUNTS, DominoForTraining
from domino.training.shards import DistilledAnswers
from domino.training.target import TargetHead, load_target
from domino.training.train import train
from domino.training.vocabulary import WholeVocabulary
from safetensors.torch import load_file
from tiny import VOCAB
from transformers import AutoModel


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A target and three shards of eight answers."""
    folder = tmp_path_factory.mktemp("home")
    target = save_target(folder / "target")
    save_shards(folder / "data", target)
    return folder


def run(home, name, **sections):
    """Train in this process; returns the run's folder."""
    config = save_config(home / f"{name}.yaml", home / "target", home / "data", home / name, **sections)
    train(load(config))
    return home / name


def command(config, *launcher):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    line = [sys.executable, *launcher, "-m", "domino", "train", str(config)]
    return subprocess.Popen(line, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(process):
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output[-3000:]


def save_prompts(folder):
    path = folder / "prompts.jsonl"
    path.write_text('{"turns": ["w5 w6 w7"]}\n{"turns": ["w8 w9"]}\n')
    return path


def history(out):
    return json.loads((last_checkpoint(out) / "trainer_state.json").read_text())["log_history"]


def taus(out):
    return [(entry["step"], entry["tau"]) for entry in history(out) if "tau" in entry]


def same_weights(left, right, tolerance):
    a, b = load_file(left / "model.safetensors"), load_file(right / "model.safetensors")
    assert a.keys() == b.keys()
    return max((a[name] - b[name]).abs().max() for name in a) <= tolerance


def test_overfits_eight_sequences(home):
    out = run(
        home,
        "overfit",
        held_out_shards=2,
        drafter={"gru_hidden_dim": 32, "emb_dim": 16},
        objective={"num_anchors": 18},
        trainer={"max_steps": 250, "per_device_train_batch_size": 8, "save_steps": 250, "logging_steps": 50},
    )
    draft = DominoModel.from_pretrained(last_checkpoint(out))
    settings = load(home / "overfit.yaml").objective
    target, _ = load_target(str(home / "target"), "float32")
    model = DominoForTraining(draft.config, TargetHead.of(target), WholeVocabulary(VOCAB), settings)
    model.load_state_dict(draft.state_dict())
    items = list(DistilledAnswers([home / "data" / "shard-00000.parquet"], 64, 2, LAYERS))
    anchors = torch.arange(6, 20).expand(8, -1)  # every anchor with a full block of labels
    with torch.no_grad():
        model(
            torch.stack([item["input_ids"] for item in items]),
            torch.full((8,), 24),
            anchors,
            torch.stack([item["features"] for item in items]).float(),
            lam=0.0,
        )
    figures = dict(zip(COUNTS, model.counts.tolist(), strict=True))
    assert figures["blocks"] == anchors.numel()
    assert (
        figures["final_run"] / figures["blocks"] == draft.config.num_drafts + 1
    )  # every draft of every block is right


EVALUATED = {"eval_strategy": "steps", "eval_steps": 4, "per_device_eval_batch_size": 3}


def evaluated(out):
    (entry,) = [entry for entry in history(out) if "eval_final_accept" in entry]
    return [entry[f"eval_{head}_{what}"] for head in ("final", "base") for what in ("loss", "accuracy", "accept")]


@pytest.fixture(scope="module")
def alone(home):
    return run(home, "alone", trainer=EVALUATED)


@pytest.mark.parametrize("kind", ["fsdp", "ddp"])
def test_two_processes_equal_one(home, alone, kind):
    sharded = {"fsdp": True, "fsdp_config": {"transformer_layer_cls_to_wrap": ["DominoDecoderLayer"]}}
    trainer = {**EVALUATED, "per_device_train_batch_size": 2, **(sharded if kind == "fsdp" else {})}
    sections = {"trainer": trainer, "evaluation": {"prompts": str(save_prompts(home)), "every": 4, "max_new_tokens": 8}}
    config = save_config(home / f"{kind}.yaml", home / "target", home / "data", home / kind, **sections)
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    finish(command(config, *launcher))
    checkpoint = last_checkpoint(home / kind)
    assert (checkpoint / "pytorch_model_fsdp.bin").exists() == (kind == "fsdp")  # it was really sharded
    assert losses(home / kind) == pytest.approx(losses(alone), abs=1e-5)
    assert [step for step, _ in taus(home / kind)] == [4]
    assert same_weights(checkpoint, last_checkpoint(alone), 1e-4)
    # eight held-out rows in batches of three leave one process a batch short: nothing is counted twice
    assert evaluated(home / kind) == pytest.approx(evaluated(alone), rel=1e-4)
    for folder in (checkpoint, home / kind / "drafter"):
        assert type(DominoModel.from_pretrained(folder)) is DominoModel
        assert AutoModel.from_pretrained(folder, trust_remote_code=True).config.model_type == "domino"


def test_accumulated_batches_equal_one(home, alone):
    trainer = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 4}
    out = run(home, "accumulated", trainer=trainer)
    assert losses(out) == pytest.approx(losses(alone), abs=1e-5)
    assert same_weights(last_checkpoint(out), last_checkpoint(alone), 1e-4)


def test_kill_in_mid_epoch_and_resume(home):
    """A killed run goes on from its last checkpoint and ends with the losses and weights of one left in peace."""
    trainer = {"max_steps": 60, "save_steps": 5}
    whole = run(home, "whole", trainer=trainer)
    config = save_config(home / "killed.yaml", home / "target", home / "data", home / "killed", trainer=trainer)
    process = command(config)
    while last_checkpoint(home / "killed") is None:
        assert process.poll() is None, process.communicate()[0][-3000:]
        time.sleep(0.01)
    process.kill()
    process.wait()
    step = json.loads((last_checkpoint(home / "killed") / "trainer_state.json").read_text())["global_step"]
    assert step < 60
    (home / "killed" / "checkpoint-59").mkdir()  # cut short while it was being written
    train(load(config), resume=True)
    assert losses(home / "killed") == losses(whole)
    assert same_weights(home / "killed" / "checkpoint-60", whole / "checkpoint-60", 0.0)


def test_interrupt_saves_and_says_how_to_go_on(home):
    trainer = {"max_steps": 100_000, "save_steps": 50_000}
    config = save_config(home / "stop.yaml", home / "target", home / "data", home / "stop", trainer=trainer)
    process = command(config)
    seen = ""
    while "'loss'" not in seen:
        seen += process.stdout.readline()
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "and --resume" in output
    assert last_checkpoint(home / "stop") is not None


def test_interrupt_heard_by_one_process_stops_all(home):
    trainer = {"max_steps": 100_000, "save_steps": 50_000, "per_device_train_batch_size": 2}
    config = save_config(home / "one.yaml", home / "target", home / "data", home / "one", trainer=trainer)
    process = command(config, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    seen = ""
    while "'loss'" not in seen:
        seen += process.stdout.readline()
    workers = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(workers[1]), signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert output.count("and --resume") == 2
    assert last_checkpoint(home / "one") is not None


def test_a_resumed_run_is_the_same_run(home, alone, tmp_path):
    """More steps are welcome, another drafter or objective is not."""
    changes = {"drafter": {"shift_label": False}, "objective": {"gamma": 5.0}}
    config = save_config(tmp_path / "c.yaml", home / "target", home / "data", alone, **changes)
    with pytest.raises(ValueError, match="other settings of drafter.shift_label, objective.gamma"):
        train(load(config), resume=True)


def test_the_best_checkpoint_can_be_chosen_by_our_figures(home):
    trainer = {**EVALUATED, "load_best_model_at_end": True, "metric_for_best_model": "eval_final_accept"}
    out = run(home, "best", trainer={**trainer, "save_steps": 4, "greater_is_better": True})
    state = json.loads((last_checkpoint(out) / "trainer_state.json").read_text())
    assert state["best_metric"] >= 1


def test_stored_features_go_to_worker_processes(home):
    shards = sorted((home / "data").glob("*.parquet"))
    data = DistilledAnswers(shards, 64, 2, layer_ids=[0, 2])
    first = data[0]
    again = pickle.loads(pickle.dumps(data))[0]
    assert torch.equal(first["features"], again["features"])


@pytest.mark.parametrize("labels", ["hard", "kl"])
def test_live_features_equal_stored_ones(home, labels):
    """Stored features are rounded to bfloat16."""
    stored = run(home, f"stored-{labels}", objective={"labels": labels})
    live = run(home, f"live-{labels}", objective={"labels": labels, "features": "online"})
    assert losses(live) == pytest.approx(losses(stored), abs=5e-3)


@pytest.mark.parametrize(
    "switches",
    [
        {"head": False},
        {"prefix": "self"},
        {"weights": "auf"},
        {"weights": "dpace"},
        {"vocabulary": 20, "sampled_tokens": 9},
    ],
    ids=["head-off", "ttt", "auf", "dpace", "reduced"],
)
def test_every_switch_trains_and_loads(home, switches, alone):
    name = "-".join(switches)
    out = run(home, name + str(switches.get("weights", "")), objective=switches)
    assert all(0 < loss < 6 for loss in losses(out))
    draft = DominoModel.from_pretrained(out / "drafter")
    assert draft.config.pure_draft_prefix_len == (draft.config.num_drafts if "head" in switches else 1)


def test_bf16_on_a_cpu_needs_no_setting(home):
    path = save_config(home / "bf16.yaml", home / "target", home / "data", home / "bf16", trainer={"bf16": True})
    config = load(path)
    del config.trainer["use_cpu"]
    assert len(losses(train(config).parent)) == 4


def test_real_acceptance_is_logged(home):
    evaluation = {"prompts": str(save_prompts(home)), "every": 2, "max_new_tokens": 12}
    out = run(home, "tau", evaluation=evaluation)
    assert [(step, tau >= 1) for step, tau in taus(out)] == [(2, True), (4, True)]
    assert all({"final_accept", "base_accuracy", "lambda"} <= entry.keys() for entry in history(out) if "loss" in entry)


def test_not_a_number_stops_with_the_batch_saved(home, tmp_path):
    target, _ = load_target(str(home / "target"), "float32")
    data = save_shards(tmp_path / "data", target)
    table = load_file(data / "shard-00000.safetensors")
    from safetensors.torch import save_file

    table["features"][3] = float("inf")
    save_file(table, data / "shard-00000.safetensors")
    config = save_config(
        tmp_path / "c.yaml", home / "target", data, tmp_path / "out", trainer={"per_device_train_batch_size": 16}
    )
    with pytest.raises(FloatingPointError, match="nan-batch-step0-rank0.safetensors"):
        train(load(config))
    saved = load_file(tmp_path / "out" / "nan-batch-step0-rank0.safetensors")
    assert not saved["features"].isfinite().all()


def test_refusals(home, alone, tmp_path):
    def refused(match, **sections):
        config = save_config(tmp_path / "c.yaml", home / "target", home / "data", tmp_path / "out", **sections)
        with pytest.raises(ValueError, match=match):
            train(load(config))

    with pytest.raises(ValueError, match="holds a run .checkpoint-4.: add --resume"):
        train(load(home / "alone.yaml"))
    refused("nothing is left to train on", held_out_shards=3)
    refused(r"layers \[0, 2\], the drafter reads \[1, 2\]", drafter={"target_layer_ids": [1, 2]})
    refused("distil with --features", data=str(save_tokens_only(tmp_path / "tokens")), objective={"features": "cached"})
    refused("distilled with another tokenizer", data=str(save_tokens_only(tmp_path / "other", VOCAB + 5)))
    refused("All 16 answers .* shorter than objective.min_answer = 50", objective={"min_answer": 50})


def test_ablation_trains_its_rows_and_measures_them_in_turn(home, tmp_path):
    save_config(tmp_path / "base.yaml", home / "target", home / "data", tmp_path / "unused")
    plan = tmp_path / "plan.yaml"
    plan.write_text("config: base.yaml\nset: [trainer.max_steps=2]\nrows: {Head off: [objective.head=false], TF: []}\n")
    rows = ablate.read_rows(plan, tmp_path / "runs", [])
    questions = {"gsm8k": [Question("a", ["w5 w6"]), Question("b", ["w7"])]}
    table = ablate.ablate(rows, questions, tmp_path / "runs", 12).splitlines()
    assert table[0] == "| row | gsm8k | average |"
    assert [line.split(" | ")[0] for line in table[2:]] == ["| Head off", "| TF"]
    samples = (tmp_path / "runs" / "samples.jsonl").read_text()
    found = [json.loads(line) for line in samples.splitlines()]
    assert [row["method"] for row in found] == ["plain", "Head off", "TF"] * 2
    assert all(row["turns"][0]["same"] for row in found)
    assert ablate.ablate(rows, questions, tmp_path / "runs", 12).splitlines() == table  # nothing is measured again
    assert (tmp_path / "runs" / "samples.jsonl").read_text() == samples
    assert (tmp_path / "runs" / "head-off" / "drafter" / "model.safetensors").is_file()
    plan.write_text("rows: {}")
    with pytest.raises(ValueError, match="must hold `config` and `rows`"):
        ablate.read_rows(plan, tmp_path, [])


def save_tokens_only(folder, token=7):
    from domino.training.shards import shard_path, write_shard

    folder.mkdir()
    for number in range(2):
        write_shard(shard_path(folder, number), [{"input_ids": [5, 6] + [token] * 9, "prompt_length": 2}] * 4, {})
    return folder
