"""Whether a target can be read so that no token depends on what is read with it, and why not.

A forward over n tokens rounds as n forwards over one do if every sum is taken in an order that depends on nothing but the token. The
parts that see to it: linear layers read their rows in pieces (`packed_linear.within`), attention is two products and a softmax
(`invariant_attention.py`), branches of a tree are summed where a chain would lie (`tree_values.py`), and the cache shows keys in
multiples of 64. Here is asked, once, whether this machine then adds in one order (`summation.py`).
"""

import logging
from typing import Any

import torch
from torch import nn

from . packed_linear import LimitedLinear, PackedLinear, PackedSibling, RowLimits  # fmt: skip  # isort: skip
from . same_code import mentions  # fmt: skip  # isort: skip
from . summation import attention_keeps_order, row_limits  # fmt: skip  # isort: skip

# What a model may hand to attention besides a mask, by the names that transformers uses.
UNKNOWN = ("softcap", "position_bias", "s_aux")
Exchanged = dict[
    nn.Module, tuple[type[nn.Module], dict[str, Any]]
]  # module -> class of its view and what that has besides

logger = logging.getLogger(__name__)


def obstacle(model: nn.Module, exchanged: Exchanged) -> str | None:
    """Why a token's logits may depend on what is read with it; None: they do not. Told in the log, too.

    Args:
        model: whose attention can be exchanged. exchanged: what its view has instead of packed layers.
    """
    found = _of_model(model) or _of_sums(model, exchanged)
    if found is not None:
        logger.debug(
            "%s: texts with and without drafts agree up to near ties only, as %s.", type(model).__name__, found
        )
    return found


def _of_model(model: nn.Module) -> str | None:
    if any(tensor.device.type != "cpu" or tensor.dtype != torch.bfloat16 for tensor in model.parameters()):
        return "the weights are not in bfloat16 on a CPU"
    config: Any = model.config
    if config.get_text_config() is not config or config._attn_implementation != "sdpa":
        return "its attention is not exchanged"
    named = sorted({type(module).__module__ for module in model.modules() if "config" in module.__dict__})
    asked = [word for word in UNKNOWN for name in named if mentions(name, word)]
    if asked:
        return f"its attention may use {asked[0]}"
    other = [name for name, module in model.named_modules() if not _is_known(module)]
    return f"{other[0]} holds weights of a kind that is not known" if other else None


def _is_known(module: nn.Module) -> bool:
    """Weights are those of linear layers, embeddings and norms."""
    if "forward" in module.__dict__:
        return False
    if type(module) is nn.Linear or isinstance(module, nn.Embedding):
        return True
    return all(weight.dim() == 1 for weight in module.parameters(recurse=False))


def _of_sums(model: nn.Module, exchanged: Exchanged) -> str | None:
    for module in _linear(model):
        if _limits(module, exchanged) is None:
            return f"products of {module.in_features} inputs add in an order that depends on the rows"
    config: Any = model.config
    heads = config.num_attention_heads
    groups = getattr(config, "num_key_value_heads", None) or heads
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    if not attention_keeps_order(groups, heads // groups, width):
        return f"sums over keys of {groups} heads of {width} add in an order that depends on what is read"
    return None


def limited(model: nn.Module, exchanged: Exchanged) -> Exchanged:
    """What a view has instead, with every linear layer reading its rows within limits."""
    found = dict(exchanged)
    for module in _linear(model):
        kind, besides = exchanged.get(module, (LimitedLinear, {}))
        limits = _limits(module, exchanged)
        if kind is PackedSibling:
            besides["product"].limits = limits  # made for this view
        found[module] = kind, {**besides, "limits": limits}
    return found


def _linear(model: nn.Module) -> list[nn.Linear]:
    return [module for module in model.modules() if type(module) is nn.Linear]


def _limits(module: nn.Linear, exchanged: Exchanged) -> RowLimits | None:
    kind, besides = exchanged.get(module, (LimitedLinear, {}))
    outputs = sum(besides["product"].sizes) if kind is PackedSibling else module.out_features
    return row_limits(module.in_features, outputs, packed=issubclass(kind, PackedLinear))
