"""What a drafter reads of its target: hidden features at some layers, and the last hidden state for soft labels."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass
class Capture:
    """What the forwards of a target left behind, one entry a forward, in order.

    Attributes:
        layers: outputs [batch, T, D] of each feature layer. last: hidden states [batch, T, D] after the final norm, which
            the LM head reads.
    """

    layers: dict[int, list[Tensor]] = field(default_factory=dict)
    last: list[Tensor] = field(default_factory=list)

    def features(self) -> Tensor:
        """[batch, T, F * D]: the forwards joined along T, the layers along the width, in the order they were asked for."""
        return torch.cat([torch.cat(outputs, dim=1) for outputs in self.layers.values()], dim=-1)

    def last_hidden(self) -> Tensor:
        """[batch, T, D]."""
        return torch.cat(self.last, dim=1)


@contextmanager
def capture(target, layer_ids: list[int], last: bool = False) -> Iterator[Capture]:
    """Keep the outputs of `layer_ids` (0-based; output of layer i = `hidden_states[i + 1]`) in every forward inside.

    Works with `generate` too, whose cached forwards add up to one column per token read. Hooks, not
    `output_hidden_states`: that would keep all layers, and leaves the one after the last layer normed in some versions.
    """
    decoder = target.get_decoder()
    kept = Capture({i: [] for i in layer_ids})

    def keep(into: list[Tensor]):
        return lambda _module, _args, out: into.append(out[0] if isinstance(out, tuple) else out)

    hooks = [decoder.layers[i].register_forward_hook(keep(kept.layers[i])) for i in layer_ids]
    if last:
        hooks.append(final_norm(decoder).register_forward_hook(keep(kept.last)))
    try:
        yield kept
    finally:
        for hook in hooks:
            hook.remove()


def final_norm(decoder) -> torch.nn.Module:
    """The norm between the last layer and the LM head.

    Raises:
        `ValueError`: the decoder names it in none of the known ways.
    """
    for name in ("norm", "final_layernorm", "final_layer_norm", "ln_f"):
        if (module := getattr(decoder, name, None)) is not None:
            return module
    raise ValueError(
        f"{type(decoder).__name__} has no module called norm, final_layernorm, final_layer_norm or ln_f: "
        "soft labels and last_hidden need the norm before the LM head."
    )
