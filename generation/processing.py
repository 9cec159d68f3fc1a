"""Logits processors for rows and places at once."""

import torch
from torch import Tensor
from transformers.generation import (
    EpsilonLogitsWarper,
    EtaLogitsWarper,
    InfNanRemoveLogitsProcessor,
    LogitNormalization,
    LogitsProcessorList,
    MinPLogitsWarper,
    SuppressTokensLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

# These look at the logits alone, so all rows and places go through them together.
BLIND = (
    EpsilonLogitsWarper,
    EtaLogitsWarper,
    InfNanRemoveLogitsProcessor,
    LogitNormalization,
    MinPLogitsWarper,
    SuppressTokensLogitsProcessor,
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

    def __init__(self, processors: LogitsProcessorList | None, batch: int):
        self.processors, self.batch = processors or LogitsProcessorList(), batch
        self.blind = all(type(processor) in BLIND for processor in self.processors)

    def __call__(
        self, logits: Tensor, texts: dict[int, Tensor], drafts: Tensor, wanted: list[int], first: int = 0
    ) -> Tensor:
        """Processed logits.

        Args:
            logits: [R, k, V], place j follows the first `first` + j of the drafts. texts: {row: ids [length]}, its padding
                included, since that is what plain `generate` shows its processors. drafts: [R, first + k - 1] or longer.
            wanted: places of each row to process; the others, which follow an end token or have no room, are left as they are.
        """
        if self.blind:
            flat = logits.flatten(0, 1)
            return self.processors(drafts.new_zeros(len(flat), 1), flat).view_as(logits)
        rows = []
        for at, (row, text) in enumerate(texts.items()):
            places = [
                self._one(row, torch.cat([text, drafts[at, : first + place]]), logits[at, place])
                for place in range(wanted[at])
            ]
            rows.append(torch.cat([*(place[None] for place in places), logits[at, wanted[at] :]]))
        return torch.stack(rows)

    def _one(self, row: int, ids: Tensor, logits: Tensor) -> Tensor:
        """Rows differ in length, so each is processed by itself: as all rows of a batch, of which its own is taken."""
        batch = (ids.expand(self.batch, -1), logits.repeat(self.batch, 1))
        return self.processors(*batch)[row]
