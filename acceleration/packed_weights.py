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

# Linear layer -> (mark of the weight it was packed from, packed weight).
_known: WeakKeyDictionary = WeakKeyDictionary()


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


def packed_weights(model: nn.Module) -> dict[nn.Module, Tensor]:
    """The packed weight [out, in] of every layer that `can_pack`, anew where a weight was changed since; none where it is not worth it.

    That is where this machine cannot pack, or a share of the free memory would not hold what is new.
    """
    if not torch.backends.mkldnn.is_available() or not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return {}
    found = [module for module in model.modules() if can_pack(module)]
    new = {module.weight.data_ptr(): module.weight.nbytes for module in found if module not in _known}
    if new and sum(new.values()) > LARGEST_SHARE * _free_memory():
        return {}
    for module, mark in zip(found, _marks([module.weight for module in found]), strict=True):
        if module not in _known or _known[module][0] != mark:
            _known[module] = mark, torch.ops.mkldnn._reorder_linear_weight(module.weight.detach())
    return {module: _known[module][1] for module in found}


def _free_memory() -> int:
    """In bytes; 0 where the system does not tell."""
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return 0


def _marks(weights: list[nn.Parameter]) -> list[tuple]:
    """What changes when a weight does.

    torch's own counter misses changes through `.data`, as when adapters are merged, so all bytes are summed, in runs whose sums are
    weighted by their place: 6 ms for SmolLM2.
    """
    sums, counted = torch.empty(len(weights), RUNS, dtype=torch.int64), []
    for weight, row in zip(weights, sums.unbind(), strict=True):
        flat = weight.detach().view(-1)
        whole = flat.numel() // (4 * RUNS) * (4 * RUNS)  # a run is a row of int64, four bfloat16 each
        rest = tuple(flat[whole:].tolist()) if whole < flat.numel() else ()
        torch.sum(flat[:whole].view(torch.int64).view(RUNS, -1), dim=1, out=row)
        counted.append((weight.data_ptr(), 0 if weight.is_inference() else weight._version, rest))
    placed = (sums * torch.arange(1, 2 * RUNS, 2)).sum(dim=1).tolist()
    return list(zip(placed, counted, strict=True))
