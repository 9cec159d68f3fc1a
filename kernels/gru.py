"""One step of the causal encoder: recurrent product and gates fused (paper, section 3, step 3). Twin: `reference.gru_from_projection`."""

import torch
from torch import Tensor

from . common import BATCH_TILE, NAMESPACE, VARYING, cdiv, product, round_to, rounding, rows_of, tanh, tile, tl, triton, wide  # fmt: skip  # isort: skip

GRU_LAUNCH = {"num_warps": 4, "maxnreg": 128}  # left alone, ptxas spills float32 weights' on sm_80


@triton.jit
def gru_tile(
    x, x_rows, x_stride, before, after, w_hh, w_stride, g_tile, b_tile, batch, gru,
    BG: tl.constexpr, BB: tl.constexpr, BK: tl.constexpr, WIDE: tl.constexpr, ROUND: tl.constexpr,
):  # fmt: skip
    """S' of BG units of BB texts. x: projections, of which text b reads row x_rows[b]; before, after: float32 [batch, gru].

    Gates r, z, n of unit g lie in rows g, gru + g, 2·gru + g of w_hh: with gru 256, unit 3 reads rows 3, 259 and 515.
    """
    g = g_tile * BG + tl.arange(0, BG)
    b = b_tile * BB + tl.arange(0, BB)
    in_g, in_b = g < gru, b < batch
    b64 = b.to(tl.int64)
    reset = tl.zeros((BG, BB), dtype=tl.float32)
    update = tl.zeros((BG, BB), dtype=tl.float32)
    new = tl.zeros((BG, BB), dtype=tl.float32)
    rows = w_hh + g.to(tl.int64)[:, None] * w_stride
    gate = tl.cast(gru, tl.int64) * w_stride
    for start in range(0, gru, BK):
        k = start + tl.arange(0, BK)
        in_k = k < gru
        s = tl.load(
            before + b64[None, :] * gru + k[:, None],
            mask=in_k[:, None] & in_b[None, :],
            other=0.0,
            cache_modifier=".cg",
        )
        if WIDE:  # where `product` does not narrow it
            s = round_to(s, ROUND)
        inside = in_g[:, None] & in_k[None, :]
        reset = product(tl.load(rows + k[None, :], mask=inside, other=0.0), s, reset, WIDE)
        update = product(tl.load(rows + gate + k[None, :], mask=inside, other=0.0), s, update, WIDE)
        new = product(tl.load(rows + 2 * gate + k[None, :], mask=inside, other=0.0), s, new, WIDE)
    inside = in_g[:, None] & in_b[None, :]
    given = x + x_rows.to(tl.int64)[None, :] * x_stride + g[:, None]
    r = tl.sigmoid(tl.load(given, mask=inside, other=0.0).to(tl.float32) + reset)
    u = tl.sigmoid(tl.load(given + gru, mask=inside, other=0.0).to(tl.float32) + update)
    n = tanh(tl.load(given + 2 * gru, mask=inside, other=0.0).to(tl.float32) + r * new)
    place = b64[None, :] * gru + g[:, None]
    s = tl.load(before + place, mask=inside, other=0.0, cache_modifier=".cg")
    tl.store(after + place, round_to((1 - u) * n + u * s, ROUND), mask=inside)


@triton.jit(do_not_specialize=VARYING)
def gru_kernel(
    x, x_stride, before, after, w_hh, w_stride, batch, gru,
    BG: tl.constexpr, BB: tl.constexpr, BK: tl.constexpr, WIDE: tl.constexpr, ROUND: tl.constexpr,
):  # fmt: skip
    b_tile = tl.program_id(1)
    x_rows = b_tile * BB + tl.arange(0, BB)
    gru_tile(
        x,
        x_rows,
        x_stride,
        before,
        after,
        w_hh,
        w_stride,
        tl.program_id(0),
        b_tile,
        batch,
        gru,
        BG,
        BB,
        BK,
        WIDE,
        ROUND,
    )


def gru_config(gru: int, dtype: torch.dtype) -> dict[str, int]:
    """Tiles of a step: 16 units so that a GRU of 1024 is 64 programs, each reading 96 kB of bfloat16 weights."""
    return {"BG": 16, "BB": BATCH_TILE, "BK": tile(gru, 128 // dtype.itemsize)}


@torch.library.custom_op(f"{NAMESPACE}::gru", mutates_args=())
def gru(x: Tensor, state: Tensor, weight_hh: Tensor) -> Tensor:
    """S' = GRU(E, S) from the token's projection.

    Args:
        x: [batch, 3 * gru], E W_ihᵀ. state: [batch, gru]. weight_hh: [3 * gru, gru]. Any floating dtypes.

    Returns:
        [batch, gru] in the state's dtype, rounded to the weights' once.
    """
    batch, width = state.shape
    x, weight = rows_of(x), rows_of(weight_hh)
    before, after = state.float().contiguous(), torch.empty(state.shape, dtype=torch.float32, device=state.device)
    config = gru_config(width, weight.dtype)
    grid = (cdiv(width, config["BG"]), cdiv(batch, config["BB"]))
    with torch.cuda.device_of(x):
        gru_kernel[grid](
            x, x.stride(0), before, after, weight, weight.stride(0), batch, width,
            **config, WIDE=wide(weight.dtype), ROUND=rounding(weight.dtype), **GRU_LAUNCH,
        )  # fmt: skip
    # A copy in any case: an operator may not return what it was given.
    return after.to(state.dtype)


@gru.register_fake
def _(x, state, weight_hh):
    return torch.empty(state.shape, dtype=state.dtype, device=state.device)
