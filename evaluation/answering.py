"""Answer one question with several methods in turn, on the same prompts."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from .losslessness import first_gap
from .methods import PLAIN, Method, Models
from .tasks import Question
from .watch import Call, Watch


@dataclass
class Turn:
    """One turn of a conversation, answered by one method.

    Attributes:
        text: of the first run. runs: one a repetition. same: whether the first run's token ids are plain `generate`'s; None where
            sampling makes the question meaningless for some methods. gap: see `first_gap`, where they differ.
    """

    text: str
    runs: list[Call] = field(default_factory=list)
    same: bool | None = None
    gap: float | None = None


def encode(tokenizer, messages: str | list[dict[str, str]], device) -> dict[str, Tensor]:
    """A conversation (or one user message) through the chat template, as inputs of `generate`."""
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    inputs = tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, return_tensors="pt", return_dict=True, enable_thinking=False
    )
    return inputs.to(device)


def decoding(temperature: float, max_new_tokens: int) -> dict[str, Any]:
    """Arguments of `generate`: greedy at 0, else sampling from the whole distribution at that temperature."""
    # no penalty and no truncation, whatever the target's generation config says: Qwen2.5's has 1.05 and 20 tokens
    options: dict[str, Any] = {"max_new_tokens": max_new_tokens, "repetition_penalty": 1.0}
    if temperature == 0:
        return {"do_sample": False, **options}
    whole = {"top_k": 0, "top_p": 1.0, "min_p": None, "typical_p": 1.0, "epsilon_cutoff": 0.0, "eta_cutoff": 0.0}
    return {"do_sample": True, "temperature": temperature, **options, **whole}


def run(models: Models, method: Method, inputs: dict[str, Tensor], seed: int, **options) -> tuple[Tensor, Call]:
    """One watched `generate` call. Returns ids [1, length] and what happened."""
    further = method.options(models)
    torch.manual_seed(seed)
    with Watch(models.target, method.drafter(models)) as watch:
        ids = models.target.generate(**inputs, **options, **further)
    prompt = inputs["input_ids"].shape[1]
    return ids, watch.call(prompt, ids.shape[1] - prompt)


def answer(
    models: Models,
    methods: dict[str, Method],
    question: Question,
    temperature: float,
    max_new_tokens: int,
    repeats: int,
    seed: int,
) -> dict[str, list[Turn]]:
    """All turns of a question by all methods, A B A B: {method: turns}.

    Plain `generate` comes first and its answers are the history that later turns of every method read, so all are given the
    same prompts. The order turns by one from repetition to repetition.
    """
    options, names = decoding(temperature, max_new_tokens), list(methods)
    history: list[dict[str, str]] = []
    found: dict[str, list[Turn]] = {name: [] for name in names}
    for place, text in enumerate(question.turns):
        history.append({"role": "user", "content": text})
        inputs = encode(models.tokenizer, history, models.target.device)
        first: dict[str, Tensor] = {}
        for repeat in range(repeats):
            turn = repeat % len(names)
            for name in names[turn:] + names[:turn]:
                own = zlib.crc32(f"{seed} {question.id} {place} {repeat}".encode())
                ids, call = run(models, methods[name], inputs, own, **options)
                if name not in first:
                    first[name] = ids
                    found[name].append(Turn(_text(models.tokenizer, ids, inputs)))
                found[name][-1].runs.append(call)
        if temperature == 0:
            _compare(models.target, first, found)
        history.append({"role": "assistant", "content": found[PLAIN][-1].text})
    return found


def _text(tokenizer, ids: Tensor, inputs: dict[str, Tensor]) -> str:
    return tokenizer.decode(ids[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)


def _compare(target, first: dict[str, Tensor], found: dict[str, list[Turn]]) -> None:
    plain = first[PLAIN]
    for name, ids in first.items():
        turn = found[name][-1]
        turn.same = torch.equal(plain, ids)
        turn.gap = None if turn.same else first_gap(target, plain, ids)
