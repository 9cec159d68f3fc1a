"""What the Triton kernels share: rounding, activations, one product, the order of float32, and their launch settings.

Two rules make a kernel mean the same on a GPU and in Triton's interpreter: values are widened to float32 as soon as they are
loaded, and narrowing rounds to nearest even by hand, since the interpreter truncates to bfloat16.
"""

import re

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError as error:  # the seam asks before it imports a kernel
    raise ImportError(
        "Domino's Triton kernels need the `triton` package; set DOMINO_KERNELS=torch without it."
    ) from error

# Copies of this folder (installed, by remote code) must not register one another's operators.
NAMESPACE = re.sub(r"\W", "_", __name__.rpartition(".")[0])
INTERPRETED = bool(triton.knobs.runtime.interpret)
HIGHEST = 0xFFFFFFFF
LOWEST_SCORE = -(2**63)
# Integers that change from block to block, as texts end and lengths are chosen. Triton compiles a kernel anew, which takes a
# second, for an integer that becomes 1 or that 16 begins or ceases to divide; of these nothing is gained by it.
VARYING = ("batch", "known", "steps", "slots", "top_k")


def rounding(dtype: torch.dtype) -> int:
    """How a float32 value is rounded to `dtype` before it meets weights of it: 0 not at all, 1 to bfloat16, 2 to float16."""
    return {torch.bfloat16: 1, torch.float16: 2}.get(dtype, 0)


def wide(dtype: torch.dtype) -> bool:
    """Whether products with weights of `dtype` are made in float32: always in the interpreter, whose bfloat16 dot is garbage."""
    return INTERPRETED or rounding(dtype) == 0


def tile(width: int, most: int, least: int = 16) -> int:
    """The power of two that holds `width`, within bounds."""
    return max(least, min(most, triton.next_power_of_2(width)))


def rows_of(weight: Tensor) -> Tensor:
    """A matrix whose rows are contiguous; a view of columns of a wider one stays a view."""
    return weight if weight.stride(-1) == 1 else weight.contiguous()


@triton.jit
def round_to(x, ROUND: tl.constexpr):
    """float32 values as bfloat16 or float16 would hold them, still float32. To nearest even: 1 + 2^-8 becomes 1, 1 + 3·2^-8 1 + 2^-6."""
    if ROUND == 1:
        bits = x.to(tl.uint32, bitcast=True)
        bits += 0x7FFF + ((bits >> 16) & 1)
        # a GPU's NaN is 0x7FFFFFFF, which the sum would carry over to -0
        x = tl.where(x == x, (bits & 0xFFFF0000).to(tl.float32, bitcast=True), x)
    elif ROUND == 2:
        x = x.to(tl.float16).to(tl.float32)
    return x


@triton.jit
def tanh(x):
    return 2 * tl.sigmoid(2 * x) - 1


@triton.jit
def silu(x):
    return x * tl.sigmoid(x)


@triton.jit
def product(weights, x, acc, WIDE: tl.constexpr):
    """acc + weights [M, K] times x [K, N], which holds values of the weights' dtype in float32."""
    if WIDE:
        acc = tl.dot(weights.to(tl.float32), x, acc, input_precision="ieee")
    else:
        acc = tl.dot(weights, x.to(weights.dtype), acc)
    return acc


@triton.jit
def order(x):
    """float32 -> int32 that compare alike; -0 equals 0."""
    bits = (x + 0.0).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def pack(score, index):
    """One int64 whose maximum is the highest score, and of equals the lowest index.

    Worked example: score 1.0 (bits 0x3F800000) at 5 is 0x3F800000_FFFFFFFA, at 9 the smaller 0x3F800000_FFFFFFF6.
    """
    return (order(score).to(tl.int64) << 32) | (0xFFFFFFFF - index.to(tl.int64))


@triton.jit
def unpack(packed):
    """The index in a packed score."""
    return 0xFFFFFFFF - (packed & 0xFFFFFFFF)


def index_of(packed: Tensor) -> Tensor:
    """`unpack` in torch."""
    return HIGHEST - (packed & HIGHEST)
