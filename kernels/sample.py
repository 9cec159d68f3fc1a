"""A draw: temperature, top-k, top-p and inverse CDF from given noise, q kept. Twin: `twins.sample`."""

import torch
from torch import Tensor

from . common import INTERPRETED, NAMESPACE, VARYING, order, tl, triton  # fmt: skip  # isort: skip

NOWHERE = tl.constexpr(0x7FFFFFFF)
LARGEST = tl.constexpr(torch.finfo(torch.float32).max)
SAMPLE_TILE = 1024 if INTERPRETED else 512  # logits of a pass; sixteen comparisons of each are in flight

SAMPLE_LAUNCH = {"num_warps": 8, "maxnreg": 128}  # left alone, ptxas spills to fit more programs


@triton.jit
def keys(x):
    """float32 in its order as uint32."""
    return order(x).to(tl.uint32, bitcast=True) ^ 0x80000000


@triton.jit
def threshold(row, size, need, floor, highest, MASS: tl.constexpr, BLOCK: tl.constexpr):
    """The largest key t whose measure(keys >= t) is at least `need`, exactly: eight passes, each settles four bits of t.

    The measure is a count, or with MASS the sum of exp(x - highest) of keys >= floor. Worked example, a count of keys 3, 7, 7, 9
    with need 2: one key is >= 8, three are >= 7, so t = 7 and both sevens stay.
    """
    t = tl.max(keys(tl.full((1,), -float("inf"), dtype=tl.float32)), axis=0) * 0
    for step in range(8):
        shift = 28 - 4 * step
        candidates = t + (tl.arange(0, 16).to(tl.uint32) << shift)
        measure = tl.zeros((16,), dtype=tl.float32)
        for start in range(0, size, BLOCK):
            at = start + tl.arange(0, BLOCK)
            x = tl.load(row + at, mask=at < size, other=-float("inf"), cache_modifier=".cg")
            key = keys(x)
            weight = (at < size).to(tl.float32)
            if MASS:
                weight = tl.where((key >= floor) & (at < size), tl.exp(x - highest), 0.0)
            measure += tl.sum(tl.where(key[:, None] >= candidates[None, :], weight[:, None], 0.0), axis=0)
        enough = (measure >= need) & (tl.arange(0, 16) > 0)
        t += (tl.sum(enough.to(tl.int32), axis=0) << shift).to(tl.uint32)
    return t


@triton.jit
def sample_row(
    row, size, noise, temperature, top_k, top_p, K: tl.constexpr, P: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Warp one row of logits in place and draw from it; returns the place drawn. K and P say whether top_k and top_p cut anything."""
    highest = -float("inf")
    for start in range(0, size, BLOCK):
        at = start + tl.arange(0, BLOCK)
        x = tl.load(row + at, mask=at < size, other=-float("inf"), cache_modifier=".cg")
        # divided exactly, as the order of two logits decides what is kept; an infinity would leave no distribution
        x = tl.minimum(tl.div_rn(x, temperature), LARGEST)
        tl.store(row + at, x, mask=at < size)
        highest = tl.maximum(highest, tl.max(x, axis=0))
    if highest == -float("inf"):  # nothing is left to draw from: any q will do, so long as it is one, so a uniform one
        highest = 0.0
        for start in range(0, size, BLOCK):
            at = start + tl.arange(0, BLOCK)
            tl.store(row + at, tl.zeros((BLOCK,), dtype=tl.float32), mask=at < size)
    tl.debug_barrier()  # other threads read what these have written
    floor = tl.max(keys(tl.full((1,), -float("inf"), dtype=tl.float32)), axis=0) * 0
    if K:
        floor = threshold(row, size, tl.minimum(top_k, size).to(tl.float32), floor, highest, False, BLOCK)
    total = 0.0
    for start in range(0, size, BLOCK):
        at = start + tl.arange(0, BLOCK)
        x = tl.load(row + at, mask=at < size, other=-float("inf"), cache_modifier=".cg")
        total += tl.sum(tl.where((keys(x) >= floor) & (at < size), tl.exp(x - highest), 0.0), axis=0)
    if P:
        floor = tl.maximum(floor, threshold(row, size, top_p * total, floor, highest, True, BLOCK))
        total = 0.0
        for start in range(0, size, BLOCK):
            at = start + tl.arange(0, BLOCK)
            x = tl.load(row + at, mask=at < size, other=-float("inf"), cache_modifier=".cg")
            total += tl.sum(tl.where((keys(x) >= floor) & (at < size), tl.exp(x - highest), 0.0), axis=0)
    drawn = size * 0 + NOWHERE
    last = size * 0
    before = 0.0
    for start in range(0, size, BLOCK):
        at = start + tl.arange(0, BLOCK)
        x = tl.load(row + at, mask=at < size, other=-float("inf"), cache_modifier=".cg")
        mass = tl.where((keys(x) >= floor) & (at < size), tl.exp(x - highest), 0.0)
        hit = (before + tl.cumsum(mass, axis=0) > noise * total) & (mass > 0)
        drawn = tl.minimum(drawn, tl.min(tl.where(hit, at, NOWHERE), axis=0))
        last = tl.maximum(last, tl.max(tl.where(mass > 0, at, 0), axis=0))
        before += tl.sum(mass, axis=0)
        tl.store(row + at, tl.where(keys(x) >= floor, x, -float("inf")), mask=at < size)
    return tl.where(drawn == NOWHERE, last, drawn)  # rounding may leave the noise beyond the last of the sum


@triton.jit(do_not_specialize=VARYING)
def sample_kernel(
    logits, noise, drawn, size, temperature, top_k, top_p, K: tl.constexpr, P: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    b = tl.program_id(0)
    row = logits + b.to(tl.int64) * size
    place = sample_row(row, size, tl.load(noise + b), temperature, top_k, top_p, K, P, BLOCK)
    tl.store(drawn + b, place.to(tl.int64))


def filters(top_k: int, top_p: float) -> dict[str, bool]:
    """Which of the two cut anything; 0 and 1.0 do not."""
    return {"K": top_k > 0, "P": top_p < 1}


@torch.library.custom_op(f"{NAMESPACE}::sample", mutates_args=())
def sample(logits: Tensor, noise: Tensor, temperature: float, top_k: int, top_p: float) -> tuple[Tensor, Tensor]:
    """Draw from logits as warped by temperature, top-k and top-p, by inverse CDF in the order of the places.

    Args:
        logits: [batch, size], any floating dtype. noise: [batch], uniform in [0, 1). temperature: > 0. top_k: 0 is no limit.
        top_p: 1 is no limit. Equal logits are kept or cut together.

    Returns:
        places [batch], int64, and q as logits [batch, size], float32, -inf where cut.
    """
    q = torch.where(logits.isnan(), -float("inf"), logits).to(torch.float32, memory_format=torch.contiguous_format)
    drawn = torch.empty(len(q), dtype=torch.int64, device=q.device)
    with torch.cuda.device_of(q):
        sample_kernel[(len(q),)](
            q, noise.float().contiguous(), drawn, q.shape[1], float(temperature), top_k, float(top_p),
            **filters(top_k, top_p), BLOCK=SAMPLE_TILE, **SAMPLE_LAUNCH,
        )  # fmt: skip
    return drawn, q


@sample.register_fake
def _(logits, noise, temperature, top_k, top_p):
    return logits.new_empty(logits.shape[0], dtype=torch.int64), logits.new_empty(logits.shape, dtype=torch.float32)
