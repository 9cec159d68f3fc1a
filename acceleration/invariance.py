"""Whether a target can be read so that no token depends on what is read with it, and why not.

A forward over n tokens rounds as n forwards over one do if every sum is taken in an order that depends on nothing but the token. The
parts that see to it: linear layers read their rows in pieces (`packed_linear.within`), attention is two products and a softmax
(`invariant_attention.py`), branches of a tree are summed where a chain would lie (`tree_values.py`), and the cache shows keys in
multiples of 64. Here is asked, once, whether this machine then adds in one order (`summation.py`).
"""

import inspect
import logging
import sys
from functools import cache

import torch
from torch import nn

from . packed_weights import can_pack  # fmt: skip  # isort: skip
from . summation import attention_keeps_order, row_limits  # fmt: skip  # isort: skip
from . view import regroups  # fmt: skip  # isort: skip

# What a model may hand to attention besides a mask, by the names that transformers uses.
UNKNOWN = ("softcap", "position_bias", "s_aux")

logger = logging.getLogger(__name__)


def is_invariant(model: nn.Module, packs: bool, compiled: bool = False) -> bool:
    """Whether `decoding_view(model, packs, invariant=True)` is one; says why not in the log.

    Args:
        packs: as for `decoding_view`. compiled: whether the forward will be compiled, which orders sums as it likes.
    """
    found = "it is compiled" if compiled else obstacle(model, packs)
    if found is not None:
        logger.debug("Texts of %s with and without drafts are equal up to near ties only: %s.", type(model).__name__, found)
    return found is None


def obstacle(model: nn.Module, packs: bool) -> str | None:
    """Why a token's logits may depend on what is read with it; None: they do not."""
    if any(tensor.device.type != "cpu" or tensor.dtype != torch.bfloat16 for tensor in model.parameters()):
        return "it is not in bfloat16 on a CPU"
    if any(module._compiled_call_impl is not None for module in model.modules()):
        return "it holds compiled layers"
    if not regroups(model):
        return "its attention cannot be exchanged"
    config = model.config.get_text_config()
    named = {type(module).__module__ for module in model.modules() if "config" in module.__dict__}
    asked = [word for word in UNKNOWN for name in sorted(named) if _mentions(name, word)]
    if asked:
        return f"its attention uses {asked[0]}"
    other = [name for name, module in model.named_modules() if not _is_known(module)]
    if other:
        return f"the sums of {other[0]} are unknown"
    return _of_sums(model, config, packs)


def _is_known(module: nn.Module) -> bool:
    """Weights are those of linear layers, embeddings and norms."""
    if type(module) in (nn.Linear, nn.Embedding):
        return "forward" not in module.__dict__
    return all(weight.dim() == 1 for weight in module.parameters(recurse=False))


def _of_sums(model: nn.Module, config, packs: bool) -> str | None:
    for module in model.modules():
        if type(module) is nn.Linear:
            shape = module.in_features, module.out_features
            if row_limits(*shape, packed=packs and can_pack(module)) is None:
                return f"a product of {shape[0]} inputs and {shape[1]} outputs adds in an order that depends on the rows"
    heads = config.num_attention_heads
    groups = getattr(config, "num_key_value_heads", None) or heads
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    if not attention_keeps_order(groups, heads // groups, width):
        return f"sums over keys of {groups} heads of {width} depend on what is read"
    return None


@cache
def _mentions(module_name: str, word: str) -> bool:
    if module_name.startswith("torch.") or module_name == "builtins":
        return False
    try:
        return word in inspect.getsource(sys.modules[module_name])
    except (OSError, TypeError, KeyError):
        return True  # unknown
