"""Figures from counts: pure functions, the definitions of every number in docs/results.md.

`advanced` are the tokens that the rounds of one answer added (accepted drafts + the bonus token); a sample is one answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import median

import numpy as np

Rounds = Sequence[int]


def tau_per_step(samples: Sequence[Rounds]) -> float:
    """τ as the mean over all rounds of all samples; 0.0 without a round. [[1, 3], [2]] -> 2.0."""
    rounds = [n for sample in samples for n in sample]
    return sum(rounds) / len(rounds) if rounds else 0.0


def tau_per_sample(samples: Sequence[Rounds]) -> float:
    """τ as the mean over samples of each one's mean, as the papers print it. [[1, 1, 1, 5], [5]] -> 3.5, per step 2.6."""
    means = [sum(sample) / len(sample) for sample in samples if sample]
    return sum(means) / len(means) if means else 0.0


def acceptance_by_position(advanced: Rounds, depths: Rounds) -> list[float]:
    """Share of the rounds whose drafts were at least k deep that kept a path of at least k, k = 1, 2, …

    Args:
        depths: of the rounds' trees; of a chain its number of drafts.

    Advanced [3, 1], depths [4, 2]: 2 and 0 accepted, so [1/2, 1/2, 0/1, 0/1].
    """
    shares = []
    for k in range(1, max(depths, default=0) + 1):
        tried = [n - 1 >= k for n, m in zip(advanced, depths, strict=True) if m >= k]
        shares.append(sum(tried) / len(tried))
    return shares


def accepted_lengths(advanced: Rounds) -> list[int]:
    """How many rounds accepted 0, 1, 2, … drafts."""
    counts = [0] * max(advanced, default=0)
    for n in advanced:
        counts[n - 1] += 1
    return counts


def used_share(advanced: Rounds, drafted: Rounds) -> float:
    """Accepted drafts of all drafted ones, on whatever branch; 0.0 when nothing was drafted."""
    return sum(n - 1 for n in advanced) / sum(drafted) if sum(drafted) else 0.0


def seconds_per_token(tokens: Sequence[int], seconds: Sequence[float]) -> float:
    """Pooled over samples: Σ seconds / Σ tokens; infinite when no token came."""
    return sum(seconds) / sum(tokens) if sum(tokens) else math.inf


def speedup(
    plain_tokens: Sequence[int],
    plain_seconds: Sequence[float],
    tokens: Sequence[int],
    seconds: Sequence[float],
) -> float:
    """Ratio of pooled tokens per second, so that half the text in half the time is no speedup; nan where either has none."""
    ours, plain = seconds_per_token(tokens, seconds), seconds_per_token(plain_tokens, plain_seconds)
    return plain / ours if math.isfinite(ours) and math.isfinite(plain) and ours > 0 else math.nan


def speedup_per_sample(
    plain_tokens: Sequence[int],
    plain_seconds: Sequence[float],
    tokens: Sequence[int],
    seconds: Sequence[float],
) -> float:
    """Median over samples of the ratio of tokens per second; samples without a token on either side are left out."""
    ratios = [
        (n / s) / (m / t) for m, t, n, s in zip(plain_tokens, plain_seconds, tokens, seconds, strict=True) if m and n
    ]
    return median(ratios) if ratios else math.nan


def interval(
    samples: Sequence, statistic: Callable[[list], float], draws: int = 1000, level: float = 0.95, seed: int = 0
) -> tuple[float, float]:
    """Percentile bootstrap of a statistic over samples drawn again with replacement; (nan, nan) for fewer than two.

    Samples must be independent of each other: hand over groups where they are not, e.g. the answers to one question.
    """
    if len(samples) < 2:  # one says nothing of how others would differ
        return math.nan, math.nan
    generator = np.random.default_rng(seed)
    picks = generator.integers(len(samples), size=(draws, len(samples)))
    values = [statistic([samples[i] for i in pick]) for pick in picks]
    low, high = np.nanquantile(values, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def lossless_rate(same: Sequence[bool]) -> float:
    """Share of equal texts; nan where nothing was compared."""
    return sum(same) / len(same) if same else math.nan
