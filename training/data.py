"""Shards of `distil.py` as a dataset, and batches of anchored blocks."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor
from torch.utils.data import Dataset


class DistilledAnswers(Dataset):
    """Sequences of the shards in a folder; features stay on disk until a sequence is read.

    Items: `input_ids` [T] int64, `features` [T, F * hidden] bfloat16, `prompt_length` int.
    """

    def __init__(self, shards: list[Path], max_length: int, min_answer: int):
        self.handles = [safe_open(path, framework="pt") for path in shards]
        self.rows = []
        for shard, handle in enumerate(self.handles):
            for start, answer, end in handle.get_tensor("bounds").tolist():
                end = min(end, start + max_length)
                if end - answer >= min_answer:
                    self.rows.append((shard, start, answer, end))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict:
        shard, start, answer, end = self.rows[index]
        handle = self.handles[shard]
        return {
            "input_ids": handle.get_slice("input_ids")[start:end].long(),
            "features": handle.get_slice("features")[start:end],
            "prompt_length": answer - start,
        }

    def token_counts(self) -> Counter:
        """How often each token stands in an answer."""
        counts: Counter = Counter()
        tokens = [handle.get_tensor("input_ids") for handle in self.handles]
        for shard, _, answer, end in self.rows:
            counts.update(tokens[shard][answer:end].tolist())
        return counts


def collate(items: list[dict], num_anchors: int) -> dict[str, Tensor]:
    """Pad sequences to the longest and draw anchors.

    Anchors are uniform without replacement over the answer's positions that have a successor; where an answer has fewer,
    the spare places are -1. Worked example: prompt of 3 tokens, 4 answer tokens at positions 3 … 6: anchors come from
    3, 4, 5 (position 6 has no label after it).

    Returns:
        input_ids [batch, T] (padded with 0), features [batch, T, F * hidden], lengths [batch], anchors [batch, num_anchors].
    """
    lengths = torch.tensor([len(item["input_ids"]) for item in items])
    anchors = torch.full((len(items), num_anchors), -1)
    for row, item in enumerate(items):
        choices = torch.arange(item["prompt_length"], len(item["input_ids"]) - 1)
        drawn = choices[torch.randperm(len(choices))[:num_anchors]].sort().values
        anchors[row, : len(drawn)] = drawn
    return {
        "input_ids": torch.nn.utils.rnn.pad_sequence([item["input_ids"] for item in items], batch_first=True),
        "features": torch.nn.utils.rnn.pad_sequence([item["features"] for item in items], batch_first=True),
        "lengths": lengths,
        "anchors": anchors,
    }
