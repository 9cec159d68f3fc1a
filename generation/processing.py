"""Logits processors for rows and places at once."""

from typing import cast

import torch
from torch import Tensor
from transformers.generation import (
    EpsilonLogitsWarper,
    EtaLogitsWarper,
    InfNanRemoveLogitsProcessor,
    LogitNormalization,
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

# These look at the logits alone, whatever tokens they are of: all rows and places go through them together, and a pool's alone.
BLIND = (
    EpsilonLogitsWarper,
    EtaLogitsWarper,
    InfNanRemoveLogitsProcessor,
    LogitNormalization,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)


class Processing:
    """The processors and warpers of a call, applied to every row as plain `generate` would have it.

    Args:
        processors: of the call. batch: rows the call began with. Some processors count them, or know a row by its number.
    """

    def __init__(self, processors: LogitsProcessorList | None, batch: int) -> None:
        self.processors, self.batch = processors or LogitsProcessorList(), batch
        self.blind = all(type(processor) in BLIND for processor in self.processors)

    def __call__(self, logits: Tensor, texts: dict[int, Tensor], paths: list[list[list[int] | None]]) -> Tensor:
        """Processed logits.

        Args:
            logits: [R, k, V]. texts: {row: ids [length]}, its padding included, since that is what plain `generate` shows its
                processors. paths: drafts after the text that place j of a row follows, [R][k]; None or absent: the place is left as
                it is, since nothing can come of it.
        """
        if not self.processors:
            return logits
        if self.blind:
            flat = logits.flatten(0, 1)
            return self._call(torch.zeros(len(flat), 1, dtype=torch.long, device=flat.device), flat).view_as(logits)
        rows = []
        for at, (row, text) in enumerate(texts.items()):
            places = [
                logits[at, place]
                if path is None
                else self._one(row, torch.cat([text, text.new_tensor(path)]), logits[at, place])
                for place, path in enumerate(paths[at])
            ]
            rows.append(torch.cat([*(place[None] for place in places), logits[at, len(places) :]]))
        return torch.stack(rows)

    def _one(self, row: int, ids: Tensor, logits: Tensor) -> Tensor:
        """Rows differ in length, so each is processed by itself: as all rows of a batch, of which its own is taken."""
        return self._call(ids.expand(self.batch, -1), logits.repeat(self.batch, 1))[row]

    def _call(self, ids: Tensor, logits: Tensor) -> Tensor:
        return self.processors(cast(torch.LongTensor, ids), logits)  # transformers' name for a tensor of int64
