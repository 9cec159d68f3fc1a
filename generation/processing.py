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

    def __call__(
        self,
        logits: Tensor,
        texts: dict[int, Tensor],
        paths: list[list[list[int] | None]],
        above: list[list[int]] | None = None,
    ) -> Tensor:
        """Processed logits.

        Args:
            logits: [R, k, V]. texts: {row: ids [length]}, its padding included, since that is what plain `generate` shows its
                processors. paths: drafts after the text that place j of a row follows, [R][k]; None or absent: the place is left as
                it is, since nothing can come of it. above: the place that place j of a row hangs on, [R][k], 0 for the first. A path that
                goes through a forbidden token (score -inf) is not asked about either: a grammar may not know it.
        """
        if not self.processors:
            return logits
        if self.blind:
            flat = logits.flatten(0, 1)
            return self._call(torch.zeros(len(flat), 1, dtype=torch.long, device=flat.device), flat).view_as(logits)
        rows = []
        for at, (row, text) in enumerate(texts.items()):
            places: list[Tensor] = []
            forbidden: set[int] = set()
            for place, path in enumerate(paths[at]):
                parent = above[at][place] if above is not None and path else None
                if parent is not None and path and (parent in forbidden or places[parent][path[-1]] == -torch.inf):
                    forbidden.add(place)
                if path is None or place in forbidden:
                    places.append(logits[at, place])
                else:
                    places.append(self._one(row, torch.cat([text, text.new_tensor(path)]), logits[at, place]))
            rows.append(torch.cat([*(place[None] for place in places), logits[at, len(places) :]]))
        return torch.stack(rows)

    def _one(self, row: int, ids: Tensor, logits: Tensor) -> Tensor:
        """Rows differ in length, so each is processed by itself: as all rows of a batch, of which its own is taken."""
        return self._call(ids.expand(self.batch, -1), logits.repeat(self.batch, 1))[row]

    def _call(self, ids: Tensor, logits: Tensor) -> Tensor:
        return self.processors(cast(torch.LongTensor, ids), logits)  # transformers' name for a tensor of int64
