"""One tile of each phase of a step: GRU, W_s S, scores over the vocabulary or a pool. Twins: `twins.gru_step`, `twins.step_logits`."""

from . common import product, round_to, silu, tanh, tl, triton  # fmt: skip  # isort: skip


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


@triton.jit
def code_tile(
    state, w_s, w_stride, out, r_tile, b_tile, batch, rank, gru,
    BG: tl.constexpr, BB: tl.constexpr, BK: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """W_s S of BG ranks and BB texts into out [batch, rank], float32."""
    r, b = r_tile * BG + tl.arange(0, BG), b_tile * BB + tl.arange(0, BB)
    in_r, in_b = r < rank, b < batch
    b64 = b.to(tl.int64)
    acc = tl.zeros((BG, BB), dtype=tl.float32)
    for start in range(0, gru, BK):
        k = start + tl.arange(0, BK)
        in_k = (k < gru)[:, None] & in_b[None, :]
        s = tl.load(state + b64[None, :] * gru + k[:, None], mask=in_k, other=0.0, cache_modifier=".cg")
        w = tl.load(
            w_s + r.to(tl.int64)[:, None] * w_stride + k[None, :], mask=in_r[:, None] & (k < gru)[None, :], other=0.0
        )
        acc = product(w, s, acc, WIDE)
    tl.store(out + b64[None, :] * rank + r[:, None], acc, mask=in_r[:, None] & in_b[None, :])


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
