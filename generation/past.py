"""A cache of the caller's: what it holds when a call begins, and what it is handed back with.

`generate` continues a cache with all of the text or with the new tokens alone; the mask tells which, since it covers all of the
text either way. Columns are those of the mask; padding takes columns, but no slots of our own cache (`verification/cache.py`).
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import GenerationConfig
from transformers.cache_utils import (
    Cache,
    CacheLayerMixin,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    StaticLayer,
)

from .. verification.cache import RowCache, RowLayer  # fmt: skip  # isort: skip

READABLE = (DynamicLayer, DynamicSlidingWindowLayer, StaticLayer)  # layers whose content we know how to read


Parts = list[
    tuple[Tensor, Tensor] | None
]  # of one row: keys and values [heads, length, head_dim] a layer; None: it keeps none


def extents(input_ids: Tensor, generation_config: GenerationConfig, model_kwargs: dict) -> tuple[int, int, int]:
    """Columns that the cache holds, that were passed, and that the mask covers."""
    cache, mask = model_kwargs.get("past_key_values"), model_kwargs.get("attention_mask")
    cached, given = (int(cache.get_seq_length()) if cache is not None else 0), input_ids.shape[1]
    # generate drops a mask of ones and keeps its length
    covered = mask.shape[1] if mask is not None else getattr(generation_config, "_mask_length", given)
    return cached, given, covered


@dataclass
class Past:
    """What a call continues.

    Attributes:
        cache: the caller's, or the one that `generate` made for this call; None: there is none. cached: columns it holds.
        mask: [R, P], over all of the text before the call. outside: of the cached columns those that `input_ids` does not
            repeat: all or none.

    Worked example: a cache of 7 columns and 3 new tokens. Passed alone, `input_ids` has 3 columns, the mask 10, and outside
    is 7. Passed with the text before, `input_ids` has 10 columns, the mask 10, and outside is 0.
    """

    cache: Cache | None
    cached: int
    mask: Tensor
    outside: int

    @classmethod
    def of(cls, input_ids: Tensor, generation_config: GenerationConfig, model_kwargs: dict) -> "Past":
        """Read off what `generate` hands to a loop.

        Raises:
            `ValueError`: neither all of the text was passed nor the new tokens with a mask over all of it.
        """
        cache, mask = model_kwargs.get("past_key_values"), model_kwargs.get("attention_mask")
        cached, given, covered = extents(input_ids, generation_config, model_kwargs)
        if covered not in (given, cached + given) or given == covered <= cached:
            raise ValueError(
                f"The cache holds {cached} tokens, {given} were passed, and the attention_mask covers {covered}: pass all of "
                f"the text, or the new tokens alone with an attention_mask of {cached} + {given} columns."
            )
        if mask is None:
            mask = torch.ones(len(input_ids), covered, dtype=torch.long, device=input_ids.device)
        return cls(cache, cached, mask.to(input_ids.device), covered - given)

    @property
    def lengths(self) -> list[int]:
        """Tokens of each row that were read before."""
        return self.mask[:, : self.cached].sum(dim=1).tolist()

    @property
    def own_mask(self) -> Tensor:
        """[R, columns of `input_ids`]."""
        return self.mask[:, self.outside :]

    def unread(self, input_ids: Tensor) -> list[Tensor]:
        """Ids [length] of each row that are yet to be read."""
        new, real = input_ids[:, self.cached - self.outside :], self.mask[:, self.cached :].bool()
        return [ids[kept] for ids, kept in zip(new, real, strict=True)]

    def columns(self, row: int, tokens: int) -> Tensor:
        """The column of each of a row's first `tokens`; what is said follows the mask without a gap.

        Worked example: mask 0 0 1 1, 4 tokens: columns 2, 3, 4, 5.
        """
        prompt = self.mask[row].nonzero()[:, 0]
        width = self.mask.shape[1]
        said = torch.arange(width, width + max(tokens - len(prompt), 0), device=prompt.device)
        return torch.cat([prompt, said])[:tokens]

    def load(self, own: RowCache) -> None:
        """Copy what the caller's cache holds into ours."""
        if self.cache is None or self.cached == 0:
            return
        lengths = self.lengths
        own.reserve(max(lengths))
        for source, layer in zip(self.cache.layers, own.layers, strict=False):
            if isinstance(source, READABLE) and source.is_initialized:
                self._load_layer(source, layer, lengths)
        own.lengths = lengths

    def _load_layer(self, source: CacheLayerMixin, layer: RowLayer, lengths: list[int]) -> None:
        assert source.keys is not None  # it is initialised
        assert source.values is not None
        # a sliding layer holds the last columns only
        first = max(self.cached - source.keys.shape[2], 0)
        keys, values = (part[:, :, : self.cached - first] for part in (source.keys, source.values))
        layer.lazy_initialization(keys, values)
        for row, length in enumerate(lengths):
            columns = self.columns(row, length)
            slots = (columns >= first).nonzero()[:, 0].to(keys.device)
            if len(slots) == 0:
                continue
            at: Tensor | slice = columns.to(keys.device)[slots] - first
            since = int(slots[0])
            end = since + len(slots)
            begin, last = int(columns[since]) - first, int(columns[end - 1]) - first
            if last - begin + 1 == len(slots):  # one piece: no copy on the way
                at = slice(begin, last + 1)
            layer.keys[row, :, since:end] = keys[row][:, at]
            layer.values[row, :, since:end] = values[row][:, at]

    def give_back(self, rows: list[Parts], width: int) -> None:
        """Append what was read in this call to the caller's cache, laid out as plain `generate` does.

        Args:
            rows: what each row has read. width: columns afterwards. Where a row has no token, in padding or behind its end, keys and
                values are zero.
        """
        assert self.cache is not None  # else nothing is handed back
        for index, parts in enumerate(zip(*rows, strict=True)):
            if parts[0] is not None:
                keys = self._laid_out([part[0] for part in parts], width)
                values = self._laid_out([part[1] for part in parts], width)
                self.cache.update(keys, values, index)

    def _laid_out(self, rows: list[Tensor], width: int) -> Tensor:
        out = rows[0].new_zeros(len(rows), rows[0].shape[0], width - self.cached, rows[0].shape[2])
        for row, part in enumerate(rows):
            columns = self.columns(row, part.shape[1]).to(part.device)
            new = columns >= self.cached
            out[row][:, columns[new] - self.cached] = part[:, new]
        return out
