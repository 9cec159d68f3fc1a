"""Sampled output of the engine has the target's distribution, for every accept rule, in ragged batches and with lengths chosen as it goes."""

import itertools

import pytest
import torch
from domino import generate
from domino.generation.budget import Round
from domino.verification import accept
from tiny import make_draft, make_target
from transformers.generation import LogitsProcessorList

VOCAB, END = 6, 2
TOKENS = {"vocab_size": VOCAB, "bos_token_id": None, "eos_token_id": None}
SHAPE = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
PROMPTS = [torch.tensor([1, 4, 2, 5]), torch.tensor([3, 1])]
OPTIONS = {"do_sample": True, "temperature": 0.8, "top_k": 5, "top_p": 0.9}
PLACE = torch.tensor([VOCAB**2, VOCAB, 1])


@pytest.fixture(scope="module")
def pair():
    target = make_target(**SHAPE, **TOKENS).float()
    draft = make_draft(
        target_layer_ids=[0],
        mask_token_id=5,
        block_size=3,
        num_target_layers=1,
        initializer_range=0.1,
        **SHAPE,
        **TOKENS,
    )
    return target, draft.float()


@torch.no_grad()
def exact(target, prompt, **more) -> torch.Tensor:
    """P(x1, x2, x3 | prompt) by enumeration, [VOCAB ** 3]; END is followed by END only."""
    config, _ = target._prepare_generation_config(None, **OPTIONS, **more, eos_token_id=END, pad_token_id=0)
    target._prepare_special_tokens(config, True, device="cpu")
    processors = target._get_logits_processor(config, input_ids_seq_length=len(prompt), device="cpu")
    assert isinstance(processors, LogitsProcessorList)
    tails = torch.tensor(list(itertools.product(range(VOCAB), repeat=3)))
    ids = torch.cat([prompt.expand(len(tails), -1), tails], dim=-1)
    logits = target(ids).logits.float()
    joint, ended = torch.ones(len(tails)), torch.zeros(len(tails), dtype=torch.bool)
    for at in range(len(prompt), ids.shape[1]):
        p = processors(ids[:, :at], logits[:, at - 1]).softmax(-1).gather(1, ids[:, at, None])[:, 0]
        joint *= torch.where(ended, (ids[:, at] == END).float(), p)
        ended |= ids[:, at] == END
    return joint


def sampled(target, draft, rows: int, calls: int, **more) -> list[torch.Tensor]:
    """Empirical laws of three tokens for both prompts, over calls with `rows` rows of each."""
    longest = max(map(len, PROMPTS))
    ids = torch.stack([torch.nn.functional.pad(p, (longest - len(p), 0), value=5) for p in PROMPTS])
    mask = torch.stack([torch.arange(longest) >= longest - len(p) for p in PROMPTS]).long()
    ids, mask = ids.repeat(rows, 1), mask.repeat(rows, 1)
    counts = torch.zeros(2, VOCAB**3)
    for _ in range(calls):
        options = {**OPTIONS, "attention_mask": mask, "max_new_tokens": 4, "eos_token_id": END, "pad_token_id": END}
        out = generate(target, draft, ids, **options, **more)[:, longest:]
        said = torch.nn.functional.pad(out, (0, 4 - out.shape[1]), value=END)[:, :3]
        ended = (said == END).cumsum(-1) - (said == END).long() > 0
        said = said.masked_fill(ended, END)
        for prompt in range(2):
            counts[prompt] += torch.bincount((said[prompt::2] * PLACE).sum(-1), minlength=VOCAB**3)
    return list(counts / (rows * calls))


def limit(truth: torch.Tensor, samples: int) -> torch.Tensor:
    """Total variation that honest samples of this size stay within: the worst of 200, and a tenth."""
    drawn = [torch.bincount(torch.multinomial(truth, samples, True), minlength=VOCAB**3) / samples for _ in range(200)]
    return ((torch.stack(drawn) - truth).abs().sum(-1) / 2).max() * 1.1


def distances(pair, rows, calls, processors=None, **engine) -> list[float]:
    """Total variation from the truth, in units of the noise limit, for both prompts."""
    target, draft = pair
    found = sampled(target, draft, rows, calls, **engine, **(processors or {}))
    truths = [exact(target, prompt, **(processors or {})) for prompt in PROMPTS]
    return [
        float((ours - truth).abs().sum() / 2 / limit(truth, rows * calls))
        for ours, truth in zip(found, truths, strict=True)
    ]


@pytest.mark.parametrize("rule", accept.RULES)
def test_joint_distribution(pair, rule):
    torch.manual_seed(0)
    assert max(distances(pair, 2000, 15, accept=rule, verify_length=3)) < 1
    if rule != "exact":
        accepted = [n for row in pair[1].row_statistics for n in row.accepted]
        assert 0 < sum(accepted) < sum(n for row in pair[1].row_statistics for n in row.drafted)


def test_drafts_from_a_pool(pair):
    """q is -inf outside of the pool, p is not."""
    torch.manual_seed(0)
    assert max(distances(pair, 2000, 15, candidate_pool=3, verify_length=3)) < 1


def test_processors_that_read_the_text(pair):
    """Fewer samples, since each row is processed by itself."""
    torch.manual_seed(0)
    assert max(distances(pair, 4, 400, {"repetition_penalty": 1.3}, verify_length=3)) < 1


def always_keep_the_first(p, q, drafts, counts):
    """Biased: one draft is kept unseen, where there is one."""
    accepted, token = accept.leviathan(p, q, drafts, counts)
    return accepted.clamp(min=1).minimum(counts), token


def residual_of_nothing(p, q, drafts, counts):
    """Biased: what follows a turned-down draft comes from p instead of the residual."""
    accepted, _ = accept.leviathan(p, q, drafts, counts)
    return accepted, torch.multinomial(p[torch.arange(len(p)), accepted], 1)[:, 0]


@pytest.mark.parametrize("rule", [always_keep_the_first, residual_of_nothing])
def test_biased_rules_are_caught(pair, rule, monkeypatch):
    monkeypatch.setitem(accept.RULES, "block", rule)
    torch.manual_seed(0)
    assert min(distances(pair, 2000, 10, verify_length=3)) > 2


class ByTheTop(Round):
    """Stops by the largest probability, as the engine does, at a fixed threshold."""

    def pays(self, confidences):
        return confidences[0] > 0.34


def test_lengths_chosen_by_what_is_known_before_the_draw(pair, monkeypatch):
    """One row at a time, so that every row has a length of its own."""
    from domino.generation import budget as verify_length
    from domino.generation import engine

    monkeypatch.setattr(verify_length.VerifyLength, "unknown", lambda *args: None)
    monkeypatch.setattr(verify_length.VerifyLength, "judge", lambda *args: None)
    monkeypatch.setattr(engine, "Round", ByTheTop)
    monkeypatch.setattr(ByTheTop, "__init__", lambda self, *args: None)
    torch.manual_seed(0)
    lengths = set()
    target, draft = pair
    law = torch.zeros(VOCAB**3)
    prompt = PROMPTS[0][None]
    options = {**OPTIONS, "max_new_tokens": 4, "eos_token_id": END, "pad_token_id": END}
    calls = 2500
    for _ in range(calls):
        out = generate(target, draft, prompt, **options)[0, prompt.shape[1] :][:3]
        law[(torch.nn.functional.pad(out, (0, 3 - len(out)), value=END) * PLACE).sum()] += 1
        lengths |= set(draft.statistics.drafted)
    truth = exact(target, PROMPTS[0])
    assert len(lengths) > 1
    assert (law / calls - truth).abs().sum() / 2 < limit(truth, calls)
