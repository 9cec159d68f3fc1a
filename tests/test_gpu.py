"""On a CUDA device: `pytest -m gpu`."""

import logging

import pytest
import torch
from domino import generate
from domino.acceleration import graphs
from domino.devices import gate
from domino.doctor.graph_cases import CASES as GRAPH_CASES
from domino.kernels import seam
from tiny import make_draft, make_target

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
PROMPT = torch.tensor([[18, 20, 36, 18, 45, 14]])


def unrecorded(caplog):
    """What was said of recordings; the check of a device has lines of its own."""
    return [record.getMessage() for record in caplog.records if record.name == graphs.__name__]


@pytest.mark.parametrize("name", GRAPH_CASES)
def test_what_the_check_runs(name):
    GRAPH_CASES[name](torch.device("cuda", 0))


def test_the_check_passes_and_turns_them_on(tmp_path, monkeypatch, caplog):
    """In a process of its own, as a first call would start it; then the engine records by itself."""
    device = torch.device("cuda", 0)
    monkeypatch.setattr("huggingface_hub.utils._cache_assets.HF_ASSETS_CACHE", tmp_path)
    gate._settled.clear()
    seam._decide.cache_clear()
    with seam.forced("auto"):
        assert seam.uses_triton(device) is seam.able(device)
        assert graphs.passed(device)
        made = graphs.graphs_for("auto", True, make_target().to(device), make_draft().to(device))
    assert isinstance(made, graphs.Graphs)
    gate._settled.clear()
    seam._decide.cache_clear()


@pytest.mark.parametrize(("target_device", "draft_device"), [("cuda", "cuda"), ("cuda", "cpu"), ("cpu", "cuda")])
def test_devices_may_differ(target_device, draft_device):
    target, draft = make_target().to(target_device), make_draft().to(draft_device)
    ids = PROMPT.to(target_device)
    plain = target.generate(ids, max_new_tokens=24, do_sample=False)
    assert torch.equal(plain, target.generate(ids, assistant_model=draft, max_new_tokens=24, do_sample=False))
    target.generate(ids, assistant_model=draft, max_new_tokens=24, do_sample=True)
    assert draft.statistics.rounds > 0


@pytest.mark.parametrize("rows", [1, 3])
def test_graphs_say_the_same(rows, caplog):
    """Recorded for real; a recording that fails would be a warning."""
    target, draft = make_target().cuda(), make_draft().cuda()
    ids = PROMPT.expand(rows, -1).cuda()
    with caplog.at_level(logging.WARNING):
        ours = generate(target, draft, ids, max_new_tokens=600, do_sample=False, eos_token_id=None, graphs=True)
    assert not unrecorded(caplog)
    assert torch.equal(ours, target.generate(ids, max_new_tokens=600, do_sample=False, eos_token_id=None))


@pytest.mark.parametrize("do_sample", [False, True])
def test_a_recording_that_fails_leaves_no_trace(do_sample, caplog):
    """A target that waits for the device within its forward goes on unrecorded, on the stream it was on."""
    target, draft, stream = make_target().cuda(), make_draft().cuda(), torch.cuda.current_stream()
    ids, options = PROMPT.cuda(), {"max_new_tokens": 60, "eos_token_id": None, "do_sample": do_sample}
    target.model.register_forward_pre_hook(lambda module, args: torch.ones(1, device="cuda").item() and None)
    with caplog.at_level(logging.WARNING):
        ours = generate(target, draft, ids, graphs=True, **options)
    assert "goes on without CUDA graphs" in caplog.text
    assert torch.cuda.current_stream() == stream
    assert do_sample or torch.equal(ours, target.generate(ids, **options))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one CUDA device")
def test_graphs_on_a_device_that_is_not_the_current_one(caplog):
    for device in ("cuda:0", "cuda:1"):
        target, draft, ids = make_target().to(device), make_draft().to(device), PROMPT.to(device)
        options = {"max_new_tokens": 60, "do_sample": False, "eos_token_id": None}
        with caplog.at_level(logging.WARNING):
            ours = generate(target, draft, ids, graphs=True, **options)
        assert torch.equal(ours, target.generate(ids, **options))
    assert not unrecorded(caplog)
