"""A seed gives the text of plain `generate`, whatever is drafted and however: the same random numbers make the same tokens."""

import pytest
import torch
from domino.generation import choosing
from domino.generation.noise import Noise
from oracles import oracle, told
from tiny import VOCAB, make_draft, make_target

IDS = torch.tensor([[18, 20, 36, 18, 45, 14], [1, 5, 9, 3, 3, 7], [0, 0, 5, 6, 7, 8]])
MASK = IDS.ne(0).long()
OPTIONS = [
    {},
    {"temperature": 0.6, "top_p": 0.9},
    {"repetition_penalty": 1.3, "top_k": 10},
    {"min_p": 0.05, "no_repeat_ngram_size": 2, "eos_token_id": [2, 7, 30]},
]
HOW = [{}, {"budget": 0}, {"budget": 3, "shape": "chain", "lookup": False}, {"budget": 24, "candidate_pool": 0}]


def twice(target, draft, rows, seed, options, how):
    """Plain `generate`'s text and ours, and the generator's state behind each."""
    given = {"attention_mask": MASK[:rows], "do_sample": True, "max_new_tokens": 20, **options}
    found = []
    for way in ({}, {"custom_generate": draft.decode, **how}):
        torch.manual_seed(seed)
        found.append((target.generate(IDS[:rows], **given, **way), torch.get_rng_state()))
        told(draft, found[0][0], MASK[:rows])
    return found


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_a_seed_gives_plain_generates_text(family, rows, options):
    target = make_target(family)
    for seed in range(6):
        draft = oracle(("random", "right", "hidden", "wrong")[seed % 4], seed)
        for how in HOW:
            (plain, after), (ours, since) = twice(target, draft, rows, seed, options, how)
            assert torch.equal(plain, ours), (seed, how)
            assert torch.equal(after, since), (seed, how)  # what the caller draws next is the same, too


def test_seeds_differ_and_right_drafts_are_kept(target):
    draft, texts = oracle("right"), []
    for seed in range(4):
        (plain, _), (ours, _) = twice(target, draft, 1, seed, {"eos_token_id": None}, {"budget": 6, "lookup": False})
        texts.append(ours)
        assert torch.equal(plain, ours)
        assert draft.statistics.acceptance_length > 5
    assert not any(torch.equal(texts[0], other) for other in texts[1:])


def test_through_the_one_argument(target):
    draft = make_draft()
    options = {"do_sample": True, "max_new_tokens": 16, "num_return_sequences": 3}
    for seed in range(5):
        torch.manual_seed(seed)
        plain = target.generate(IDS[:1], **options)
        torch.manual_seed(seed)
        assert torch.equal(plain, target.generate(IDS[:1], assistant_model=draft, **options))


def test_a_token_drawn_with_another_steps_numbers_is_caught(target, monkeypatch):
    """What follows a kept node is drawn with the numbers of the node's own step: the law of one token is right, the text is not."""

    def shifted(logits, proposal, draw):
        return own(logits, proposal, lambda row, depth, law: draw(row, max(depth - 1, 0), law))

    own = choosing.accept_shared
    monkeypatch.setattr(choosing, "accept_shared", shifted)
    draft, differs = oracle("right"), 0
    for seed in range(6):
        try:
            (plain, _), (ours, _) = twice(target, draft, 1, seed, {}, {"budget": 6})
            differs += not torch.equal(plain, ours)
        except AssertionError:  # the drafter knows the text, and notices another
            differs += 1
    assert differs > 3


def test_the_drafter_profits_from_knowing_the_numbers(target):
    """A drafter that is the target with noise on its logits: drafts made with the same numbers are kept more often."""
    generator = torch.Generator().manual_seed(0)
    p = torch.randn(2000, VOCAB, generator=generator)
    q = p + 0.5 * torch.randn(p.shape, generator=generator)
    noise, other = (torch.empty(p.shape).exponential_(generator=generator) for _ in range(2))
    said = (p.softmax(-1) / noise).argmax(-1)
    shared = (q.softmax(-1) / noise).argmax(-1).eq(said).float().mean()
    drawn = (q.softmax(-1) / other).argmax(-1).eq(said).float().mean()
    likeliest = q.argmax(-1).eq(said).float().mean()
    assert shared > 2 * max(drawn, likeliest)


def test_numbers_of_steps():
    """They come in order whoever asks first, old ones go, and the generator is put back to where the text ended."""
    torch.manual_seed(3)
    expected = [torch.empty(2, 5).exponential_() for _ in range(3)]
    after = torch.get_rng_state()
    torch.manual_seed(3)
    noise = Noise(2, 5, torch.device("cpu"))
    assert torch.equal(noise.row(1, 4)[:0], torch.empty(0))
    for step in (2, 0, 1):
        for row in (0, 1):
            assert torch.equal(noise.row(row, step), expected[step][row])
    noise.forget(2)
    assert sorted(noise.steps) == [2, 3, 4]
    noise.settle(3)
    assert torch.equal(torch.get_rng_state(), after)
