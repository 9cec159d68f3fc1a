"""The drafter's side of the engine: one block for every row, over context caches of different lengths.

Letters: R rows, c context columns of a forward (rows with fewer are padded on the right), B block, S sink and W window slots.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from . fused_chain import fused  # fmt: skip  # isort: skip
from .. acceleration.graphs import BUCKET, Graphs  # fmt: skip  # isort: skip
from .. verification.cache import RowCache  # fmt: skip  # isort: skip

SINK = 4  # first tokens a windowed context keeps: attention leans on them whatever they say


class RowDraft:
    """A drafter and its context cache for one batch.

    Args:
        draft: the `DominoModel`. target: whose embedding and LM head are used. rows: R.
        device: of the token ids. window: recent tokens of context to keep besides the first few; None keeps all.
        run: the drafter's forward. graphs: which record block and head and replay them; None: they are run.
    """

    def __init__(
        self,
        draft,
        target,
        rows: int,
        device: torch.device,
        window: int | None = None,
        run=None,
        graphs: Graphs | None = None,
    ):
        self.draft, self.config, self.window = draft, draft.config, window
        self.embedding, self.head = target.get_input_embeddings(), target.get_output_embeddings()
        home = self.embedding.weight.device
        self.home, self.dtype = device if home.type == "meta" else home, target.dtype
        self.graphs, fixed = graphs, run is not None or graphs is not None
        self.cache = RowCache(self.config.num_hidden_layers, rows, indexed=fixed, bucket=BUCKET if graphs else 1)
        self.run = run or draft
        self.device, self.own_dtype = (
            draft.device,
            draft.dtype,
        )  # asked of a model they are looked for among its parameters
        self.waiting: list[tuple[Tensor, list[int]]] = []  # features the context does not hold yet

    def add(self, features: Tensor, counts: list[int]) -> None:
        """Verified tokens: features [R, c, F * hidden], of which each row's first `counts` are true."""
        self.waiting.append((features.to(self.device, self.own_dtype).contiguous(), counts))

    def read(self, features: Tensor, counts: list[int]) -> None:
        """Put features into the context at once, a prompt's chunk."""
        self.add(features, counts)
        features, counts = self._take()
        positions, _ = self._place(counts, features.shape[1], 0)
        self.draft.read_context(features, positions, self.cache)
        self._keep_context(counts)

    def keep(self, rows: list[int]) -> None:
        """The other rows leave the batch."""
        self.cache.keep(rows)
        at = torch.tensor(rows, device=self.device)
        self.waiting = [(features[at], [counts[row] for row in rows]) for features, counts in self.waiting]

    def draft_block(self, anchors: Tensor, count: int, pick: Callable, pool: int = 0) -> tuple[Tensor, Tensor | None]:
        """Draft `count` tokens a row.

        Args:
            anchors: [R, 1]. pick, pool: see `rollout`.

        Returns:
            drafts [R, m] and the logits they were picked from [R, m, V] or None, see `rollout`.
        """
        masks = anchors.new_full((anchors.shape[0], self.config.block_size - 1), self.config.mask_token_id)
        block = self.embed(torch.cat([anchors, masks], dim=-1))
        features, counts = self._take(count + 1 if self.graphs else 0)
        positions, mask = self._place(counts, features.shape[1], block.shape[1])
        hidden, base = self._backbone(block, features, positions, mask, count)
        self._keep_context(counts)
        base = base.to(anchors.device)
        if self.graphs is None or not fused(self.draft, hidden, base, getattr(pick, "plan", None)):
            return self.draft.rollout(hidden, base, anchors, self.embed, pick, pool)

        def head(hidden: Tensor, base: Tensor, anchors: Tensor):
            return self.draft.rollout(hidden, base, anchors, self.embed, pick, pool)

        return self.graphs("head", head, pool, hidden=hidden, base=base, anchors=anchors)

    def embed(self, ids: Tensor) -> Tensor:
        return self.embedding(ids.to(self.home)).to(self.device, self.own_dtype)

    def _take(self, columns: int = 0) -> tuple[Tensor, list[int]]:
        """All waiting features, each row's in one piece, padded to `columns`."""
        waiting, self.waiting = self.waiting, []
        if len(waiting) == 1:
            features, counts = waiting[0]
        else:
            empty = torch.empty(0, self.draft.fc.in_features, dtype=self.own_dtype, device=self.device)
            rows = [torch.cat([empty, *(f[r, : n[r]] for f, n in waiting)]) for r in range(len(self.cache.lengths))]
            features, counts = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True), [len(row) for row in rows]
        if features.shape[1] < columns:
            features = torch.nn.functional.pad(features, (0, 0, 0, columns - features.shape[1]))
        return features, counts

    def _backbone(
        self, block: Tensor, features: Tensor, positions: Tensor, mask: Tensor | None, count: int
    ) -> tuple[Tensor, Tensor]:
        """H [R, count, hidden] of the drafting slots of a block behind the context and these features, and their base logits.

        Worked example: context lengths [5, 9], counts [1, 3], B = 4. Features are padded to c = 3 columns; row 0 writes slots
        5 … 11: its one true feature in 5, padding in 6 and 7, the block in 8 … 11. Its block has positions 6 … 9 and does
        not see slots 6 and 7. Context lengths become [6, 12].
        """

        def work(block: Tensor, features: Tensor, positions: Tensor, mask: Tensor | None = None, slots=None):
            if slots is not None:
                self.cache.slots = slots
            out = self.run(block, features, mask, positions, self.cache)
            hidden = out.last_hidden_state[:, self.config.first_slot : self.config.first_slot + count]
            base = self.head(hidden.to(self.home, self.dtype))
            return hidden, base.to(torch.promote_types(base.dtype, torch.float32))

        if self.graphs is None or mask is None:
            return work(block, features, positions, mask)
        state, slots = (count, self.cache.visible, self.cache.capacity), self.cache.slots
        inputs = {"block": block, "features": features, "positions": positions, "mask": mask, "slots": slots}
        return self.graphs("block", work, *state, **inputs)

    def _keep_context(self, counts: list[int]) -> None:
        self.cache.lengths = [a + b for a, b in zip(self.cache.lengths, counts, strict=True)]

    def _place(self, counts: list[int], columns: int, width: int) -> tuple[Tensor, Tensor | None]:
        """Say where c columns and a block of `width` go; returns their positions [R, c + B] and a mask, or None where all is seen."""
        device, lengths = self.device, self.cache.lengths
        plain = self.window is None and self.graphs is None
        if plain and min(lengths) == max(lengths) and min(counts) == columns:
            self.cache.place(columns + width, device)
            return torch.arange(lengths[0], self.cache.visible, device=device).expand(len(lengths), -1), None
        before = torch.tensor(self.cache.lengths, device=device)[:, None]
        new = torch.tensor(counts, device=device)[:, None]
        column, place = torch.arange(columns, device=device), torch.arange(width, device=device)
        positions = torch.cat([before + column, before + new + place], dim=1)
        if self.window is not None:
            return positions, self._ready(self._place_in_window(before, new, column, width), width)
        self.cache.place(columns + width, device)
        slot = torch.arange(self.cache.visible, device=device)
        block = before + columns
        return positions, self._ready((slot < before + new) | ((slot >= block) & (slot < block + width)), width)

    def _place_in_window(self, before: Tensor, new: Tensor, column: Tensor, width: int) -> Tensor:
        """Slots 0 … S-1 keep the first tokens, S … S+W-1 are a ring of the last W, then come the block and one for waste.

        Token t >= S lies in slot S + (t - S) mod W. With S = 4, W = 8, tokens 4 … 11 fill slots 4 … 11 and token 12 takes slot 4.
        """
        ring, total = SINK + self.window, before + new
        token = before + column
        slots = torch.where(token < SINK, token, SINK + (token - SINK) % self.window)
        kept = (column < new) & (
            (token < SINK) | (token >= total - self.window)
        )  # the rest would be overwritten anyway
        slots = torch.where(kept, slots, ring + width)
        block = (ring + torch.arange(width, device=before.device)).expand(len(before), -1)
        self.cache.place_at(torch.cat([slots, block], dim=1), ring + width + 1)
        slot = torch.arange(ring + width + 1, device=before.device)
        return (slot < total) & (slot < ring) | ((slot >= ring) & (slot < ring + width))

    def _ready(self, seen: Tensor, width: int) -> Tensor:
        """[R, L] as a mask [R, 1, B, L] that the attention at hand takes."""
        mask = seen[:, None, None].expand(-1, 1, width, -1)
        if self.config._attn_implementation != "eager":
            return mask
        dtype = self.own_dtype
        return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, torch.finfo(dtype).min)
