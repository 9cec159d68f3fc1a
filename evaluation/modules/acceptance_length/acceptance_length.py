"""Acceptance length τ of speculative decoding, as a module of Hugging Face `evaluate`. Stands alone: needs no other file."""

import datasets
import evaluate

_DESCRIPTION = "Acceptance length τ: tokens a forward of the target adds, accepted drafts + the bonus token, by round and by answer."
_INPUTS = """
Args:
    predictions: for each answer the tokens each round added, accepted drafts + 1; a round is a forward of the target after the prefill.
Returns:
    acceptance_length: mean over all rounds. acceptance_length_per_sample: mean over answers of each one's mean. rounds: how many.
    Both are 0.0 without a round.
Example:
    >>> tau = evaluate.load("acceptance_length")
    >>> tau.compute(predictions=[[1, 1, 1, 5], [5]])
    {'acceptance_length': 2.6, 'acceptance_length_per_sample': 3.5, 'rounds': 5}
"""


class AcceptanceLength(evaluate.Metric):
    def _info(self):
        features = datasets.Features({"predictions": datasets.Sequence(datasets.Value("int64"))})
        return evaluate.MetricInfo(description=_DESCRIPTION, citation="", inputs_description=_INPUTS, features=features)

    def _compute(self, predictions):
        samples = [[int(n) for n in sample] for sample in predictions]
        rounds = [n for sample in samples for n in sample]
        if any(n < 1 for n in rounds):
            raise ValueError(f"A round adds at least the bonus token, got {min(rounds)}: pass accepted drafts + 1.")
        means = [sum(sample) / len(sample) for sample in samples if sample]
        return {
            "acceptance_length": sum(rounds) / len(rounds) if rounds else 0.0,
            "acceptance_length_per_sample": sum(means) / len(means) if means else 0.0,
            "rounds": len(rounds),
        }
