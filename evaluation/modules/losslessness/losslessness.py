"""Whether greedy speculative decoding kept the target's text, as a module of Hugging Face `evaluate`. Stands alone: needs no other file."""

from math import nan

import datasets
import evaluate

_DESCRIPTION = "Share of answers whose token ids equal the target's own, and where the others part."
_INPUTS = """
Args:
    predictions: token ids of each answer of the method. references: the target's own greedy answers to the same prompts.
Returns:
    lossless_rate: share of equal answers, nan without any. first_differences: for each answer the place of the first token that differs, a text that
        ends early included; -1 where the answers are equal.
Example:
    >>> losslessness = evaluate.load("losslessness")
    >>> losslessness.compute(predictions=[[5, 6, 7], [5, 6]], references=[[5, 6, 7], [5, 9]])
    {'lossless_rate': 0.5, 'first_differences': [-1, 1]}
"""


class Losslessness(evaluate.Metric):
    def _info(self):
        ids = datasets.Sequence(datasets.Value("int64"))
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation="",
            inputs_description=_INPUTS,
            features=datasets.Features({"predictions": ids, "references": ids}),
        )

    def _compute(self, predictions, references):
        places = [self._place(list(ours), list(own)) for ours, own in zip(predictions, references, strict=True)]
        return {"lossless_rate": places.count(-1) / len(places) if places else nan, "first_differences": places}

    @staticmethod
    def _place(ours, own):
        if ours == own:
            return -1
        shared = zip(ours, own, strict=False)
        return next((n for n, (a, b) in enumerate(shared) if a != b), min(len(ours), len(own)))
