"""The acceptance length of a drafter by actual generation, without a plain run beside it."""

from __future__ import annotations

import torch
from tqdm.auto import tqdm

from ..generation.statistics import DraftStatistics
from .answering import encode


@torch.no_grad()
def acceptance(target, draft, tokenizer, questions: list[str], max_new_tokens: int) -> DraftStatistics:
    """Answer all questions greedily with chains of all drafts; returns the counts of all rounds together.

    The drafter may be in training: it answers in evaluation mode and is left in the mode it came in.
    """
    pooled, training = DraftStatistics(), draft.training
    draft.eval()
    try:
        for question in tqdm(questions, desc="τ", leave=False):
            inputs = encode(tokenizer, question, target.device)
            target.generate(
                **inputs,
                custom_generate=draft.decode,
                loop="transformers",
                max_new_tokens=max_new_tokens,
                do_sample=False,
            )
            pooled.accepted += draft.statistics.accepted
            pooled.drafted += draft.statistics.drafted
    finally:
        draft.train(training)
    return pooled
