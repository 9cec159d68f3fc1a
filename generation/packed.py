"""A view of a model whose linear layers are packed once for a CPU's matrix units.

A round reads every weight for a handful of tokens. oneDNN rearranges a weight on each call unless it was given already arranged
("packed"), which for SmolLM2 in bfloat16 is half of the time of its linear layers. The view shares all but those layers with the
model, which stays as it is; it costs the memory of the packed weights.
"""

import copy
import os
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

LARGEST_SHARE = 0.25  # of the memory that is free
HOOKS = ("_forward_hooks", "_forward_hooks_with_kwargs", "_forward_hooks_always_called", "_forward_pre_hooks", "_forward_pre_hooks_with_kwargs")  # fmt: skip

# Linear layer -> (fingerprint of the weight it was packed from, packed weight).
_packed: WeakKeyDictionary = WeakKeyDictionary()


class PackedLinear(nn.Linear):
    """A linear layer, its weight also packed; x [..., in] in bfloat16."""

    packed: Tensor

    def forward(self, x: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")


def packed_view(model: nn.Module) -> nn.Module:
    """The model with packed linear layers, or itself where nothing can be or is worth being packed.

    Only plain `nn.Linear` in bfloat16 on a CPU; everything else is shared, hooks included. A weight that was changed since it was
    packed, by whatever means, is packed anew: all its bytes are summed on each call (10 ms for SmolLM2).
    """
    found = [module for module in model.modules() if _can_pack(module)]
    if not found or not torch.backends.mkldnn.is_available() or not _fits(found):
        return model
    return _view(model, {})


def _can_pack(module: nn.Module) -> bool:
    if type(module) is not nn.Linear or "forward" in module.__dict__:  # others, and those accelerate loads on demand
        return False
    weight = module.weight
    return weight.device.type == "cpu" and weight.dtype == torch.bfloat16 and weight.is_contiguous()


def _fits(found) -> bool:
    new = {m.weight.data_ptr(): m.weight.nbytes for m in found if m not in _packed}
    return sum(new.values()) <= LARGEST_SHARE * os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _fingerprint(weight: Tensor) -> tuple:
    flat = weight.detach().view(-1)
    whole = flat[: flat.numel() // 4 * 4].view(torch.int64).sum()
    return tuple(weight.shape), whole.item(), tuple(flat[flat.numel() // 4 * 4 :].tolist())


def _view(module: nn.Module, seen: dict) -> nn.Module:
    if module in seen:
        return seen[module]
    view = object.__new__(PackedLinear if _can_pack(module) else type(module))
    # Hooks are copied, so that what is hung on the view, as transformers does to collect hidden states, leaves the model alone.
    view.__dict__ = {name: copy.copy(value) if name in HOOKS else value for name, value in module.__dict__.items()}
    view._modules = {name: child if child is None else _view(child, seen) for name, child in module._modules.items()}
    if isinstance(view, PackedLinear):
        view.packed = _pack(module)
    seen[module] = view
    return view


def _pack(module: nn.Linear) -> Tensor:
    mark = _fingerprint(module.weight)
    known = _packed.get(module)
    if known is None or known[0] != mark:
        known = mark, torch.ops.mkldnn._reorder_linear_weight(module.weight.detach())
        _packed[module] = known
    return known[1]
