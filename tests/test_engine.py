"""The engine equals plain `generate`: greedy token for token in float64, ragged, with every option; and refuses what it cannot do."""

import gc
import weakref

import pytest
import torch
from corpus import make_tokenizer
from domino import generate
from domino.drafting.domino import RowDraft
from domino.generation import engine as module
from domino.generation.candidate_generator import DraftContext
from domino.generation.engine import EngineSettings
from domino.modeling_domino import DominoModel
from domino.verification.cache import Tail, causal_mask
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import FAMILIES, VOCAB, make_draft, make_target
from transformers import GenerationConfig, StoppingCriteria, TextStreamer
from transformers.generation import GenerateDecoderOnlyOutput


class Oracle(DominoModel):
    """Drafts what the target will say, shifted by `offset` tokens of the vocabulary: 0 is always right, 1 never."""

    offset, oracle = 0, None

    def rollout(self, hidden, base, anchors, embed, pick, pool):
        rows, drafts = pick.call.rows, anchors[:, :0]
        logits = []
        for _ in range(hidden.shape[1]):
            said = []
            for place, row in enumerate(rows.alive):
                text = torch.cat([rows.prompts[row], rows.text[row, rows.input_ids.shape[1] : rows.ends[row]]])
                ids = torch.cat([text, drafts[place]])[None]
                said.append(self.oracle(ids).logits[:, -1].float())
            wanted = [int(n > drafts.shape[1]) for n in pick.call.places(drafts, pick.most)]
            own = pick.call.processing(torch.stack(said), rows.texts(), drafts, wanted, drafts.shape[1])[:, 0]
            right = own.argmax(-1)
            sure = torch.full((len(said), VOCAB), -9.0)
            sure.scatter_(1, ((right + self.offset) % VOCAB)[:, None], 9.0)
            top = (sure.amax(-1) - sure.logsumexp(-1)).exp()
            if pick.round is not None and not pick.round.pays(top.tolist()):
                break
            pick.tops.append(top)
            pick.times.append(0.0)
            drafts = torch.cat([drafts, sure.argmax(-1, keepdim=True)], dim=1)
            logits.append(sure)
        pick.times = pick.times or [0.0]
        return drafts, torch.stack(logits, dim=1) if logits else base[:, :0]


class Wrong(Oracle):
    offset = 1


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
    {"verify_length": st.sampled_from(["auto", 0, 1, 3, 4])},
    optional={
        "prefill_chunk": st.integers(1, 9),
        "draft_window": st.integers(1, 12),
        "candidate_pool": st.sampled_from([0, 1, 5, 60]),
    },
)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    family=st.sampled_from(list(FAMILIES)),
    kind=st.sampled_from([DominoModel, Oracle, Wrong]),
    shift=st.booleans(),
    rows=st.integers(1, 8),
    seed=st.integers(0, 5),
    options=OPTIONS,
    engine=ENGINE,
)
def test_greedy_is_identical(family, kind, shift, rows, seed, options, engine):
    target, draft = make_target(family, seed), make_draft(seed + 1, kind, shift_label=shift)
    if kind is not DominoModel:
        object.__setattr__(draft, "oracle", target)
    ids, mask = ragged(rows, seed)
    plain_options = {k: v for k, v in options.items() if k not in ("num_assistant_tokens", "cache_implementation")}
    plain = target.generate(ids, attention_mask=mask, do_sample=False, **plain_options)
    ours = generate(target, draft, ids, attention_mask=mask, do_sample=False, **options, **engine)
    assert torch.equal(ours, plain)
    counts = draft.row_statistics
    assert len(counts) == rows
    if kind is Wrong:
        assert all(n == 0 for row in counts for n in row.accepted)
    if kind is Oracle and "eos_token_id" not in options and "no_repeat_ngram_size" not in options:
        assert all(n == m for row in counts for n, m in zip(row.accepted, row.drafted, strict=True))


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
    assert torch.equal(target.generate(ids, custom_generate=draft.decode_rows, verify_length=2, **options), plain)


def test_eager_attention_too():
    """Against sdpa, since transformers' eager attention makes NaN of left padding in float64."""
    ids, mask = ragged(4, 2)
    for family in ("llama", "mistral", "gemma"):
        target, draft = make_target(family), make_draft()
        plain = target.generate(ids, attention_mask=mask, max_new_tokens=12, do_sample=False)
        target.set_attn_implementation("eager")
        draft.set_attn_implementation("eager")
        ours = generate(target, draft, ids, attention_mask=mask, max_new_tokens=12, do_sample=False, prefill_chunk=4)
        assert torch.equal(ours, plain)


def test_drafts_do_not_depend_on_chunks_batch_or_a_wide_window(target, draft):
    """The context cache holds the same however it was filled: equal counts, not only equal text."""
    ids, mask = ragged(4, 5)
    counts = []
    for more in ({}, {"prefill_chunk": 2}, {"draft_window": 64}, {"cache_implementation": "static"}):
        options = {"attention_mask": mask, "max_new_tokens": 20, "do_sample": False, "verify_length": 4, **more}
        generate(target, draft, ids, eos_token_id=None, **options)
        counts.append([row.accepted for row in draft.row_statistics])
    assert counts == [counts[0]] * 4
    prompt = ids[2][mask[2].bool()][None]
    generate(target, draft, prompt, max_new_tokens=20, do_sample=False, verify_length=4, eos_token_id=None)
    assert draft.row_statistics[0].accepted == counts[0][2]
    target.generate(
        prompt, assistant_model=draft, max_new_tokens=20, do_sample=False, num_assistant_tokens=4, eos_token_id=None
    )
    assert draft.statistics.accepted == counts[0][2]  # and the stock loop's


@torch.no_grad()
def test_a_narrow_window_sees_the_first_and_the_last_tokens(target, draft):
    """As a drafter that was never told of the middle; the features come in uneven pieces, so the ring goes round twice."""
    features = torch.randn(2, 40, 2 * draft.config.hidden_size, dtype=torch.float64)
    windowed, anchor = RowDraft(draft, target, 2, torch.device("cpu"), window=6), torch.tensor([[5], [7]])
    counts = [[13, 9], [1, 4], [5, 5], [0, 7]]
    for place, new in enumerate(counts):
        start = [sum(c[row] for c in counts[:place]) for row in range(2)]
        piece = torch.stack([features[row, start[row] : start[row] + 13] for row in range(2)])
        (windowed.read if place < 2 else windowed.add)(piece, new)
    drafts, _ = windowed.draft_block(anchor, 4, lambda logits, drafts: (logits.argmax(-1, keepdim=True), logits))
    for row, total in enumerate((19, 25)):
        seen = [*range(4), *range(total - 6, total)]
        block = torch.cat([anchor[row : row + 1], torch.full((1, 4), draft.config.mask_token_id)], dim=1)
        hidden = draft.draft_block(
            windowed.embed(block),
            features[row : row + 1, seen],
            torch.tensor([seen]),
            DraftContext(config=draft.config),
        )
        base = target.get_output_embeddings()(hidden[:, :4])
        alone, _ = draft.rollout(
            hidden[:, :4], base, anchor[row : row + 1], windowed.embed, lambda x, _: (x.argmax(-1, keepdim=True), x)
        )
        assert torch.equal(drafts[row], alone[0])


def test_a_processor_knows_its_row(target, draft):
    """Processors that count rows, or are asked by a row's number, see the batch as plain `generate` shows it."""
    ids, mask = ragged(3, 6)
    options = {"attention_mask": mask, "max_new_tokens": 12, "do_sample": False}
    options["prefix_allowed_tokens_fn"] = lambda row, text: [10 * row + n for n in range(5, 15)]
    assert torch.equal(generate(target, draft, ids, **options), target.generate(ids, **options))


class Stop(StoppingCriteria):
    def __call__(self, input_ids, scores, **kwargs):
        return input_ids[:, -1] % 5 == 0


def test_a_callers_criterion(target, draft):
    ids, mask = ragged(4, 7)
    options = {"attention_mask": mask, "max_new_tokens": 20, "do_sample": False}
    plain = target.generate(ids, stopping_criteria=[Stop()], **options)
    assert torch.equal(generate(target, draft, ids, stopping_criteria=[Stop()], **options), plain)


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
    verify = module.RowTarget.verify
    monkeypatch.setattr(module.RowTarget, "verify", lambda self, ids: seen.append(len(ids)) or verify(self, ids))
    ids, mask = ragged(6, 11)
    eos = list(range(5, 20))
    generate(target, draft, ids, attention_mask=mask, max_new_tokens=25, do_sample=False, eos_token_id=eos)
    assert seen == sorted(seen, reverse=True)
    assert seen[-1] < 6


MISTAKES = [
    ({"num_beams": 2}, "num_beams=2"),
    ({"output_scores": True, "return_dict_in_generate": True}, "keeps no scores"),
    ({"guidance_scale": 1.5}, "UnbatchedClassifierFreeGuidance"),
    ({"accept": "blok"}, "accept must be one of block, leviathan, exact, got 'blok'"),
    ({"verify_length": -1}, "verify_length must be"),
    ({"draft_window": 0}, "draft_window must be a positive"),
    ({"prefill_chunk": 2.5}, "prefill_chunk must be a positive number of tokens, got 2.5"),
    ({"verify_length": True}, "verify_length must be"),
    ({"token_type_ids": torch.zeros(2, 9, dtype=torch.long)}, "token_type_ids"),
    ({"attention_mask": torch.tensor([[1] * 9, [1] * 8 + [0]])}, "padded on the left"),
    ({"position_ids": torch.arange(9).expand(2, -1) + 3}, "counts positions itself"),
]


@pytest.mark.parametrize(("options", "message"), MISTAKES)
def test_refusals(target, draft, options, message):
    ids, mask = ragged(2, 0)
    with pytest.raises(ValueError, match=message):
        generate(target, draft, ids, **{"attention_mask": mask, "max_new_tokens": 4, **options})


def test_refusals_of_streamers_caches_and_targets(target, draft):
    ids, mask = ragged(2, 0)
    with pytest.raises(ValueError, match="follows one text, got 2: pass on_tokens"):
        generate(target, draft, ids, attention_mask=mask, streamer=TextStreamer(make_tokenizer()), max_new_tokens=4)
    out = target.generate(ids, max_new_tokens=2, return_dict_in_generate=True)
    with pytest.raises(ValueError, match="starts from an empty cache"):
        generate(target, draft, out.sequences, past_key_values=out.past_key_values, max_new_tokens=2)
    with pytest.raises(ValueError, match="vocab_size=48, got LlamaForCausalLM with vocab_size=40"):
        generate(make_target(vocab_size=40), draft, ids.clamp(max=39), max_new_tokens=4)


def test_settings_default_once():
    assert EngineSettings() == EngineSettings("block", "auto", None, 512)
    assert GenerationConfig().num_assistant_tokens in (None, 20)


@pytest.mark.slow
def test_compiled_is_identical():
    """One program for all lengths: several prompts, batches and lengths of drafts."""
    target, draft = make_target().float(), make_draft().float()
    for rows, seed in ((1, 0), (1, 1), (3, 2), (4, 3)):
        ids, mask = ragged(rows, seed)
        options = {"attention_mask": mask, "max_new_tokens": 24, "do_sample": False}
        plain = target.generate(ids, **options)
        for length in ("auto", 3):
            assert torch.equal(generate(target, draft, ids, compile=True, verify_length=length, **options), plain)
            assert not hasattr(target, "_compiled_call_impl") or target._compiled_call_impl is None


def test_what_was_learnt_is_kept_apart_and_does_not_keep_models(target):
    draft = make_draft()
    ids, _ = ragged(1, 0)
    generate(target, draft, ids, max_new_tokens=20, do_sample=False, eos_token_id=None)
    greedy = module.learnt(draft, target, False, False, True)
    assert greedy.costs
    assert not module.learnt(draft, target, True, False, True).costs
    assert not module.learnt(draft, target, False, True, True).costs
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


def test_processors_are_not_asked_beyond_the_end(target):
    """A grammar has nothing to say after an end token, though drafts may go on behind one."""
    draft = make_draft(cls=Oracle)
    object.__setattr__(draft, "oracle", target)
    ids, mask = ragged(2, 3)
    eos = list(range(5, 20))

    def grammar(row, text):
        assert not set(text[ids.shape[1] :].tolist()) & set(eos), "asked beyond the end"
        return list(range(3, VOCAB - 1))

    options = {"attention_mask": mask, "max_new_tokens": 20, "do_sample": False, "eos_token_id": eos}
    alone = {"attention_mask": mask[:1], "max_new_tokens": 20, "do_sample": False, "eos_token_id": eos}
    generate(target, draft, ids, prefix_allowed_tokens_fn=grammar, **options)
    plain = target.generate(ids[:1], prefix_allowed_tokens_fn=grammar, **alone)
    assert torch.equal(generate(target, draft, ids[:1], prefix_allowed_tokens_fn=grammar, **alone), plain)
