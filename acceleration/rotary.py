"""Rotary embedding in fewer calls, for query and key at once where they lie side by side.

Models call `apply_rotary_pos_emb` by its global name. In a view the same code runs with another function under that name.
"""

from functools import cache
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from . same_code import same_code  # fmt: skip  # isort: skip

NAME = "apply_rotary_pos_emb"
USUAL = apply_rotary_pos_emb  # as it was at first: others put functions of their own in its place
KEPT = "_domino_turned"  # attribute of sin: the tables as they are used, made by the first layer of a forward


def short_rotaries(model: nn.Module) -> dict[nn.Module, tuple[type[nn.Module], dict[str, Any]]]:
    """For every module in bfloat16 that rotates with Llama's function the class of its view, which rotates with `rotate`."""
    found = [module for module in model.modules() if rotates(type(module)) and "forward" not in module.__dict__]
    narrow = [module for module in found if all(p.dtype == torch.bfloat16 for p in module.parameters())]
    kinds = {kind: _short(kind) for kind in {type(module) for module in narrow}}
    return {module: (kinds[type(module)], {}) for module in narrow}


def rotates(kind: type[nn.Module]) -> bool:
    """Whether the forward of a class calls Llama's function by its name."""
    forward = kind.forward
    if type(forward) is not FunctionType or NAME not in forward.__code__.co_names:
        return False
    return same_code(forward.__globals__.get(NAME), USUAL) and _same()


@cache
def _same() -> bool:
    """Whether Llama's function, which others patch, is the one that `rotate` equals."""
    generator = torch.Generator().manual_seed(0)
    q, k, cos, sin = (
        torch.randn(shape, generator=generator) for shape in [(2, 3, 4, 8), (2, 1, 4, 8), (2, 4, 8), (2, 4, 8)]
    )
    return all(map(torch.equal, rotate(q, k, cos, sin), USUAL(q, k, cos, sin)))


def _short(kind: type[nn.Module]) -> type[nn.Module]:
    """The class with the same forward, in which the name stands for `rotate`."""
    forward: Any = kind.forward
    names = {**forward.__globals__, NAME: rotate}
    short = FunctionType(forward.__code__, names, forward.__name__, forward.__defaults__, forward.__closure__)
    short.__kwdefaults__ = forward.__kwdefaults__
    return type(kind.__name__, (kind,), {"forward": short, "__module__": kind.__module__})


def rotate(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1) -> tuple[Tensor, Tensor]:
    """As transformers' `apply_rotary_pos_emb`, bit for bit.

    Args:
        q: [R, H, n, d]. k: [R, G, n, d]. cos, sin: [R or 1, n, d].
    """
    cos, turned = _tables(cos, sin, unsqueeze_dim)
    both = _side_by_side(q, k)
    if both is None:
        return _rotate(q, cos, turned), _rotate(k, cos, turned)
    out = _rotate(both, cos, turned)
    return out[:, : q.shape[1]], out[:, q.shape[1] :]


def _rotate(x: Tensor, cos: Tensor, turned: Tensor) -> Tensor:
    return (x * cos).add_(x.roll(x.shape[-1] // 2, -1).mul_(turned))


def _tables(cos: Tensor, sin: Tensor, unsqueeze_dim: int) -> tuple[Tensor, Tensor]:
    """cos, and sin whose first half has the other sign: rotate_half(x) * sin = roll(x) * turned.

    Worked example: x = (a, b, c, d): rotate_half gives (-c, -d, a, b), roll (c, d, a, b), so turned = (-s0, -s1, s2, s3).
    """
    kept = sin.__dict__.get(KEPT)
    if kept is None or kept[0] is not cos or kept[1] != unsqueeze_dim:
        half = sin.shape[-1] // 2
        turned = torch.cat([-sin[..., :half], sin[..., half:]], dim=-1)
        kept = sin.__dict__[KEPT] = cos, unsqueeze_dim, cos.unsqueeze(unsqueeze_dim), turned.unsqueeze(unsqueeze_dim)
    return kept[2:]


def _side_by_side(q: Tensor, k: Tensor) -> Tensor | None:
    """[R, H + G, n, d], query heads before key heads, where both are slices of one product; else None.

    Worked example: H = 9, G = 3, d = 64, a product [R, n, 960]: token t has its query heads at 960 t, 960 t + 64, … and its key
    heads at 960 t + 576, …, where heads 9 to 11 of the query would lie.
    """
    heads, stride = q.shape[1], q.stride()
    if k.stride() != stride or k.storage_offset() != q.storage_offset() + heads * stride[1]:
        return None
    if k.untyped_storage()._cdata != q.untyped_storage()._cdata:
        return None
    return q.as_strided((q.shape[0], heads + k.shape[1], *q.shape[2:]), stride)
