"""The target's side of the engine: prefill and verify over rows of different lengths."""

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from . features import feature_entries, feature_states  # fmt: skip  # isort: skip
from .. drafting.proposal import Proposal  # fmt: skip  # isort: skip
from .. acceleration.graphs import BUCKET, Graphs  # fmt: skip  # isort: skip
from .. acceleration.invariant_attention import NAME as INVARIANT, STEP, TREE  # fmt: skip  # isort: skip
from .. acceleration.tree_values import TreeValues  # fmt: skip  # isort: skip
from . cache import RowCache  # fmt: skip  # isort: skip
from . mask import Tail, causal_mask, tree_mask  # fmt: skip  # isort: skip

FEW = 64  # tokens of a verification, at most, whose mask is cut out of a triangle that stays

Masks = (
    Tensor | dict[str, Tensor] | None
)  # ready, for all layers or for each kind; None: transformers' own shortcut is right
M = TypeVar("M", bound=PreTrainedModel)


class RowTarget:
    """A target and its cache for one batch.

    Args:
        target: the model. layer_ids: whose outputs are the drafter's features. rows: R. longest: tokens of a text at most.
        capacity: see `RowCache`.
        chunk: tokens of the prompt read at a time. compiled: verify with `torch.compile`. device: of the token ids.
        graphs: which record verifications and replay them; None: each is run.
        states, attentions: whether forwards keep all hidden states and attentions in `seen`, for the caller.
    """

    def __init__(
        self,
        target: PreTrainedModel,
        layer_ids: list[int],
        rows: int,
        longest: int,
        capacity: int | None,
        chunk: int,
        compiled: bool,
        device: torch.device,
        graphs: Graphs | None = None,
        states: bool = False,
        attentions: bool = False,
    ) -> None:
        self.target, self.layer_ids, self.longest, self.chunk = target, layer_ids, longest, chunk
        self.config = target.config.get_text_config()
        self.entries: list[int] | bool = states or feature_entries(layer_ids)
        self.attentions = attentions
        self.seen: Any = None  # what the last forward returned
        self.graphs, fixed = graphs, compiled or graphs is not None
        # a view in which no token depends on what is read with it
        self.invariant = self.config._attn_implementation == INVARIANT
        bucket = STEP if self.invariant else BUCKET if graphs else 1
        self.cache = RowCache(self.config.num_hidden_layers, rows, capacity, fixed, bucket, tight=self.invariant)
        self.run = compile_forward(target) if compiled else target
        self.device = home_of(target, device)
        self.tail = Tail(self.device)
        kinds = set(getattr(self.config, "layer_types", None) or ["full_attention"])
        window = getattr(self.config, "sliding_window", None)
        self.mixed = "sliding_attention" in kinds
        self.window = window if self.mixed or not hasattr(self.config, "layer_types") else None

    def prefill(self, prompts: list[Tensor]) -> Iterator[tuple[Tensor, dict[int, Tensor]]]:
        """Read the prompts, a chunk at a time, behind what the cache holds.

        Args:
            prompts: token ids [length] of each row, one at least.

        Yields:
            the features [R, k, F * hidden] of each chunk, padded on the right, and {row: logits [V]} of rows that end in it.
        """
        lengths, before = [len(prompt) for prompt in prompts], list(self.cache.lengths)
        ids = torch.nn.utils.rnn.pad_sequence(prompts, batch_first=True).to(self.device)
        for start in range(0, ids.shape[1], self.chunk):
            part = ids[:, start : start + self.chunk]
            end = start + part.shape[1]
            ending = [row for row, length in enumerate(lengths) if start < length <= end]
            last = sorted({lengths[row] - 1 - start for row in ending})
            self.cache.lengths = [read + start for read in before]
            # nobody ends here: one position, since 0 would mean all of them
            wanted = torch.tensor(last or [0], device=self.device)
            positions, masks = self._place(part.shape[1])
            logits, features = self._forward(self.target, part, positions, masks, wanted)
            yield features, {row: logits[row, last.index(lengths[row] - 1 - start)] for row in ending}
        self.cache.lengths = [read + length for read, length in zip(before, lengths, strict=True)]

    def verify(self, anchors: Tensor, proposal: Proposal) -> tuple[Tensor, Tensor]:
        """Read anchors [R, 1] and the nodes below them after the rows' own lengths, which stay: `commit` says what was kept.

        Returns:
            logits [R, n + 1, V] and features [R, n + 1, F * hidden], of each slot.
        """
        tokens = torch.cat([anchors, proposal.tokens(anchors.device)], dim=1)
        positions, masks = self._place(tokens.shape[1]) if proposal.is_chain() else self._place_trees(proposal)
        if self.graphs is None:
            return self._forward(self.run, tokens.to(self.device), positions, masks)

        def work(ids: Tensor, positions: Tensor, slots: Tensor, **masks: Tensor) -> tuple[Tensor, Tensor]:
            self.cache.slots = slots
            return self._forward(self.run, ids, positions, masks.get("mask", masks))

        named = masks if isinstance(masks, dict) else {"mask": masks}
        state, slots = (self.cache.visible, self.cache.capacity), self.cache.slots
        assert isinstance(slots, Tensor)  # the cache is indexed where there are graphs
        return self.graphs("verify", work, *state, ids=tokens, positions=positions, slots=slots, **named)

    def places(self, row: int, slots: list[int]) -> list[int]:
        """Slots of the cache, in the order of the text, that a kept path's last slot saw; before `commit`.

        Worked example: length 5, slots 0 and 2 kept: 0 … 4, 5, 7.
        """
        length = self.cache.lengths[row]
        return [*range(length), *(length + slot for slot in slots)]

    def commit(self, paths: list[list[int]]) -> None:
        """Of what was verified last, every row keeps its anchor and these nodes, from the anchor down."""
        self.cache.commit([[node + 1 for node in path] for path in paths])

    def _place(self, tokens: int) -> tuple[Tensor, Masks]:
        """Say where the next tokens go; returns their positions [R, tokens] and masks."""
        self.cache.place(tokens, self.device)
        positions = self._positions(tokens)
        return positions, self._masks(positions)

    def _place_trees(self, proposal: Proposal) -> tuple[Tensor, Masks]:
        """The same for trees: a node's position is its depth behind the text, its slot its number."""
        depths, ancestors, lengths = proposal.depths(), proposal.ancestors(), self.cache.lengths
        if self.invariant:
            return self._place_apart(TreeValues(lengths, depths, ancestors, proposal.counts), depths)
        self.cache.place(depths.shape[1], self.device)
        positions = torch.from_numpy(np.array(lengths)[:, None] + depths).to(self.device)

        def masked(window: int | None) -> Tensor:
            return self._ready(tree_mask(lengths, ancestors, depths, self.device, window))

        return positions.clamp(max=self.longest - 1), self._of_each_kind(masked)

    def _place_apart(self, values: TreeValues, depths: np.ndarray) -> tuple[Tensor, Masks]:
        """The same where branches are summed apart. The masks go by position, as those of chains, and carry the values' places."""
        self.cache.place(depths.shape[1], self.device, least=values.end)
        positions = torch.from_numpy(np.array(self.cache.lengths)[:, None] + depths).to(self.device)
        masks = self._of_each_kind(lambda window: causal_mask(positions, self.cache.visible, window))
        for mask in masks.values() if isinstance(masks, dict) else (masks,):
            mask.__dict__[TREE] = values
        return positions.clamp(max=self.longest - 1), masks

    def _of_each_kind(self, masked: Callable[[int | None], Tensor]) -> Tensor | dict[str, Tensor]:
        """One mask for all layers, or one for each kind; `masked` makes that of a window, None is full attention."""
        if not self.mixed:
            return masked(self.window)
        return {"full_attention": masked(None), "sliding_attention": masked(self.window)}

    def _forward(
        self,
        run: Callable[..., Any],
        ids: Tensor,
        positions: Tensor,
        masks: Masks,
        logits_to_keep: int | Tensor = 0,
    ) -> tuple[Tensor, Tensor]:
        out = run(
            input_ids=ids,
            attention_mask=masks,
            position_ids=positions,
            past_key_values=self.cache,
            use_cache=True,
            output_hidden_states=self.entries,
            logits_to_keep=logits_to_keep,
            **({"output_attentions": True} if self.attentions else {}),
        )
        self.seen = out if self.entries is True or self.attentions else None
        states = feature_states(out.hidden_states, self.layer_ids, self.config.num_hidden_layers)
        return out.logits, torch.cat([state.to(states[0].device) for state in states], dim=-1)

    def _positions(self, tokens: int) -> Tensor:
        """[R, tokens]. Drafts that a row has no room for, and which do not count, stay at its last: a table of positions may end there."""
        lengths = self.cache.lengths
        if isinstance(self.cache.slots, slice):  # rows alike
            positions = torch.arange(lengths[0], lengths[0] + tokens, device=self.device).expand(len(lengths), -1)
        else:
            positions = torch.tensor(lengths, device=self.device)[:, None] + torch.arange(tokens, device=self.device)
        return positions if max(lengths) + tokens <= self.longest else positions.clamp(max=self.longest - 1)

    def _masks(self, positions: Tensor) -> Masks:
        """A ready mask, or one for each kind of layer; None where transformers' own shortcut for plain causal is right."""
        rows, tokens = positions.shape
        if self.invariant:
            same = positions[:1] if isinstance(self.cache.slots, slice) else positions
            return self._of_each_kind(lambda window: causal_mask(same, self.cache.visible, window))
        if tokens == self.cache.visible and self.window is None:
            return None
        alike = isinstance(self.cache.slots, slice)
        if alike and self.window is None and tokens <= FEW:
            return self._ready(self.tail.mask(self.cache.lengths[0], tokens)).expand(rows, -1, -1, -1)
        at = positions[:1] if alike else positions  # rows alike share one mask

        def masked(window: int | None) -> Tensor:
            return self._ready(causal_mask(at, self.cache.visible, window)).expand(rows, -1, -1, -1)

        return self._of_each_kind(masked)

    def _ready(self, mask: Tensor) -> Tensor:
        if self.config._attn_implementation != "eager":
            return mask
        return torch.zeros(mask.shape, dtype=self.target.dtype, device=mask.device).masked_fill_(
            ~mask, torch.finfo(self.target.dtype).min
        )


def home_of(target: PreTrainedModel, device: torch.device) -> torch.device:
    """Where a target takes token ids: with its embedding, or on `device` where that is offloaded.

    Offloaded weights lie on "meta"; their hooks move what they get.
    """
    embedding: Any = target.get_input_embeddings()  # a module, for transformers
    home = embedding.weight.device
    return device if home.type == "meta" else home


def compile_forward(model: M) -> M:
    """A view of a model that shares everything but its forward, which is `torch.compile`d for all lengths; hooks stay outside of it.

    torch keeps the program with the model's code, so that asking again costs nothing. On a CPU the weights are packed once for
    its matrix units: twice the memory, half the time.
    """
    options: dict[str, Any] | None = {"freezing": True} if model.device.type == "cpu" else None
    view = object.__new__(type(model))
    view.__dict__ = {**model.__dict__, "forward": torch.compile(model.forward, dynamic=True, options=options)}
    return view
