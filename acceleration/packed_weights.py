"""Weights of linear layers, packed once for a CPU's matrix units.

A round reads every weight for a handful of tokens. oneDNN rearranges a weight on each call unless it was given already arranged
("packed"), which for SmolLM2 in bfloat16 is half of the time of its linear layers. It costs the memory of the weights again.
"""

import os
from collections.abc import Callable
from functools import partial
from typing import Any, TypeGuard
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from . packed_linear import JointProduct, PackedLinear, PackedSibling  # fmt: skip  # isort: skip
from . packed_linear import packed_for_few, packed_product  # fmt: skip  # isort: skip
from . watched import Watched  # fmt: skip  # isort: skip

LARGEST_SHARE = 0.25  # of the memory that is free
SHARES_INPUT = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))  # the usual names in transformers

Group = tuple[nn.Linear, ...]  # layers packed together

# First layer of a group -> (the weights it was packed from, packed weight).
_known: WeakKeyDictionary = WeakKeyDictionary()


def can_pack(module: nn.Module | None) -> TypeGuard[nn.Linear]:
    """Plain `nn.Linear` in bfloat16 on a CPU whose weight is a plain parameter that nothing changes on the way."""
    if type(module) is not nn.Linear or "forward" in module.__dict__ or module._forward_pre_hooks:
        return False
    weight = module._parameters.get("weight")
    if type(weight) is not nn.Parameter or weight.device.type != "cpu" or weight.dtype != torch.bfloat16:
        return False
    return weight.is_contiguous()


def groups(model: nn.Module) -> list[Group]:
    """Every layer that `can_pack`, once, with those that read the same input.

    A class names its layers that share their input in `SHARES_INPUT`; transformers' own are known by the usual names. A wrong
    guess costs time, not correctness.
    """
    found: list[Group] = []
    seen: set[nn.Module] = set()
    for parent in model.modules():
        default = SHARES_INPUT if type(parent).__module__.startswith("transformers.models.") else ()
        for names in getattr(type(parent), "SHARES_INPUT", default):
            children = [parent._modules.get(name) for name in names]
            group = tuple(child for child in children if can_pack(child) and child not in seen)
            if len(set(group)) == len(group) > 1 and _alike(group):
                found.append(group)
                seen.update(group)
    return found + [(module,) for module in model.modules() if can_pack(module) and module not in seen]


def _alike(group: Group) -> bool:
    """Whether one product can serve them: inputs as wide, biases all or none, and those plain ones in bfloat16."""
    biases = [module._parameters.get("bias") for module in group]
    plain = all(type(bias) is nn.Parameter and bias.dtype == torch.bfloat16 and bias.is_contiguous() for bias in biases)
    none = all("bias" in module._parameters and module._parameters["bias"] is None for module in group)
    return len({module.weight.shape[1] for module in group}) == 1 and (plain or none)


def packed_weights(model: nn.Module) -> dict[nn.Module, tuple[type[nn.Module], dict[str, Any]]] | None:
    """For every layer that `can_pack` the class of its view and what that has besides; packed anew where a weight was changed since.

    Where one was written to without torch counting it, as when adapters are merged, all are packed anew: in the others the same may
    have missed the places that are looked at (`watched.py`).
    Empty where this machine cannot pack; None where a share of the memory that is free now would not hold what is new.
    """
    if not _packs_here():
        return {}
    found = groups(model)
    new = {
        module.weight.data_ptr(): module.weight.nbytes for group in found if group[0] not in _known for module in group
    }
    if new and sum(new.values()) > LARGEST_SHARE * _free_memory():
        return None
    written = any(group[0] in _known and _known[group[0]][0].written() for group in found)
    exchanged = {}
    for group in found:
        exchanged.update(_layers(group, _packed(group, anew=written)))
    return exchanged


def _packed(group: Group, anew: bool) -> Tensor:
    """The weights of a group below each other [sum of out, in], packed; none of its layers is kept packed in another way."""
    for other in group[1:]:
        _known.pop(other, None)
    weights = [module.weight for module in group]
    known = _known.get(group[0])
    if anew or known is None or not known[0].unchanged(weights):
        whole = weights[0].detach() if len(group) == 1 else torch.cat([weight.detach() for weight in weights])
        known = _known[group[0]] = Watched(weights), packed_for_few(whole)
    return known[1]


def forget(model: nn.Module) -> None:
    """Let go of what was packed for a model."""
    for module in model.modules():
        _known.pop(module, None)


def _layers(group: Group, packed: Tensor):
    """(layer, (class of its view, attributes)) for a group."""
    if len(group) == 1:
        yield group[0], (PackedLinear, {"packed": packed, "packed_from": group[0].weight})
        return
    biases = [module.bias for module in group]
    bias = None if biases[0] is None else torch.cat([bias.detach() for bias in biases])
    product = JointProduct(packed, bias, [module.weight.shape[0] for module in group])
    for place, module in enumerate(group):
        own = {"packed": packed, "packed_from": module.weight, "bias_from": module.bias}
        yield module, (PackedSibling, {**own, "product": product, "place": place})


def product(weight: Tensor) -> Callable[[Tensor], Tensor]:
    """x [..., in] -> x Wᵀ [..., out] with a small weight [out, in] as it is now, packed where this machine can."""
    if weight.device.type != "cpu" or weight.dtype != torch.bfloat16 or not _packs_here():
        return partial(nn.functional.linear, weight=weight)
    return partial(packed_product, packed=packed_for_few(weight.detach().contiguous()), bias=None)


def _packs_here() -> bool:
    return torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()


def _free_memory() -> int:
    """In bytes; 0 where the system does not tell."""
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return 0
