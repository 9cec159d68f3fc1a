"""A view of a model that decodes faster on a CPU and shares its weights, buffers and configuration with it.

Other than in the model: plain linear layers are packed, several that read the same input as one (`packed_weights.py`), attention of
a few queries reads grouped keys as they are (`few_queries.py`), RMSNorm and the rotary embedding take fewer calls (`rms_norm.py`,
`rotary.py`). The model itself stays as it is.
"""

import copy
import inspect
import sys
from functools import cache
from typing import Any

from torch import nn
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from . few_queries import NAME  # fmt: skip  # isort: skip
from . invariant_attention import NAME as INVARIANT  # fmt: skip  # isort: skip
from . packed_linear import LimitedLinear, PackedLinear, PackedSibling  # fmt: skip  # isort: skip
from . packed_weights import packed_weights  # fmt: skip  # isort: skip
from . rms_norm import rms_norms  # fmt: skip  # isort: skip
from . rotary import with_short_rotary  # fmt: skip  # isort: skip
from . summation import row_limits  # fmt: skip  # isort: skip

Exchanged = dict[
    nn.Module, tuple[type[nn.Module], dict[str, Any]]
]  # module -> class of its view and what that has besides

OWN = (
    "_parameters",
    "_buffers",
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
)


def decoding_view(model: nn.Module, packs: bool, invariant: bool = False) -> nn.Module:
    """The view of a model on a CPU; any other model as it is, and one with layers compiled in place, which call themselves.

    Args:
        packs: whether linear layers may be packed, and what lies between them be done in fewer calls.
        invariant: whether no token may depend on what is read with it; only where `invariance.obstacle` names none.
    """
    if model.device.type != "cpu" or any(m._compiled_call_impl is not None for m in model.modules()):
        return model
    exchanged: Exchanged = {**packed_weights(model), **rms_norms(model)} if packs else {}
    if invariant:
        _limit_rows(model, exchanged)
    attention = INVARIANT if invariant else NAME if regroups(model) else None
    view = _view(model, exchanged, attention, {})
    if packs:
        for module in view.modules():
            with_short_rotary(module)
            _find_children_at_once(module)
    return view


def _limit_rows(model: nn.Module, exchanged: Exchanged) -> None:
    """Every linear layer reads its rows in products whose order is that of few."""
    for module in model.modules():
        if type(module) is not nn.Linear:
            continue
        kind, besides = exchanged.setdefault(module, (LimitedLinear, {}))
        outputs, packed = module.out_features, issubclass(kind, PackedLinear)
        if kind is PackedSibling:
            outputs = sum(besides["product"].sizes)
            besides["product"].limits = row_limits(module.in_features, outputs, packed)
        else:
            besides["limits"] = row_limits(module.in_features, outputs, packed)


def _find_children_at_once(view: nn.Module) -> None:
    """Modules also as plain attributes: torch searches for them in three dictionaries, seven hundred times a round.

    Where one is exchanged later, torch takes the plain attribute away.
    """
    for name, child in view._modules.items():
        if child is not None and not hasattr(type(view), name):
            view.__dict__.setdefault(name, child)


def regroups(model: nn.Module) -> bool:
    """Whether attention may be exchanged: it goes through transformers' registry, whose "sdpa" is transformers' own.

    Some models compare their configuration with "sdpa" and would take another branch under any other name; that is read off
    the source of their classes.
    """
    if ALL_ATTENTION_FUNCTIONS.get_interface("sdpa", None) is not sdpa_attention_forward:
        return False
    kinds = {kind for m in model.modules() if "config" in m.__dict__ for kind in type(m).__mro__}
    return not any(_compares_with_sdpa(name) for name in sorted({kind.__module__ for kind in kinds}))


@cache
def _compares_with_sdpa(module_name: str) -> bool:
    if module_name.startswith(("torch.", "transformers.")) and not module_name.startswith("transformers.models."):
        return False
    if module_name == "builtins":
        return False
    try:
        source = inspect.getsource(sys.modules[module_name])
    except (OSError, TypeError, KeyError):
        return True  # unknown, so left alone
    return '"sdpa"' in source or "'sdpa'" in source


def _view(module: nn.Module, exchanged: Exchanged, attention: str | None, seen: dict) -> nn.Module:
    if module in seen:
        return seen[module]
    # Dictionaries are copied, so that what is hung on the view (hooks that collect hidden states, rescaled position tables)
    # leaves the model alone.
    state = module.__dict__.copy()
    for name in OWN:
        state[name] = state[name].copy()
    state["_modules"] = {
        name: child if child is None else _view(child, exchanged, attention, seen)
        for name, child in module._modules.items()
    }
    kind, besides = exchanged.get(module, (type(module), {}))
    state |= besides
    config = state.get("config")
    if attention and getattr(config, "_attn_implementation", None) == "sdpa":
        # the original is kept beside its copy, or another could get its id
        state["config"] = seen.setdefault(id(config), (config, _attending(config, attention)))[1]
    view = seen[module] = object.__new__(kind)
    object.__setattr__(view, "__dict__", state)
    return view


def _attending(config, attention: str):
    config = copy.copy(config)
    config._attn_implementation_internal = attention
    return config
