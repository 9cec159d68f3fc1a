"""RMSNorm in bfloat16 in half as many calls.

Between two products that stream their weights through the caches every call starts cold, so their number counts, not their work. The
mean of (x, -x) is 0 and its variance the mean square of x: torch's fused LayerNorm of it is the RMSNorm of x, and of -x.
"""

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from . same_code import same_code  # fmt: skip  # isort: skip


USUAL = LlamaRMSNorm.forward  # as it was at first: others put functions of their own in its place
BOTH = torch.tensor([[1.0], [-1.0]], dtype=torch.bfloat16)
EXPECTED = (
    1e-3  # share of values that may round the other way, as where a mean is summed in another order; measured: 1e-5
)


class ShortRMSNorm(nn.Module):
    """Llama's RMSNorm of x [..., width] in bfloat16; other dtypes, and an exchanged weight, go to the class it stands for."""

    usual: type[nn.Module]
    weight_from: nn.Parameter
    variance_epsilon: float

    def forward(self, x: Tensor) -> Tensor:
        weight = self._parameters.get("weight")
        if weight is not self.weight_from or x.dtype != weight.dtype:
            return self.usual.forward(self, x)
        return _short(x, weight, self.variance_epsilon)


def _short(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x [..., width] -> (x, -x) [..., 2, width] -> normalised together -> the first half, times weight [width]."""
    return F.layer_norm(x.unsqueeze(-2) * BOTH, (2, x.shape[-1]), None, None, eps).select(-2, 0) * weight


def rms_norms(model: nn.Module) -> dict[nn.Module, tuple[type[nn.Module], dict[str, Any]]]:
    """For every RMSNorm as Llama's, in bfloat16, the class of its view and what that has besides."""
    return {
        module: (ShortRMSNorm, {"usual": type(module), "weight_from": module.weight})
        for module in model.modules()
        if _is_usual(module) and _same(module.get_parameter("weight").shape[0], module.variance_epsilon)
    }


def _is_usual(module: nn.Module) -> bool:
    if "forward" in module.__dict__ or not same_code(type(module).forward, USUAL):
        return False
    weight = module._parameters.get("weight")
    return type(weight) is nn.Parameter and weight.dtype == torch.bfloat16 and weight.dim() == 1


@cache
@torch.no_grad()
def _same(width: int, eps: float) -> bool:
    """Whether on this machine it is what Llama's own code computes, also where epsilon matters, but for single roundings."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(64, width, generator=generator) * torch.logspace(-4, 2, 64)[:, None]
    usual = LlamaRMSNorm(width, eps).to(torch.bfloat16)
    usual.weight.copy_(torch.randn(width, generator=generator))
    x = x.to(torch.bfloat16)
    ours, theirs = _short(x, usual.weight, eps), USUAL(usual, x)
    near = torch.allclose(ours.float(), theirs.float(), rtol=2 * 2**-8, atol=0)
    return near and bool((ours != theirs).float().mean() <= EXPECTED)
