"""The drafter's side of the engine: one block for every row, over context caches of different lengths.

Letters: R rows, c context columns of a forward (rows with fewer are padded on the right), B block, S sink and W window slots.
"""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from . calibration import Calibration  # fmt: skip  # isort: skip
from . domino_parts import DominoParts  # fmt: skip  # isort: skip
from . drafter import Picking, Wanted  # fmt: skip  # isort: skip
from . fused_chain import Plan, fused, fused_rollout  # fmt: skip  # isort: skip
from . head import BlockHead, head_weights  # fmt: skip  # isort: skip
from . proposal import Proposal, Sampled, chain  # fmt: skip  # isort: skip
from . sampled import draw, shape  # fmt: skip  # isort: skip
from .. acceleration.threads import THREADS_SLEEP, one_thread  # fmt: skip  # isort: skip
from . tree import best_first  # fmt: skip  # isort: skip
from .. acceleration.graphs import BUCKET, Graphs  # fmt: skip  # isort: skip
from .. verification.cache import RowCache  # fmt: skip  # isort: skip
from .. verification.target import home_of  # fmt: skip  # isort: skip

SINK = 4  # first tokens a windowed context keeps: attention leans on them whatever they say


class DraftContext(RowCache):
    """Keys and values of the verified context per draft layer.

    Attributes:
        gaps: by how much each row's next position is ahead of its next slot: features that were never seen leave no hole in the slots.
        verified_ids: [1, length], the text it was last drafted for, where that is known. window: see `DominoSession`.
    """

    def __init__(self, layers: int, rows: int, **kwargs: Any) -> None:
        super().__init__(layers, rows, **kwargs)
        self.gaps = [0] * rows
        self.verified_ids: Tensor | None = None
        self.window: int | None = None

    def keep(self, rows: list[int]) -> None:
        super().keep(rows)
        self.gaps = [self.gaps[row] for row in rows]


class DominoSession:
    """A drafter and its context cache for one batch.

    Args:
        draft: the `DominoModel`. target: whose embedding and LM head are used. rows: R.
        device: of the token ids. window: recent tokens of context to keep besides the first few; None keeps all.
        run: the drafter's forward. graphs: which record block and head and replay them; None: they are run.
        pool: tokens that drafts come from, the likeliest of the block by base logits; 0 is the whole vocabulary.
        context: what an earlier call with the same text has read.
    """

    def __init__(
        self,
        draft: DominoParts,
        target: PreTrainedModel,
        rows: int,
        device: torch.device,
        window: int | None = None,
        run: Callable[..., Any] | None = None,
        graphs: Graphs | None = None,
        pool: int = 0,
        context: "DraftContext | None" = None,
    ) -> None:
        self.draft, self.config, self.window, self.pool = draft, draft.config, window, pool
        self.embedding, self.head = target.get_input_embeddings(), target.get_output_embeddings()
        self.home, self.dtype = home_of(target, device), target.dtype
        self.graphs, fixed = graphs, run is not None or graphs is not None
        fresh = DraftContext(self.config.num_hidden_layers, rows, indexed=fixed, bucket=BUCKET if graphs else 1)
        fresh.window = window
        # what a window holds lies elsewhere
        self.cache = fresh if context is None or context.window != window else context
        self.run, self.weights = run or draft, head_weights(draft)
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
        self.flush()

    def continue_at(self, lengths: list[int]) -> None:
        """Say that the target has read this many tokens of each row; the context may lack the last of them.

        Worked example: the context holds 7 tokens, the target has read 10: the next feature lies in slot 7 with position 10. A context
        of 12 belongs to something else, so it begins anew.
        """
        held = zip(self.cache.lengths, lengths, strict=True)
        self.cache.lengths = [own if own <= read else 0 for own, read in held]
        self.cache.gaps = [read - own for own, read in zip(self.cache.lengths, lengths, strict=True)]

    def flush(self) -> None:
        """Read what waits."""
        if not self.waiting:
            return
        features, counts = self._take()
        positions, _ = self._place(counts, features.shape[1], 0)
        self.draft.read_context(features, positions, self.cache)
        self._keep_context(counts)

    def keep(self, rows: list[int]) -> None:
        """The other rows leave the batch."""
        self.cache.keep(rows)
        at = torch.tensor(rows, device=self.device)
        self.waiting = [(features[at], [counts[row] for row in rows]) for features, counts in self.waiting]

    def propose(self, anchors: Tensor, wanted: Wanted, picking: Picking) -> Proposal:
        """Trees below the anchors [R, 1]: chosen ones, path-exact and best first, or drawn ones, or chains of either."""
        # a recorded block reads as many slots always
        deepest = self.config.num_drafts if self.graphs else min(self.config.num_drafts, max(wanted.depths))
        return self.walk(self.block(anchors, min(deepest, wanted.nodes)), anchors, wanted, picking)

    def block(self, anchors: Tensor, count: int) -> "Block":
        """The backbone's block behind everything read so far: `count` drafting slots."""
        masks = anchors.new_full((anchors.shape[0], self.config.block_size - 1), self.config.mask_token_id)
        embeds = self.embed(torch.cat([anchors, masks], dim=-1))
        features, counts = self._take(count + 1 if self.graphs else 0)
        positions, mask = self._place(counts, features.shape[1], embeds.shape[1])
        hidden, base = self._backbone(embeds, features, positions, mask, count)
        self._keep_context(counts)
        return Block(hidden, base.to(anchors.device))

    def walk(self, block: "Block", anchors: Tensor, wanted: Wanted, picking: Picking) -> Proposal:
        """The head goes over a block, in one launch where there is one for it."""
        plan = picking.plan
        if wanted.chain and plan is not None and fused(self.draft, block.hidden, block.base, plan):
            return self._in_one_launch(block, anchors, wanted, plan, picking.samples)
        with one_thread() if self._few(block) else nullcontext():
            return self._step_by_step(block, anchors, wanted, picking)

    def _step_by_step(self, block: "Block", anchors: Tensor, wanted: Wanted, picking: Picking) -> Proposal:
        head = BlockHead(self.weights, block.hidden, block.base, self.embed, self.pool)
        branch = 1 if wanted.chain else None
        if picking.samples:
            sure = _confidences(head, picking)
            shapes = [
                shape(wanted.calibration, row[:depth], wanted.nodes, wanted.floor, branch)
                for row, depth in zip(sure, wanted.depths, strict=True)
            ]
            if wanted.cut is not None:
                counts = wanted.cut([plan.reach for plan in shapes])
                shapes = [plan.first(count) for plan, count in zip(shapes, counts, strict=True)]
            trees, law = draw(head, anchors, shapes, partial(picking.processed, head), set(picking.ends))
            return Proposal(trees, law)
        lanes = ChosenLanes(head, anchors, picking, wanted.calibration)
        ends = torch.tensor(sorted(picking.ends), dtype=torch.long, device=anchors.device)
        grown = best_first(lanes, len(anchors), wanted.nodes, head.drafts, wanted.floor, ends, branch)
        return Proposal([grown.tree(row, depth) for row, depth in enumerate(wanted.depths)])

    def _few(self, block: "Block") -> bool:
        """Whether the head's products take microseconds: to wake a thread that sleeps for its share of one takes longer."""
        return THREADS_SLEEP and block.base.device.type == "cpu" and 0 < self.pool < block.base.shape[-1]

    def _in_one_launch(self, block: "Block", anchors: Tensor, wanted: Wanted, plan: Plan, samples: bool) -> Proposal:
        """A chain drafted by one launch, which tells no probabilities: every node counts as sure."""

        def head(hidden: Tensor, base: Tensor, anchors: Tensor) -> tuple[Tensor, Tensor | None]:
            return fused_rollout(self.draft, hidden, base, anchors, self.embed, plan, self.pool)

        if self.graphs is None:
            drafts, q = head(block.hidden, block.base, anchors)
        else:
            drafts, q = self.graphs("head", head, self.pool, hidden=block.hidden, base=block.base, anchors=anchors)
        trees = []
        for said, most in zip(drafts.tolist(), wanted.depths, strict=True):
            said = said[:most]
            trees.append(chain(said, [1.0] * len(said), [-1] * len(said), drawn=samples))
        if q is None:
            return Proposal(trees)
        return Proposal(trees, Sampled(None, q.softmax(dim=-1), [list(range(len(tree))) + [-1] for tree in trees]))

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

        def work(
            block: Tensor,
            features: Tensor,
            positions: Tensor,
            mask: Tensor | None = None,
            slots: Tensor | None = None,
        ) -> tuple[Tensor, Tensor]:
            if slots is not None:
                self.cache.slots = slots
            out = self.run(block, features, mask, positions, self.cache)
            hidden = out.last_hidden_state[:, self.config.first_slot : self.config.first_slot + count]
            base = self.head(hidden.to(self.home, self.dtype))
            return hidden, base.to(torch.promote_types(base.dtype, torch.float32))

        if self.graphs is None or mask is None:
            return work(block, features, positions, mask)
        state, slots = (count, self.cache.visible, self.cache.capacity), self.cache.slots
        assert isinstance(slots, Tensor)  # as in every cache that is indexed
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
            positions = torch.arange(lengths[0], self.cache.visible, device=device).expand(len(lengths), -1)
            return self._ahead(positions), None
        before = torch.tensor(self.cache.lengths, device=device)[:, None]
        new = torch.tensor(counts, device=device)[:, None]
        column, place = torch.arange(columns, device=device), torch.arange(width, device=device)
        positions = self._ahead(torch.cat([before + column, before + new + place], dim=1))
        if self.window is not None:
            return positions, self._ready(self._place_in_window(before, new, column, width, self.window), width)
        self.cache.place(columns + width, device)
        slot = torch.arange(self.cache.visible, device=device)
        block = before + columns
        return positions, self._ready((slot < before + new) | ((slot >= block) & (slot < block + width)), width)

    def _ahead(self, slots: Tensor) -> Tensor:
        """Positions of tokens that would lie in these slots [R, n]."""
        gaps = self.cache.gaps
        return slots + torch.tensor(gaps, device=self.device)[:, None] if any(gaps) else slots

    def _place_in_window(self, before: Tensor, new: Tensor, column: Tensor, width: int, window: int) -> Tensor:
        """Slots 0 … S-1 keep the first tokens, S … S+W-1 are a ring of the last W, then come the block and one for waste.

        Token t >= S lies in slot S + (t - S) mod W. With S = 4, W = 8, tokens 4 … 11 fill slots 4 … 11 and token 12 takes slot 4.
        """
        ring, total = SINK + window, before + new
        token = before + column
        slots = torch.where(token < SINK, token, SINK + (token - SINK) % window)
        kept = (column < new) & ((token < SINK) | (token >= total - window))  # the rest would be overwritten anyway
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


@dataclass(frozen=True)
class Block:
    """What the backbone says of the drafting slots: H [R, n, hidden] on the drafter's device, base logits [R, n, vocab] in at least float32."""

    hidden: Tensor
    base: Tensor


class ChosenLanes:
    """The frontier of a best-first tree: each lane's likeliest children by the head, given its own path (`tree.Frontier`)."""

    def __init__(self, head: BlockHead, anchors: Tensor, picking: Picking, calibration: Calibration) -> None:
        self.head, self.picking, self.calibration = head, picking, calibration
        self.lanes = head.begin(anchors)
        self.paths: list[list[list[int] | None]] = [[[]] for _ in range(len(anchors))]

    def children(self, depth: int, most: int) -> tuple[Tensor, Tensor, Tensor]:
        logits = self.picking.processed(self.head, self.head.logits(depth - 1, self.lanes), self.paths)
        if self.picking.noise is not None:
            logits = logits - self.picking.noise(depth, self.head.ids).log()[:, None].to(logits.device)
        best, places = logits.topk(min(most, logits.shape[-1]), dim=-1)
        p = (best - logits.logsumexp(dim=-1, keepdim=True)).exp().nan_to_num(0.0)
        chances, cells = self.calibration.chosen(p)
        return chances, self.head.ids_of(places.flatten(1)).view(places.shape), cells

    def advance(self, lanes: Tensor, tokens: Tensor) -> None:
        self.lanes = self.head.step(self.lanes.pick(lanes.to(self.lanes.state.device)), tokens)
        if self.picking.process is not None and not self.picking.blind:
            self.paths = [
                [self._below(self.paths[row][lane], token) for lane, token in zip(*pair, strict=True)]
                for row, pair in enumerate(zip(lanes.tolist(), tokens.tolist(), strict=True))
            ]

    def _below(self, path: list[int] | None, token: int) -> list[int] | None:
        """Rows with fewer lanes are filled up with dead ones; processors may have nothing to say after an end token."""
        return None if path is None or token in self.picking.ends else [*path, token]


def _confidences(head: BlockHead, picking: Picking) -> list[list[float]]:
    """How sure the backbone is of each place before any draft is known: its largest probability, lists [R][n]."""
    rows, places, size = head.base.shape
    base = head.base
    if picking.process is not None and picking.blind:
        base = picking.process(base, [[[]] * places] * rows)
    return (base.amax(dim=-1) - base.logsumexp(dim=-1)).exp().nan_to_num(0.0).tolist()
