"""On a CUDA device: `pytest -m gpu`."""

import logging

import pytest
import torch
from domino import generate
from tiny import make_draft, make_target

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
PROMPT = torch.tensor([[18, 20, 36, 18, 45, 14]])


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
    assert not caplog.records
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
    assert not caplog.records
