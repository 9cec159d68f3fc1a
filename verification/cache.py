"""A cache whose rows have lengths of their own: taking drafts back is a smaller number, nothing is copied unless a branch is kept.

Letters: R rows, L visible slots, n new tokens of a forward. A row's token at position p lies in slot p; slots beyond its length hold
what is left of rejected drafts and padding, which the masks hide and later tokens overwrite.
"""

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

GROWTH = 256  # slots by which storage without a stated capacity grows at least


class RowLayer(CacheLayerMixin):
    """Keys and values [R, heads, capacity, head_dim] of one layer; where to write is the cache's business."""

    keys: Tensor  # once initialised
    values: Tensor

    def __init__(self, cache: "RowCache") -> None:
        super().__init__()
        self.cache = cache

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self._allocate(key_states, value_states, self.cache.capacity)
        self.is_initialized = True

    def _allocate(self, key_states: Tensor, value_states: Tensor, capacity: int) -> None:
        # zeros, not empty: a masked NaN is still a NaN where its weight 0 is multiplied with it
        self.keys, self.values = (
            like.new_zeros(like.shape[0], like.shape[1], capacity, like.shape[3]) for like in (key_states, value_states)
        )

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write n tokens at the cache's slots; returns all visible keys and values [R, heads, L, head_dim]."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        elif self.keys.shape[2] < self.cache.capacity:
            old = self.keys, self.values
            self._allocate(key_states, value_states, self.cache.capacity)
            for new, kept in zip((self.keys, self.values), old, strict=True):
                new[:, :, : kept.shape[2]] = kept
        slots, visible = self.cache.slots, self.cache.visible
        if isinstance(slots, slice):
            self.keys[:, :, slots], self.values[:, :, slots] = key_states, value_states
        else:
            assert self.cache.rows is not None  # numbered wherever slots are an index
            place = self.keys.device  # of this layer: a target may be spread over several
            rows, slots = self.cache.rows.to(place), slots.to(place)
            self.keys[rows, :, slots] = key_states.transpose(1, 2)
            self.values[rows, :, slots] = value_states.transpose(1, 2)
        return self.keys[:, :, :visible], self.values[:, :, :visible]

    def move(self, rows: Tensor, sources: Tensor, targets: Tensor) -> None:
        """Tokens of rows [n] from slots to slots [n]; all are read before any is written."""
        if not self.is_initialized:
            return
        rows, sources, targets = (part.to(self.keys.device) for part in (rows, sources, targets))
        self.keys[rows, :, targets] = self.keys[rows, :, sources]
        self.values[rows, :, targets] = self.values[rows, :, sources]

    def keep(self, rows: Tensor) -> None:
        """Keep these rows only."""
        if self.is_initialized:
            self.keys, self.values = self.keys[rows], self.values[rows]

    # What transformers asks of a cache when no ready mask is given: one row, read from its beginning.
    def get_seq_length(self) -> int:
        return max(self.cache.lengths)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.cache.visible, 0

    def get_max_length(self) -> int:
        return -1


class RowCache(Cache):
    """Layers of keys and values for rows of different lengths.

    Before each forward `place` says where its tokens go; afterwards the caller sets `lengths` to what it keeps.

    Args:
        layers: of the model. rows: R. capacity: slots to reserve at once; None grows as needed.
        indexed: write by index also where rows are alike, which a compiled forward takes as the same program for all lengths.
        bucket: the visible slots are a multiple of this; what lies beyond a row's own is hidden by the masks.
        tight: without a stated capacity all slots are visible, so that keys and values are one piece of memory; they grow by a bucket.

    Worked example: lengths [5, 9], 3 new tokens: row 0 writes slots 5, 6, 7 and row 1 slots 9, 10, 11; 12 slots are visible. If
    row 0 keeps one of them and row 1 all, lengths become [6, 12]; slots 6 and 7 of row 0 are free again.
    """

    layers: list[RowLayer]  # type: ignore[assignment]  # a list of any layers for transformers, which puts none in here

    def __init__(
        self,
        layers: int,
        rows: int,
        capacity: int | None = None,
        indexed: bool = False,
        bucket: int = 1,
        tight: bool = False,
    ) -> None:
        super().__init__(layers=[RowLayer(self) for _ in range(layers)])
        self.lengths = [0] * rows
        self.indexed, self.bucket = indexed, bucket
        self.capacity, self.tight = _up(capacity or 0, bucket), tight and capacity is None
        self.slots: slice | Tensor = slice(0, 0)
        self.rows: Tensor | None = None
        self.visible = 0

    def place(self, tokens: int, device: torch.device, least: int = 0) -> None:
        """The next forward reads this many tokens of every row, each row's after its own length; at least so many slots are visible."""
        lengths = self.lengths
        end = max(lengths) + tokens
        self.visible = _up(max(end, least), self.bucket)
        if min(lengths) == max(lengths) and not self.indexed:
            self.slots = slice(lengths[0], end)
        else:
            self.slots = torch.tensor(lengths, device=device)[:, None] + torch.arange(tokens, device=device)
            self._number_rows(device)
        self.reserve(self.visible)

    def place_at(self, slots: Tensor, visible: int) -> None:
        """The next forward writes at these slots [R, n]."""
        self.slots, self.visible = slots, visible
        self._number_rows(slots.device)
        self.reserve(visible)

    def _number_rows(self, device: torch.device) -> None:
        if self.rows is None:  # made once: a recorded forward reads it where it lies
            self.rows = torch.arange(len(self.lengths), device=device)[:, None]

    def reserve(self, slots: int) -> None:
        """See to it that this many slots have room."""
        if self.tight:
            self.visible = self.capacity = max(self.capacity, _up(slots, self.bucket))
        elif slots > self.capacity:
            self.capacity = _up(slots + max(GROWTH, self.capacity // 2), self.bucket)

    def commit(self, paths: list[list[int]]) -> None:
        """Keep the anchor and a path of what was read after it: slots of the last forward, 1 and up, rising, a list a row.

        Worked example: length 5, nodes in slots 1 … 4, path [1, 3]: the anchor stays in slot 5 and node 1 in slot 6, node 3 goes from slot
        8 to slot 7; the length becomes 8. A path [1, 2] moves nothing.
        """
        moves = [
            (row, length + slot, length + place)
            for row, (length, path) in enumerate(zip(self.lengths, paths, strict=True))
            for place, slot in enumerate(path, 1)
            if slot != place
        ]
        self.lengths = [length + len(path) + 1 for length, path in zip(self.lengths, paths, strict=True)]
        if moves:
            rows, sources, targets = torch.tensor(moves).unbind(1)
            for layer in self.layers:
                layer.move(rows, sources, targets)

    def keep(self, rows: list[int]) -> None:
        """The other rows leave the batch."""
        self.lengths, self.rows = [self.lengths[row] for row in rows], None
        for layer in self.layers:
            if layer.is_initialized:
                layer.keep(torch.tensor(rows, device=layer.keys.device))

    def row(self, place: int, length: int) -> list[tuple[Tensor, Tensor] | None]:
        """Copies of a row's first keys and values [heads, length, head_dim] in each layer; None where a layer keeps none."""
        return [
            (layer.keys[place, :, :length].clone(), layer.values[place, :, :length].clone())
            if layer.is_initialized
            else None
            for layer in self.layers
        ]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """The longest row."""
        return max(self.lengths)


def _up(slots: int, bucket: int) -> int:
    return -(-slots // bucket) * bucket
