"""A view of a model that decodes faster on a CPU and shares its weights, buffers and configuration with it.

Two things are other than in the model: plain linear layers are packed (`packed.py`), and attention of a few queries reads grouped
keys as they are (`few_queries.py`). The model itself stays as it is.
"""

import copy
from collections import OrderedDict

from torch import nn

from . few_queries import NAME  # fmt: skip  # isort: skip
from . packed import PackedLinear, can_pack, pack, worth_packing  # fmt: skip  # isort: skip

HOOKS = (
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
)


def decoding_view(model: nn.Module, packs: bool) -> nn.Module:
    """The view of a model on a CPU; any other model as it is.

    Args:
        packs: whether linear layers may be packed.
    """
    if model.device.type != "cpu":
        return model
    return _view(model, packs and worth_packing(model), {})


def _view(module: nn.Module, packs: bool, seen: dict) -> nn.Module:
    if module in seen:
        return seen[module]
    packed = packs and can_pack(module)
    view = object.__new__(PackedLinear if packed else type(module))
    # Hooks are copied, so that what is hung on the view, as transformers does to collect hidden states, leaves the model alone.
    view.__dict__.update(module.__dict__)
    view.__dict__.update((hooks, OrderedDict(module.__dict__[hooks])) for hooks in HOOKS)
    view.__dict__["_modules"] = {
        name: child if child is None else _view(child, packs, seen) for name, child in module._modules.items()
    }
    if packed:
        view.packed = pack(module)
    config = getattr(module, "config", None)
    if getattr(config, "_attn_implementation", None) == "sdpa":
        view.config = seen.setdefault(id(config), _with_few_queries(config))
    seen[module] = view
    return view


def _with_few_queries(config):
    config = copy.copy(config)
    config._attn_implementation_internal = NAME
    return config
