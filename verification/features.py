"""The target's features: outputs of the layers a drafter reads."""

from torch import Tensor


def feature_entries(layer_ids: list[int]) -> list[int]:
    """What to ask `output_hidden_states` for, so that these layers' outputs and no others are kept.

    Up to transformers 5.17 entry i of a list is layer i's output, later it is entry i + 1, the embedding being entry 0: both are
    asked for, `feature_states` tells by the length what came.
    """
    return sorted({entry for i in layer_ids for entry in (i, i + 1)})


def feature_states(hidden_states: tuple, layer_ids: list[int], num_layers: int) -> list[Tensor]:
    """The layers' outputs [batch, n, hidden], out of a forward that was asked for `feature_entries` or for all."""
    embedding = len(hidden_states) - num_layers  # the embedding's entry is there or not: 1 or 0
    return [hidden_states[i + embedding] for i in layer_ids]
