"""The engine equals plain `generate`: greedy token for token in float64, ragged, with every option; and refuses what it cannot do."""

import gc
import random
import re
import weakref

import pytest
import torch
from corpus import make_tokenizer
from domino import generate
from domino.drafting.domino import DominoSession
from domino.drafting.proposal import DRAFTER, LOOKUP, Proposal, Tree
from domino.generation.checks import obstacle
from domino.generation.settings import MOST, EngineSettings
from domino.verification.cache import RowLayer
from domino.verification.mask import Tail, causal_mask
from domino.verification.target import RowTarget
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import DEPTH, OracleSession, both, oracle, taught, told
from tiny import FAMILIES, VOCAB, make_draft, make_target, stock
from transformers import GenerationConfig, StoppingCriteria, TextStreamer
from transformers.generation import GenerateDecoderOnlyOutput

KINDS = ("random", "right", "hidden", "wrong")


def ragged(rows, seed, longest=9):
    """Left-padded ids and mask; the first row is the longest."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, VOCAB - 1, (rows, longest), generator=generator)
    mask = torch.ones_like(ids)
    for row in range(1, rows):
        pad = int(torch.randint(0, longest, (), generator=generator))
        ids[row, :pad], mask[row, :pad] = 0, 0
    return ids, mask


OPTIONS = st.fixed_dictionaries(
    {"max_new_tokens": st.integers(1, 22)},
    optional={
        "repetition_penalty": st.sampled_from([0.7, 1.4]),
        "no_repeat_ngram_size": st.just(2),
        "min_new_tokens": st.integers(1, 12),
        "suppress_tokens": st.just([5, 9, 11]),
        "bad_words_ids": st.just([[7], [8, 9]]),
        "eos_token_id": st.lists(st.integers(3, VOCAB - 2), min_size=1, max_size=12, unique=True),
        "num_assistant_tokens": st.integers(1, 4),
        "cache_implementation": st.just("static"),
    },
)
ENGINE = st.fixed_dictionaries(
    {"budget": st.sampled_from(["auto", 0, 1, 3, 8, 24, 48]), "shape": st.sampled_from(["auto", "tree", "chain"])},
    optional={
        "lookup": st.booleans(),
        "lookup_memory": st.sampled_from([0, 200]),
        "prefill_chunk": st.integers(1, 9),
        "draft_window": st.integers(1, 12),
        "candidate_pool": st.sampled_from([0, 1, 5, 60]),
    },
)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    family=st.sampled_from(list(FAMILIES)),
    kind=st.sampled_from(KINDS),
    shift=st.booleans(),
    rows=st.integers(1, 8),
    seed=st.integers(0, 5),
    options=OPTIONS,
    engine=ENGINE,
)
def test_greedy_is_identical(family, kind, shift, rows, seed, options, engine):
    target, draft = make_target(family, seed), oracle(kind, seed, shift_label=shift)
    ids, mask = ragged(rows, seed)
    plain = {k: v for k, v in options.items() if k not in ("num_assistant_tokens", "cache_implementation")}
    mine = {k: v for k, v in options.items() if k not in plain}
    text, ours = both(target, draft, ids, mask, plain, **mine, **engine)
    assert torch.equal(ours, text)
    counts = draft.row_statistics
    assert len(counts) == rows
    most = min(MOST if engine["budget"] == "auto" else engine["budget"], options.get("num_assistant_tokens", MOST))
    assert all(n <= most for row in counts for n in row.drafted)
    if kind == "wrong" and not engine.get("lookup", True):
        assert all(n == 0 for row in counts for n in row.accepted)
    if (
        kind == "right"
        and engine["budget"] != "auto"
        and not ({2, *options.get("eos_token_id", [])} & set(text[:, ids.shape[1] :].flatten().tolist()))
    ):
        for row in counts:
            room = options["max_new_tokens"] - 1
            for n in row.accepted:
                assert n >= min(room - 1, DEPTH, most)
                room -= n + 1


def test_the_mask_of_rows_alike():
    """Cut from the triangle it equals the computed one, longer and shorter than what it was made for."""
    tail = Tail(torch.device("cpu"))
    for before, tokens in [(0, 1), (5, 3), (5, 1), (700, 9), (2, 4), (699, 2)]:
        at = torch.arange(before, before + tokens)[None]
        assert torch.equal(tail.mask(before, tokens), causal_mask(at, before + tokens))


def test_rows_equal_the_same_prompts_alone(target, draft):
    ids, mask = ragged(6, 3)
    together = generate(target, draft, ids, attention_mask=mask, max_new_tokens=15, do_sample=False, eos_token_id=None)
    for row in range(6):
        prompt = ids[row][mask[row].bool()][None]
        alone = target.generate(prompt, max_new_tokens=15, do_sample=False, eos_token_id=None)
        assert torch.equal(together[row, ids.shape[1] :], alone[0, prompt.shape[1] :])


def test_generate_takes_batches_by_itself(target, draft):
    """`generate(assistant_model=draft)` with several rows, and the loop by name."""
    ids, mask = ragged(3, 1)
    options = {"attention_mask": mask, "max_new_tokens": 12, "do_sample": False}
    plain = target.generate(ids, **options)
    assert torch.equal(target.generate(ids, assistant_model=draft, **options), plain)
    assert len(draft.row_statistics) == 3
    rounds = sum(row.rounds for row in draft.row_statistics)
    assert draft.statistics.rounds == rounds > 0
    assert torch.equal(target.generate(ids, custom_generate=draft.decode, budget=2, **options), plain)


@pytest.mark.parametrize("kind", ["random", "hidden"])
def test_eager_attention_too(kind):
    """Against sdpa, since transformers' eager attention makes NaN of left padding in float64."""
    ids, mask = ragged(4, 2)
    for family in ("llama", "mistral", "gemma"):
        target, draft = make_target(family), oracle(kind)
        options = {"attention_mask": mask, "max_new_tokens": 12, "do_sample": False}
        plain = target.generate(ids, **options)
        told(draft, plain, mask)
        target.set_attn_implementation("eager")
        draft.set_attn_implementation("eager")
        for budget in (4, 16):
            assert torch.equal(generate(target, draft, ids, prefill_chunk=4, budget=budget, **options), plain)


MIXED = {
    "gemma3_text": {"head_dim": 8, "layer_types": ["sliding_attention", "full_attention"] * 2},
    "qwen3": {"head_dim": 8, "use_sliding_window": True, "max_window_layers": 2},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", MIXED)
def test_layers_that_slide_among_layers_that_do_not(family, kind):
    """A window shorter than prompt and tree: siblings share a position, and each node's window is its own."""
    target, draft = make_target(family, sliding_window=5, **MIXED[family]), oracle(kind)
    assert {"full_attention", "sliding_attention"} == set(target.config.layer_types)
    for rows, seed in ((1, 0), (3, 1)):
        for budget in (5, 24):
            text, ours = both(target, draft, *ragged(rows, seed), {"max_new_tokens": 20}, budget=budget)
            assert torch.equal(ours, text)
            assert kind == "random" or any(row.accepted for row in draft.row_statistics)


def test_drafts_do_not_depend_on_chunks_batch_or_a_wide_window(target, draft):
    """The context cache holds the same however it was filled: equal counts, not only equal text."""
    ids, mask = ragged(4, 5)
    one = {
        "budget": 4,
        "shape": "chain",
        "lookup": False,
        "max_new_tokens": 20,
        "do_sample": False,
        "eos_token_id": None,
    }
    counts = []
    for more in ({}, {"prefill_chunk": 2}, {"draft_window": 64}, {"cache_implementation": "static"}):
        fresh = make_draft()
        generate(target, fresh, ids, attention_mask=mask, **one, **more)
        counts.append([row.accepted for row in fresh.row_statistics])
    assert counts == [counts[0]] * 4
    assert any(sum(row) for row in counts[0])
    prompt = ids[2][mask[2].bool()][None]
    fresh = make_draft()
    generate(target, fresh, prompt, **one)
    assert fresh.row_statistics[0].accepted == counts[0][2]
    target.generate(
        prompt,
        assistant_model=stock(fresh),
        max_new_tokens=20,
        do_sample=False,
        num_assistant_tokens=4,
        eos_token_id=None,
    )
    assert fresh.statistics.accepted == counts[0][2]  # and the stock loop's


@torch.no_grad()
def test_a_narrow_window_sees_the_first_and_the_last_tokens(target, draft):
    """As a drafter that was never told of the middle; the features come in uneven pieces, so the ring goes round twice."""
    features = torch.randn(2, 40, 2 * draft.config.hidden_size, dtype=torch.float64)
    windowed, anchor = DominoSession(draft, target, 2, torch.device("cpu"), window=6), torch.tensor([[5], [7]])
    counts = [[13, 9], [1, 4], [5, 5], [0, 7]]
    for place, new in enumerate(counts):
        start = [sum(c[row] for c in counts[:place]) for row in range(2)]
        piece = torch.stack([features[row, start[row] : start[row] + 13] for row in range(2)])
        (windowed.read if place < 2 else windowed.add)(piece, new)
    block = windowed.block(anchor, 4)
    first = draft.config.first_slot
    for row, total in enumerate((19, 25)):
        seen = [*range(4), *range(total - 6, total)]
        masks = torch.full((1, draft.config.block_size - 1), draft.config.mask_token_id)
        embeds = windowed.embed(torch.cat([anchor[row : row + 1], masks], dim=1))
        positions = torch.tensor([[*seen, *range(total, total + draft.config.block_size)]])
        hidden = draft(embeds, features[row : row + 1, seen], None, positions).last_hidden_state
        torch.testing.assert_close(block.hidden[row], hidden[0, first : first + 4])


def test_a_processor_knows_its_row(target, draft):
    """Processors that count rows, or are asked by a row's number, see the batch as plain `generate` shows it."""
    ids, mask = ragged(3, 6)
    options = {"attention_mask": mask, "max_new_tokens": 12, "do_sample": False}
    options["prefix_allowed_tokens_fn"] = lambda row, text: [10 * row + n for n in range(5, 15)]
    assert torch.equal(generate(target, draft, ids, **options), target.generate(ids, **options))


class Stop(StoppingCriteria):
    def __call__(self, input_ids, scores, **kwargs):
        return input_ids[:, -1] % 5 == 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_callers_criterion(target, kind):
    """It may stop a text in the middle of a path."""
    plain = {"max_new_tokens": 20, "stopping_criteria": [Stop()]}
    text, ours = both(target, oracle(kind), *ragged(4, 7), plain, budget=16)
    assert torch.equal(ours, text)


def test_time_limit_ends_all_rows(target, draft):
    ids, mask = ragged(2, 0)
    out = generate(target, draft, ids, attention_mask=mask, max_new_tokens=400, max_time=0.0, eos_token_id=None)
    assert out.shape[1] == ids.shape[1] + 1


def test_rows_are_told_as_they_grow(target, draft, capsys):
    ids, mask = ragged(3, 4)
    heard = {row: [] for row in range(3)}
    options = {"max_new_tokens": 14, "do_sample": False}
    out = generate(
        target, draft, ids, attention_mask=mask, on_tokens=lambda row, new: heard[row].extend(new), **options
    )
    for row, tokens in heard.items():
        assert tokens == out[row, ids.shape[1] :][: len(tokens)].tolist()
    tokenizer = make_tokenizer()
    text = generate(target, draft, ids[:1], streamer=TextStreamer(tokenizer), **options)
    assert capsys.readouterr().out.strip() == tokenizer.decode(text[0]).strip()


def test_output_is_the_librarys(target, draft):
    ids, _ = ragged(2, 0)
    out = generate(target, draft, ids[:1], max_new_tokens=5, do_sample=False, return_dict_in_generate=True)
    assert isinstance(out, GenerateDecoderOnlyOutput)
    assert torch.equal(out.sequences, target.generate(ids[:1], max_new_tokens=5, do_sample=False))


def test_rows_that_end_leave_the_batch(target, draft, monkeypatch):
    seen = []
    verify = RowTarget.verify
    monkeypatch.setattr(RowTarget, "verify", lambda self, ids, trees: seen.append(len(ids)) or verify(self, ids, trees))
    ids, mask = ragged(6, 11)
    eos = list(range(5, 20))
    generate(target, draft, ids, attention_mask=mask, max_new_tokens=25, do_sample=False, eos_token_id=eos)
    assert seen == sorted(seen, reverse=True)
    assert seen[-1] < 6


MISTAKES = [
    ({"num_beams": 2}, "num_beams=2"),
    ({"penalty_alpha": 0.6, "top_k": 4}, "penalty_alpha=0.6"),
    ({"dola_layers": "low"}, "dola_layers=low"),
    ({"prompt_lookup_num_tokens": 3}, "prompt_lookup_num_tokens=3"),
    ({"cache_implementation": "offloaded"}, "cache_implementation='offloaded'"),
    ({"use_cache": False}, "use_cache=False"),
    ({"loop": "fast"}, "loop must be one of auto, engine, transformers, got 'fast'."),
    ({"guidance_scale": 1.5}, "UnbatchedClassifierFreeGuidanceLogitsProcessor keeps a state"),
    ({"accept": "blok"}, "accept must be one of traversal, recursive, walk, got 'blok'."),
    ({"shape": "forest"}, "shape must be one of auto, tree, chain, got 'forest'."),
    ({"draws": "greedy"}, "draws must be one of shared, sampled, got 'greedy'."),
    ({"budget": -1}, 'budget must be "auto" or a number of nodes from 0 to 64, got -1.'),
    ({"budget": 65}, "from 0 to 64, got 65."),
    ({"budget": 10**9}, "got 1000000000."),
    ({"budget": True}, "got True."),
    ({"budget": 8.0}, "got 8.0."),
    ({"budget": "most"}, "got 'most'."),
    ({"lookup": 1}, "lookup must be True or False, got 1."),
    ({"lookup": "yes"}, "lookup must be True or False, got 'yes'."),
    ({"lookup_memory": -5}, "lookup_memory must be a number of tokens, 0 or more, got -5."),
    ({"lookup_memory": True}, "lookup_memory must be a number of tokens, 0 or more, got True."),
    ({"candidate_pool": -1}, "candidate_pool must be a number of tokens, 0 or more, got -1."),
    ({"draft_window": 0}, "draft_window must be a positive"),
    ({"prefill_chunk": 2.5}, "prefill_chunk must be a positive number of tokens, got 2.5"),
    ({"compile": 1}, "compile must be True or False, got 1."),
    ({"token_type_ids": torch.zeros(2, 9, dtype=torch.long)}, "token_type_ids"),
    ({"attention_mask": torch.tensor([[1] * 9, [1] * 8 + [0]])}, "padded on the left"),
    ({"position_ids": torch.arange(9).expand(2, -1) + 3}, "counts positions itself"),
]


@pytest.mark.parametrize(("options", "message"), MISTAKES)
def test_refusals(target, draft, options, message):
    ids, mask = ragged(2, 0)
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        generate(target, draft, ids, **{"attention_mask": mask, "max_new_tokens": 4, **options})
    said = str(caught.value)
    if "model_kwargs" not in said:  # that is transformers' own
        assert said.endswith(".")
        assert not re.search(r"\.\s", said)


def test_refusals_of_streamers_caches_and_targets(target, draft):
    ids, mask = ragged(2, 0)
    with pytest.raises(ValueError, match="follows one text, got 2: pass on_tokens"):
        generate(target, draft, ids, attention_mask=mask, streamer=TextStreamer(make_tokenizer()), max_new_tokens=4)
    out = target.generate(ids, max_new_tokens=2, return_dict_in_generate=True)
    with pytest.raises(ValueError, match="holds 10 tokens, 9 were passed, and the attention_mask covers 9"):
        generate(target, draft, ids, past_key_values=out.past_key_values, max_new_tokens=2)
    with pytest.raises(ValueError, match="vocab_size=48, got LlamaForCausalLM with vocab_size=40"):
        generate(make_target(vocab_size=40), draft, ids.clamp(max=39), max_new_tokens=4)


def test_settings_default_once():
    assert EngineSettings() == EngineSettings("auto", "auto", "auto", True, 0, "shared", "traversal", None, 512, 1024)
    assert GenerationConfig().num_assistant_tokens in (None, 20)


@pytest.mark.slow
def test_compiled_is_identical():
    """One program for all lengths: several prompts, batches and lengths of drafts."""
    target, draft = make_target().float(), make_draft().float()
    for rows, seed in ((1, 0), (1, 1), (3, 2), (4, 3)):
        ids, mask = ragged(rows, seed)
        options = {"attention_mask": mask, "max_new_tokens": 24, "do_sample": False}
        plain = target.generate(ids, **options)
        for budget in ("auto", 3, 12):
            assert torch.equal(generate(target, draft, ids, compile=True, budget=budget, **options), plain)
            assert not hasattr(target, "_compiled_call_impl") or target._compiled_call_impl is None


def test_what_was_learnt_is_kept_apart_and_does_not_keep_models(target):
    draft = make_draft()
    ids, _ = ragged(1, 0)
    generate(target, draft, ids, max_new_tokens=20, do_sample=False, eos_token_id=None)
    assert taught(draft, target).budget(1).costs.seen
    others = ({"shape": "chain"}, {"lookup": False}, {"compile": True}, {"pack": False}, {"invariant": False})
    for other in ({"do_sample": True}, {"do_sample": True, "draws": "sampled"}, *others):
        assert not taught(draft, target, **other).budget(1).costs.seen
    taught(draft, target, do_sample=True).budget(1).costs.saw(8, 1.0)
    assert not taught(draft, target, do_sample=True, draws="sampled").budget(1).costs.seen
    gone = weakref.ref(draft)
    del draft
    gc.collect()
    assert gone() is None


def test_drafts_that_are_no_numbers_do_no_harm(target):
    draft = make_draft()
    torch.nn.init.constant_(draft.embed_proj[2].weight, float("nan"))
    ids, mask = ragged(2, 0)
    options = {"attention_mask": mask, "max_new_tokens": 20, "do_sample": False}
    assert torch.equal(generate(target, draft, ids, **options), target.generate(ids, **options))
    assert generate(target, draft, ids, attention_mask=mask, max_new_tokens=20, do_sample=True).shape[0] == 2


def test_a_pool_without_an_allowed_token_does_no_harm(target):
    draft, (ids, mask) = make_draft(), ragged(2, 0)
    options = {"attention_mask": mask, "max_new_tokens": 20, "candidate_pool": 2, "suppress_tokens": list(range(5, 40))}
    out = generate(target, draft, ids, do_sample=True, **options)
    assert not set(out[:, ids.shape[1] :].flatten().tolist()) & set(range(5, 40))


@pytest.mark.parametrize("kind", ["random", "right", "hidden"])
def test_processors_are_not_asked_beyond_the_end(target, kind):
    """A grammar has nothing to say after an end token, though drafts may go on behind one, and rows be filled up."""
    draft, (ids, mask) = oracle(kind), ragged(3, 3)
    eos, start = list(range(5, 20)), ids.shape[1]

    def grammar(row, text):
        assert not set(text[start:].tolist()) & set(eos), "asked beyond the end"
        return list(range(3, VOCAB - 1))

    options = {"max_new_tokens": 20, "eos_token_id": eos, "prefix_allowed_tokens_fn": grammar}
    # plain decoding asks about rows that have ended
    alone = [target.generate(ids[[r]], attention_mask=mask[[r]], do_sample=False, **options)[0] for r in range(3)]
    text = torch.nn.utils.rnn.pad_sequence(alone, batch_first=True)
    told(draft, text, mask)
    options |= {"attention_mask": mask, "budget": 16}
    assert torch.equal(generate(target, draft, ids, do_sample=False, **options), text)
    if kind == "random":
        for seed in range(5):
            torch.manual_seed(seed)
            generate(target, draft, ids, do_sample=True, **options)


@pytest.mark.parametrize("kind", ["random", "hidden"])
def test_processors_see_the_path_of_each_node(target, kind):
    """Not the nodes beside it: the text so far and what stands above. The drafter asks about its own lanes, too."""
    draft, (ids, mask) = oracle(kind), ragged(3, 3)
    texts, asked, seen, trees = dict(enumerate(ids.tolist())), set(), set(), []

    def allowed(row, text):
        seen.add(tuple(text.tolist()))
        return list(range(3, VOCAB - 1))

    def on_round(row, what):
        trees.append(what.tree)
        for node in range(-1, len(what.tree)):
            asked.add((*texts[row], *(what.tree.tokens[n] for n in what.tree.path(node))))

    def on_tokens(row, tokens):
        if len(texts[row]) == ids.shape[1]:
            asked.add(tuple(texts[row]))
        texts[row] += tokens

    plain = {"max_new_tokens": 12, "eos_token_id": None, "prefix_allowed_tokens_fn": allowed}
    text = target.generate(ids, attention_mask=mask, do_sample=False, **plain)
    seen.clear()
    told(draft, text, mask)
    more = {"on_round": on_round, "on_tokens": on_tokens, "budget": 12, "lookup": False, "do_sample": False}
    assert torch.equal(generate(target, draft, ids, attention_mask=mask, **plain, **more), text)
    assert any(not tree.is_chain() for tree in trees)
    assert asked == seen if kind == "hidden" else asked <= seen


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("new", [1, 2, 3])
def test_no_room_left(target, kind, new):
    """One token is said by the prefill, the next needs no draft, and no text becomes longer than asked."""
    for rows in (1, 4):
        draft = oracle(kind)
        text, ours = both(target, draft, *ragged(rows, 2), {"max_new_tokens": new, "eos_token_id": None}, budget=24)
        assert torch.equal(ours, text)
        assert all(sum(row.accepted) + row.rounds == new - 1 for row in draft.row_statistics)
        assert all(max(row.drafted, default=0) == 0 for row in draft.row_statistics if new < 3)


def test_a_prompt_that_is_too_long_already(target, draft):
    ids, mask = ragged(2, 0)
    config = GenerationConfig(max_length=9, do_sample=False, pad_token_id=0)
    loop = {"logits_processor": [], "stopping_criteria": [], "generation_config": config}
    config._pad_token_tensor = torch.tensor(0)
    assert torch.equal(draft.decode(target, ids, attention_mask=mask, **loop), ids)
    assert draft.statistics.rounds == 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", ["gpt2", "opt", "gptj"])
def test_trees_at_the_end_of_the_table_of_positions(family, kind):
    """Nodes that a row has no room for are asked about; the table has no entries for those."""
    own = {
        "gpt2": {"n_positions": 40, "n_embd": 32, "n_layer": 4, "n_head": 4},
        "opt": {"word_embed_proj_dim": 32, "max_position_embeddings": 40},
        "gptj": {"n_positions": 40, "rotary_dim": 4, "n_embd": 32, "n_layer": 4, "n_head": 4},
    }
    target, draft = make_target(family, **own[family]), oracle(kind)
    plain = {"max_length": 40, "eos_token_id": None, "pad_token_id": 0}
    for rows in (1, 3):
        text, ours = both(target, draft, *ragged(rows, 0), plain, budget=24)
        assert torch.equal(ours, text)


@pytest.mark.parametrize("limit", [0, 1, 5])
def test_the_number_of_nodes_has_the_callers_bound(target, limit):
    """Of trees and chains, a fixed number of nodes and an automatic one, greedy and sampled."""
    for how in (
        {"budget": 24},
        {"budget": "auto"},
        {"budget": 24, "shape": "chain"},
        {"budget": 24, "do_sample": True},
    ):
        draft, (ids, mask) = make_draft(), ragged(3, 1)
        options = {"do_sample": False, **how, "max_new_tokens": 20, "num_assistant_tokens": limit, "eos_token_id": None}
        generate(target, draft, ids, attention_mask=mask, **options)
        assert max(n for row in draft.row_statistics for n in row.drafted) == limit


@pytest.mark.parametrize("budget", [1, 2, 3, 5, 8])
def test_nodes_of_equal_reach_do_not_exceed_the_budget(target, draft, budget):
    """Two places that were found alike have branches alike."""
    for seed in range(10):
        torch.manual_seed(seed)
        ids = torch.randint(3, 10, (2, 12))
        for how in ({"do_sample": False}, {"do_sample": True, "top_k": 6}):
            generate(target, draft, ids, max_new_tokens=20, eos_token_id=None, budget=budget, **how)
            assert max(n for row in draft.row_statistics for n in row.drafted) <= budget


def test_rounds_are_told(target):
    """Trees, paths and tokens add up to the text and to the counts, and lookup's share to what it had found alone."""
    ids, found = torch.tensor([[5, 6, 7, 8, 5, 6, 7, 8, 5], [0, 0, 9, 3, 9, 3, 9, 3, 9]]), 0
    mask = (ids != 0).long()
    for seed in range(4):
        draft, rounds = make_draft(seed), []
        options = {"max_new_tokens": 20, "attention_mask": mask, "eos_token_id": None, "repetition_penalty": 0.7}
        text = generate(
            target,
            draft,
            ids,
            do_sample=False,
            budget=10,
            on_round=lambda row, what, rounds=rounds: rounds.append((row, what)),
            **options,
        )
        assert torch.equal(text, target.generate(ids, do_sample=False, **options))
        for row in range(2):
            own, counts = [what for who, what in rounds if who == row], draft.row_statistics[row]
            assert counts.drafted == [len(what.tree) for what in own]
            assert counts.accepted == [len(what.path) for what in own]
            assert counts.lookup == [sum(what.tree.source[n] == LOOKUP for n in what.path) for what in own]
            assert all({*what.tree.source} <= {DRAFTER, LOOKUP} for what in own)
            said = [token for what in own for token in what.tokens]
            assert said == text[row, ids.shape[1] + 1 :][: len(said)].tolist()
            assert all(what.tokens[:-1] == [what.tree.tokens[n] for n in what.path] for what in own)
            found += sum(counts.lookup)
        assert draft.statistics.lookup == [n for row in draft.row_statistics for n in row.lookup]
    assert found > 0


def test_lookup_alone_has_the_right_tokens(target):
    """Where the drafter is always wrong, what is kept is lookup's; without lookup nothing is."""
    ids, mask = ragged(2, 1)
    plain = {"max_new_tokens": 40, "eos_token_id": None, "repetition_penalty": 0.6}
    for lookup in (True, False):
        draft = oracle("wrong")
        text, ours = both(target, draft, ids, mask, plain, lookup=lookup, budget=16)
        assert torch.equal(ours, text)
        assert draft.statistics.lookup == draft.statistics.accepted
        assert bool(sum(draft.statistics.accepted)) == lookup


def test_what_is_remembered_is_found_and_forgotten(target):
    """The same question again is answered from memory; it is no longer than asked, and gone once it is switched off."""
    ids, mask = ragged(1, 4)
    counts = []
    draft = oracle("wrong")
    for memory in (0, 200, 200, 0, 200, 12):
        text, ours = both(
            target, draft, ids, mask, {"max_new_tokens": 30, "eos_token_id": None}, lookup_memory=memory, budget=16
        )
        assert torch.equal(ours, text)
        counts.append(sum(draft.statistics.accepted))
        assert bool(memory) <= len(taught(draft, target).memory.text) <= memory
    assert counts[2] > 2 * counts[0]
    assert counts[3] <= counts[0] + 3  # how far lookup is trusted was learnt meanwhile
    assert counts[5] > counts[3]


def straight(target, text):
    """Keys and values [heads, length, head_dim] of each layer, logits and features of a text read in one piece."""
    out = target(torch.tensor([text]), output_hidden_states=True, use_cache=True)
    kept = [(layer.keys[0], layer.values[0]) for layer in out.past_key_values.layers]
    return kept, out.logits[0], torch.cat([out.hidden_states[1], out.hidden_states[3]], dim=-1)[0]


def some_tree(dice, nodes: int) -> Tree:
    """Random parents, every second the node before, so that paths are long; random tokens, siblings apart."""
    tree = Tree()
    while len(tree) < nodes:
        parent, token = dice.choice([dice.randrange(-1, len(tree)), len(tree) - 1]), dice.randrange(3, VOCAB - 1)
        if (parent, token) not in set(zip(tree.parents, tree.tokens, strict=True)):
            tree.add(token, parent, 1.0, DRAFTER, -1)
    return tree


@torch.no_grad()
@pytest.mark.parametrize("family", [*FAMILIES, "gemma3_text"])
@pytest.mark.parametrize("ragged_rows", [False, True])
def test_the_cache_holds_what_the_text_read_straight_through_has(family, ragged_rows):
    """Each node's logits and features are those of its path, and after a commit the cache is that of the text, branch or not."""
    dice = random.Random(len(family))
    # a window that is shorter than the trees are deep
    windows = {"mistral": {"sliding_window": 3}, "gemma3_text": {"sliding_window": 3, **MIXED["gemma3_text"]}}
    target = make_target(family, **windows.get(family, {}))
    texts = [[dice.randrange(3, VOCAB - 1) for _ in range(n)] for n in ((9, 4, 6) if ragged_rows else (7, 7))]
    reader = RowTarget(target, [0, 2], len(texts), 60, None, 4, False, torch.device("cpu"))
    list(reader.prefill([torch.tensor(text) for text in texts]))
    for turn in range(4):
        anchors = [dice.randrange(3, VOCAB - 1) for _ in texts]
        trees = [some_tree(dice, dice.randrange(10) if turn else 9) for _ in texts]
        logits, features = reader.verify(torch.tensor(anchors)[:, None], Proposal(trees))
        for row, tree in enumerate(trees):
            for node in range(-1, len(tree)):
                text = [*texts[row], anchors[row], *(tree.tokens[n] for n in tree.path(node))]
                _, own, states = straight(target, text)
                torch.testing.assert_close(logits[row, node + 1], own[-1])
                torch.testing.assert_close(features[row, node + 1], states[-1])
        paths = [tree.path(dice.randrange(-1, len(tree))) for tree in trees]
        if not turn:  # surely a branch, and rows that keep unlike numbers
            paths = [
                max((tree.path(n) for n in range(9)), key=lambda p: (p != list(range(len(p))), len(p)))
                for tree in trees
            ]
            assert any(path != list(range(len(path))) for path in paths)
        reader.commit(paths)
        texts = [
            [*text, a, *(tree.tokens[n] for n in path)]
            for text, a, tree, path in zip(texts, anchors, trees, paths, strict=True)
        ]
        assert reader.cache.lengths == [len(text) for text in texts]
        for row, text in enumerate(texts):
            for layer, (keys, values) in zip(reader.cache.layers, straight(target, text)[0], strict=True):
                # a sliding layer of transformers' own forgets what lies outside of its window
                torch.testing.assert_close(layer.keys[row, :, : len(text)][:, -keys.shape[1] :], keys)
                torch.testing.assert_close(layer.values[row, :, : len(text)][:, -values.shape[1] :], values)


@torch.no_grad()
def test_columns_that_fill_up_stay_within_the_table_of_positions():
    """A row at the very end beside one with a branching tree."""
    target = make_target("gpt2", n_positions=12, n_embd=32, n_layer=4, n_head=4)
    texts = [list(range(3, 14)), list(range(3, 8))]
    reader = RowTarget(target, [0, 2], 2, 12, None, 4, False, torch.device("cpu"))
    list(reader.prefill([torch.tensor(text) for text in texts]))
    tree = some_tree(random.Random(0), 6)
    assert not tree.is_chain()
    logits, _ = reader.verify(torch.tensor([[9], [9]]), Proposal([Tree(), tree]))
    for row, text in enumerate(texts):
        torch.testing.assert_close(logits[row, 0], straight(target, [*text, 9])[1][-1])


@torch.no_grad()
@pytest.mark.parametrize("kind", ["right", "hidden"])
def test_the_drafter_is_told_the_features_of_the_text(target, kind, monkeypatch):
    """Also of a branch: what it reads is what the text read straight through has, row by row."""
    told_of: dict[int, list[torch.Tensor]] = {row: [] for row in range(4)}

    def add(session, features, counts, add=OracleSession.add):
        for row, own, count in zip(session.rows, features, counts, strict=True):
            told_of[row].append(own[:count])
        add(session, features, counts)

    monkeypatch.setattr(OracleSession, "add", add)
    ids, mask = ragged(4, 1)
    text, ours = both(target, oracle(kind), ids, mask, {"max_new_tokens": 25, "eos_token_id": None}, budget=16)
    assert torch.equal(ours, text)
    for row, pieces in told_of.items():
        found = torch.cat(pieces)
        _, _, states = straight(target, text[row][-(int(mask[row].sum()) + 25) :].tolist())
        assert len(found) >= int(mask[row].sum()) + 20 - DEPTH
        torch.testing.assert_close(found, states[: len(found)])


@pytest.mark.parametrize(("kind", "moves"), [("right", False), ("hidden", True)])
def test_nothing_is_moved_where_the_spine_was_kept(target, kind, moves, monkeypatch):
    """Nor do the drafter's features leave their places; a path beside the spine is moved."""
    seen = []
    monkeypatch.setattr(
        RowLayer, "move", lambda self, *what, move=RowLayer.move: seen.append(what) or move(self, *what)
    )
    plain = {"max_new_tokens": 20, "eos_token_id": None}
    text, ours = both(target, oracle(kind), *ragged(3, 0), plain, budget=16, lookup=False)
    assert torch.equal(ours, text)
    assert bool(seen) == moves


@pytest.mark.parametrize("name", ["flash_attention_2", "flash_attention_3", "flex_attention", "paged|sdpa"])
def test_attention_that_takes_no_ready_mask_is_refused(draft, name):
    target, (ids, mask) = make_target(), ragged(2, 0)
    target.config._attn_implementation_internal = name
    with pytest.raises(ValueError, match=re.escape(f"attn_implementation={name!r}: do without")):
        generate(target, draft, ids, attention_mask=mask, max_new_tokens=4, loop="engine")


def test_a_layer_of_another_kind_is_refused(draft):
    target = make_target("qwen3", head_dim=8)
    target.config.layer_types = ["full_attention", "chunked_attention"] * 2
    why = obstacle(target, GenerationConfig(), {})
    assert why == "The engine knows full and sliding attention, got Qwen3ForCausalLM with chunked_attention"
