"""`domino doctor`: what it says, its exit status, and that it finds what is wrong for real."""

import json
import os
import subprocess
import sys

import pytest
import torch
from domino.devices import gate, verdict
from domino.doctor import examine, report, timing
from domino.kernels import seam

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="written for a machine without a GPU")


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.utils._cache_assets.HF_ASSETS_CACHE", tmp_path / "assets")
    monkeypatch.setattr(timing, "unpacked", lambda: None)  # the tiny pair
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    gate._settled.clear()
    yield
    gate._settled.clear()


def test_the_command_on_a_cpu(tmp_path):
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    own = {"HF_HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-m", "domino", "doctor", "--json"],
        env=environment | own,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert facts["device"] == "cpu"
    assert facts["verdict"]["fine"]
    assert facts["checks"]["lossless"]["state"] == "right"
    assert {facts["checks"][name]["state"] for name in ("triton", "graphs")} == {"not here"}
    assert facts["versions"]["torch"] == torch.__version__
    assert facts["round"]["ways"]["engine"]["tokens_per_second"] > 0
    assert facts["verdicts"].startswith(str(tmp_path))


def test_it_says_so_in_words(capsys):
    assert report.doctor("cpu", False)
    out = capsys.readouterr().out
    for said in (
        f"torch {torch.__version__}",
        "engine's text = plain generate's    right",
        "works here",
        "tiny random",
    ):
        assert said in out


def test_a_kernel_that_is_wrong_is_found_and_kept(monkeypatch, capsys):
    """In the interpreter, which counts as a device with kernels where it is asked for."""
    pytest.importorskip("triton")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr(seam, "CASES", "faulty:WRONG")
    assert not report.doctor("cpu", False)
    out = capsys.readouterr().out
    assert "wrong: doubles: AssertionError: the tail is missing" in out
    assert "failed, so the head runs in torch" in out
    (kept,) = verdict._entries()
    assert (kept.what, kept.passed) == ("triton", False)


def test_a_text_that_differs_is_found(monkeypatch, capsys):
    """An engine that keeps a token the target would not say."""
    from domino.generation import choosing

    accept = choosing.accept_greedy

    def biased(logits, proposal):
        paths, following = accept(logits, proposal)
        return paths, [(token + 1) % 100 + 3 for token in following]

    monkeypatch.setattr(choosing, "accept_greedy", biased)
    assert not report.doctor("cpu", True)
    facts = json.loads(capsys.readouterr().out)
    assert "another text than plain generate's" in facts["checks"]["lossless"]["found"]
    assert not facts["verdict"]["fine"]


@pytest.mark.parametrize("name", ["cuda", "nowhere"])
def test_a_device_that_is_not_there_is_named(name):
    with pytest.raises(ValueError, match=f"--device {name} cannot be used here"):
        examine.examine(name)
