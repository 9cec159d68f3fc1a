"""A softmax over part of the vocabulary: the frequent tokens exactly, the others by sampling.

A small target answers with a few thousand of its 49,152 tokens, and the loss over all of them is most of the cost of a
training step. Frequent tokens and the labels of the batch enter exactly; of the n others m are drawn and weighted n / m,
which estimates their share of the partition function without bias, so tokens the answers never use are still pushed down
and the trained drafter needs no reduced vocabulary at inference.
"""

from __future__ import annotations

import math
from collections import Counter

import torch
from torch import Tensor


class SampledVocabulary:
    """Draws the vocabulary of one step.

    Args:
        counts: how often each token occurs in the answers.
        vocab_size: size of the whole vocabulary.
        frequent: how many of the most frequent tokens are always in.
        sampled: how many of the others are drawn per step.
    """

    def __init__(self, counts: Counter, vocab_size: int, frequent: int, sampled: int):
        self.frequent = torch.tensor([token for token, _ in counts.most_common(frequent)])
        self.vocab_size, self.sampled = vocab_size, sampled

    def draw(self, labels: Tensor) -> tuple[Tensor, Tensor, int, Tensor]:
        """The vocabulary of a step.

        Args:
            labels: [...] token ids; all of them will be in.

        Returns:
            ids [C], log weights [C] to add to the logits, how many leading ids are exact, labels [...] as indices into ids.
        """
        exact = torch.zeros(self.vocab_size, dtype=torch.bool)
        exact[self.frequent] = True
        exact[labels.flatten()] = True
        others = (~exact).nonzero()[:, 0]
        drawn = others[torch.randperm(len(others))[: self.sampled]]
        ids = torch.cat([exact.nonzero()[:, 0], drawn])
        count = len(ids) - len(drawn)
        log_weights = torch.zeros(len(ids))
        if len(drawn):
            log_weights[count:] = math.log(len(others) / len(drawn))
        place = torch.full((self.vocab_size,), -1)
        place[ids] = torch.arange(len(ids))
        return ids, log_weights, count, place[labels]
