"""The whole rollout in one persistent launch, greedy or sampled, over a pool or the vocabulary. Twins: `twins.rollout_*`.

As many programs as the device holds at once walk the block together. A step has three phases, each shared out among all of
them and each ended by a barrier: GRU, W_s S, scores; sampling adds a fourth, the draw. So the launches of a block are one,
whatever the batch and the block. State, codes and picks pass between programs through small buffers that are read past the L1
cache. With one program there is nothing to wait for, which is how the interpreter runs it.
"""

import torch
from torch import Tensor

from . common import INTERPRETED, LOWEST_SCORE, NAMESPACE, VARYING, index_of, pack, rounding, rows_of, tile, tl, triton, unpack, wide  # fmt: skip  # isort: skip
from . sample import SAMPLE_TILE, filters, sample_row  # fmt: skip  # isort: skip
from . tiles import code_tile, gru_tile, pooled_tile, scores_tile  # fmt: skip  # isort: skip

# One program fills a multiprocessor, so it may have nearly all registers; left alone, ptxas spills to fit two.
LAUNCH = {"num_warps": 8, "maxnreg": 240}


@triton.jit
def meet(counter, target):
    """Wait until the programs have arrived `target` times in all. Release, so that what they wrote is seen; acquire, to see it."""
    tl.debug_barrier()
    arrived = tl.atomic_add(counter, 1, sem="acq_rel", scope="gpu") + 1
    while arrived < target:
        arrived = tl.atomic_add(counter, 0, sem="acquire", scope="gpu")
    tl.debug_barrier()


@triton.jit(do_not_specialize=VARYING)
def rollout_kernel(
    given, known, z, z_batch, z_slot, base, base_batch, base_slot, table, table_stride, w_hh, hh_stride, w_s, s_stride,
    w2, w2_batch, w2_stride, ids, noise, state, code, best, q, counter,
    batch, steps, gru, rank, size, temperature, top_k, top_p,
    POOL: tl.constexpr, SAMPLE: tl.constexpr, K: tl.constexpr, P: tl.constexpr,
    BG: tl.constexpr, BB: tl.constexpr, BKG: tl.constexpr, BV: tl.constexpr, BKR: tl.constexpr, BLOCK: tl.constexpr,
    WIDE_GRU: tl.constexpr, ROUND_GRU: tl.constexpr, WIDE: tl.constexpr, ROUND: tl.constexpr,
):  # fmt: skip
    """given [batch, known]: the anchor and the drafts before the first corrected one, which is number known - 1 counted from 0.

    state [2, batch, gru] holds S before and after a step in turn, best [batch, steps] packed picks, q [batch, steps, size] logits.
    """
    program, programs = tl.program_id(0), tl.num_programs(0)
    b_tiles, g_tiles = tl.cdiv(batch, BB), tl.cdiv(gru, BG)
    r_tiles, v_tiles = tl.cdiv(rank, BG), tl.cdiv(size, BV)
    met = 0
    for step in tl.range(known - 1 + steps, disable_licm=True):
        first = step - (known - 1)  # corrected drafts before this one; negative while the given tokens are read
        before = state + tl.cast(step % 2, tl.int64) * batch * gru
        after = state + tl.cast((step + 1) % 2, tl.int64) * batch * gru
        for item in range(program, g_tiles * b_tiles, programs):
            b = (item // g_tiles) * BB + tl.arange(0, BB)
            b64, in_b = b.to(tl.int64), b < batch
            token = tl.load(given + b64 * known + tl.minimum(step, known - 1), mask=in_b, other=0)
            if first > 0:
                token = unpack(
                    tl.load(best + b64 * steps + first - 1, mask=in_b, other=0xFFFFFFFF, cache_modifier=".cg")
                )
                if POOL:
                    token = tl.load(ids + b64 * size + token, mask=in_b, other=0)
            gru_tile(
                table, token, table_stride, before, after, w_hh, hh_stride, item % g_tiles, item // g_tiles, batch, gru,
                BG, BB, BKG, WIDE_GRU, ROUND_GRU,
            )  # fmt: skip
        met += programs
        meet(counter, met)
        if first >= 0:
            for item in range(program, r_tiles * b_tiles, programs):
                code_tile(
                    after, w_s, s_stride, code, item % r_tiles, item // r_tiles, batch, rank, gru, BG, BB, BKG, WIDE_GRU
                )
            met += programs
            meet(counter, met)
            if POOL:
                for item in range(program, v_tiles * batch, programs):
                    b = tl.cast(item // v_tiles, tl.int64)
                    v = (item % v_tiles) * BV + tl.arange(0, BV)
                    x = pooled_tile(
                        z + b * z_batch + tl.cast(step, tl.int64) * z_slot, code + b * rank, w2 + b * w2_batch, w2_stride,
                        base + b * base_batch + tl.cast(step, tl.int64) * base_slot, v, rank, size, BV, BKR, ROUND,
                    )  # fmt: skip
                    if SAMPLE:
                        tl.store(q + (b * steps + first) * size + v, x, mask=v < size)
                    else:
                        packed = tl.where(v < size, pack(x, v), -(2**63))
                        tl.atomic_max(best + b * steps + first, tl.max(packed, axis=0), sem="relaxed")
            else:
                for item in range(program, v_tiles * b_tiles, programs):
                    # neighbours share rows of W2, so a larger batch does not read them from memory again
                    b = (item % b_tiles) * BB + tl.arange(0, BB)
                    b64 = b.to(tl.int64)
                    v = (item // b_tiles) * BV + tl.arange(0, BV)
                    x = scores_tile(
                        z + tl.cast(step, tl.int64) * z_slot, z_batch, code, rank, w2, w2_stride,
                        base + tl.cast(step, tl.int64) * base_slot, base_batch, v, b, batch, rank, size, BB, BV, BKR, WIDE, ROUND,
                    )  # fmt: skip
                    if SAMPLE:
                        place = q + (b64 * steps + first)[None, :] * size + v.to(tl.int64)[:, None]
                        tl.store(place, x, mask=(v < size)[:, None] & (b < batch)[None, :])
                    else:
                        packed = tl.where((v < size)[:, None], pack(x, v[:, None] + (b * 0)[None, :]), -(2**63))
                        tl.atomic_max(best + b64 * steps + first, tl.max(packed, axis=0), mask=b < batch, sem="relaxed")
            met += programs
            meet(counter, met)
            if SAMPLE:
                for b in range(program, batch, programs):
                    place = tl.cast(b, tl.int64) * steps + first
                    drawn = sample_row(
                        q + place * size, size, tl.load(noise + place), temperature, top_k, top_p, K, P, BLOCK
                    )
                    tl.store(best + place, 0xFFFFFFFF - drawn.to(tl.int64))
                met += programs
                meet(counter, met)


def rollout_config(gru: int, rank: int, size: int, dtype: torch.dtype) -> dict[str, int]:
    """Tiles of all phases, as large as they can be without spilling registers (`aot.py`).

    16 units or ranks a tile, so that a GRU of 1024 is shared out among 64 programs, each reading 96 kB of bfloat16 weights; 16
    texts, the least that tensor cores take. The draw's are halved: this kernel has no registers to spare.
    """
    depth = 128 // dtype.itemsize
    tokens = 2048 if INTERPRETED and size > 8192 else 32  # the interpreter pays for every tile
    tiles = {"BG": 16, "BB": 16, "BKG": tile(gru, depth), "BV": tokens, "BKR": tile(rank, depth)}
    return {**tiles, "BLOCK": SAMPLE_TILE // 2}


def programs_at_once(device: torch.device) -> int:
    """One on each multiprocessor: all must be running for a barrier to end, and the interpreter runs one after the other."""
    if INTERPRETED:
        return 1
    return torch.cuda.get_device_properties(device).multi_processor_count


def _launch(given, z, base, table, weight_hh, w_s, w2, ids, noise, q, temperature, top_k, top_p) -> Tensor:
    """Run the kernel; returns the places picked [batch, steps]."""
    (batch, known), (slots, rank) = given.shape, z.shape[1:]
    steps, gru, size = slots - known + 1, weight_hh.shape[1], base.shape[2]
    z, base, table, weight_hh, w_s, w2 = (rows_of(t) for t in (z, base, table, weight_hh, w_s, w2))
    state = torch.zeros(2, batch, gru, dtype=torch.float32, device=z.device)
    code = torch.empty(batch, rank, dtype=torch.float32, device=z.device)
    best = torch.full((batch, steps), LOWEST_SCORE, dtype=torch.int64, device=z.device)
    counter = torch.zeros(1, dtype=torch.int32, device=z.device)
    launch = {} if INTERPRETED else {"launch_cooperative_grid": True}
    with torch.cuda.device_of(z):
        rollout_kernel[(programs_at_once(z.device),)](
            given.contiguous(), known, z, z.stride(0), z.stride(1), base, base.stride(0), base.stride(1),
            table, table.stride(0), weight_hh, weight_hh.stride(0), w_s, w_s.stride(0),
            w2, 0 if ids is None else w2.stride(0), w2.stride(-2), best if ids is None else ids.contiguous(),
            state if noise is None else noise.float().contiguous(), state, code, best, state if q is None else q, counter,
            batch, steps, gru, rank, size, float(temperature), top_k, float(top_p),
            POOL=ids is not None, SAMPLE=q is not None, **filters(top_k, top_p), **rollout_config(gru, rank, size, w2.dtype),
            WIDE_GRU=wide(weight_hh.dtype), ROUND_GRU=rounding(weight_hh.dtype), WIDE=wide(w2.dtype), ROUND=rounding(w2.dtype),
            **LAUNCH, **launch,
        )  # fmt: skip
    return index_of(best)


@torch.library.custom_op(f"{NAMESPACE}::rollout_greedy", mutates_args=())
def rollout_greedy(
    given: Tensor,
    z: Tensor,
    base: Tensor,
    table: Tensor,
    weight_hh: Tensor,
    w_s: Tensor,
    w2: Tensor,
    ids: Tensor | None,
) -> Tensor:
    """Walk the block greedily.

    Args:
        given: [batch, f + 1], the anchor and the f drafts before the first corrected one. z: [batch, n, rank], W_z H of all slots.
        base: [batch, n, size], size the vocabulary, or the pool of each text. table: [vocab, 3 * gru], E W_ihᵀ of every token.
        weight_hh: [3 * gru, gru]. w_s: [rank, gru]. w2: [vocab, rank], or a pool's rows [batch, size, rank].
        ids: [batch, size], the pool's tokens, or None for the vocabulary. weight_hh and w_s have one dtype.

    Returns:
        drafts f … n - 1 as [batch, n - f] places: tokens, or with a pool places in it.
    """
    return _launch(given, z, base, table, weight_hh, w_s, w2, ids, None, None, 1.0, 0, 1.0)


@rollout_greedy.register_fake
def _(given, z, base, table, weight_hh, w_s, w2, ids):
    return given.new_empty(given.shape[0], z.shape[1] - given.shape[1] + 1, dtype=torch.int64)


@torch.library.custom_op(f"{NAMESPACE}::rollout_sample", mutates_args=())
def rollout_sample(
    given: Tensor,
    z: Tensor,
    base: Tensor,
    table: Tensor,
    weight_hh: Tensor,
    w_s: Tensor,
    w2: Tensor,
    ids: Tensor | None,
    noise: Tensor,
    temperature: float,
    top_k: int,
    top_p: float,
) -> tuple[Tensor, Tensor]:
    """Walk the block, each draft drawn as `sample.sample` draws.

    Args:
        given … ids: see `rollout_greedy`. noise: [batch, n - f], uniform in [0, 1). temperature, top_k, top_p: see `sample`.

    Returns:
        places [batch, n - f], and q as logits [batch, n - f, size], float32: over a pool, the compact form of q.
    """
    steps = z.shape[1] - given.shape[1] + 1
    q = torch.empty(given.shape[0], steps, base.shape[2], dtype=torch.float32, device=z.device)
    return _launch(given, z, base, table, weight_hh, w_s, w2, ids, noise, q, temperature, top_k, top_p), q


@rollout_sample.register_fake
def _(given, z, base, table, weight_hh, w_s, w2, ids, noise, temperature, top_k, top_p):
    batch, steps = given.shape[0], z.shape[1] - given.shape[1] + 1
    return given.new_empty(batch, steps, dtype=torch.int64), base.new_empty(
        batch, steps, base.shape[2], dtype=torch.float32
    )
