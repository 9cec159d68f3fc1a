"""Plain `generate` against Domino on the same prompts, alternately in one run."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import Tensor
from tqdm.auto import tqdm

from ..generation.statistics import DraftStatistics


@dataclass
class Sample:
    """One prompt, answered twice. Times in seconds over the whole call, prefill included.

    Attributes:
        plain_s, domino_s: wall clock. plain_tokens, domino_tokens: new tokens.
        accepted: accepted drafts of each round. same: whether the token ids are equal.
        gap: where they differ, the target's logit gap between the two tokens at the first difference, else None.
    """

    plain_s: float
    domino_s: float
    plain_tokens: int
    domino_tokens: int
    accepted: list[int]
    same: bool
    gap: float | None

    @property
    def speedup(self) -> float:
        """Ratio of tokens per second."""
        return (self.domino_tokens / self.domino_s) / (self.plain_tokens / self.plain_s)


@dataclass
class Comparison:
    """Samples of one task, and the ratios taken last."""

    task: str
    samples: list[Sample]

    @property
    def acceptance_length(self) -> float:
        """τ per step: mean of (accepted + 1) over all rounds of all samples."""
        return DraftStatistics([run for sample in self.samples for run in sample.accepted]).acceptance_length

    @property
    def plain_tok_per_s(self) -> float:
        return sum(s.plain_tokens for s in self.samples) / sum(s.plain_s for s in self.samples)

    @property
    def domino_tok_per_s(self) -> float:
        return sum(s.domino_tokens for s in self.samples) / sum(s.domino_s for s in self.samples)

    @property
    def speedup(self) -> float:
        """Ratio of tokens per second."""
        return self.domino_tok_per_s / self.plain_tok_per_s

    @property
    def same(self) -> int:
        """Samples with equal text."""
        return sum(s.same for s in self.samples)

    @property
    def gaps(self) -> list[float]:
        """Logit gaps at the first difference of the samples that differ."""
        return [s.gap for s in self.samples if s.gap is not None]


def encode(tokenizer, question: str, device) -> dict[str, Tensor]:
    """A user message through the chat template, as inputs of `generate`."""
    inputs = tokenizer.apply_chat_template(
        [{"role": "user", "content": question}], add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    return inputs.to(device)


def answer_twice(target, draft, inputs: dict[str, Tensor], **options) -> Sample:
    """Answer one prompt with plain `generate`, then with the drafter."""
    length = inputs["input_ids"].shape[1]
    plain, plain_s = timed(target, inputs, **options)
    domino, domino_s = timed(target, inputs, assistant_model=draft, **options)
    same = torch.equal(plain, domino)
    gap = None if same else first_gap(target, plain, domino)
    return Sample(
        plain_s, domino_s, plain.shape[1] - length, domino.shape[1] - length, draft.statistics.accepted, same, gap
    )


def timed(target, inputs, **options) -> tuple[Tensor, float]:
    """One `generate` call and its wall-clock seconds."""
    start = time.perf_counter()
    out = target.generate(**inputs, **options)
    if out.is_cuda:
        torch.cuda.synchronize()
    return out, time.perf_counter() - start


@torch.no_grad()
def first_gap(target, left: Tensor, right: Tensor) -> float:
    """How near a tie the first difference of two continuations is.

    Args:
        left, right: [1, n] and [1, m], different, with a common prefix.

    Returns:
        |logit(a) - logit(b)| of the target after the common prefix, a and b the two next tokens; infinite
        where one continuation is a prefix of the other, which no tie explains.
    """
    shared = min(left.shape[1], right.shape[1])
    different = (left[0, :shared] != right[0, :shared]).nonzero()
    if len(different) == 0:
        return float("inf")
    at = int(different[0])
    logits = target(left[:, :at]).logits[0, -1].float()
    return float((logits[left[0, at]] - logits[right[0, at]]).abs())


def compare(target, draft, tokenizer, task: str, questions: list[str], **options) -> Comparison:
    """Run all questions, plain and Domino in turn; one throw-away question first.

    Args:
        options: passed to both `generate` calls, e.g. `max_new_tokens=128, do_sample=False`.
    """
    answer_twice(target, draft, encode(tokenizer, questions[0], target.device), **{**options, "max_new_tokens": 16})
    samples = [
        answer_twice(target, draft, encode(tokenizer, question, target.device), **options)
        for question in tqdm(questions, desc=task)
    ]
    return Comparison(task, samples)
