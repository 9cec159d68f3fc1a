"""What a call leaves in the caller's cache: keys and values of what was read, and with them what the drafter made of it."""

import torch
from transformers import Cache

from .. drafting.proposal import Proposal, Tree  # fmt: skip  # isort: skip
from . opening import Sides  # fmt: skip  # isort: skip
from . past import Parts  # fmt: skip  # isort: skip
from . request import Request  # fmt: skip  # isort: skip


class HandingBack:
    """Collects what rows have read as they leave.

    Args:
        request: of the call. sides: whose caches are read.
    """

    def __init__(self, request: Request, sides: Sides) -> None:
        self.request, self.sides = request, sides
        cache = request.past.cache
        seen = request.outputs.returns or getattr(cache, "_is_user_defined", False)
        self.cache = cache if seen else None  # one that the caller will see
        self.gone: dict[int, Parts] = {}  # keys and values of rows that have left

    def leave(self, before: list[int], stay: list[int]) -> None:
        """Of the rows that were living, those at the places `stay` stay."""
        if self.cache is None:
            return
        cache, ends = self.sides.target.cache, self.request.rows.ends
        leaving = sorted(set(range(len(before))) - set(stay))
        early = bool(stay) or len({ends[before[place]] for place in leaving}) > 1
        for place in leaving:
            cache.lengths[place] = self._read_of(before[place])
        if leaving and early:
            self._read_last(before)
        for place in leaving:
            self.gone[before[place]] = cache.row(place, cache.lengths[place] + early)

    def finish(self, drafted: bool) -> None:
        """All rows have left: the caller's cache gets what was read. drafted: whether the drafter has read along."""
        if self.cache is None:
            return
        rows, past = self.request.rows, self.request.past
        longest = max(rows.ends)
        read = [self._read_of(row) + (end < longest) for row, end in enumerate(rows.ends)]
        kept = [
            [part and (part[0][:, :length], part[1][:, :length]) for part in self.gone[row]]
            for row, length in enumerate(read)
        ]
        past.give_back(kept, past.outside + longest - 1)
        if len(self.gone) == 1 and drafted:
            self._keep_context(self.cache)

    def _read_last(self, rows: list[int]) -> None:
        """Read each row's last token: plain `generate` goes on over all rows until the last one ends, so it reads that of the others."""
        text, ends = self.request.rows.text, self.request.rows.ends
        anchors = torch.stack([text[row, ends[row] - 1 : ends[row]] for row in rows])
        self.sides.target.verify(anchors, Proposal([Tree() for _ in rows]))

    def _keep_context(self, cache: Cache) -> None:
        """The drafter's context rides on the caller's cache."""
        rows, past, session = self.request.rows, self.request.past, self.sides.session
        session.flush()
        context, read = session.cache, self._read_of(0)
        context.lengths = [min(context.lengths[0], read - context.gaps[0])]
        context.verified_ids = None if past.outside else rows.text[:, : rows.ends[0] - 1]
        self.request.draft.keep_context(cache, context)

    def _read_of(self, row: int) -> int:
        """Tokens of a row that plain `generate` would have read: all but the last."""
        rows, past = self.request.rows, self.request.past
        return int(past.mask[row].sum()) + rows.ends[row] - rows.input_ids.shape[1] - 1
