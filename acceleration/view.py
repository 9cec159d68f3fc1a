"""A view of a model that decodes faster on a CPU and shares its weights, buffers and configuration with it.

Other than in the model: plain linear layers are packed, several that read the same input as one (`packed_weights.py`), attention of
a few queries reads grouped keys as they are (`few_queries.py`), RMSNorm and the rotary embedding take fewer calls (`rms_norm.py`,
`rotary.py`). The model itself stays as it is.
"""

import copy
from dataclasses import dataclass
from threading import RLock
from typing import Any, TypeVar, cast

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from . few_queries import NAME  # fmt: skip  # isort: skip
from . invariance import Exchanged, limited, obstacle  # fmt: skip  # isort: skip
from . invariant_attention import NAME as INVARIANT  # fmt: skip  # isort: skip
from . packed_weights import forget, packed_weights  # fmt: skip  # isort: skip
from . rms_norm import rms_norms  # fmt: skip  # isort: skip
from . rotary import rotates, short_rotaries  # fmt: skip  # isort: skip
from . same_code import mentions  # fmt: skip  # isort: skip
from . structure import OWN, Structure  # fmt: skip  # isort: skip
from . watched import Watched  # fmt: skip  # isort: skip

M = TypeVar("M", bound=PreTrainedModel)
KEPT = "_domino_views"  # attribute of a model: its views
_building = RLock()


@dataclass(frozen=True)
class Kept:
    """A view and what it was made of."""

    view: nn.Module
    structure: Structure
    copied: Watched  # parameters whose values the view holds again, in another layout

    def holds(self, model: nn.Module) -> bool:
        return self.structure.unchanged(model) and self.copied.unchanged()


class Views(dict[Any, Kept]):
    """The views of a model, kept with it so that they go when it goes; a copy or a pickle of the model has none."""

    def __reduce__(self):
        return dict, ()


def decoding_view(model: M, packs: bool, invariant: bool = False) -> M:
    """The view of a model on a CPU; any other model as it is, and one with layers compiled in place, which call themselves.

    It is made once and kept until something of the model is another (`structure.py`, `watched.py`). Calls of several threads share
    it: nothing of a forward is kept in it.

    Args:
        packs: whether linear layers may be packed, and what lies between them be done in fewer calls.
        invariant: whether no token may depend on what is read with it. Where that cannot be had (`invariance.obstacle`) it is the other view.
    """
    if model.device.type != "cpu":
        if model.__dict__.pop(KEPT, None):  # it was on the CPU before
            forget(model)
        return model
    key = packs, _sdpa_is_usual(), torch.get_num_threads() if invariant else None
    known = _views(model).get(key)
    if known is not None and known.holds(model):
        return cast(M, known.view)  # of the model's own class, or of one below it
    with _building:
        return cast(M, _made(model, key))


def _views(model: nn.Module) -> Views:
    """Those that are kept with a model."""
    views = model.__dict__.get(KEPT)
    if not isinstance(views, Views):  # a copy of a model has a plain dictionary instead
        views = model.__dict__[KEPT] = Views()
    return views


def _made(model: nn.Module, key: tuple[bool, bool, int | None]) -> nn.Module:
    """A view made now, unless another thread was faster."""
    views = _views(model)
    for old in [old for old, known in views.items() if not known.holds(model)]:
        del views[old]
    if key in views:
        return views[key].view
    if any(m._compiled_call_impl is not None for m in model.modules()):
        return model
    # Seen before the view is made: what another thread changes meanwhile is noticed on the next call.
    copied_names = [kind.forward.__globals__ for kind in {type(m) for m in model.modules()} if rotates(kind)]
    structure = Structure(model, {KEPT, *getattr(type(model), "RESULTS", ())}, copied_names)
    packs, _, invariant = key
    weights = packed_weights(model) if packs else {}
    exchanged = {**(weights or {}), **rms_norms(model), **short_rotaries(model)} if packs else {}
    attention = NAME if regroups(model) else None
    if invariant and attention and obstacle(model, exchanged) is None:
        attention, exchanged = INVARIANT, limited(model, exchanged)
    view = _view(model, exchanged, attention, {})
    if packs:
        for module in view.modules():
            _find_children_at_once(module)
    if weights is not None and not any(_rescales(module) for module in model.modules()):
        copied = [p for module in weights for p in module.parameters(recurse=False)]
        views[key] = Kept(view, structure, Watched(copied))
    return view


def _rescales(module: nn.Module) -> bool:
    """Whether a rotary embedding changes its own tables with the length of a text: then every call has a view of its own."""
    kinds = vars(module).get("rope_type")
    named = kinds.values() if isinstance(kinds, dict) else [kinds]
    return any(isinstance(kind, str) and ("dynamic" in kind or kind == "longrope") for kind in named)


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
    if not _sdpa_is_usual():
        return False
    kinds = {kind for m in model.modules() if "config" in m.__dict__ for kind in type(m).__mro__}
    return not any(_compares_with_sdpa(name) for name in sorted({kind.__module__ for kind in kinds}))


def _sdpa_is_usual() -> bool:
    return ALL_ATTENTION_FUNCTIONS.get("sdpa") is sdpa_attention_forward


def _compares_with_sdpa(module_name: str) -> bool:
    if module_name.startswith("transformers.") and not module_name.startswith("transformers.models."):
        return False
    return mentions(module_name, '"sdpa"', "'sdpa'")


def _view(module: nn.Module, exchanged: Exchanged, attention: str | None, seen: dict) -> nn.Module:
    if module in seen:
        return seen[module]
    # Dictionaries are copied, so that what is hung on the view (hooks that collect hidden states, rescaled position tables)
    # leaves the model alone.
    state = module.__dict__.copy()
    state.pop(KEPT, None)
    for name in OWN:
        state[name] = state[name].copy()
    if _rescales(module):
        state["_buffers"] = {
            name: buffer if buffer is None else buffer.clone() for name, buffer in module._buffers.items()
        }
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
