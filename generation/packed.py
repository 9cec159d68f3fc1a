"""Linear layers whose weight is packed once for a CPU's matrix units.

A round reads every weight for a handful of tokens. oneDNN rearranges a weight on each call unless it was given already arranged
("packed"), which for SmolLM2 in bfloat16 is half of the time of its linear layers. It costs the memory of the weights again.
"""

import os
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

LARGEST_SHARE = 0.25  # of the memory that is free

# Linear layer -> (fingerprint of the weight it was packed from, packed weight).
_packed: WeakKeyDictionary = WeakKeyDictionary()


class PackedLinear(nn.Linear):
    """A linear layer, its weight also packed; x [..., in] in bfloat16."""

    packed: Tensor

    def forward(self, x: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")


def can_pack(module: nn.Module) -> bool:
    """Plain `nn.Linear` in bfloat16 on a CPU, but not those that accelerate loads on demand."""
    if type(module) is not nn.Linear or "forward" in module.__dict__:
        return False
    weight = module.weight
    return weight.device.type == "cpu" and weight.dtype == torch.bfloat16 and weight.is_contiguous()


def worth_packing(model: nn.Module) -> bool:
    """Whether this torch can pack, there is something to pack and memory for it."""
    if not torch.backends.mkldnn.is_available():
        return False
    found = [module for module in model.modules() if can_pack(module)]
    new = {module.weight.data_ptr(): module.weight.nbytes for module in found if module not in _packed}
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return bool(found) and sum(new.values()) <= LARGEST_SHARE * free


def pack(module: nn.Linear) -> Tensor:
    """The packed weight [out, in], anew where the weight was changed since, by whatever means."""
    mark = _fingerprint(module.weight)
    known = _packed.get(module)
    if known is None or known[0] != mark:
        known = mark, torch.ops.mkldnn._reorder_linear_weight(module.weight.detach())
        _packed[module] = known
    return known[1]


def _fingerprint(weight: Tensor) -> tuple:
    """torch's own counter misses changes through `.data`, as when adapters are merged, so all bytes are summed: 10 ms for SmolLM2."""
    flat = weight.detach().view(-1)
    whole = flat.numel() // 4 * 4  # four bfloat16 are one int64
    counted = 0 if weight.is_inference() else weight._version
    return weight.data_ptr(), counted, flat[:whole].view(torch.int64).sum().item(), tuple(flat[whole:].tolist())
