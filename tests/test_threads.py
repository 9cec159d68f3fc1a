"""Streamers in threads, two calls at once on one target and drafter, and the pipeline."""

from concurrent.futures import ThreadPoolExecutor
from threading import Thread

import pytest
import torch
from corpus import letter_tokenizer
from judging import Heard
from tiny import make_draft, stock
from transformers import TextIteratorStreamer, pipeline

PROMPTS = [torch.tensor([[18, 20, 36, 18, 11, 14]]), torch.tensor([[38, 33, 10, 24, 29, 37, 31, 14]])]
OPTIONS = {"max_new_tokens": 24, "do_sample": False, "eos_token_id": None}


@pytest.fixture(params=[lambda draft: draft, stock], ids=["engine", "transformers"])
def draft(request):
    return request.param(make_draft())


def test_a_text_streamer_in_a_thread(target, draft):
    tokenizer = letter_tokenizer()
    streamer = TextIteratorStreamer(tokenizer, skip_prompt=True, timeout=60)
    given = {"assistant_model": draft, "streamer": streamer, **OPTIONS}
    thread = Thread(target=target.generate, args=(PROMPTS[0],), kwargs=given)
    thread.start()
    heard = "".join(streamer)
    thread.join()
    plain = target.generate(PROMPTS[0], **OPTIONS)[0, PROMPTS[0].shape[1] :]
    assert heard == tokenizer.decode(plain)


@pytest.mark.parametrize("rows", [1, 3])
def test_two_calls_at_once(target, draft, rows):
    """On one target and drafter; each gets its own text, whatever the other does."""
    if rows > 1 and draft.settings.loop == "transformers":
        pytest.skip("transformers' loop takes one row")
    prompts = [prompt.repeat(rows, 1) for prompt in PROMPTS]
    for row in range(1, rows):  # unlike rows
        prompts = [torch.cat([p[:row], p[row:] % 31 + 3 + row]) for p in prompts]
    plain = [target.generate(prompt, **OPTIONS) for prompt in prompts]
    with ThreadPoolExecutor(2) as pool:
        for _ in range(10):
            ours = pool.map(lambda prompt: target.generate(prompt, assistant_model=draft, **OPTIONS), prompts)
            assert all(map(torch.equal, plain, ours))


def test_calls_at_once_on_caches_of_their_own(target, draft):
    """Drafter contexts ride on the caches, so two chats do not meet."""
    plain = [target.generate(prompt, return_dict_in_generate=True, **OPTIONS).sequences for prompt in PROMPTS]

    def chat(prompt):
        first = target.generate(
            prompt, assistant_model=draft, return_dict_in_generate=True, **{**OPTIONS, "max_new_tokens": 9}
        )
        cache, text = first.past_key_values, first.sequences
        return target.generate(text, past_key_values=cache, assistant_model=draft, **{**OPTIONS, "max_new_tokens": 15})

    with ThreadPoolExecutor(2) as pool:
        for _ in range(5):
            assert all(map(torch.equal, plain, pool.map(chat, PROMPTS)))


def test_a_pipeline_with_batches(target):
    """Ragged prompts, padded on the left by the pipeline."""
    draft, texts = make_draft(), ["BeEad", "CabbagE", "A", "HIgh"]
    options = {"max_new_tokens": 12, "do_sample": False, "batch_size": 2}
    plain = pipeline("text-generation", model=target, tokenizer=letter_tokenizer())(texts, **options)
    ours = pipeline("text-generation", model=target, tokenizer=letter_tokenizer(), assistant_model=draft)(
        texts, **options
    )
    assert ours == plain
    assert len(draft.row_statistics) == 2


def test_a_streamer_is_told_as_rounds_go(target):
    """Not all at once at the end."""
    told = []

    class Told(Heard):
        def put(self, value):
            told.append(value.flatten().tolist())

    target.generate(PROMPTS[0], assistant_model=make_draft(), streamer=Told(), **OPTIONS)
    assert told[0] == PROMPTS[0][0].tolist()
    assert len(told) > 2
    assert sum(map(len, told[1:])) == 24
