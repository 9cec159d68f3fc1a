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
