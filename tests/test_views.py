"""Views are kept over calls: whatever changes of a model is in the next view, nothing of a call stays in one."""

import copy
import gc
import pickle
import weakref
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from domino import generate
from domino.acceleration import view as views
from domino.acceleration.packed_linear import PackedLinear
from domino.acceleration.view import KEPT, decoding_view
from domino.acceleration.watched import PLACES, RUN, Watched
from domino.drafting.head import head_weights
from tiny import FAMILIES, VOCAB, make_draft, make_target
from transformers.models.llama import modeling_llama as llama

IDS = torch.randint(3, VOCAB, (2, 7), generator=torch.Generator().manual_seed(0))
OPTIONS = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}


def kept(model, packs=True):
    return decoding_view(model, packs)


@torch.no_grad()
def logits(model):
    return model(IDS).logits.float()


def same(a, b):
    """Within four roundings of bfloat16 at the size of the largest value."""
    return bool((a - b).abs().max() <= 4 * 2**-8 * b.abs().max())


class LowRank(torch.nn.Module):
    """A layer and an adapter around it, as PEFT hangs it in."""

    def __init__(self, base):
        super().__init__()
        self.base_layer = base
        self.down, self.up = torch.nn.Linear(base.in_features, 2), torch.nn.Linear(2, base.out_features)

    def forward(self, x):
        return self.base_layer(x) + self.up(self.down(x.to(self.down.weight))).to(x)


class Doubled(torch.nn.Module):
    def forward(self, weight):
        return weight * 2


def layer(model):
    return model.model.layers[1]


def adapter(model):
    layer(model).self_attn.q_proj = LowRank(layer(model).self_attn.q_proj)


def louder(module, args, output):
    return output * 2


def emptied_hooks(model):
    """As some clear them; what is hung up afterwards is in the new dictionary."""
    layer(model).mlp._forward_hooks = OrderedDict()
    kept(model)
    layer(model).mlp.register_forward_hook(louder)


def hook_with_keywords(model):
    layer(model).self_attn.register_forward_pre_hook(
        lambda module, args, kwargs: (args, {**kwargs, "hidden_states": 2 - kwargs["hidden_states"]}), with_kwargs=True
    )


def buffer(model):
    rotary = model.model.rotary_emb
    rotary.register_buffer("inv_freq", rotary.inv_freq * 3, persistent=False)


class Louder(llama.LlamaMLP):
    def forward(self, x):
        return super().forward(x) * 2


def of_the_model(model):
    usual = copy.copy(model)
    model.forward = lambda ids: llama.CausalLMOutputWithPast(logits=usual(ids).logits * 2)


def another_function(model):
    patched = copy.copy(layer(model).mlp)
    layer(model).mlp.forward = lambda x: patched(x) * 2


@torch.no_grad()
def counted(model):
    layer(model).mlp.down_proj.weight[3, 4] += 50


def loaded(assign):
    def load(model):
        return model.load_state_dict({name: value * 1.5 for name, value in model.state_dict().items()}, assign=assign)

    return load


CHANGES = {
    "adapter": adapter,
    "module": lambda m: setattr(layer(m).mlp, "up_proj", torch.nn.Linear(32, 64).to(torch.bfloat16)),
    "layers": lambda m: setattr(m.model, "layers", m.model.layers[:2]),
    "hook": lambda m: layer(m).mlp.register_forward_hook(louder),
    "hook on a packed layer": lambda m: layer(m).mlp.up_proj.register_forward_hook(louder),
    "hook with keywords": hook_with_keywords,
    "hooks emptied": emptied_hooks,
    "data": lambda m: layer(m).mlp.down_proj.weight.data.add_(0.5),
    "data of a bias": lambda m: layer(m).self_attn.k_proj.bias.data.add_(0.5),
    "other data": lambda m: setattr(m.lm_head.weight, "data", m.lm_head.weight.data * 2),
    "one value, counted": counted,
    "norm": lambda m: m.model.norm.weight.data.mul_(2),
    "parameter": lambda m: setattr(
        layer(m).mlp.down_proj, "weight", torch.nn.Parameter(2 * layer(m).mlp.down_proj.weight.detach())
    ),
    "parametrization": lambda m: torch.nn.utils.parametrize.register_parametrization(m.lm_head, "weight", Doubled()),
    "load_state_dict": loaded(False),
    "load_state_dict, assigned": loaded(True),
    "buffer": buffer,
    "attribute": lambda m: setattr(layer(m).input_layernorm, "variance_epsilon", 10.0),
    "scaling": lambda m: setattr(layer(m).self_attn, "scaling", 5.0),
    "class": lambda m: setattr(layer(m).mlp, "__class__", Louder),
    "forward": another_function,
    "forward of the model": of_the_model,
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_in_the_next_view(change):
    model = make_target(seed=3, attention_bias=True).to(torch.bfloat16)
    before = logits(kept(model))
    assert same(before, logits(model))
    CHANGES[change](model)
    assert not same(before, logits(model))
    assert same(logits(kept(model)), logits(model))


def test_what_is_taken_away_again():
    model = make_target(seed=3).to(torch.bfloat16)
    before, query = logits(kept(model)), layer(model).self_attn.q_proj
    handle = layer(model).mlp.register_forward_hook(louder)
    assert not same(logits(kept(model)), before)
    handle.remove()
    assert torch.equal(logits(kept(model)), before)
    adapter(model)
    assert type(layer(kept(model)).self_attn.q_proj) is LowRank
    assert isinstance(layer(kept(model)).self_attn.q_proj.base_layer, PackedLinear)
    layer(model).self_attn.q_proj = query
    assert torch.equal(logits(kept(model)), before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_moved_to_another_dtype_and_back(dtype):
    model = make_target(seed=3).to(torch.bfloat16)
    narrow = logits(kept(model))
    model.to(dtype)
    assert torch.allclose(logits(kept(model)), logits(model), rtol=0, atol=1e-5)
    assert not any(isinstance(module, PackedLinear) for module in kept(model).modules())
    model.to(torch.bfloat16)
    assert isinstance(kept(model).lm_head, PackedLinear)
    assert torch.equal(logits(kept(model)), narrow)


def test_another_attention():
    model = make_target(seed=3).to(torch.bfloat16)
    first = kept(model)
    model.set_attn_implementation("eager")
    assert kept(model).config._attn_implementation == "eager"
    model.set_attn_implementation("sdpa")
    assert kept(model).config._attn_implementation == first.config._attn_implementation != "eager"


def test_training_configuration_and_compiled_layers():
    model = make_target(seed=3, attention_dropout=0.5).to(torch.bfloat16)
    assert not kept(model).training
    assert layer(kept(model.train())).self_attn.training
    assert not layer(kept(model.eval())).self_attn.training
    model.config.sliding_window = 5  # a view has a copy
    assert layer(kept(model)).self_attn.config.sliding_window == 5
    layer(model).compile(backend="eager")
    assert kept(model) is model


def test_patched_classes_and_functions(monkeypatch):
    """As kernels for training put themselves in place of transformers' own."""
    model = make_target(seed=3).to(torch.bfloat16)
    usual = logits(kept(model))
    monkeypatch.setattr(llama, "apply_rotary_pos_emb", lambda q, k, cos, sin, **_: (q, k))
    assert same(logits(kept(model)), logits(model))
    assert not same(logits(kept(model)), usual)
    monkeypatch.setattr(llama.LlamaRMSNorm, "forward", lambda self, x: x / 2)
    assert same(logits(kept(model)), logits(model))
    monkeypatch.undo()
    assert torch.equal(logits(kept(model)), usual)
    last = kept(model)
    monkeypatch.setattr(llama, "another_name", 1, raising=False)  # the last of all that is compared
    assert kept(model) is not last


def test_somebody_elses_attention(monkeypatch):
    model = make_target(seed=3)
    assert kept(model).config._attn_implementation != "sdpa"
    monkeypatch.setitem(views.ALL_ATTENTION_FUNCTIONS, "sdpa", lambda *args, **kwargs: None)
    assert kept(model).config._attn_implementation == "sdpa"


def test_a_single_value_through_data_is_not_noticed():
    """The limit that docs/limits.md states; counted by torch it is."""
    model = make_target(seed=3, vocab_size=4096).to(torch.bfloat16)
    first, weight = kept(model), model.lm_head.weight
    assert weight.nbytes > 4 * PLACES * RUN
    weight.data.view(-1)[RUN] += 50
    assert kept(model) is first
    with torch.no_grad():
        weight.view(-1)[RUN] += 1
    assert kept(model) is not first
    assert same(logits(kept(model)), logits(model))


def test_where_one_weight_was_written_to_all_are_packed_anew():
    """What is merged into all of them may miss, in some, the places that are looked at."""
    model = make_target(seed=3, vocab_size=4096).to(torch.bfloat16)
    first = kept(model)
    model.lm_head.weight.data.view(-1)[64::585] += 50  # of 131,072 values; runs of 32 begin every 18,720 = 32 * 585
    assert kept(model) is first
    layer(model).mlp.down_proj.weight.data.add_(0.5)
    assert kept(model) is not first
    assert same(logits(kept(model)), logits(model))


def test_nothing_is_packed_where_no_weight_changed(monkeypatch):
    model = make_target(seed=3).to(torch.bfloat16)
    first = kept(model)
    layer(model).mlp.register_forward_hook(louder)
    monkeypatch.setattr(torch.ops.mkldnn, "_reorder_linear_weight", None)
    assert kept(model) is not first
    assert kept(model).lm_head.packed is first.lm_head.packed


def test_a_model_that_leaves_the_cpu_takes_its_views_along():
    model = make_target(seed=3).to(torch.bfloat16)
    packed = weakref.ref(kept(model).lm_head.packed)
    assert packed() is not None
    model.to("meta")
    assert kept(model) is model
    assert KEPT not in vars(model)
    gc.collect()
    assert packed() is None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_watched_tensors(dtype):
    with torch.inference_mode():
        inference = torch.randn(9).to(dtype)
    tensors = [torch.randn(300, 40).to(dtype), torch.randn(3).to(dtype), torch.full((5,), torch.nan), torch.empty(0)]
    watched = Watched([*tensors, inference])
    assert watched.unchanged()  # not a number equals itself here
    assert watched.unchanged([*tensors, inference])
    assert not watched.unchanged([*tensors, inference.clone()])
    assert not watched.unchanged(tensors)
    for tensor, place in ((tensors[0], 0), (tensors[1], 2)):
        changed = Watched(tensors)
        tensor.data.view(-1)[place] += 1
        assert not changed.unchanged()
    assert Watched([]).unchanged()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_sparse_merge_is_noticed(dtype):
    """One value in a hundred of ten weights."""
    generator = torch.Generator().manual_seed(0)
    weights = [torch.randn(500, 400, generator=generator).to(dtype) for _ in range(10)]
    watched = Watched(weights)
    for weight in weights:
        weight.data[torch.rand(weight.shape, generator=generator) < 0.01] += 1
    assert not watched.unchanged()


def test_a_second_call_makes_nothing_and_reads_little(monkeypatch):
    """However large the weights are."""
    looked = []
    for width in (64, 512):
        target, draft = make_target(seed=3, intermediate_size=width).to(torch.bfloat16), make_draft().to(torch.bfloat16)
        generate(target, draft, IDS, **OPTIONS)
        made = kept(target), kept(draft), head_weights(kept(draft))
        with monkeypatch.context() as patch:
            for name in ("_view", "Structure", "Watched", "packed_weights", "rms_norms", "short_rotaries", "regroups"):
                patch.setattr(views, name, None)
            generate(target, draft, IDS, **OPTIONS)
            assert (kept(target), kept(draft), head_weights(kept(draft))) == made
        watched = next(iter(vars(target)[KEPT].values())).copied
        looked.append(sum(len(part.flatten()) for part in watched._look()))
        assert looked[-1] <= len(watched.tensors) * (PLACES + 1) * RUN
    assert looked[1] <= 1.1 * looked[0]


def test_a_changed_head_is_read_anew():
    draft = make_draft().to(torch.bfloat16)
    state = torch.randn(1, 16).to(torch.bfloat16)
    for change in (
        lambda: draft.prefix_gru.weight_hh_l0.data.add_(1),
        lambda: draft.embed_proj[0].weight.data.add_(1),
        lambda: setattr(draft.embed_proj[2], "weight", torch.nn.Parameter(draft.embed_proj[2].weight + 1)),
    ):
        before = head_weights(draft)
        change()
        after = head_weights(draft)
        assert after is not before
        assert after.w2 is draft.embed_proj[2].weight
        own = torch.cat([draft.prefix_gru.weight_hh_l0, draft.embed_proj[0].weight[:, 32:]])
        assert torch.allclose(after.recurrent(state).float(), (state @ own.T).float(), rtol=0.02, atol=0.02)


def test_views_with_and_without_packing_stay_side_by_side():
    model = make_target(seed=3).to(torch.bfloat16)
    packed, plain = kept(model), kept(model, packs=False)
    assert (kept(model), kept(model, packs=False)) == (packed, plain)
    layer(model).mlp.down_proj.weight.data.add_(0.5)  # in a view without packed weights it changes by itself
    assert kept(model) is not packed
    assert kept(model, packs=False) is plain
    model.lm_head = torch.nn.Linear(32, 5).to(torch.bfloat16)
    kept(model)
    assert [packs for packs, *_ in vars(model)[KEPT]] == [True]  # the other is gone, and what it held


@pytest.mark.parametrize("hooked", [True, False])
def test_a_model_goes_with_its_views(hooked):
    """Also where a hook holds the model."""
    model = make_target(seed=3).to(torch.bfloat16)
    if hooked:
        model.lm_head.register_forward_hook(lambda *_, held=model: None)
    view, weight = weakref.ref(kept(model)), weakref.ref(model.lm_head.weight)
    if not hooked:
        gc.disable()  # then the last reference is enough
    try:
        del model
        if hooked:
            gc.collect()
        assert view() is None
        assert weight() is None
    finally:
        gc.enable()


def test_copies_have_views_of_their_own():
    model = make_target(seed=3).to(torch.bfloat16)
    view = kept(model)
    for another in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert not vars(another)[KEPT]
        another.lm_head.weight.data.mul_(2)
        assert same(logits(kept(another)), logits(another))
    assert KEPT not in vars(view)
    assert kept(model) is view
    assert "view" not in "".join(model.state_dict())


@pytest.mark.parametrize("family", FAMILIES)
def test_calls_leave_nothing_in_a_view(family):
    target, draft = make_target(family, seed=3), make_draft()
    plain = target.generate(IDS, **OPTIONS)
    first = generate(target, draft, IDS, **OPTIONS)
    view, before = kept(target), {name: value.clone() for name, value in kept(target).named_buffers()}
    generate(target, draft, IDS[:1, :3], do_sample=True, max_new_tokens=20)
    assert kept(target) is view
    assert all(torch.equal(value, before[name]) for name, value in view.named_buffers())
    assert torch.equal(generate(target, draft, IDS, **OPTIONS), first)
    assert torch.equal(first, plain)


def test_tables_that_rescale_themselves_belong_to_a_call():
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    target, draft = make_target(rope_parameters=rope, max_position_embeddings=16), make_draft()
    assert kept(target) is not kept(target)
    fresh = generate(copy.deepcopy(target), draft, IDS, **OPTIONS)
    generate(target, draft, IDS, **OPTIONS | {"max_new_tokens": 30})
    assert torch.equal(generate(target, draft, IDS, **OPTIONS), fresh)


def test_tables_overwritten_in_place_are_the_views_own():
    """As those of "longrope", which two calls at once, a long one and a short one, would overwrite for each other."""
    factors = {"short_factor": [1.0] * 4, "long_factor": [4.0] * 4, "original_max_position_embeddings": 4}
    rope = {"rope_type": "longrope", "rope_theta": 10000.0, **factors}
    target = make_target(rope_parameters=rope, max_position_embeddings=16, seed=3)
    table = target.model.rotary_emb.inv_freq.clone()
    assert torch.allclose(logits(kept(target)), logits(target), rtol=0, atol=1e-5)
    assert not torch.equal(target.model.rotary_emb.inv_freq, table)
    target.model.rotary_emb.inv_freq.copy_(table)
    logits(kept(target))
    assert torch.equal(target.model.rotary_emb.inv_freq, table)


def test_short_memory_is_asked_again(monkeypatch):
    model = make_target(seed=6).to(torch.bfloat16)
    with monkeypatch.context() as patch:
        patch.setattr("domino.acceleration.packed_weights.LARGEST_SHARE", 0.0)
        assert not isinstance(kept(model).lm_head, PackedLinear)
    assert isinstance(kept(model).lm_head, PackedLinear)


def test_threads_that_come_first_share_one_view():
    model = make_target(seed=3).to(torch.bfloat16)
    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(lambda _: kept(model), range(16)))) == 1


def test_two_calls_at_once_on_one_view():
    """Ragged lengths, so that masks, tables and joint products of one are wrong for the other."""
    target, draft = make_target(seed=3), make_draft()
    prompts = [torch.randint(3, VOCAB, (1, 3 + 2 * n), generator=torch.Generator().manual_seed(n)) for n in range(6)]
    options = OPTIONS | {"budget": 3, "max_new_tokens": 24}
    alone = [target.generate(ids, **OPTIONS | {"max_new_tokens": 24}) for ids in prompts]
    with ThreadPoolExecutor(6) as pool:
        together = list(pool.map(lambda ids: generate(target, draft, ids, **options), prompts))
    assert all(torch.equal(a, b) for a, b in zip(alone, together, strict=True))
