"""Attention of a few queries equals transformers' own."""

import pytest
import torch
from domino.generation.few_queries import FEW, NAME, few_queries
from domino.generation.view import decoding_view
from tiny import FAMILIES, VOCAB, make_target
from transformers.integrations.sdpa_attention import sdpa_attention_forward


class Attention:
    is_causal, training = True, False

    def __init__(self, groups):
        self.num_key_value_groups = groups


@pytest.mark.parametrize("n", [1, 2, 7, FEW, FEW + 1])
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
