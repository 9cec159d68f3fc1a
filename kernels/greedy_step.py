"""One greedy step: SiLU(z + s) W2ᵀ + base -> argmax, nothing of vocabulary size written. Twin: `reference.greedy_step`."""

import torch
from torch import Tensor

from . common import BATCH_TILE, INTERPRETED, LOWEST_SCORE, NAMESPACE, VARYING, cdiv, index_of, pack, product, round_to, rounding, rows_of, silu, tile, tl, triton, wide  # fmt: skip  # isort: skip


@triton.jit
def scores_tile(
    z, z_stride, s, s_stride, w2, w2_stride, base, base_stride, v, b, batch, rank, vocab,
    BB: tl.constexpr, BV: tl.constexpr, BK: tl.constexpr, WIDE: tl.constexpr, ROUND: tl.constexpr,
):  # fmt: skip
    """Logits of tokens v [BV] for texts b [BB] as [BV, BB]: base + W2 SiLU(z + s); -inf outside, and for NaN."""
    in_v, in_b = v < vocab, b < batch
    b64, v64 = b.to(tl.int64), v.to(tl.int64)
    acc = tl.zeros((BV, BB), dtype=tl.float32)
    for start in range(0, rank, BK):
        k = start + tl.arange(0, BK)
        inside = (k < rank)[:, None] & in_b[None, :]
        code = tl.load(z + b64[None, :] * z_stride + k[:, None], mask=inside, other=0.0).to(tl.float32)
        code += tl.load(s + b64[None, :] * s_stride + k[:, None], mask=inside, other=0.0, cache_modifier=".cg").to(
            tl.float32
        )
        rows = tl.load(w2 + v64[:, None] * w2_stride + k[None, :], mask=in_v[:, None] & (k < rank)[None, :], other=0.0)
        acc = product(rows, round_to(silu(code), ROUND), acc, WIDE)
    inside = in_v[:, None] & in_b[None, :]
    logits = acc + tl.load(base + b64[None, :] * base_stride + v64[:, None], mask=inside, other=0.0).to(tl.float32)
    return tl.where(inside & (logits == logits), logits, -float("inf"))


@triton.jit
def pooled_tile(
    z, s, rows, row_stride, base, v, rank, size, BV: tl.constexpr, BK: tl.constexpr, ROUND: tl.constexpr
):  # fmt: skip
    """The same for one text and its own rows [size, rank] of W2, as [BV]; z, s and base point to what is that text's."""
    in_v, v64 = v < size, v.to(tl.int64)
    acc = tl.zeros((BV,), dtype=tl.float32)
    for start in range(0, rank, BK):
        k = start + tl.arange(0, BK)
        in_k = k < rank
        code = tl.load(z + k, mask=in_k, other=0.0).to(tl.float32)
        code += tl.load(s + k, mask=in_k, other=0.0, cache_modifier=".cg").to(tl.float32)
        w = tl.load(rows + v64[:, None] * row_stride + k[None, :], mask=in_v[:, None] & in_k[None, :], other=0.0)
        acc += tl.sum(w.to(tl.float32) * round_to(silu(code), ROUND)[None, :], axis=1)
    logits = acc + tl.load(base + v64, mask=in_v, other=0.0).to(tl.float32)
    return tl.where(in_v & (logits == logits), logits, -float("inf"))


@triton.jit(do_not_specialize=VARYING)
def greedy_kernel(
    z, z_stride, s, s_stride, w2, w2_stride, base, base_stride, best, batch, rank, vocab,
    BB: tl.constexpr, BV: tl.constexpr, BK: tl.constexpr, WIDE: tl.constexpr, ROUND: tl.constexpr,
):  # fmt: skip
    v = tl.program_id(0) * BV + tl.arange(0, BV)
    b = tl.program_id(1) * BB + tl.arange(0, BB)
    logits = scores_tile(
        z, z_stride, s, s_stride, w2, w2_stride, base, base_stride, v, b, batch, rank, vocab, BB, BV, BK, WIDE, ROUND
    )
    # the whole tile is packed, so that masked places of the last one lose to every true one
    packed = tl.where((v < vocab)[:, None], pack(logits, v[:, None] + tl.zeros_like(b)[None, :]), -(2**63))
    tl.atomic_max(best + b, tl.max(packed, axis=0), mask=b < batch)


def scores_config(rank: int, size: int, dtype: torch.dtype) -> dict[str, int]:
    """Tiles of the correction, as large as they can be without spilling registers (`aot.py`); the interpreter pays for programs."""
    tokens = 2048 if INTERPRETED and size > 8192 else 32
    return {"BB": BATCH_TILE, "BV": tokens, "BK": tile(rank, 128 // dtype.itemsize)}


@torch.library.custom_op(f"{NAMESPACE}::greedy_step", mutates_args=())
def greedy_step(z: Tensor, s: Tensor, w2: Tensor, base: Tensor) -> Tensor:
    """The likeliest token of base + W2 SiLU(z + s); of equals the lowest.

    Args:
        z: [batch, rank], W_z H. s: [batch, rank], W_s S. w2: [vocab, rank]. base: [batch, vocab]. Any floating dtypes.

    Returns:
        [batch], int64.
    """
    batch, rank = z.shape
    z, s, w2, base = (rows_of(t) for t in (z, s, w2, base))
    best = torch.full((batch,), LOWEST_SCORE, dtype=torch.int64, device=z.device)
    config = scores_config(rank, len(w2), w2.dtype)
    grid = (cdiv(len(w2), config["BV"]), cdiv(batch, config["BB"]))
    with torch.cuda.device_of(z):
        greedy_kernel[grid](
            z, z.stride(0), s, s.stride(0), w2, w2.stride(0), base, base.stride(0), best, batch, rank, len(w2),
            **config, WIDE=wide(w2.dtype), ROUND=rounding(w2.dtype), num_warps=4,
        )  # fmt: skip
    return index_of(best)


@greedy_step.register_fake
def _(z, s, w2, base):
    return torch.empty(z.shape[0], dtype=torch.int64, device=z.device)
