"""Recorded forwards: what is replayed equals what is run, on a recorder that behaves as CUDA's does (tests/replay.py)."""

import gc
import itertools
import logging
import weakref

import pytest
import replay
import torch
from biased import always_keep_the_first
from domino import generate
from domino.acceleration.graphs import Graphs, recorder
from domino.drafting.fused_chain import Plan, fused_rollout
from domino.drafting.proposal import DRAFTER
from domino.kernels import seam
from domino.verification import accept
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import FAMILIES, VOCAB, make_draft, make_target

RECORDER = recorder  # the true one


@pytest.fixture(scope="module", autouse=True)
def recorded():
    """Counts recordings and replays, on every device."""
    counts = {"recorded": 0, "replayed": 0}

    def record(work):
        counts["recorded"] += 1
        again, outputs = replay.record(work)

        def counted():
            counts["replayed"] += 1
            again()

        return counted, outputs

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("domino.acceleration.graphs.recorder", lambda device: record)
        patch.setattr("domino.verification.target.BUCKET", 16)
        patch.setattr("domino.drafting.domino.BUCKET", 16)
        yield counts


OURS = (
    "budget",
    "shape",
    "lookup",
    "draft_window",
    "prefill_chunk",
    "candidate_pool",
    "cache_implementation",
)


def ragged(rows, seed):
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, VOCAB - 1, (rows, 9), generator=generator)
    mask = torch.ones_like(ids)
    for row in range(1, rows):
        mask[row, : 2 * row] = 0
    return ids, mask


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    family=st.sampled_from(list(FAMILIES)),
    shift=st.booleans(),
    rows=st.integers(1, 4),
    seed=st.integers(0, 5),
    options=st.fixed_dictionaries(
        {"max_new_tokens": st.integers(1, 40)},
        optional={
            "repetition_penalty": st.just(1.4),
            "eos_token_id": st.just([5, 9, 11]),
            "budget": st.sampled_from([0, 2, 4, 24]),
            "shape": st.sampled_from(["auto", "tree"]),
            "lookup": st.booleans(),
            "draft_window": st.integers(1, 12),
            "prefill_chunk": st.integers(2, 9),
            "candidate_pool": st.sampled_from([0, 5]),
            "cache_implementation": st.just("static"),
        },
    ),
)
def test_greedy_is_identical(family, shift, rows, seed, options):
    target, draft = make_target(family, seed), make_draft(seed + 1, shift_label=shift)
    ids, mask = ragged(rows, seed)
    ours = generate(target, draft, ids, attention_mask=mask, do_sample=False, graphs=True, **options)
    plain = {name: value for name, value in options.items() if name not in OURS}
    assert torch.equal(ours, target.generate(ids, attention_mask=mask, do_sample=False, **plain))


def test_it_drafts_chains_without_lookup(target, draft, recorded):
    """Whatever is asked for: a recording has one shape, and nothing that the host knew in between."""
    ids, trees = torch.tensor([[5, 6, 7, 5, 6, 7, 5, 6]]), []
    options = {"max_new_tokens": 30, "do_sample": False, "eos_token_id": None, "shape": "tree", "lookup": True}
    for budget in ("auto", 24, 3):
        hear = {"on_round": lambda row, what: trees.append(what.tree), "budget": budget}
        generate(target, draft, ids, graphs=True, **hear, **options)
    assert all(tree.is_chain() for tree in trees)
    assert {source for tree in trees for source in tree.source} == {DRAFTER}
    assert max(map(len, trees)) == draft.config.num_drafts


def test_most_rounds_are_replayed(target, draft, recorded):
    """40 tokens pass three steps of 16 slots; each is run once, recorded once, and replayed from then on."""
    recorded.update(recorded=0, replayed=0)
    generate(
        target, draft, torch.arange(3, 12)[None], max_new_tokens=40, do_sample=False, eos_token_id=None, graphs=True
    )
    # near its end a text has room for fewer drafts
    rounds = draft.statistics.drafted.count(draft.config.num_drafts)
    assert rounds >= draft.statistics.rounds - draft.config.num_drafts
    assert recorded["recorded"] <= 2 * 4
    assert recorded["replayed"] >= 2 * (rounds - 4 - 1)


@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("family", ["gpt2", "opt", "gptj"])
def test_a_text_as_long_as_the_table_of_positions(family, rows, graphs):
    """Rows that are ahead are asked about drafts they have no room for; the table has no entries for those."""
    tables = {
        "gpt2": {"n_positions": 40},
        "opt": {"word_embed_proj_dim": 32},
        "gptj": {"n_positions": 40, "rotary_dim": 4},
    }
    own = (
        {"max_position_embeddings": 40, "n_inner": 64} if family == "opt" else {"n_embd": 32, "n_layer": 4, "n_head": 4}
    )
    target, draft = make_target(family, **own, **tables[family]), make_draft()
    ids, mask = ragged(rows, 0)
    options = {"attention_mask": mask, "max_length": 40, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    ours = generate(target, draft, ids, budget=4, graphs=graphs, **options)
    assert torch.equal(ours, target.generate(ids, **options))


def test_one_recording_of_a_work_is_kept():
    """Each holds memory of its own on a GPU, and the visible slots only grow."""
    graphs, held = Graphs(replay.record), []
    for visible in (16, 32, 48):
        for _ in range(3):
            assert graphs("verify", lambda x: (x + 1,), visible, x=torch.tensor([visible]))[0].item() == visible + 1
        held.append(weakref.ref(graphs.recorded["verify"][2].__self__))
    gc.collect()
    assert [one() is None for one in held] == [True, True, False]


def test_models_on_several_devices_are_not_recorded(draft, recorded, caplog):
    """What runs on another device than the recorder's would not be replayed."""
    target, ids = make_target(), torch.arange(3, 12)[None]
    options = {"max_new_tokens": 20, "do_sample": False}
    plain = target.generate(ids, **options)
    target.model.register_parameter("elsewhere", torch.nn.Parameter(torch.empty(1, dtype=target.dtype, device="meta")))
    recorded.update(recorded=0, replayed=0)
    with caplog.at_level(logging.WARNING):
        assert torch.equal(generate(target, draft, ids, graphs=True, **options), plain)
    assert "on cpu, meta the call goes on without" in caplog.text
    assert recorded["recorded"] == 0


def test_drafts_are_the_same_with_the_head_in_one_launch(recorded):
    pytest.importorskip("triton")
    target, draft = make_target(), make_draft()
    options = {"max_new_tokens": 20, "do_sample": False, "eos_token_id": None, "candidate_pool": 7, "budget": 4}
    options |= {"shape": "chain", "lookup": False}
    ids = torch.arange(3, 12)[None]
    with seam.forced("triton"):
        plain = generate(target, draft, ids, **options), draft.statistics.accepted
        recorded.update(recorded=0, replayed=0)
        ours = generate(target, draft, ids, graphs=True, **options), draft.statistics.accepted
    assert recorded["recorded"] == 5  # verification and block in two steps of 16 slots, and the head
    assert torch.equal(plain[0], ours[0])
    assert plain[1] == ours[1]


@pytest.fixture(scope="module")
def small():
    shape = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "vocab_size": 6}
    ends = {"bos_token_id": None, "eos_token_id": None}
    layers = {"target_layer_ids": [0], "mask_token_id": 5, "block_size": 3, "num_target_layers": 1}
    return make_target(**shape, **ends).float(), make_draft(initializer_range=0.1, **layers, **shape, **ends).float()


def late_law(target, rows, calls, **how):
    """Empirical law of the 15th and 16th token after one prompt, [36], when nearly all rounds before were replayed."""
    ids, counts = torch.tensor([[1, 4, 2]]).expand(rows, -1), torch.zeros(36)
    for _ in range(calls):
        said = target.generate(ids, max_new_tokens=30, do_sample=True, temperature=0.8, pad_token_id=0, **how)
        counts += torch.bincount(said[:, 17] * 6 + said[:, 18], minlength=36)
    return counts / counts.sum()


def test_sampled_text_has_the_law_of_the_target(small, recorded, monkeypatch):
    """Samples of 3,000 and 9,000 are compared; the limit is what two of plain `generate` differ by, and a biased rule passes it."""
    target, draft = small
    torch.manual_seed(0)
    plain = late_law(target, 3000, 3)
    split = [torch.bincount(torch.multinomial(plain, n, True), minlength=36) / n for n in (3_000, 9_000) * 200]
    limit = max((a - b).abs().sum() / 2 for a, b in itertools.pairwise(split))
    recorded.update(recorded=0, replayed=0)
    how = {"custom_generate": draft.decode, "graphs": True, "draws": "sampled"}
    assert (late_law(target, 1000, 3, **how) - plain).abs().sum() / 2 < limit
    assert recorded["replayed"] > 2 * recorded["recorded"] > 0

    monkeypatch.setitem(accept.RULES, "traversal", always_keep_the_first)
    assert (late_law(target, 1000, 3, **how) - plain).abs().sum() / 2 > 2 * limit


def test_sampling_draws_anew_in_every_replay(small):
    """Noise is drawn inside of the recorded head; the same inputs again and again still give the law of q."""
    pytest.importorskip("triton")
    _, draft = small
    generator = torch.Generator().manual_seed(0)
    inputs = {"hidden": torch.randn(64, 2, 16, generator=generator), "base": torch.randn(1, 2, 6, generator=generator)}
    inputs |= {"hidden": inputs["hidden"][:1].expand(64, -1, -1), "base": inputs["base"].expand(64, -1, -1)}
    embedding = torch.nn.Embedding(6, 16)
    plan, graphs = Plan(embedding, samples=True), Graphs(replay.record)

    def head(hidden, base, anchors):
        return fused_rollout(draft, hidden, base, anchors, embedding, plan, 0)

    counts, anchors, drafts = torch.zeros(6), torch.full((64, 1), 3), torch.empty(0)
    with seam.forced("triton"):
        for _ in range(10):
            before, (drafts, q) = drafts, graphs("head", head, anchors=anchors, **inputs)
            assert not torch.equal(drafts, before)
            counts += torch.bincount(drafts[:, 0], minlength=6)
    law = q[0, 0].softmax(-1)
    assert (counts / counts.sum() - law).abs().max() < 5 * (law.max() / counts.sum()).sqrt()  # five standard deviations


def test_results_are_not_overwritten_by_the_next_replay():
    graphs = Graphs(replay.record)
    seen = [graphs("key", lambda x: (x * 2, None), x=torch.tensor([n])) for n in range(5)]
    assert [(double.item(), none) for double, none in seen] == [(2 * n, None) for n in range(5)]
    assert graphs("key", lambda x: (x * 2,), x=torch.tensor([1.5]))[0].item() == 3.0  # another dtype, another recording


def test_a_recorder_that_fails_is_named_and_done_without(caplog):
    graphs = Graphs(replay.record)

    def work(x):
        return (x * int(x),)  # the host waits for a number

    with caplog.at_level(logging.WARNING):
        assert [graphs("key", work, x=torch.tensor(n))[0].item() for n in (1, 2, 3)] == [1, 4, 9]
    assert "not permitted when stream is capturing" in caplog.text
    assert len(caplog.records) == 1


def test_the_recorder_notices_memory_that_was_given_back():
    """Or the tests above could not fail."""
    outside = [torch.ones(1)]
    graphs = Graphs(replay.record)
    for _ in range(3):
        graphs("key", lambda x: (x + outside[0],), x=torch.zeros(1))
    outside.clear()
    with pytest.raises(AssertionError, match="given back"):
        graphs("key", lambda x: (x,), x=torch.zeros(1))


def test_without_a_gpu_it_says_so(target, draft, monkeypatch, caplog):
    monkeypatch.setattr("domino.acceleration.graphs.recorder", RECORDER)
    ids = torch.arange(3, 12)[None]
    with caplog.at_level(logging.WARNING):
        ours = generate(target, draft, ids, max_new_tokens=8, do_sample=False, graphs=True)
    assert "for models on one CUDA device; on cpu" in caplog.text
    assert torch.equal(ours, target.generate(ids, max_new_tokens=8, do_sample=False))
