"""Batches of distilled sequences."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence


def collate(items: list[dict]) -> dict[str, Tensor]:
    """Pad sequences to the longest, with zeros on the right.

    Args:
        items: of `DistilledAnswers`.

    Returns:
        input_ids [batch, T], lengths, prompt_lengths and index [batch] (place in the data set), and where the items have
        them features [batch, T, F * hidden] and last_hidden [batch, T, hidden].
    """
    batch = {
        "input_ids": pad_sequence([item["input_ids"] for item in items], batch_first=True),
        "lengths": torch.tensor([len(item["input_ids"]) for item in items]),
        "prompt_lengths": torch.tensor([item["prompt_length"] for item in items]),
        "index": torch.tensor([item["index"] for item in items]),
    }
    for name in ("features", "last_hidden"):
        if name in items[0]:
            batch[name] = pad_sequence([item[name] for item in items], batch_first=True)
    return batch
