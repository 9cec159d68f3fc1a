"""What never ran on a device is off there, and a check that goes wrong for real costs a warning. The device is Triton's interpreter."""

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")
from domino import generate
from domino.devices import gate, verdict
from domino.drafting.fused_chain import fused_rollout
from domino.kernels import seam
from tiny import VOCAB, make_draft, make_target

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the interpreter is the device here")
CPU, ROOT = torch.device("cpu"), Path(__file__).resolve().parent.parent
IDS = torch.randint(3, VOCAB - 1, (2, 7), generator=torch.Generator().manual_seed(4))


def forget():
    """As a new process would begin."""
    gate._settled.clear()
    seam._decide.cache_clear()


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A cache of its own, and a CPU that counts as a device with kernels."""
    monkeypatch.setattr("huggingface_hub.utils._cache_assets.HF_ASSETS_CACHE", tmp_path / "assets")
    monkeypatch.setattr(seam, "able", lambda device: True)
    monkeypatch.setenv("DOMINO_KERNELS", "auto")
    monkeypatch.setattr(gate, "LIMIT", 60.0)
    forget()
    yield verdict.folder() / "verdicts.json"
    forget()


@pytest.fixture
def launches(monkeypatch):
    seen = []
    monkeypatch.setattr("domino.drafting.domino.fused_rollout", lambda *a: seen.append(a) or fused_rollout(*a))
    return seen


def checked(monkeypatch, cases):
    monkeypatch.setattr(seam, "CASES", f"faulty:{cases}")
    forget()
    return seam.uses_triton(CPU)


def said():
    """Whether the engine's greedy text is plain generate's."""
    target, draft = make_target(), make_draft()
    options = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": None}
    ours = generate(target, draft, IDS, budget=4, shape="chain", lookup=False, **options)
    return torch.equal(ours, target.generate(IDS, **options))


@pytest.mark.parametrize(
    ("cases", "limit", "found"),
    [
        ("HANGS", 10.0, "waits: did not end within 10 s"),
        ("CRASHES", 60.0, "reads: crashed the process (SIGSEGV)"),
        ("WRONG", 60.0, "doubles: AssertionError: the tail is missing"),
    ],
)
def test_a_faulty_kernel_is_caught_and_switched_off(cases, limit, found, monkeypatch, caplog, launches, cache):
    monkeypatch.setattr(gate, "LIMIT", limit)
    monkeypatch.setattr(seam, "CASES", f"faulty:{cases}")
    with caplog.at_level(logging.WARNING):
        assert said()
        assert said()
    before, after = (record.getMessage() for record in caplog.records if record.name == gate.__name__)
    assert "never ran on this device" in before
    assert "torch computes instead" in after
    assert found in after
    assert not launches
    (kept,) = verdict._entries()
    assert kept.passed is False
    assert kept.cases["right"] == "right"
    assert kept.cases.get("later", "right") == "right"

    # known from now on, and still said
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        assert not checked(monkeypatch, "NOT_AGAIN")
    assert found in caplog.text


def test_what_passed_is_on_from_then_on(monkeypatch, caplog, launches, cache):
    monkeypatch.setattr(seam, "CASES", "faulty:RIGHT")
    with caplog.at_level(logging.WARNING):
        assert said()
    assert launches
    assert [r.getMessage().split(" on ")[0] for r in caplog.records if r.name == gate.__name__] == [
        "Domino's Triton kernels never ran",
        "Domino's Triton kernels passed",
    ]
    caplog.clear()
    assert checked(monkeypatch, "NOT_AGAIN")  # a verdict is read, no check runs
    assert not caplog.records


def test_another_driver_is_checked_anew(monkeypatch, cache):
    assert checked(monkeypatch, "RIGHT")
    identity = gate.identity
    monkeypatch.setattr(gate, "identity", lambda device: {**identity(device), "driver": "999.99"})
    assert not checked(monkeypatch, "WRONG")
    monkeypatch.setattr(gate, "identity", identity)
    assert checked(monkeypatch, "NOT_AGAIN")  # the first one's verdict is still there
    assert len(verdict._entries()) == 2


@pytest.mark.parametrize("cases", ["FULL", "ABSENT"])
def test_a_check_that_could_not_run_leaves_no_verdict(cases, monkeypatch, caplog, cache):
    """No memory left beside the user's model, or no such list: nothing is known of the kernels, and they stay off."""
    with caplog.at_level(logging.WARNING):
        assert not checked(monkeypatch, cases)
    assert "could not run" in caplog.text
    assert not verdict._entries()
    assert checked(monkeypatch, "RIGHT")


@pytest.mark.parametrize("damage", ["[{]", '{"a": 1}', '[{"what": "triton"}]', "[3]"])
def test_a_damaged_file_is_no_verdict(damage, cache):
    cache.write_text(damage)
    assert verdict.kept("triton", {}) is None
    verdict.keep(verdict.Verdict("triton", True, "", 1.0, "now"))
    assert verdict.kept("triton", {}).passed


def test_a_cache_that_cannot_be_written_costs_a_check_each_time(monkeypatch, caplog, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr("huggingface_hub.utils._cache_assets.HF_ASSETS_CACHE", tmp_path / "file")
    with caplog.at_level(logging.WARNING):
        assert checked(monkeypatch, "RIGHT")
    assert "could not be kept" in caplog.text


def test_the_users_word_stands_above_any_verdict(monkeypatch, cache):
    assert not checked(monkeypatch, "WRONG")
    with seam.forced("triton"):
        assert seam.uses_triton(CPU)
    assert checked(monkeypatch, "NOT_AGAIN") is False
    monkeypatch.setenv("DOMINO_KERNELS", "triton")
    assert seam.uses_triton(CPU)
    monkeypatch.setenv("DOMINO_KERNELS", "torch")
    assert not seam.uses_triton(CPU)


ANOTHER = """
import sys, torch
from domino.devices import gate
assert gate.verdict("triton", "faulty:IN_TURN", torch.device("cpu")).passed
"""


def test_processes_wait_for_one_verdict(tmp_path):
    """Eight ranks on eight equal GPUs check once."""
    own = {"HF_HOME": str(tmp_path), "DOMINO_TEST_FLAG": str(tmp_path / "flag")}
    environment = {**os.environ, **own, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", ANOTHER]
    running = [subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    words = [one.communicate(timeout=120)[1] for one in running]
    assert [one.returncode for one in running] == [0, 0], words
    assert sum("never ran" in text for text in words) == 1
