"""Linear layers of a view whose weight is packed, alone or with those that read the same input.

A round is thousands of small calls. Query, key and value of a layer are one product here, and so are gate and up: fewer calls, and
the matrix units get more to do in each.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

KEPT = "_domino_joint"  # attribute of an input: (whose product, count of changes of the input, parts not yet taken)


class RowLimits(NamedTuple):
    """Rows that a product may have for each to have the same bits; found by `summation.row_limits`."""

    least: int
    most: int


def packed_for_few(weight: Tensor) -> Tensor:
    """[out, in] packed as one row would have it, the fastest up to 16 rows, and of all layouts the one whose order depends least on rows.

    For AMX that are blocks of 64 columns instead of 32: 10 % less time for 1 to 13 rows of SmolLM2, up to 10 % more beyond.
    """
    return torch.ops.mkldnn._reorder_linear_weight(weight, 1)


def packed_product(x: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
    """x [..., in] times a packed weight -> [..., out]."""
    return torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")


def within(limits: RowLimits | None, product: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """product(x [..., in]) -> [..., out], done in pieces of as many rows as the limits allow.

    Worked example, limits 2 and 128: one row is read twice and kept once; 300 rows are products of 128, 128 and 44.
    """
    if limits is None:
        return product(x)
    rows = x.numel() // x.shape[-1]
    if limits.least <= rows <= limits.most:
        return product(x)
    flat = x.reshape(rows, x.shape[-1])
    if rows < limits.least:
        out = product(flat.expand(limits.least, -1))[:rows]
    else:
        out = torch.cat([within(limits, product, part) for part in flat.split(limits.most)])
    return out.view(*x.shape[:-1], -1)


class LimitedLinear(nn.Linear):
    """A linear layer that is not packed, its rows read within limits."""

    limits: RowLimits | None = None

    def forward(self, x: Tensor) -> Tensor:
        own: dict[str, Any] = self._parameters  # neither is None but the bias
        return within(self.limits, lambda part: F.linear(part, own["weight"], own["bias"]), x)


class PackedLinear(nn.Linear):
    """A linear layer, its weight also packed, which serves x [..., in] in bfloat16 as long as the weight is the one it was packed from."""

    packed: Tensor
    packed_from: nn.Parameter
    limits: RowLimits | None = None

    def forward(self, x: Tensor) -> Tensor:
        # autocast hands over other dtypes, adapters exchange the weight for the length of a forward
        if x.dtype != self.packed.dtype or self._parameters.get("weight") is not self.packed_from:
            return super().forward(x)
        return within(self.limits, lambda part: packed_product(part, self.packed, self._parameters["bias"]), x)


class JointProduct:
    """One product for several layers.

    Args:
        packed: their weights below each other [sum of out, in], packed. bias: theirs [sum of out], or None. sizes: out of each.
    """

    def __init__(self, packed: Tensor, bias: Tensor | None, sizes: list[int]):
        self.packed, self.bias, self.sizes = packed, bias, sizes
        self.limits: RowLimits | None = None

    def part(self, x: Tensor, place: int) -> Tensor:
        """The output [..., sizes[place]] of one of the layers, a slice of the product.

        What the others will ask for is kept with the input itself: so it lives no longer than that, and calls of several threads
        do not meet. An input changed in between has another count.

        Worked example: sizes 576, 192, 192 and x [1, 5, 576]: the first to be asked makes [1, 5, 960] and takes [..., :576].
        """
        count = None if x.is_inference() else x._version
        product, counted, parts = x.__dict__.get(KEPT, (None, None, {}))
        if product is not self or counted != count or place not in parts:
            out = within(self.limits, lambda part: packed_product(part, self.packed, self.bias), x)
            parts = dict(enumerate(out.split(self.sizes, dim=-1)))
            x.__dict__[KEPT] = self, count, parts
        if len(parts) == 1:
            del x.__dict__[KEPT]
        return parts.pop(place)


class PackedSibling(PackedLinear):
    """A linear layer that is part of a joint product, by the same conditions for its weight and its bias."""

    product: JointProduct
    place: int
    bias_from: nn.Parameter | None

    def forward(self, x: Tensor) -> Tensor:
        own = self._parameters
        if own.get("weight") is not self.packed_from or own.get("bias") is not self.bias_from:
            return nn.Linear.forward(self, x)
        return self.product.part(x, self.place) if x.dtype == self.packed.dtype else nn.Linear.forward(self, x)
