"""What a drafter brings, and what it is told: the seam between the loops and Domino, SpecBlock or any other."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers import Cache, PreTrainedConfig, PreTrainedModel

from . calibration import Calibration  # fmt: skip  # isort: skip
from . head import BlockHead  # fmt: skip  # isort: skip
from . fused_chain import Plan  # fmt: skip  # isort: skip
from . proposal import Proposal  # fmt: skip  # isort: skip

# (depth of the nodes, 1 below the anchors; their tokens [R, m], None: all) -> exponential numbers [R, m] that p is divided by
Noise = Callable[[int, Tensor | None], Tensor]

# (logits [R, W, V] in at least float32, tokens drafted on each lane's path, lists [R][W], None: it says nothing) -> processed logits
Process = Callable[[Tensor, list[list[list[int] | None]]], Tensor]


@dataclass(frozen=True)
class Picking:
    """How drafts are picked out of logits.

    Attributes:
        samples: nodes are drawn, else they are the likeliest. process: the call's processors; None: there are none. blind: they look at
            the logits alone, so they may be shown those of a pool. banned: tokens that are never drafted. ends: tokens after
            which a text is over. plan: says it all where one launch may draft a chain by itself (`fused_chain.py`).
        noise: what the target's draws will be made with, so that the likeliest node is the one that they will likely fall on.
    """

    samples: bool = False
    process: Process | None = None
    blind: bool = True
    banned: tuple[int, ...] = ()
    ends: frozenset[int] = frozenset()
    plan: Plan | None = None
    noise: Noise | None = None

    def processed(self, head: BlockHead, logits: Tensor, paths: list[list[list[int] | None]]) -> Tensor:
        """Logits [R, W, m] of a head's pool as processed; tokens that are banned have -inf."""
        if self.process is not None and self.blind:
            logits = self.process(logits, paths)
        elif self.process is not None:
            logits = head.narrow(self.process(head.wide(logits), paths))
        if not self.banned:
            return logits
        banned = torch.tensor(self.banned, device=logits.device)
        if head.ids is None:
            return logits.index_fill(-1, banned, -torch.inf)
        return logits.masked_fill(torch.isin(head.ids, banned)[:, None], -torch.inf)


@dataclass(frozen=True)
class Wanted:
    """What kind of trees, and how large.

    Attributes:
        nodes: at most, a row. depths: at most, of each row. floor: nodes of less reach are not worth verifying. chain: a chain instead of a
            tree. calibration: reach is estimated by it. cut: for nodes that are drawn: told the reach of all there could be, falling, lists
            [R][n], it says how many of each row's are drawn, the first ones.
    """

    nodes: int
    depths: list[int]
    floor: float
    chain: bool
    calibration: Calibration
    cut: Callable[[list[list[float]]], list[int]] | None = None


class DraftSession(Protocol):
    """A drafter's state of one call: what it has read of every row. `cache` is what a later call may continue."""

    cache: Any

    def continue_at(self, lengths: list[int]) -> None:
        """The target has read this many tokens of each row in earlier calls."""

    def flush(self) -> None:
        """Take in what was added and waits."""

    def read(self, features: Tensor, counts: list[int]) -> None:
        """Take in features [R, c, F * hidden] of newly verified tokens, of which each row's first `counts` are true, at once."""

    def add(self, features: Tensor, counts: list[int]) -> None:
        """The same, with the next proposal."""

    def propose(self, anchors: Tensor, wanted: Wanted, picking: Picking) -> Proposal:
        """Trees below the anchors [R, 1]."""

    def keep(self, rows: list[int]) -> None:
        """The other rows left the batch."""


class Drafter(Protocol):
    """What a model package brings: Domino, SpecBlock, later others. It is a `PreTrainedModel`, too.

    `config` names `block_size`, `num_drafts`, `mask_token_id`, `target_layer_ids`, `shift_label`, and the target's `vocab_size` and
    `hidden_size`.
    """

    @property
    def config(self) -> PreTrainedConfig: ...

    @property
    def device(self) -> torch.device: ...

    @property
    def dtype(self) -> torch.dtype: ...

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]: ...

    def open(
        self, target: PreTrainedModel, rows: int, device: torch.device, *settings: Any, **named: Any
    ) -> DraftSession:
        """The state of one call with this target."""

    def context_of(self, cache: Cache | None, input_ids: Tensor | None) -> Any:
        """What it read of the text input_ids [1, P] in a target's cache; None where that is unknown."""

    def keep_context(self, cache: Cache, context: Any) -> None:
        """See `context_of`."""
