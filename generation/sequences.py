"""The texts of a batch as they grow: what each row said, when it ends, and who is told."""

from collections.abc import Callable

import torch
from torch import Tensor
from transformers import StoppingCriteriaList
from transformers.generation.stopping_criteria import EosTokenCriteria, MaxLengthCriteria, MaxTimeCriteria

from . statistics import DraftStatistics  # fmt: skip  # isort: skip


class Rows:
    """All rows of a call; those that have not ended are `alive`.

    Args:
        input_ids: [R, P], padded on the left where `mask` [R, P] is 0. max_length: of a text, padding included.
        criteria: of the call. on_tokens: told (row, new tokens) after every round.
    """

    def __init__(
        self,
        input_ids: Tensor,
        mask: Tensor,
        max_length: int,
        criteria: StoppingCriteriaList,
        on_tokens: Callable[[int, list[int]], None] | None,
    ) -> None:
        self.input_ids, self.max_length, self.on_tokens = input_ids, max_length, on_tokens
        self.prompts = [ids[real.bool()] for ids, real in zip(input_ids, mask, strict=True)]
        rows, width = input_ids.shape
        room = max(max_length - width, 0)
        self.text = torch.cat([input_ids, input_ids.new_zeros(rows, room)], dim=1)
        self.ends = [width] * rows  # columns of `text` that are said
        self.alive = list(range(rows))
        self.over: set[int] = set()  # rows that have said their last
        self.statistics = [DraftStatistics() for _ in range(rows)]
        eos = [criterion.eos_token_id for criterion in criteria if isinstance(criterion, EosTokenCriteria)]
        self.eos = set(torch.cat(eos).tolist()) if eos else set()
        self.clocks = [criterion for criterion in criteria if isinstance(criterion, MaxTimeCriteria)]
        known = (EosTokenCriteria, MaxLengthCriteria, MaxTimeCriteria)
        self.criteria = [criterion for criterion in criteria if not isinstance(criterion, known)]

    def texts(self) -> dict[int, Tensor]:
        """Ids [length] of each living row, its padding included."""
        return {row: self.text[row, : self.ends[row]] for row in self.alive}

    def anchors(self) -> Tensor:
        """The last token of each living row, [R, 1]."""
        return torch.stack([self.text[row, self.ends[row] - 1 : self.ends[row]] for row in self.alive])

    def said(self) -> list[int]:
        """New tokens of each living row so far."""
        return [self.ends[row] - self.input_ids.shape[1] for row in self.alive]

    def room(self) -> list[int]:
        """Tokens that each living row may still say."""
        return [self.max_length - self.ends[row] for row in self.alive]

    def say(self, new: list[list[int]]) -> list[int]:
        """Append what each living row says, up to where it ends; returns how many of it were taken.

        Stopping where a text ends does not bend the distribution: every token was already drawn as the target draws it, and what
        is dropped would never have been asked for.
        """
        taken = []
        for row, tokens in zip(self.alive, new, strict=True):
            start = self.ends[row]
            tokens = tokens[: self.max_length - start]
            self.text[row, start : start + len(tokens)] = torch.tensor(tokens, device=self.text.device)
            count = self._until_end(row, tokens)
            self.ends[row] = start + count
            taken.append(count)
            if self.on_tokens is not None and count:
                self.on_tokens(row, tokens[:count])
        return taken

    def leave(self) -> list[int]:
        """Rows that have ended leave; returns the places, among those that were living, of those that stay."""
        late = any(bool(torch.as_tensor(clock(self.input_ids, None)).any()) for clock in self.clocks)
        stay = [] if late else [place for place, row in enumerate(self.alive) if row not in self.over]
        self.alive = [self.alive[place] for place in stay]
        return stay

    def _until_end(self, row: int, tokens: list[int]) -> int:
        for place, token in enumerate(tokens, 1):
            end = self.ends[row] + place
            if token in self.eos or self._stops(row, end) or end >= self.max_length:
                self.over.add(row)
                return place
        return len(tokens)

    def _stops(self, row: int, end: int) -> bool:
        """Asks the caller's criteria about one row, as that row of a whole batch: some know it by its number."""
        ids = self.text[row : row + 1, :end].expand(len(self.ends), -1)
        answers = (torch.as_tensor(criterion(ids, None)) for criterion in self.criteria)
        return any(bool(answer if answer.ndim == 0 else answer[row]) for answer in answers)

    def output(self, pad: int | None) -> Tensor:
        """All texts [R, longest], padded on the right like plain `generate`'s."""
        width = max(self.ends)
        fill = 0 if pad is None else pad
        ends = torch.tensor(self.ends, device=self.text.device)[:, None]
        return torch.where(
            torch.arange(width, device=self.text.device) < ends, self.text[:, :width], self.text.new_tensor(fill)
        )
