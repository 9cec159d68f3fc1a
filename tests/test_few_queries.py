"""Attention of a few queries equals transformers' own."""

import pytest
import torch
from domino import generate
from domino.acceleration.few_queries import FEW, NAME, few_queries
from domino.acceleration.view import decoding_view, regroups
from tiny import FAMILIES, VOCAB, make_draft, make_target
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS


class Attention:
    is_causal, training = True, False

    def __init__(self, groups):
        self.num_key_value_groups = groups


@pytest.mark.parametrize("n", [1, 2, 7, 33, FEW, FEW + 1])
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("shared", [True, False])
def test_equals_transformers(n, rows, groups, shared):
    generator = torch.Generator().manual_seed(n)
    key, value = (torch.randn(rows, 2, 50, 8, generator=generator).double() for _ in range(2))
    query = torch.randn(rows, 2 * groups, n, 8, generator=generator).double()
    mask = torch.rand(1 if shared else rows, 1, n, 50, generator=generator) < 0.5
    mask[..., 0] = True
    module, options = Attention(groups), {"scaling": 0.3, "dropout": 0.0}
    ours, _ = few_queries(module, query, key, value, mask, **options)
    theirs, _ = sdpa_attention_forward(module, query, key, value, mask.expand(rows, -1, -1, -1), **options)
    assert ours.shape == theirs.shape
    assert torch.allclose(ours, theirs, rtol=0, atol=1e-12)
    again, _ = few_queries(module, query, key, value, mask, **options)  # as the next layer, with the same mask
    assert torch.equal(again, ours)


def naive(query, key, value, mask, scale):
    """[R, n, H, d] in float64, key heads repeated."""
    query, key, value = (
        query.double(),
        *(t.double().repeat_interleave(query.shape[1] // t.shape[1], 1) for t in (key, value)),
    )
    scores = query @ key.transpose(2, 3) * scale
    scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
    return (scores.softmax(-1) @ value).transpose(1, 2)


def tree_mask(rows, n, before, shared, generator):
    """[R or 1, 1, n, before + n + 5]: a node sees what comes before its tree and its ancestors; slots at the end are free."""
    mask = torch.zeros(1 if shared else rows, 1, n, before + n + 5, dtype=torch.bool)
    for row in mask[:, 0]:
        length = before if shared else int(torch.randint(1, before + 1, (), generator=generator))
        row[:, :length] = True
        for node in range(n):
            if node:
                parent = int(torch.randint(node, (), generator=generator))
                row[node] |= row[parent]
            row[node, length + node] = True
    return mask


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("n", [*range(1, 12), 17, 25, 33, 49, 64, 65, 66, 80])
@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("shared", [True, False])
def test_trees_against_a_naive_reference(n, dtype, groups, shared):
    """Ragged rows, keys that are slices of a larger store, a mask of both kinds."""
    generator = torch.Generator().manual_seed(n)
    mask = tree_mask(3, n, 20, shared, generator)
    key, value = (torch.randn(3, 2, 150, 16, generator=generator)[:, :, : mask.shape[-1]].to(dtype) for _ in range(2))
    query = torch.randn(3, n, 2 * groups, 16, generator=generator).to(dtype).transpose(1, 2)
    near = {torch.float64: 1e-13, torch.float32: 1e-5, torch.bfloat16: 0.03}[dtype]
    added = torch.zeros(mask.shape, dtype=dtype).masked_fill_(~mask, torch.finfo(dtype).min)
    for seen in (mask, mask.expand(3, -1, -1, -1), added):
        ours, _ = few_queries(Attention(groups), query, key, value, seen, scaling=0.25)
        assert ours.dtype == dtype
        assert (ours.double() - naive(query, key, value, mask, 0.25)).abs().max() <= near


def test_a_mask_filled_anew_is_another():
    query, key, value = torch.randn(3, 1, 2, 4, 8).unbind()
    mask = torch.ones(1, 1, 4, 4, dtype=torch.bool)
    few_queries(Attention(1), query, key, value, mask, scaling=0.25)
    mask[..., 1:] = False
    ours, _ = few_queries(Attention(1), query, key, value, mask, scaling=0.25)
    assert torch.allclose(ours, naive(query, key, value, mask, 0.25).float())


def test_layers_may_lie_on_another_device():
    """As where a target's first layers are on the CPU and the rest is not: hooks move the mask to them."""
    query, key, value = (torch.empty(1, heads, n, 8, device="meta") for heads, n in [(6, 3), (2, 50), (2, 50)])
    mask = torch.ones(1, 1, 3, 50, dtype=torch.bool, device="meta")
    out, _ = few_queries(Attention(3), query, key, value, mask)
    assert out.device.type == "meta"
    assert out.shape == (1, 3, 6, 8)


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_a_view_of_every_family(family):
    """With no mask, a plain one and a ready one; the model's own configuration stays."""
    model = make_target(family)
    view = decoding_view(model, packs=False)
    ids = torch.randint(3, VOCAB, (2, 7))
    padded = torch.ones_like(ids).index_fill(1, torch.tensor([0]), 0)
    ready = torch.ones(7, 7, dtype=torch.bool).tril()[None, None].expand(2, -1, -1, -1)
    for mask in (None, padded, ready):
        a, b = (m(ids, attention_mask=mask).logits[:, 1:] for m in (view, model))
        assert torch.allclose(a, b, rtol=0, atol=1e-12)
    assert view.config._attn_implementation == NAME
    assert model.config._attn_implementation == "sdpa"
    assert all(m.config._attn_implementation == "sdpa" for m in model.modules() if hasattr(m, "config"))


@torch.no_grad()
@pytest.mark.parametrize("family", ["falcon", "llama"])
def test_models_that_ask_for_sdpa_by_name_keep_it(family):
    target, draft = make_target(family, num_kv_heads=2, new_decoder_architecture=True), make_draft()
    ids = torch.randint(3, VOCAB, (2, 7), generator=torch.Generator().manual_seed(0))
    options = {"max_new_tokens": 16, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    assert regroups(target) is (family == "llama")
    assert torch.equal(generate(target, draft, ids, **options), target.generate(ids, **options))


@torch.no_grad()
def test_somebody_elses_sdpa_is_kept(target, monkeypatch):
    monkeypatch.setitem(
        ALL_ATTENTION_FUNCTIONS, "sdpa", lambda *args, **kwargs: sdpa_attention_forward(*args, **kwargs)
    )
    assert not regroups(target)


@torch.no_grad()
def test_layers_compiled_in_place(target):
    model, draft, ids = make_target(), make_draft(), torch.randint(3, VOCAB, (1, 7))
    options = {"max_new_tokens": 12, "do_sample": False}
    plain = model.generate(ids, **options)
    for layer in model.model.layers:
        layer.compile(backend="eager")
    assert torch.equal(generate(model, draft, ids, **options), plain)


@torch.no_grad()
def test_positions_that_rescale_themselves_do_so_in_the_view_alone():
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    model, ids = make_target(rope_parameters=rope, max_position_embeddings=16), torch.randint(3, VOCAB, (1, 7))
    before = model(ids).logits
    generate(model, make_draft(), ids, max_new_tokens=30, do_sample=False, eos_token_id=None, pad_token_id=0)
    assert torch.equal(model(ids).logits, before)
