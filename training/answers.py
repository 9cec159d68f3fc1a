"""The target answers prompts in batches; the same forwards give what a drafter reads of it."""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import GenerationConfig

from .features import Capture, capture


@dataclass
class Question:
    """A prompt as the target reads it: the user message, its token ids in the chat template, and how to sample."""

    prompt: str
    ids: list[int]
    temperature: float


@dataclass
class Decoding:
    """How to answer, and what to keep of it: outputs of these target layers, and the last hidden states."""

    max_new_tokens: int
    top_p: float
    target_layer_ids: list[int]
    last_hidden: bool


def encode(pairs: list[tuple[str, float]], tokenizer, max_tokens: int, thinking: bool | None) -> list[Question]:
    """Questions of at most `max_tokens`; `thinking` reaches the chat template as `enable_thinking`, None says nothing.

    Raises:
        `ValueError`: the tokenizer has no chat template.
    """
    if tokenizer.chat_template is None:
        raise ValueError(
            f"The tokenizer of {tokenizer.name_or_path} has no chat template, so the target cannot be asked: distil an "
            "instruction-tuned target, or save a tokenizer with a `chat_template` beside the model."
        )
    options = {} if thinking is None else {"enable_thinking": thinking}
    questions = []
    for prompt, temperature in pairs:
        chat = [{"role": "user", "content": prompt}]
        ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, **options)["input_ids"]
        if len(ids) <= max_tokens:
            questions.append(Question(prompt, ids, temperature))
    return questions


def batches(questions: list[Question], size: int, seed: int) -> list[list[Question]]:
    """Batches of one temperature and similar length, in a random order so that every prefix is a fair mix."""
    groups = []
    window = size * 16  # sort inside windows only: neighbours in length, but no batch of one kind of prompt
    for temperature in sorted({q.temperature for q in questions}):
        rows = [q for q in questions if q.temperature == temperature]
        for at in range(0, len(rows), window):
            chunk = sorted(rows[at : at + window], key=lambda q: len(q.ids))
            groups += [chunk[i : i + size] for i in range(0, len(chunk), size)]
    random.Random(seed).shuffle(groups)
    return groups


def use_plain_decoding(target, tokenizer) -> None:
    """Keep nothing of the target's generation config but its special tokens.

    `generate` would mix a checkpoint's own temperature or repetition penalty into what the command line says.
    """
    eos = target.generation_config.eos_token_id
    eos = tokenizer.eos_token_id if eos is None else eos
    pads = (tokenizer.pad_token_id, eos[0] if isinstance(eos, list) else eos, 0)
    target.generation_config = GenerationConfig(eos_token_id=eos, pad_token_id=next(p for p in pads if p is not None))


@torch.inference_mode()
def answer(target, tokenizer, batch: list[Question], decoding: Decoding) -> tuple[list[dict], dict[str, Tensor]]:
    """Answer a batch of one temperature.

    Returns:
        The rows and the tensors of a shard (see `shards.py`), on the CPU. An answer that is empty (the target ended at once) has
        no row.
    """
    width, pad = max(len(q.ids) for q in batch), target.generation_config.pad_token_id
    ids = torch.tensor([[pad] * (width - len(q.ids)) + q.ids for q in batch], device=target.device)
    mask = torch.tensor([[0] * (width - len(q.ids)) + [1] * len(q.ids) for q in batch], device=target.device)
    temperature = batch[0].temperature
    sampling = {"do_sample": True, "temperature": temperature, "top_p": decoding.top_p, "top_k": 0}
    with capture(target, decoding.target_layer_ids, decoding.last_hidden) as kept:
        said = target.generate(
            input_ids=ids,
            attention_mask=mask,
            max_new_tokens=decoding.max_new_tokens,
            **(sampling if temperature else {"do_sample": False}),
        )
    ends = target.generation_config.eos_token_id
    ends = set(ends if isinstance(ends, list) else [ends])
    answers = [_until_end(row, ends) for row in said[:, width:].tolist()]
    full = [i for i, new in enumerate(answers) if not (len(new) == 1 and new[0] in ends)]
    rows = [_row(batch[i], answers[i], ends, tokenizer) for i in full]
    spans = [(i, width - len(batch[i].ids), len(batch[i].ids) + len(answers[i])) for i in full]
    return rows, {name: _pack(value, spans) for name, value in _kept(kept, decoding).items()}


def _until_end(new: list[int], ends: set[int]) -> list[int]:
    """Up to and including the first end token; `generate` pads until the longest answer is done."""
    return new[: next((i + 1 for i, token in enumerate(new) if token in ends), len(new))]


def _row(question: Question, new: list[int], ends: set[int], tokenizer) -> dict:
    return {
        "prompt": question.prompt,
        "answer": tokenizer.decode(new, skip_special_tokens=True),
        "input_ids": question.ids + new,
        "prompt_length": len(question.ids),
        "finished": new[-1] in ends,
        "temperature": question.temperature,
    }


def _kept(kept: Capture, decoding: Decoding) -> dict[str, Tensor]:
    values = {"features": kept.features()} if decoding.target_layer_ids else {}
    return {**values, "last_hidden": kept.last_hidden()} if decoding.last_hidden else values


def _pack(value: Tensor, spans: list[tuple[int, int, int]]) -> Tensor:
    """[N, width] bfloat16 on the CPU, sequences end to end; the last token of each was never read: zeros."""
    packed = value.new_zeros(sum(length for *_, length in spans), value.shape[-1], dtype=torch.bfloat16, device="cpu")
    at = 0
    for row, start, length in spans:
        packed[at : at + length - 1] = value[row, start : start + length - 1]
        at += length
    return packed
