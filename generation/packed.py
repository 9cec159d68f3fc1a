"""Linear layers whose weight is packed once for a CPU's matrix units.

A round reads every weight for a handful of tokens. oneDNN rearranges a weight on each call unless it was given already arranged
("packed"), which for SmolLM2 in bfloat16 is half of the time of its linear layers. It costs the memory of the weights again.
"""

import os
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

LARGEST_SHARE = 0.25  # of the memory that is free
RUNS = 32  # parts of a weight that are summed apart, so that what only changes place is seen

# Linear layer -> (fingerprint of the weight it was packed from, packed weight).
_packed: WeakKeyDictionary = WeakKeyDictionary()


class PackedLinear(nn.Linear):
    """A linear layer, its weight also packed, which serves x [..., in] in bfloat16 as long as the weight is the one it was packed from."""

    packed: Tensor
    packed_from: nn.Parameter

    def forward(self, x: Tensor) -> Tensor:
        # autocast hands over other dtypes, adapters exchange the weight for the length of a forward
        if x.dtype != self.packed.dtype or self._parameters.get("weight") is not self.packed_from:
            return super().forward(x)
        return torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")


def can_pack(module: nn.Module) -> bool:
    """Plain `nn.Linear` in bfloat16 on a CPU whose weight is a plain parameter that nothing changes on the way."""
    if type(module) is not nn.Linear or "forward" in module.__dict__ or module._forward_pre_hooks:
        return False
    weight = module._parameters.get("weight")
    if type(weight) is not nn.Parameter or weight.device.type != "cpu" or weight.dtype != torch.bfloat16:
        return False
    return weight.is_contiguous() and weight.storage_offset() % 4 == 0  # four bfloat16 are summed as one int64


def worth_packing(model: nn.Module) -> bool:
    """Whether this machine can pack, there is something to pack and memory for it."""
    found = [module for module in model.modules() if can_pack(module)]
    if not found or not torch.backends.mkldnn.is_available() or not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return False
    new = {module.weight.data_ptr(): module.weight.nbytes for module in found if module not in _packed}
    try:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # not told by this system
        return False
    return sum(new.values()) <= LARGEST_SHARE * free


def pack(module: nn.Linear) -> Tensor:
    """The packed weight [out, in], anew where the weight was changed since."""
    mark = _fingerprint(module.weight)
    known = _packed.get(module)
    if known is None or known[0] != mark:
        known = mark, torch.ops.mkldnn._reorder_linear_weight(module.weight.detach())
        _packed[module] = known
    return known[1]


def _fingerprint(weight: Tensor) -> tuple:
    """What changes when a weight does.

    torch's own counter misses changes through `.data`, as when adapters are merged, so all bytes are summed, in runs whose sums are
    weighted by their place: 10 ms for SmolLM2.
    """
    flat = weight.detach().view(-1)
    whole = flat.numel() // (4 * RUNS) * (4 * RUNS)  # a run is a row of int64, four bfloat16 each
    runs = flat[:whole].view(torch.int64).view(RUNS, -1).sum(dim=1)
    placed = (runs * torch.arange(1, 2 * RUNS, 2)).sum().item()
    counted = 0 if weight.is_inference() else weight._version
    return weight.data_ptr(), counted, placed, tuple(flat[whole:].tolist())
