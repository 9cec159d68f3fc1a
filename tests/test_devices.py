"""What never ran on a device is off there, and a check that goes wrong for real costs a warning. The device is Triton's interpreter."""

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")
import replay
from domino import generate
from domino.acceleration import graphs
from domino.devices import gate, verdict
from domino.doctor import graph_cases
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


@pytest.fixture
def recorded(monkeypatch):
    """A CPU that counts as a device with graphs; the recordings of each call."""
    made = []

    def record(work):
        made.append(work)
        return replay.record(work)

    monkeypatch.setattr(graphs, "able", lambda device: True)
    monkeypatch.setattr(graphs, "recorder", lambda device: record)
    monkeypatch.setattr(seam, "able", lambda device: False)
    return made


def longer(target, draft, **settings):
    """Whether the engine's greedy text is plain generate's, in enough rounds for replays."""
    options = {"max_new_tokens": 30, "do_sample": False, "eos_token_id": None}
    return torch.equal(generate(target, draft, IDS, **settings, **options), target.generate(IDS, **options))


def test_graphs_are_on_where_they_passed(monkeypatch, recorded, caplog):
    target, draft = make_target(), make_draft()
    monkeypatch.setattr(graphs, "CASES", "faulty:RIGHT")
    with caplog.at_level(logging.WARNING):
        assert longer(target, draft)
    assert recorded
    assert "CUDA graphs passed" in caplog.text
    (kept,) = verdict._entries()
    assert (kept.what, kept.identity["DOMINO_KERNELS"]) == ("graphs", "torch")
    recorded.clear()
    assert longer(target, draft, graphs=False)
    assert longer(target, draft, shape="tree")
    handle = target.model.layers[0].register_forward_hook(lambda *args: None)
    assert longer(target, draft)  # whoever put it there would hear nothing of a replay
    assert not recorded
    handle.remove()
    assert longer(target, draft)
    assert recorded


def test_graphs_stay_off_where_they_failed(monkeypatch, recorded, caplog):
    monkeypatch.setattr(graphs, "CASES", "faulty:CRASHES")
    with caplog.at_level(logging.WARNING):
        assert longer(make_target(), make_draft())
    assert "operations are launched one by one; the check found: reads: crashed the process (SIGSEGV)" in caplog.text
    assert not recorded
    assert longer(make_target(), make_draft(), graphs=True)
    assert recorded  # the user's word


def test_a_target_that_cannot_be_recorded_is_not_tried_again(monkeypatch, recorded, caplog):
    target, draft = make_target(), make_draft()
    monkeypatch.setattr(graphs, "CASES", "faulty:RIGHT")
    forward = target.model.norm.forward
    target.model.norm.forward = lambda x: forward(x) * max(1, int(x.sum() > 1e30))  # the host waits for a number
    with caplog.at_level(logging.WARNING):
        assert longer(target, draft)
        assert longer(target, draft)
    assert caplog.text.count("goes on without CUDA graphs") == 1


def test_the_cases_of_graphs_notice_a_replay_that_reads_old_inputs(monkeypatch):
    monkeypatch.setattr(graphs, "recorder", lambda device: replay.record)
    graph_cases.CASES["replay"](CPU)

    def stale(work):
        again, outputs = replay.record(work)
        return lambda: None, outputs

    monkeypatch.setattr(graphs, "recorder", lambda device: stale)
    with pytest.raises(AssertionError, match="not close"):
        graph_cases.CASES["replay"](CPU)


def test_the_cases_of_graphs_notice_what_was_not_recorded(monkeypatch):
    def fails(work):
        raise RuntimeError("operation not permitted")

    monkeypatch.setenv("DOMINO_KERNELS", "torch")
    monkeypatch.setattr(graphs, "recorder", lambda device: fails)
    with pytest.raises(AssertionError, match="operation not permitted"):
        graph_cases.CASES["sampled"](CPU)
