"""What the drafting code reads of a `DominoModel`, which imports that code and so cannot be named there."""

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers import Cache, PreTrainedConfig

Embed = Callable[[Tensor], Tensor]  # token ids [R, W] -> target embeddings [R, W, hidden] on the drafter's device


class DominoParts(Protocol):
    """A Domino drafter: its projection of features, the GRU and the correction of its head, and its backbone.

    `embed_proj` holds W1, SiLU and W2; `config` is a `DominoConfig`.
    """

    fc: nn.Linear
    prefix_gru: nn.GRU
    embed_proj: nn.Sequential

    @property
    def config(self) -> PreTrainedConfig: ...

    @property
    def device(self) -> torch.device: ...

    @property
    def dtype(self) -> torch.dtype: ...

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The backbone, see `DominoModel.forward`."""

    def read_context(self, features: Tensor, positions: Tensor, cache: Cache) -> None:
        """Put features [R, c, F * hidden] at positions [R, c] into the cache."""
