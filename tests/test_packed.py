"""Packed weights: the same numbers but for rounding, always those of the model, and the model stays as it was."""

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor

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


def biased(family="qwen2", seed=0):
    """A model whose every bias matters."""
    model = make_target(family, seed=seed, attention_bias=True).to(torch.bfloat16)
    for name, bias in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(bias)
    return model


@pytest.mark.parametrize("family", ["llama", "qwen2", "mistral"])
@pytest.mark.parametrize("shape", [(1, 1), (1, 5), (3, 4)])
@torch.no_grad()
def test_joint_products_equal_the_separate_layers(family, shape):
    """Asked in any order, twice, and with another input in between."""
    model = biased(family)
    view = packed_view(model)
    attention, own = view.model.layers[0].self_attn, model.model.layers[0].self_attn
    assert attention.q_proj.product is attention.k_proj.product is attention.v_proj.product
    assert view.model.layers[0].mlp.up_proj.product.sizes == [64, 64]
    x, other = (torch.randn(*shape, 32).to(torch.bfloat16) for _ in range(2))
    for name, given in [("v_proj", x), ("q_proj", other), ("k_proj", x), ("k_proj", x), ("q_proj", x), ("v_proj", x)]:
        ours, theirs = getattr(attention, name)(given), getattr(own, name)(given)
        close(ours, theirs)
        assert ours.view(*shape, -1, 8).shape == theirs.view(*shape, -1, 8).shape


@torch.no_grad()
def test_one_product_a_forward_and_nothing_stays():
    view, x = packed_view(biased()), torch.randn(1, 5, 32).to(torch.bfloat16)
    layers = [getattr(view.model.layers[0].self_attn, name) for name in ("q_proj", "k_proj", "v_proj")]
    query, key, value = (layer(x) for layer in layers)
    assert query.untyped_storage().data_ptr() == key.untyped_storage().data_ptr() == value.untyped_storage().data_ptr()
    assert not x.__dict__
    layers[0](x)
    whole = weakref.ref(x)
    del x
    assert whole() is None  # what nobody asked for went with its input


@torch.no_grad()
def test_an_input_changed_in_place_is_another():
    model, x = biased(), torch.randn(1, 5, 32).to(torch.bfloat16)
    attention, own = packed_view(model).model.layers[0].self_attn, model.model.layers[0].self_attn
    attention.q_proj(x)
    x += 1
    close(attention.k_proj(x), own.k_proj(x))


@torch.no_grad()
@pytest.mark.parametrize("exchanged", ["weight", "bias"])
def test_one_layer_of_a_joint_product_exchanged(exchanged):
    """In the view, as adapters do it for the length of a forward: the others stay joint."""
    model, x = biased(), torch.randn(1, 5, 32).to(torch.bfloat16)
    attention, own = packed_view(model).model.layers[0].self_attn, model.model.layers[0].self_attn
    before = getattr(attention.k_proj, exchanged)
    setattr(attention.k_proj, exchanged, torch.nn.Parameter(before + 1))
    close(
        attention.k_proj(x) - own.k_proj(x),
        (x.sum(-1, keepdim=True) if exchanged == "weight" else 1) + 0 * own.k_proj(x),
    )
    close(attention.v_proj(x), own.v_proj(x))


@torch.no_grad()
@pytest.mark.parametrize("name", ["q_proj", "k_proj", "v_proj"])
def test_any_changed_weight_of_a_joint_product(name):
    model, ids = biased(seed=3), torch.randint(3, VOCAB, (1, 7))
    before = packed_view(model)(ids).logits
    layer = getattr(model.model.layers[1].self_attn, name)
    layer.weight.data += 0.5
    layer.bias.data -= 0.5
    close(packed_view(model)(ids).logits, model(ids).logits)
    assert not torch.equal(packed_view(model)(ids).logits, before)


@torch.no_grad()
def test_each_weight_is_packed_once_also_where_groups_change():
    model = biased(seed=5)
    attention = model.model.layers[0].self_attn
    packed_view(model)
    query = attention.q_proj
    attention.q_proj = Adapted(32, 32).to(torch.bfloat16)
    assert packed_view(model).model.layers[0].self_attn.k_proj.product.sizes == [16, 16]
    attention.q_proj = query
    packed_view(model)
    assert query in packed._known
    assert attention.k_proj not in packed._known
    assert attention.v_proj not in packed._known


def test_a_drafters_queries_read_another_input():
    """Its class says so; keys and values are one product."""
    view = packed_view(make_draft().to(torch.bfloat16))
    attention = view.layers[0].self_attn
    assert type(attention.q_proj) is PackedLinear
    assert attention.k_proj.product is attention.v_proj.product


def test_two_threads_on_one_model(target):
    draft = make_draft().to(torch.bfloat16)
    options = {"max_new_tokens": 24, "do_sample": False, "eos_token_id": None, "pad_token_id": 0, "budget": 3}
    prompts = [torch.randint(3, VOCAB, (1, 9), generator=torch.Generator().manual_seed(seed)) for seed in range(4)]
    alone = [generate(target, draft, ids, **options) for ids in prompts]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda ids: generate(target, draft, ids, **options), prompts))
    assert all(torch.equal(a, b) for a, b in zip(alone, together, strict=True))


def test_two_threads_in_one_view(target):
    view, ids = packed_view(target), torch.randint(3, VOCAB, (8, 1, 7))
    with torch.no_grad():
        alone = [view(one).logits for one in ids]

    def run(one):
        with torch.no_grad():
            return view(one).logits

    with ThreadPoolExecutor(4) as pool:
        assert all(torch.equal(a, b) for a, b in zip(alone, pool.map(run, ids), strict=True))


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
