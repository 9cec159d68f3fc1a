"""What `generate` takes keeps working with a drafter."""

import copy

import pytest
import torch
from tiny import RightDraft, make_draft, make_target, stock
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    DynamicCache,
    GenerationConfig,
    PreTrainedTokenizerFast,
    StoppingCriteria,
    StoppingCriteriaList,
    pipeline,
)
from transformers.generation import LogitsProcessor, LogitsProcessorList
from transformers.generation.streamers import BaseStreamer

PROMPT = torch.tensor([[18, 20, 36, 18, 45, 14]])
GREEDY = {"do_sample": False, "max_new_tokens": 20}


@pytest.fixture(params=["engine", "transformers", "right"])
def drafter(request):
    """Through both loops, and one that is always right."""
    if request.param == "engine":
        return make_draft()
    return stock(make_draft(cls=RightDraft) if request.param == "right" else make_draft())


@pytest.fixture(scope="module")
def tokenizer():
    """Byte-level, like real ones: token i is a letter."""
    letters = [chr(c) for c in range(ord("A"), ord("A") + 26)] + [chr(c) for c in range(ord("a"), ord("a") + 19)]
    words = {"<pad>": 0, "<s>": 1, "</s>": 2, **{letter: i + 3 for i, letter in enumerate(letters)}}
    core = Tokenizer(models.BPE(words, [], unk_token="<pad>"))
    core.pre_tokenizer, core.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=core, bos_token="<s>", eos_token="</s>", pad_token="<pad>")


class Collect(BaseStreamer):
    def __init__(self):
        self.tokens, self.ended = [], False

    def put(self, value):
        self.tokens += value.flatten().tolist()

    def end(self):
        self.ended = True


def test_streamer(target, drafter):
    streamer = Collect()
    out = target.generate(PROMPT, assistant_model=drafter, streamer=streamer, **GREEDY)
    assert streamer.tokens == out[0].tolist()
    assert streamer.ended


def test_scores_and_logits(target, drafter):
    options = {**GREEDY, "return_dict_in_generate": True, "output_scores": True, "output_logits": True}
    options |= {"repetition_penalty": 1.2}
    plain, ours = target.generate(PROMPT, **options), target.generate(PROMPT, assistant_model=drafter, **options)
    assert torch.equal(plain.sequences, ours.sequences)
    for name in ("scores", "logits"):
        torch.testing.assert_close(torch.stack(getattr(plain, name)), torch.stack(getattr(ours, name)))


def test_hidden_states_asked_for_by_the_caller(target, drafter):
    options = {**GREEDY, "return_dict_in_generate": True, "output_hidden_states": True}
    plain, ours = target.generate(PROMPT, **options), target.generate(PROMPT, assistant_model=drafter, **options)
    last = [torch.cat([step[-1] for step in out.hidden_states], dim=1) for out in (plain, ours)]
    torch.testing.assert_close(*last)


class StopAfter(StoppingCriteria):
    """Ends once `token` has been said."""

    def __init__(self, token):
        self.token = token

    def __call__(self, input_ids, scores, **kwargs):
        return bool((input_ids[:, PROMPT.shape[1] :] == self.token).any())  # a plain bool is accepted too


def test_stopping_criteria_inside_a_block(target, drafter):
    said = target.generate(PROMPT, **GREEDY)[0, PROMPT.shape[1] :].tolist()
    for token in set(said):
        criteria = StoppingCriteriaList([StopAfter(token)])
        plain = target.generate(PROMPT, stopping_criteria=criteria, **GREEDY)
        ours = target.generate(PROMPT, stopping_criteria=criteria, assistant_model=drafter, **GREEDY)
        assert torch.equal(plain, ours)


def test_processors_are_not_asked_about_finished_text(target, draft):
    """Grammars raise once they are through; plain decoding never asks them then."""
    said = target.generate(PROMPT, **GREEDY)[0, PROMPT.shape[1] :].tolist()
    end = said[5]

    def allowed(_, ids):
        assert end not in ids[PROMPT.shape[1] :].tolist()
        return list(range(48))

    for do_sample in (False, True):
        options = {**GREEDY, "do_sample": do_sample, "eos_token_id": end, "prefix_allowed_tokens_fn": allowed}
        target.generate(PROMPT, assistant_model=draft, **options)


def test_only_an_end_token_is_possible(target, draft):
    out = target.generate(PROMPT, assistant_model=draft, do_sample=True, forced_eos_token_id=7, max_new_tokens=6)
    assert out.shape[1] <= PROMPT.shape[1] + 6
    only = {"do_sample": True, "eos_token_id": 9, "max_new_tokens": 6, "assistant_model": draft}
    out = target.generate(PROMPT, prefix_allowed_tokens_fn=lambda _, ids: [9] if len(ids) > 7 else [4], **only)
    assert out[0, PROMPT.shape[1] :].tolist() == [4, 4, 9]


def test_stop_strings_and_eos(target, drafter, tokenizer):
    said = target.generate(PROMPT, **GREEDY)[0, PROMPT.shape[1] :].tolist()
    for token in sorted(set(said))[:6]:
        for option in ({"stop_strings": [tokenizer.decode(token)], "tokenizer": tokenizer}, {"eos_token_id": token}):
            plain = target.generate(PROMPT, **option, **GREEDY)
            assert torch.equal(plain, target.generate(PROMPT, assistant_model=drafter, **option, **GREEDY))


class Forbid(LogitsProcessor):
    """Depends on the tokens so far, like a grammar."""

    def __call__(self, input_ids, scores):
        scores = scores.clone()
        scores[:, (input_ids[0, -1] * 7 + 3) % scores.shape[-1]] = -float("inf")
        return scores


def test_own_logits_processor(target, drafter):
    options = {**GREEDY, "logits_processor": LogitsProcessorList([Forbid()])}
    plain = target.generate(PROMPT, **options)
    assert torch.equal(plain, target.generate(PROMPT, assistant_model=drafter, **options))


def test_num_assistant_tokens_is_an_upper_bound(target, drafter):
    target.generate(PROMPT, assistant_model=drafter, num_assistant_tokens=2, **GREEDY)
    assert max(drafter.statistics.drafted) == 2


def test_left_padding_and_one_token_prompts(target, drafter):
    for ids in ([[0, 0, 0, 3, 9]], [[7]], [[0, 0, 7]]):
        ids = torch.tensor(ids)
        options = {**GREEDY, "attention_mask": ids.ne(0).long()}
        assert torch.equal(target.generate(ids, **options), target.generate(ids, assistant_model=drafter, **options))


def test_padding_does_not_change_the_drafts(target):
    draft, padded = stock(make_draft()), torch.tensor([[0, 0, 0, *PROMPT[0].tolist()]])
    target.generate(PROMPT, assistant_model=draft, **GREEDY)
    alone = draft.statistics
    target.generate(padded, attention_mask=padded.ne(0).long(), assistant_model=draft, **GREEDY)
    assert draft.statistics == alone


def test_a_cache_continued_over_turns(target):
    draft, fresh = make_draft(), make_draft()
    caches = {"plain": DynamicCache(config=target.config), "ours": DynamicCache(config=target.config)}
    ids = {name: PROMPT for name in caches}
    for turn in range(3):
        ids["plain"] = target.generate(ids["plain"], past_key_values=caches["plain"], **GREEDY)
        ids["ours"] = target.generate(ids["ours"], past_key_values=caches["ours"], assistant_model=draft, **GREEDY)
        assert torch.equal(ids["plain"], ids["ours"])
        said = torch.tensor([[8, 13, 21 + turn]])
        ids = {name: torch.cat([value, said], dim=-1) for name, value in ids.items()}
    context = getattr(caches["ours"], draft._context_key)
    assert context.get_seq_length() > caches["ours"].get_seq_length() - 3 * (draft.config.block_size + 1)
    # A copy goes on by itself; a shortened cache and another drafter start anew. All stay lossless.
    copied = copy.deepcopy(caches["ours"])
    copied.crop(-(copied.get_seq_length() - 2))
    short = target.generate(PROMPT, past_key_values=copied, assistant_model=draft, **GREEDY)
    assert torch.equal(short, target.generate(PROMPT, **GREEDY))
    plain = target.generate(ids["plain"], past_key_values=caches["plain"], **GREEDY)
    assert torch.equal(
        plain, target.generate(ids["ours"], past_key_values=caches["ours"], assistant_model=fresh, **GREEDY)
    )


def test_pipeline(target, draft, tokenizer):
    options = {"max_new_tokens": 8, "do_sample": False}
    plain = pipeline("text-generation", model=target, tokenizer=tokenizer)("BrEad", **options)
    ours = pipeline("text-generation", model=target, tokenizer=tokenizer, assistant_model=draft)("BrEad", **options)
    assert plain == ours
    assert draft.statistics.rounds > 0


def test_statistics_convention(target):
    """Hand count: 12 new tokens, always right, 5 drafts a round: 1 from the prefill, 6, then room for 4 drafts and 1."""
    draft = stock(make_draft(cls=RightDraft))
    target.generate(PROMPT, assistant_model=draft, max_new_tokens=12, do_sample=False, eos_token_id=None)
    counts = draft.statistics
    assert (counts.accepted, counts.drafted, counts.rounds) == ([5, 4], [5, 4], 2)
    assert counts.drafted_tokens == 9
    assert counts.acceptance_length == 5.5  # (6 + 5) / 2


def test_draft_in_another_dtype(target):
    draft = make_draft().to(torch.bfloat16)
    plain = target.generate(PROMPT, **GREEDY)
    assert torch.equal(plain, target.generate(PROMPT, assistant_model=draft, **GREEDY))
    target.generate(PROMPT, assistant_model=draft, do_sample=True, max_new_tokens=8)


def test_seeded_sampling_is_reproducible(target, draft):
    options = {"do_sample": True, "max_new_tokens": 12, "assistant_model": draft}
    outs = []
    for _ in range(2):
        torch.manual_seed(7)
        outs.append(target.generate(PROMPT, **options))
    assert torch.equal(*outs)


def test_generation_config_object(target, draft):
    config = GenerationConfig(max_new_tokens=9, do_sample=False, pad_token_id=0)
    plain = target.generate(PROMPT, generation_config=config)
    assert torch.equal(plain, target.generate(PROMPT, generation_config=config, assistant_model=draft))


def test_head_off_through_transformers_own_dflash():
    """The same weights without the head, in the fill-in layout: transformers' dflash drives the backbone."""
    target, draft = make_target(), make_draft(shift_label=False)
    plain = target.generate(PROMPT, **GREEDY)
    assert torch.equal(plain, target.generate(PROMPT, assistant_model=draft, speculation_type="dflash", **GREEDY))
