"""Speedup of a decoding method over a baseline, as a module of Hugging Face `evaluate`. Stands alone: needs no other file."""

from statistics import median

import datasets
import evaluate

_DESCRIPTION = "Ratio of tokens per second of a decoding method to a baseline's on the same prompts."
_INPUTS = """
Args:
    tokens, seconds: new tokens and wall clock of each answer. baseline_tokens, baseline_seconds: of the baseline's answers to the same
        prompts, best measured in turn (A B A B) after a throw-away prompt.
Returns:
    speedup: ratio of pooled tokens per second. median_speedup: median over answers. tokens_per_second, baseline_tokens_per_second.
Example:
    >>> speedup = evaluate.load("speedup")
    >>> speedup.compute(tokens=[10], seconds=[1.0], baseline_tokens=[10], baseline_seconds=[2.0])["speedup"]
    2.0
"""


class Speedup(evaluate.Metric):
    def _info(self):
        whole, real = datasets.Value("int64"), datasets.Value("float64")
        features = {"tokens": whole, "seconds": real, "baseline_tokens": whole, "baseline_seconds": real}
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation="",
            inputs_description=_INPUTS,
            features=datasets.Features(features),
        )

    def _compute(self, tokens, seconds, baseline_tokens, baseline_seconds):
        columns = [[float(x) for x in column] for column in (tokens, seconds, baseline_tokens, baseline_seconds)]
        if any(s <= 0 for s in columns[1] + columns[3]):
            raise ValueError("Seconds must be positive.")
        if not sum(columns[0]) or not sum(columns[2]):
            raise ValueError("Tokens must not all be 0.")
        ours, baseline = sum(columns[0]) / sum(columns[1]), sum(columns[2]) / sum(columns[3])
        ratios = [(n / s) / (m / t) for n, s, m, t in zip(*columns, strict=True) if n and m]
        return {
            "speedup": ours / baseline,
            "median_speedup": median(ratios) if ratios else float("nan"),
            "tokens_per_second": ours,
            "baseline_tokens_per_second": baseline,
        }
