"""RMSNorm in bfloat16 in fewer calls, bit for bit."""

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from . same_code import same_code  # fmt: skip  # isort: skip


class ShortRMSNorm(nn.Module):
    """Llama's RMSNorm of x [..., width] in bfloat16; other dtypes, and an exchanged weight, go to the class it stands for."""

    usual: type[nn.Module]
    weight_from: nn.Parameter
    variance_epsilon: float

    def forward(self, x: Tensor) -> Tensor:
        weight = self._parameters.get("weight")
        if weight is not self.weight_from or x.dtype != weight.dtype:
            return self.usual.forward(self, x)
        return F.rms_norm(x, weight.shape, None, self.variance_epsilon).mul_(weight)


def rms_norms(model: nn.Module) -> dict[nn.Module, tuple[type[nn.Module], dict[str, Any]]]:
    """For every RMSNorm as Llama's, in bfloat16, the class of its view and what that has besides."""
    return {
        module: (ShortRMSNorm, {"usual": type(module), "weight_from": module.weight})
        for module in model.modules()
        if _is_usual(module) and _same_bits(module.weight.shape[0], module.variance_epsilon)
    }


def _is_usual(module: nn.Module) -> bool:
    if "forward" in module.__dict__ or not same_code(type(module).forward, LlamaRMSNorm.forward):
        return False
    weight = module._parameters.get("weight")
    return type(weight) is nn.Parameter and weight.dtype == torch.bfloat16 and weight.dim() == 1


@cache
@torch.no_grad()
def _same_bits(width: int, eps: float) -> bool:
    """Whether this torch rounds as Llama's own code does, also where epsilon matters."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(64, width, generator=generator) * torch.logspace(-4, 2, 64)[:, None]
    theirs = LlamaRMSNorm(width, eps).to(torch.bfloat16)
    theirs.weight.copy_(torch.randn(width, generator=generator))
    x = x.to(torch.bfloat16)
    return torch.equal(F.rms_norm(x, (width,), None, eps).mul_(theirs.weight), theirs(x))
