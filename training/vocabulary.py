"""The vocabulary of a training step: whole, or the frequent tokens exactly and the others by sampling.

A small target answers with a few thousand of its 49,152 tokens, and the loss over all of them is most of the cost of a
training step. Frequent tokens and the labels of the batch enter exactly; of the n others m are drawn and weighted n / m,
which estimates their share of the partition function without bias, so tokens the answers never use are still pushed down
and the trained drafter needs no reduced vocabulary at inference. With m = 0 it is a plain reduced vocabulary.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class Draw:
    """Vocabulary of one step, C tokens.

    Attributes:
        ids: [C] token ids, None for the whole vocabulary. log_weights: [C], added to the logits, or None.
        exact: leading ids that are not sampled; predictions are looked for there.
        labels: the step's labels as indices into `ids`.
    """

    ids: Tensor | None
    log_weights: Tensor | None
    exact: int
    labels: Tensor

    def rows(self, table: Tensor) -> Tensor:
        """Rows [C, ...] of a table over the whole vocabulary."""
        return table if self.ids is None else table[self.ids]

    def weigh(self, logits: Tensor) -> Tensor:
        """Logits [..., C] with the weights of the sampled tokens."""
        return logits if self.log_weights is None else logits + self.log_weights.to(logits)


class WholeVocabulary:
    """Every token, every step."""

    def __init__(self, vocab_size: int):
        self.vocab_size = vocab_size

    def draw(self, labels: Tensor, seed: int) -> Draw:
        """The step's vocabulary for labels [...] of token ids."""
        return Draw(None, None, self.vocab_size, labels)


class SampledVocabulary:
    """Part of the vocabulary, drawn anew each step.

    Args:
        counts: how often each token occurs in the answers.
        vocab_size: size of the whole vocabulary.
        frequent: how many of the most frequent tokens are always in.
        sampled: how many of the others are drawn per step.
    """

    def __init__(self, counts: Counter, vocab_size: int, frequent: int, sampled: int):
        self.frequent = torch.tensor([token for token, _ in counts.most_common(frequent)])
        self.vocab_size, self.sampled = vocab_size, sampled

    def draw(self, labels: Tensor, seed: int) -> Draw:
        """The step's vocabulary for labels [...] of token ids, all of which will be in; the same for the same seed."""
        device = labels.device
        exact = torch.zeros(self.vocab_size, dtype=torch.bool, device=device)
        exact[self.frequent.to(device)] = True
        exact[labels.flatten()] = True
        others = (~exact).nonzero()[:, 0]
        order = torch.randperm(len(others), generator=torch.Generator().manual_seed(seed))[: self.sampled]
        drawn = others[order.to(device)]
        ids = torch.cat([exact.nonzero()[:, 0], drawn])
        count = len(ids) - len(drawn)
        log_weights = None
        if len(drawn):
            log_weights = torch.zeros(len(ids), device=device)
            log_weights[count:] = math.log(len(others) / len(drawn))
        place = torch.full((self.vocab_size,), -1, device=device)
        place[ids] = torch.arange(len(ids), device=device)
        return Draw(ids, log_weights, count, place[labels])
