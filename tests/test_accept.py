"""Accept rules on small vocabularies: exact laws by enumeration, and which keeps more."""

import itertools

import pytest
import torch
from domino.verification.accept import RULES, greedy, likeliest

VOCAB, DRAFTS = 4, 3


def process(seed, spread=1.0):
    """p(x | prefix) and q(x | prefix) of two random models of order 1, as tables [VOCAB + 1, VOCAB]; the last row begins."""
    generator = torch.Generator().manual_seed(seed)
    return [(spread * torch.randn(VOCAB + 1, VOCAB, generator=generator)).softmax(-1).double() for _ in range(2)]


def play(rule, p, q, rows, counts):
    """One round: drafts from q, then the rule. Returns the text after the round, [rows, DRAFTS + 1], -1 beyond its end."""
    before = torch.full((rows,), VOCAB)
    drafts, qs, ps = [], [], [p[before]]
    for _ in range(DRAFTS):
        qs.append(q[before])
        before = torch.multinomial(qs[-1], 1)[:, 0]
        drafts.append(before)
        ps.append(p[before])
    drafts = torch.stack(drafts, 1)
    accepted, token = RULES[rule](torch.stack(ps, 1), torch.stack(qs, 1), drafts, counts)
    place = torch.arange(DRAFTS + 1)
    text = torch.where(place < accepted[:, None], torch.nn.functional.pad(drafts, (0, 1)), -1)
    return text.scatter(1, accepted[:, None], token[:, None]), accepted


def complete(text, p):
    """What the round left open, from p itself: then the whole text must have the law of p."""
    for place in range(text.shape[1]):
        before = text[:, place - 1] if place else torch.full((len(text),), VOCAB)
        fresh = torch.multinomial(p[before], 1)[:, 0]
        text[:, place] = torch.where(text[:, place] < 0, fresh, text[:, place])
    return text


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("seed", range(3))
def test_text_has_the_law_of_the_target(rule, seed):
    torch.manual_seed(seed)
    p, q = process(seed)
    rows = 60_000
    counts = torch.tensor([0, 1, 2, 3]).repeat(rows // 4)
    text = complete(play(rule, p, q, rows, counts)[0], p)
    law = torch.zeros(VOCAB ** (DRAFTS + 1), dtype=torch.double)
    index = (text * VOCAB ** torch.arange(DRAFTS, -1, -1)).sum(-1)
    law += torch.bincount(index, minlength=len(law)) / rows
    truth = torch.tensor(
        [
            float(p[VOCAB, a] * p[a, b] * p[b, c] * p[c, d])
            for a, b, c, d in itertools.product(range(VOCAB), repeat=DRAFTS + 1)
        ],
        dtype=torch.double,
    )
    drawn = [torch.bincount(torch.multinomial(truth, rows, True), minlength=len(truth)) / rows for _ in range(100)]
    noise = ((torch.stack(drawn) - truth).abs().sum(-1) / 2).max()
    assert (law - truth).abs().sum() / 2 < 1.1 * noise


@pytest.mark.parametrize("seed", range(4))
def test_block_keeps_at_least_as_many_as_leviathan_and_that_as_exact_match(seed):
    torch.manual_seed(seed)
    p, q = process(seed)
    rows = 40_000
    counts = torch.full((rows,), DRAFTS)
    means = {rule: play(rule, p, q, rows, counts)[1].double().mean() for rule in RULES}
    assert means["block"] > means["leviathan"] - 0.02
    assert means["leviathan"] > means["exact"] + 0.05


def test_equal_models_keep_everything():
    p, _ = process(0)
    for rule in ("block", "leviathan"):
        _, accepted = play(rule, p, p.clone(), 500, torch.full((500,), DRAFTS))
        assert (accepted == DRAFTS).all()


def test_no_rule_goes_beyond_its_counts():
    p, q = process(1)
    counts = torch.tensor([0, 1, 2, 3]).repeat(100)
    for rule in RULES:
        _, accepted = play(rule, p, q, 400, counts)
        assert (accepted <= counts).all()
        assert (accepted == counts).any()


def test_greedy_by_hand():
    assert greedy([[5, 7, 9]] * 3, [[5, 8], [5, 7], [5, 7]], [2, 2, 1]) == ([1, 2, 1], [7, 9, 7])
    assert greedy([[5]] * 3, [[]] * 3, [0, 0, 0]) == ([0, 0, 0], [5, 5, 5])
    assert greedy([], [], []) == ([], [])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_likeliest_is_argmax(dtype):
    """Of equals the first; a NaN before all."""
    logits = torch.randint(0, 3, (4, 5, 100), generator=torch.Generator().manual_seed(0)).to(dtype)
    logits[1, 2] = -torch.inf
    logits[2, 3, 70] = torch.nan
    assert torch.equal(likeliest(logits), logits.argmax(dim=-1))
    assert torch.equal(likeliest(logits[0, 0]), logits[0, 0].argmax())
