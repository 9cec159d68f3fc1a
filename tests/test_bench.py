"""The latency model: counts by hand, exact extrapolation, the projection's formula, a run end to end, refusals."""

import argparse
import json

import pytest
import torch
from domino import DominoConfig, DominoModel
from domino.drafting.domino import Block
from domino.drafting.head import BlockHead, HeadWeights, greedy_chain
from domino.evaluation.bench import counts, latency
from domino.evaluation.bench.ceilings import Ceilings
from domino.evaluation.bench.counts import Work
from domino.evaluation.bench.drafting import Drafting
from domino.evaluation.bench.options import BenchSettings, add_options, settings
from domino.evaluation.bench.projection import break_even, extrapolate, speedup
from domino.evaluation.bench.run import bench
from domino.evaluation.bench.shapes import TARGETS, drafter_config, target_config
from domino.evaluation.bench.timing import Timing, measure
from tiny import HIDDEN, make_draft, make_target
from transformers import CONFIG_MAPPING, LlamaConfig, Qwen3Config

CPU = torch.device("cpu")
TINY = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny target's config, which stands for itself."""
    folder = tmp_path_factory.mktemp("target")
    LlamaConfig(**TINY).save_pretrained(folder)
    return folder


def draft_for(name):
    return drafter_config(None, name, target_config(name))


def test_the_published_sizes():
    target, draft = target_config("qwen3-8b"), draft_for("qwen3-8b")
    assert counts.layer_weights(target) == 192_937_984
    assert counts.target_weights(target) == 7_568_097_280
    assert counts.stored_weights(target) == 7_568_097_280 + 622_329_856
    assert counts.backbone_weights(draft) == 1_048_576_000
    assert counts.head_weights(draft) == 55_934_976
    assert draft.target_layer_ids == [1, 9, 17, 25, 33]
    smaller = draft_for("qwen3-4b")
    assert counts.backbone_weights(smaller) == pytest.approx(537.4e6, rel=1e-4)
    assert counts.head_weights(smaller) == pytest.approx(50.8e6, rel=1e-3)


def test_smollm2_has_its_own_drafter():
    target, draft = target_config("smollm2"), draft_for("smollm2")
    assert counts.stored_weights(target) == counts.target_weights(target) == 134_479_872
    assert (draft.num_hidden_layers, draft.block_size, draft.emb_dim, draft.gru_hidden_dim) == (3, 8, 128, 256)


def test_a_decode_step_of_qwen3_8b_by_hand():
    work = counts.target_work(target_config("qwen3-8b"), tokens=1, context=1024, batch=1, itemsize=2)
    assert work.bytes == 2 * 7_568_097_280 + 1024 * 36 * 2 * 1024 * 2
    assert work.flops == 2 * 7_568_097_280 + 4 * 36 * 4096 * 1025


def test_a_verification_reads_weights_once_and_the_cache_per_sequence():
    target = target_config("qwen3-8b")
    one, many = (counts.target_work(target, tokens, 100, batch, 2) for tokens, batch in ((1, 1), (17, 4)))
    assert many.bytes - one.bytes == 3 * 100 * 147_456
    assert many.flops == 4 * (2 * 17 * 7_568_097_280 + 4 * 36 * 4096 * sum(100 + i for i in range(1, 18)))


def test_drafting_by_hand():
    draft = DominoConfig(
        vocab_size=10,
        hidden_size=4,
        intermediate_size=2,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=4,
        block_size=3,
        num_target_layers=4,
        mask_token_id=0,
        gru_hidden_dim=2,
        emb_dim=1,
    )
    # layer 4 * (8 + 8 + 6) = 88, fc 16, LM head 40; of 10 tokens 3 are new: 7 are read from the cache, 16 bytes each
    assert counts.draft_work(draft, new_tokens=3, context=10, batch=2, itemsize=2) == Work(
        bytes=2 * (88 + 16 + 40) + 2 * 7 * 16,
        flops=2 * (2 * (3 * 88 + 3 * (16 + 32) + 3 * 40) + 4 * 4 * 3 * 13),
    )
    # GRU 36 in each of 3 steps, W_s and W2 1 * (2 + 10) in the 2 corrected ones, W_z 4 once but for 3 slots
    assert counts.head_work(draft, batch=2, itemsize=2) == Work(bytes=2 * (108 + 24 + 4), flops=4 * (108 + 24 + 12))
    plain = DominoConfig(**{**draft.to_dict(), "pure_draft_prefix_len": 3})
    assert counts.head_work(plain, batch=1, itemsize=2).bytes == 2 * 4


def test_counts_are_those_of_the_drafter_itself():
    draft = make_draft()
    held = sum(weight.numel() for weight in draft.parameters() if weight.dim() > 1)
    assert held == counts.backbone_weights(draft.config) + counts.head_weights(draft.config)


@pytest.mark.parametrize(("work", "seconds", "bound"), [(Work(200, 500), 2, "memory"), (Work(50, 3000), 3, "compute")])
def test_the_roofline_is_the_longer_of_both(work, seconds, bound):
    ceilings = Ceilings(read=100, gemv=50, compute=1000)
    assert (ceilings.seconds(work), ceilings.bound(work)) == (seconds, bound)


@pytest.mark.parametrize("layers", [1, 2, 3, 4, 36])
def test_extrapolation_is_exact_on_a_linear_model(layers):
    def stack(layers):
        return Timing(*(2 + 0.75 * layers for _ in range(4)))

    assert extrapolate(stack(2), stack(4), (2, 4), layers) == stack(layers)


def test_extrapolated_quartiles_are_the_worst_case():
    shallow, deep = Timing(4, 3.5, 4.5, 3), Timing(6, 5.75, 6.25, 5)
    assert extrapolate(shallow, deep, (2, 4), 6) == Timing(8, 2 * 5.75 - 4.5, 2 * 6.25 - 3.5, 7)


def test_the_projection_by_hand():
    assert speedup(4, plain=10, draft=5, head=1, verify=14) == 2
    assert break_even(plain=10, draft=5, head=1, verify=14) == 2


def test_timing_counts_runs_and_undoes_each():
    done = []
    timing = measure(lambda: done.append("run"), CPU, 3, undo=lambda: done.append("undo"))
    assert done == ["run", "undo"] * 5  # two of them to warm up
    assert timing.fastest <= timing.low <= timing.median <= timing.high
    assert Timing.of([1.0, 2.0, 3.0, 4.0, 5.0]) == Timing(3, 2, 4, 1)


def test_how_deep_a_target_is_built(monkeypatch):
    config = LlamaConfig(**TINY)
    assert latency.depths(config, 8, torch.bfloat16, CPU) == [8]
    assert latency.depths(config, 6, torch.bfloat16, CPU) == [3, 6]
    weights = 2 * counts.stored_weights(config)
    monkeypatch.setattr(latency, "get_max_memory", lambda: {"cpu": 3 * weights + 1})
    assert latency.depths(config, None, torch.bfloat16, CPU) == [8]
    monkeypatch.setattr(latency, "get_max_memory", lambda: {"cpu": 3 * weights})
    assert latency.depths(config, None, torch.bfloat16, CPU) == [2, 4]


def test_models_are_random_finite_and_tied():
    config = Qwen3Config(**TINY, tie_word_embeddings=True, head_dim=8)
    target = latency.build_target(config, 2, torch.bfloat16, CPU)
    assert len(target.get_decoder().layers) == 2
    assert target.lm_head.weight is target.get_input_embeddings().weight
    cache = latency.filled_cache(target.config, 5, 3, torch.bfloat16, CPU)
    logits = target(torch.randint(64, (3, 4)), past_key_values=cache).logits
    assert logits.shape == (3, 4, 64)
    assert logits.isfinite().all()
    assert logits.std() > 0
    assert target(torch.randint(64, (3, 1)), past_key_values=cache).past_key_values.get_seq_length() == 10


def test_drafting_takes_a_batch_and_leaves_the_context_as_it_was():
    target_shape = LlamaConfig(**TINY)
    target = latency.build_target(target_shape, 2, torch.float32, CPU)
    draft = latency.random_model(lambda: DominoModel._from_config(drafter_config(None, "", target_shape)), CPU)
    drafting = Drafting(draft, target, context=9, batch=2, new_tokens=3)
    first = drafting.backbone()
    assert drafting.session.cache.lengths == [9, 9]
    drafting.undo()
    assert drafting.session.cache.lengths == [6, 6]
    assert first.hidden.shape == drafting.random_block().hidden.shape == (2, 16, 32)
    assert first.base.shape == drafting.random_block().base.shape == (2, 16, 64)
    again = drafting.backbone()
    assert torch.equal(again.hidden, first.hidden)
    assert drafting.chain(first).tokens(CPU).shape == (2, 16)


@pytest.mark.parametrize("pool", [0, 8])
def test_trees_are_as_deep_as_the_block_and_have_all_their_nodes(pool):
    draft, target = make_draft(), make_target()
    drafting = Drafting(draft, target, 6, 3, 2, pool)
    block = drafting.backbone()
    chains, trees = drafting.chain(block).trees, drafting.tree(block).trees
    for chain, tree in zip(chains, trees, strict=True):
        assert len(tree) == 24
        assert max(tree.depths()) == draft.config.num_drafts
        assert chain.is_chain()
        # the likeliest path is the chain
        assert [tree.tokens[node] for node in tree.spine_first(list(range(24)))[:5]] == chain.tokens


def test_a_trees_work_by_hand():
    """One row, pool 8, 24 nodes on chains of 5: 19 steps more of GRU 3 * 16 * (32 + 16) and correction 8 * (16 + 8)."""
    config = make_draft().config
    chain = counts.rollout_work(config, 1, 8, 2, triton=False)
    tree = counts.tree_work(config, 24, 1, 8, 2)
    assert (tree.bytes, tree.flops - chain.flops) == (chain.bytes, 2 * 19 * (3 * 16 * 48 + 8 * 24))


@pytest.mark.parametrize("prefix", [0, 1])
def test_what_is_timed_is_what_decoding_drafts(prefix):
    """And each row of a batch by itself."""
    draft, target = make_draft(pure_draft_prefix_len=prefix), make_target()
    hidden, base = torch.randn(3, 5, HIDDEN).double(), torch.randn(3, 5, 48).double()
    drafting = Drafting(draft, target, 0, 3, 0)
    head = BlockHead(HeadWeights(draft), hidden, base, target.get_input_embeddings())
    together = drafting.chain(Block(hidden, base)).tokens(CPU)
    assert torch.equal(together, greedy_chain(head, drafting.anchors))
    for row in range(3):
        alone = Drafting(draft, target, 0, 1, 0)
        alone.anchors = drafting.anchors[row : row + 1]
        assert torch.equal(alone.chain(Block(hidden[row : row + 1], base[row : row + 1])).tokens(CPU)[0], together[row])


def test_a_run_end_to_end(folder, tmp_path):
    args = ["--target", str(folder), "--layers", "4", "--contexts", "16,64", "--batches", "2,1", "--verify", "4"]
    asked = [*args, "--tau", "2,4.5", "--repeats", "2", "--out", str(tmp_path / "new" / "b.json")]
    result = bench(settings(parser().parse_args(asked)))
    assert json.loads((tmp_path / "new" / "b.json").read_text()) == json.loads(json.dumps(result))

    stages = {(row["stage"], row["context"], row["batch"], row["tokens"]): row for row in result["stages"]}
    assert len(stages) == len(result["stages"]) == 4 * 3 + 4 + 2 * 2
    assert result["depths"]["built"] == [2, 4]
    assert all(row["roofline_seconds"] > 0 and row["bytes"] > 0 and row["flops"] > 0 for row in result["stages"])
    row = result["projections"]["rows"][0]
    assert (row["context"], row["batch"]) == (16, 1)
    plain, draft, head, verify = (
        stages[key]["seconds"]["median"]
        for key in (("target", 16, 1, 1), ("draft", 16, 1, 16), ("head", 0, 1, 16), ("target", 16, 1, 17))
    )
    assert row["projected_speedup"]["4.5"] == pytest.approx(4.5 * plain / (draft + head + verify))

    page = (tmp_path / "new" / "b.md").read_text()
    assert "2 and 4 of its 8 layers were timed" in page
    assert "T_verify(17)" in page
    assert "T_tree(24)" in page
    assert "PROJECTION, not a measurement" in page


def test_a_target_that_fits_is_measured_whole(folder, tmp_path, monkeypatch):
    monkeypatch.setattr("domino.evaluation.bench.run.measure_ceilings", lambda *args: Ceilings(1e9, 1e9, 1e12))
    shape = {"contexts": [8], "batches": [1], "verify": [2], "repeats": 1}
    result = bench(BenchSettings(target=str(folder), out=str(tmp_path / "b.json"), **shape))
    assert result["depths"]["how"] == "The target was built whole: 8 layers."
    timed = {row["tokens"]: row["seconds"] for row in result["depths"]["timed"][0] if row["stage"] == "target"}
    assert timed == {row["tokens"]: row["seconds"] for row in result["stages"] if row["stage"] == "target"}


def parser():
    parser = argparse.ArgumentParser()
    add_options(parser)
    return parser


def test_options_and_settings_have_the_same_defaults():
    assert settings(parser().parse_args([])) == BenchSettings()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--batches", "0"], r"batches must be at least 1 each, got \[0\]"),
        (["--batches", ""], r"batches must name at least one value"),
        (["--contexts", ""], r"contexts must name at least one value"),
        (["--tau", "0.5"], r"tau must be at least 1 each"),
        (["--tau", "2,nan"], r"tau must be at least 1 each, got \[2\.0, nan\]"),
        (["--repeats", "0"], r"repeats must be at least 1"),
        (["--layers", "1"], r"layers must be at least 2"),
        (["--out", "results"], r"out must be a \.json file"),
        (
            ["--target", "qwen3-8"],
            r"Unknown target 'qwen3-8'; did you mean 'qwen3-8b'\? Allowed: qwen3-8b, qwen3-4b, smol",
        ),
        (["--drafter", "nowhere"], r"Unknown drafter 'nowhere'"),
        (["--contexts", "8190"], r"contexts .* must fit into max_position_embeddings = 8192 but take 8206, got 8190"),
        (["--tau", "9.5"], r"tau cannot exceed the drafter's 8 drafts and the bonus token, got 9\.5"),
    ],
)
def test_bad_flags_are_named_before_anything_is_built(flags, message, monkeypatch):
    monkeypatch.setattr("domino.evaluation.bench.run.measure_ceilings", None)
    with pytest.raises(ValueError, match=message):
        bench(settings(parser().parse_args(flags)))


def test_a_drafter_of_another_width_is_refused():
    with pytest.raises(ValueError, match="drafter: vocab_size must be the target's 151936, got 49152"):
        drafter_config(str(drafter_folder()), "qwen3-8b", target_config("qwen3-8b"))


def drafter_folder():
    from domino.embedded.smollm2 import DRAFTER

    return DRAFTER


def test_a_shallow_target_needs_a_drafter_of_its_own():
    with pytest.raises(ValueError, match="target has too few layers .* name a drafter, got 4"):
        drafter_config(None, "", LlamaConfig(**{**TINY, "num_hidden_layers": 4}))


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [("mistral", {"sliding_window": 8}, "full attention"), ("gpt2", {"n_layer": 2}, "dense decoders")],
)
def test_targets_whose_config_tells_that_they_cannot_be_counted(family, changes, message, tmp_path):
    CONFIG_MAPPING[family](**changes).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=message):
        target_config(str(tmp_path))


def test_a_target_with_other_weights_than_counted_is_refused():
    config = CONFIG_MAPPING["gpt_neox"](**{k: v for k, v in TINY.items() if k != "num_key_value_heads"})
    with pytest.raises(ValueError, match="A gpt_neox layer holds .* not the 10,240 of a dense one"):
        latency.build_target(config, 2, torch.float32, CPU)


@pytest.mark.parametrize("name", TARGETS)
def test_a_drafter_fits_each_target(name):
    assert draft_for(name).num_target_layers == target_config(name).num_hidden_layers
