"""The block's candidate pool: base logits and rows of W2 gathered in one launch. Twin: `twins.gather_pool`."""

import torch
from torch import Tensor

from . common import NAMESPACE, VARYING, rows_of, tile, tl, triton  # fmt: skip  # isort: skip


@triton.jit(do_not_specialize=VARYING)
def pool_kernel(
    base, base_stride, slot_stride, w2, w2_stride, ids, rows, pooled, slots, size, rank,
    BV: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) * BV + tl.arange(0, BV)
    inside = at < size
    token = tl.load(ids + b * size + at, mask=inside, other=0)
    for slot in range(slots):
        x = tl.load(base + b * base_stride + tl.cast(slot, tl.int64) * slot_stride + token, mask=inside)
        tl.store(pooled + (b * slots + slot) * size + at, x.to(tl.float32), mask=inside)
    place = (b * size + at.to(tl.int64)) * rank
    for start in range(0, rank, BK):
        k = start + tl.arange(0, BK)
        both = inside[:, None] & (k < rank)[None, :]
        w = tl.load(w2 + token[:, None] * w2_stride + k[None, :], mask=both)
        tl.store(rows + place[:, None] + k[None, :], w, mask=both)


@torch.library.custom_op(f"{NAMESPACE}::gather_pool", mutates_args=())
def gather_pool(base: Tensor, w2: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """What a block's steps read of a pool.

    The tokens' input projections are not gathered: a step needs one row for each text, and reads it where it lies.

    Args:
        base: [batch, n, vocab]. w2: [vocab, rank]. ids: [batch, size], int64, within the vocabulary.

    Returns:
        base logits [batch, n, size], float32, and rows of W2 [batch, size, rank] in W2's dtype.
    """
    (batch, slots, _), size, rank = base.shape, ids.shape[1], w2.shape[1]
    base, w2, ids = rows_of(base), rows_of(w2), ids.contiguous()
    rows = torch.empty(batch, size, rank, dtype=w2.dtype, device=w2.device)
    pooled = torch.empty(batch, slots, size, dtype=torch.float32, device=base.device)
    with torch.cuda.device_of(base):
        pool_kernel[triton.cdiv(size, 32), batch](
            base, base.stride(0), base.stride(1), w2, w2.stride(0), ids, rows, pooled, slots, size, rank,
            BV=32, BK=tile(rank, 256), num_warps=4,
        )  # fmt: skip
    return pooled, rows


@gather_pool.register_fake
def _(base, w2, ids):
    pooled = base.new_empty(*base.shape[:2], ids.shape[1], dtype=torch.float32)
    return pooled, w2.new_empty(*ids.shape, w2.shape[1])
