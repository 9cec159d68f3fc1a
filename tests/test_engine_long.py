"""The engine over time: many requests leak nothing and never differ from plain decoding; long texts stay within the stated memory."""

import gc
import os
import random
import subprocess
import sys

import pytest
import torch
from domino import generate
from domino.verification.accept import RULES
from oracles import oracle, told
from tiny import VOCAB, make_draft, make_target


def options(dice: random.Random) -> dict:
    """Random arguments of a greedy call, on random ragged prompts."""
    rows, longest = dice.randint(1, 8), dice.randint(1, 24)
    generator = torch.Generator().manual_seed(dice.randrange(2**31))
    ids = torch.randint(3, VOCAB - 1, (rows, longest), generator=generator)
    mask = torch.ones_like(ids)
    for row in range(1, rows):
        mask[row, : dice.randrange(longest)] = 0
    found = {"inputs": ids, "attention_mask": mask, "max_new_tokens": dice.randint(1, 40), "do_sample": False}
    found |= dice.choice([{}, {"eos_token_id": [2, 7, 11]}, {"eos_token_id": None, "pad_token_id": 0}])
    found |= dice.choice([{}, {"repetition_penalty": 1.3}, {"no_repeat_ngram_size": 3}, {"suppress_tokens": [9, 10]}])
    return found


def settings(dice: random.Random) -> dict:
    return {
        "budget": dice.choice(["auto", 0, 1, 4, 24, 64]),
        "shape": dice.choice(["auto", "tree", "chain"]),
        "lookup": dice.choice([True, True, False]),
        "lookup_memory": dice.choice([0, 0, 50, 1000]),
        "draft_window": dice.choice([None, 3, 16]),
        "prefill_chunk": dice.choice([4, 512]),
        "candidate_pool": dice.choice([0, 8, 1024]),
        "cache_implementation": dice.choice([None, "static"]),
        "num_assistant_tokens": dice.choice([None, None, 2]),
    }


def soak(requests: int, seed: int = 0) -> None:
    """Raises `AssertionError` where a request differs or live tensors grow; every fifth samples as well, from the same models."""
    target, dice = make_target(), random.Random(seed)
    drafts = [make_draft(), oracle("hidden", seed, learns=True)]
    alive = []
    for request in range(requests):
        given, how, draft = options(dice), settings(dice), dice.choice(drafts)
        ids = given.pop("inputs")
        plain = target.generate(ids, **given)
        told(draft, plain, given["attention_mask"])
        ours = generate(target, draft, ids, **given, **how)
        assert torch.equal(plain, ours), (request, given, how)
        if request % 5 == 4:
            how |= {"accept": dice.choice(list(RULES)), "draws": dice.choice(["shared", "sampled"])}
            said = generate(target, drafts[0], ids, **given | {"do_sample": True, "temperature": 0.7}, **how)
            assert said.shape[1] <= ids.shape[1] + given["max_new_tokens"]
        if request % 10 == 9:
            gc.collect()
            alive.append(sum(torch.is_tensor(thing) for thing in gc.get_objects()))
    assert max(alive[2:]) <= alive[1] + 5, alive


def test_soak():
    soak(60)


@pytest.mark.slow
def test_soak_of_a_thousand():
    soak(1000, seed=1)


LONG = """
import resource, sys, torch
from domino import DominoModel, generate
from domino.embedded.smollm2 import DRAFTER, target_folder
from transformers import AutoModelForCausalLM
prompt, new, window = map(int, sys.argv[1:])
torch.set_num_threads(2)
target = AutoModelForCausalLM.from_pretrained(target_folder(), dtype="bfloat16")
draft = DominoModel.from_pretrained(DRAFTER, dtype="bfloat16")
text = torch.randint(1000, 40000, (1, prompt), generator=torch.Generator().manual_seed(0))
options = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0, "draft_window": window}
generate(target, draft, text[:, :600], max_new_tokens=16, **options)  # weights packed, buffers warm
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
out = generate(target, draft, text, max_new_tokens=new, cache_implementation="static", **options)
assert out.shape[1] == prompt + new
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
"""


def memory(prompt: int, new: int, window: int) -> int:
    """Bytes by which the peak grew, in a process of its own."""
    out = subprocess.run(
        [sys.executable, "-c", LONG, str(prompt), str(new), str(window)],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )
    return int(out.stdout.split()[-1])


def bound(slots: int, chunk: int = 512) -> int:
    """Of SmolLM2 in bfloat16, docs/measurements.md: its cache; a chunk's mask and attention; 64 MiB for the rest."""
    cache = slots * 2 * 30 * 3 * 64 * 2
    copies = 2 * slots * 9 * 64 * 2  # keys and values of one layer for every query head
    mask = chunk * slots * 2
    return cache + copies + mask + 64 * 2**20


def test_memory_of_a_long_prompt():
    assert memory(2048, 32, 512) <= bound(2048 + 32 + 65)


@pytest.mark.slow
def test_memory_of_8k_and_4k():
    assert memory(8192, 4096, 1024) <= bound(8192 + 4096 + 65)
