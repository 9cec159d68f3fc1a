"""Packed weights: the same numbers but for rounding, always those of the model, and the model stays as it was."""

import gc
import weakref

import pytest
import torch
from domino import generate
from domino.acceleration import packed_weights as packed
from domino.acceleration.packed_weights import PackedLinear, packed_weights
from domino.acceleration.view import decoding_view
from domino.evaluation.losslessness import first_gap
from tiny import FAMILIES, VOCAB, make_draft, make_target

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="needs a torch built with oneDNN")


@pytest.fixture(scope="module")
def target():
    return make_target().to(torch.bfloat16)


def packed_view(model):
    return decoding_view(model, packs=True)


def close(a, b):
    """Within four roundings of bfloat16 at the size of the largest value."""
    assert (a.float() - b.float()).abs().max() <= 4 * 2**-8 * b.float().abs().max()


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_same_numbers_but_for_rounding(family):
    model = make_target(family, attention_bias=True).to(torch.bfloat16)
    for name, bias in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(bias)
    ids = torch.randint(3, VOCAB, (2, 7))
    view = packed_view(model)
    assert sum(isinstance(m, PackedLinear) for m in view.modules()) > 10
    close(view(ids).logits, model(ids).logits)


@torch.no_grad()
def test_a_changed_weight_is_packed_anew(target):
    """Also where torch's own counter of changes does not see it, as when adapters are merged."""
    model, ids = make_target(seed=3).to(torch.bfloat16), torch.randint(3, VOCAB, (1, 7))
    before = packed_view(model)(ids).logits
    weight = model.model.layers[1].mlp.down_proj.weight
    counted = weight._version
    weight.data += 0.5
    assert weight._version == counted
    close(packed_view(model)(ids).logits, model(ids).logits)
    assert not torch.equal(packed_view(model)(ids).logits, before)


@torch.no_grad()
def test_a_reordered_weight_is_packed_anew():
    model, ids = make_target(seed=3).to(torch.bfloat16), torch.randint(3, VOCAB, (1, 7))
    packed_view(model)
    weight = model.lm_head.weight.data
    weight.copy_(weight.flip(0))
    close(packed_view(model)(ids).logits, model(ids).logits)


@torch.no_grad()
def test_packed_once(target, monkeypatch):
    first = packed_view(target).lm_head.packed
    monkeypatch.setattr(torch.ops.mkldnn, "_reorder_linear_weight", None)
    assert packed_view(target).lm_head.packed is first


def test_the_model_stays_as_it_is(target):
    draft, ids = make_draft().to(torch.bfloat16), torch.randint(3, VOCAB, (2, 7))
    kinds = [type(m) for m in target.modules()]
    plain = target.generate(ids, max_new_tokens=8, do_sample=False)
    hooks = [len(m._forward_hooks) for m in target.modules()]
    for _ in range(2):
        generate(target, draft, ids, max_new_tokens=8, do_sample=False)
    assert [len(m._forward_hooks) for m in target.modules()] == hooks
    assert [type(m) for m in target.modules()] == kinds
    assert torch.equal(target.generate(ids, max_new_tokens=8, do_sample=False), plain)
    assert "packed" not in "".join(target.state_dict())


def test_hooks_still_hear(target):
    heard = []
    handle = target.model.layers[0].mlp.up_proj.register_forward_hook(lambda *_: heard.append(1))
    with torch.no_grad():
        packed_view(target)(torch.tensor([[3, 4]]))
    handle.remove()
    assert heard


class Adapted(torch.nn.Linear):
    """Stands for layers that compute something else, such as adapters and quantised ones."""


def test_what_is_left_alone(target, monkeypatch):
    assert not packed_weights(make_target())  # float64
    model = make_target(seed=5).to(torch.bfloat16)
    model.model.layers[0].mlp.up_proj = Adapted(32, 64, bias=False).to(torch.bfloat16)
    mlp = packed_view(model).model.layers[0].mlp
    assert type(mlp.up_proj) is Adapted
    assert isinstance(mlp.gate_proj, PackedLinear)
    monkeypatch.setattr(packed, "LARGEST_SHARE", 0.0)
    fresh = make_target(seed=6).to(torch.bfloat16)
    assert not packed_weights(fresh)
    assert packed_weights(model)  # packed already


def test_memory_that_no_system_call_tells(monkeypatch):
    def refuse(name):
        raise ValueError("unrecognized configuration name")

    fresh = make_target(seed=8).to(torch.bfloat16)
    monkeypatch.setattr(packed.os, "sysconf", refuse)
    assert not packed_weights(fresh)


@torch.no_grad()
def test_autocast(target):
    """The layer then gets another dtype than its weight has."""
    ids = torch.randint(3, VOCAB, (1, 7))
    model = make_target(seed=9).to(torch.bfloat16)
    model.model.norm.float()
    with torch.autocast("cpu", torch.bfloat16):
        close(packed_view(model)(ids).logits, model(ids).logits)


class Half(torch.nn.Module):
    def forward(self, weight):
        return weight / 2


@torch.no_grad()
@pytest.mark.parametrize("before", [True, False])
def test_a_weight_made_on_the_way(before):
    """By a parametrization, as adapters of single parameters do it, put on before or after the view was made."""
    model, ids = make_target(seed=10).to(torch.bfloat16), torch.randint(3, VOCAB, (1, 7))
    plain = model(ids).logits
    if before:
        torch.nn.utils.parametrize.register_parametrization(model.lm_head, "weight", Half())
        view = packed_view(model)
    else:
        view = packed_view(model)
        torch.nn.utils.parametrize.register_parametrization(view.lm_head, "weight", Half())
    close(view(ids).logits, plain / 2)


def test_the_engine_packs(target, monkeypatch):
    calls, run = [], PackedLinear.forward
    monkeypatch.setattr(PackedLinear, "forward", lambda self, x: calls.append(1) or run(self, x))
    options = {"max_new_tokens": 4, "do_sample": False}
    draft, ids = make_draft().to(torch.bfloat16), torch.randint(3, VOCAB, (1, 7))
    generate(target, draft, ids, pack=False, **options)
    assert not calls
    generate(target, draft, ids, **options)
    assert calls


def test_no_model_is_kept():
    model = make_target(seed=4).to(torch.bfloat16)
    packed_view(model)
    gone = weakref.ref(model.lm_head)
    del model
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("rows", [1, 3])
def test_greedy_text_differs_at_ties_only(rows):
    target, draft = make_target(seed=7).to(torch.bfloat16), make_draft().to(torch.bfloat16)
    ids = torch.randint(3, VOCAB, (rows, 9), generator=torch.Generator().manual_seed(0))
    options = {"max_new_tokens": 24, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    plain, ours = target.generate(ids, **options), generate(target, draft, ids, **options)
    for row in range(rows):
        if not torch.equal(plain[row], ours[row]):
            assert (
                first_gap(target, plain[row : row + 1], ours[row : row + 1]) <= 2 * 2**-8 * 8
            )  # two roundings of logits up to 8
