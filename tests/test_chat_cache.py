"""A cache over chat turns: text, keys and values equal plain `generate`'s, and the target reads every token of a prompt once."""

from collections import Counter

import pytest
import torch
from samegen import check_same_cache
from tiny import make_draft, make_target
from torch import Tensor
from transformers import DynamicCache, StaticCache

START = torch.tensor([[18, 20, 36, 18, 45, 14]])
BATCH = torch.tensor([[38, 33, 10, 24, 29, 37, 31, 14], [0, 0, 0, 7, 12, 33, 8, 5], [0, 0, 0, 0, 0, 0, 21, 30]])
NEW = 9
HOW = ("whole", "new", "mixed", "static", "plain on even turns", "plain on odd turns")


def dynamic(target) -> DynamicCache:
    return DynamicCache(config=target.config)


def static(target) -> StaticCache:
    return StaticCache(config=target.config, max_cache_len=80)


def ask(target, text: Tensor, cache, mask: Tensor | None = None, whole: bool = True, **more) -> Tensor:
    """One turn of rows whose text so far is [R, n]; returns it with the answers."""
    held = 0 if whole else int(cache.get_seq_length())
    mask = torch.ones_like(text) if mask is None else mask
    options = {"max_new_tokens": NEW, "do_sample": False, "eos_token_id": None, **more}
    out = target.generate(text[:, held:], attention_mask=mask, past_key_values=cache, **options)
    return torch.cat([text[:, :held], out], dim=1)


def goes_on(text: Tensor, turn: int) -> Tensor:
    """What is asked next."""
    return torch.cat([text, torch.tensor([[3 + turn, 9, 27]]).expand(len(text), -1)], dim=1)


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("family", ["llama", "mistral", "gpt_neox"])
def test_five_turns(family, how):
    if (family, how) == ("mistral", "static"):
        pytest.skip("a static cache that slides is refused")
    target, draft = make_target(family), make_draft()  # mistral's window is shorter than the text
    make = static if how == "static" else dynamic
    plain, ours, text, same = make(target), make(target), START, START
    read: Counter[int] = Counter()
    for turn in range(5):
        text, same = goes_on(text, turn), goes_on(same, turn)
        width, held = text.shape[1], int(ours.get_seq_length())
        text = ask(target, text, plain)
        drafts = how != f"plain on {('even', 'odd')[turn % 2]} turns"
        hook = target.register_forward_pre_hook(
            lambda module, args, given: read.update(given["position_ids"].flatten().tolist()), with_kwargs=True
        )
        whole = how != "new" and not (how == "mixed" and turn % 2)
        same = ask(target, same, ours, whole=whole, **({"assistant_model": draft} if drafts else {}))
        hook.remove()
        assert torch.equal(text, same)
        # of the prompt what was not cached, once; the answer may have been drafted in vain before it was said
        assert {place: times for place, times in read.items() if place < width} == dict.fromkeys(range(held, width), 1)
        read.clear()
        check_same_cache(plain, ours, torch.ones(1, width), torch.ones(NEW, 1, dtype=torch.bool))


@pytest.mark.parametrize("whole", [True, False])
def test_rows_that_end_at_unlike_places(target, whole):
    """Plain `generate` reads the last token of a row that ends before the others, and so must we; the gap behind it is masked."""
    draft = make_draft()
    ends = {"eos_token_id": list(range(3, 20)), "pad_token_id": 0}
    texts = []
    for more in ({}, {"assistant_model": draft}):
        cache, text, mask = dynamic(target), BATCH, BATCH.ne(0).long()
        for turn in range(3):
            text = ask(target, text, cache, mask, whole, **ends, **more)
            said = text[:, mask.shape[1] :].ne(0).long()
            mask = torch.cat([mask, said, said.new_ones(3, 3)], dim=1)
            assert turn or said.sum(dim=1).unique().numel() > 1
            text = goes_on(text, turn)
        texts.append(text)
    assert torch.equal(*texts)


@pytest.mark.parametrize("cut", [1, 5])
def test_a_cropped_cache(target, draft, cut):
    """An answer that is taken back: the last tokens of both caches are dropped, and another question follows."""
    texts = []
    for more in ({}, {"assistant_model": draft}):
        cache = dynamic(target)
        text = ask(target, START, cache, **more)
        cache.crop(-cut)
        text = goes_on(text[:, : cache.get_seq_length()], 7)
        texts.append(ask(target, text, cache, **more))
    assert torch.equal(*texts)


def test_neither_all_nor_the_new_text_is_refused(target, draft):
    cache = dynamic(target)
    text = ask(target, START, cache, assistant_model=draft)
    with pytest.raises(ValueError, match="holds 14 tokens, 3 were passed, and the attention_mask covers 3: pass all"):
        target.generate(text[:, -3:], past_key_values=cache, assistant_model=draft, max_new_tokens=4)
