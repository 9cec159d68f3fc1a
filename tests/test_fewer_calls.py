"""RMSNorm and rotary embedding of a view: what the model computes, and left alone where they are another thing."""

import pytest
import torch
from domino.acceleration.rms_norm import EXPECTED, ShortRMSNorm, rms_norms
from domino.acceleration.rotary import rotate
from domino.acceleration.same_code import same_code
from domino.acceleration.view import decoding_view
from tiny import FAMILIES, VOCAB, make_target
from transformers.models.llama import modeling_llama as llama
from transformers.models.qwen3 import modeling_qwen3 as qwen3

SHORT = {"llama", "qwen2", "qwen3", "mistral"}


def rotates_shortly(module):
    forward = type(module).forward
    return getattr(forward, "__globals__", {}).get("apply_rotary_pos_emb") is rotate


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_which_norms_are_exchanged(family):
    model = make_target(family).to(torch.bfloat16)
    view = decoding_view(model, packs=True)
    assert any(isinstance(m, ShortRMSNorm) for m in view.modules()) is (family in SHORT)
    assert not any(isinstance(m, ShortRMSNorm) for m in model.modules())
    assert any(rotates_shortly(m) for m in view.modules()) is (family in SHORT | {"gemma"})
    assert not any(rotates_shortly(m) for m in model.modules())
    ids = torch.randint(3, VOCAB, (2, 7))
    assert torch.allclose(view(ids).logits.float(), model(ids).logits.float(), rtol=0.05, atol=0.05)


@torch.no_grad()
@pytest.mark.parametrize("width", [64, 576, 896])
def test_norm_but_for_single_roundings(width):
    norm = llama.LlamaRMSNorm(width, 1e-5).to(torch.bfloat16)
    norm.weight.normal_()
    view = decoding_view_of(norm)
    x = (torch.randn(2, 40, width) * torch.logspace(-4, 3, 40)[:, None]).to(torch.bfloat16)
    for given in (x, x.transpose(0, 1), x[0, :, None]):
        ours, theirs = view(given), norm(given)
        assert torch.allclose(ours.float(), theirs.float(), rtol=2 * 2**-8, atol=0)
        assert (ours != theirs).float().mean() <= EXPECTED
    assert torch.equal(view(x.float()), norm(x.float()))  # another dtype, as under autocast
    usual = norm(x)
    view.weight = torch.nn.Parameter(2 * norm.weight)
    assert torch.equal(view(x), 2 * usual)


def decoding_view_of(norm):
    """The view of a norm inside a model."""
    holder = make_target().to(torch.bfloat16)
    holder.model.norm = norm
    return decoding_view(holder, packs=True).model.norm


def test_norms_in_other_dtypes_stay():
    assert not rms_norms(make_target())  # float64
    assert not rms_norms(make_target().float())


@torch.no_grad()
def test_a_module_exchanged_in_the_view():
    """Modules of a view are found as plain attributes; what is put in their place is found too, and the model keeps its own."""
    model, ids = make_target().to(torch.bfloat16), torch.randint(3, VOCAB, (1, 7))
    view, own = decoding_view(model, packs=True), model.lm_head
    view.lm_head = torch.nn.Linear(32, 5).to(torch.bfloat16)
    assert view(ids).logits.shape == (1, 7, 5)
    assert model.lm_head is own
    assert [name for name, _ in view.named_modules()] == [name for name, _ in model.named_modules()]
    assert view.state_dict().keys() == {*model.state_dict(), "lm_head.bias"}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
@pytest.mark.parametrize("joint", [True, False])
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("n", [1, 5])
def test_rotation_bit_for_bit(dtype, joint, rows, n):
    """Query and key as slices of one product with the value, and as tensors of their own."""
    product = torch.randn(rows, n, (6 + 2 + 2) * 8).to(dtype)
    query, key = (part.view(rows, n, -1, 8).transpose(1, 2) for part in product.split([48, 16, 16], -1)[:2])
    if not joint:
        query, key = query.clone(), key.clone()
    cos, sin = (torch.randn(rows, n, 8).to(dtype) for _ in range(2))
    for _ in range(2):  # as the next layer, with the same tables
        ours, theirs = rotate(query, key, cos, sin), llama.apply_rotary_pos_emb(query, key, cos, sin)
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_key_and_value_are_not_taken_for_query_and_key():
    product = torch.randn(1, 4, 80).bfloat16()
    query, _, other = (part.view(1, 4, -1, 8).transpose(1, 2) for part in product.split([48, 16, 16], -1))
    cos, sin = torch.randn(2, 1, 4, 8).bfloat16()
    ours, theirs = rotate(query, other, cos, sin), llama.apply_rotary_pos_emb(query, other, cos, sin)
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def rotate_half(x):
    """Another thing under the same name."""
    return x


def test_same_code():
    assert same_code(qwen3.Qwen3RMSNorm.forward, llama.LlamaRMSNorm.forward)
    assert same_code(qwen3.apply_rotary_pos_emb, llama.apply_rotary_pos_emb)
    assert not same_code(llama.rotate_half, llama.apply_rotary_pos_emb)
    assert not same_code(torch.nn.Linear, llama.apply_rotary_pos_emb)
    forged = type(rotate_half)(llama.apply_rotary_pos_emb.__code__, globals(), "forged", (1,))
    assert not same_code(forged, llama.apply_rotary_pos_emb)  # it calls the one above
