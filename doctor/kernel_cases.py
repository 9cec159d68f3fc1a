"""The Triton kernels against their torch twins, on any device: the cases that turn them on by default there."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from .. kernels import operators as ops  # fmt: skip  # isort: skip
from .. kernels import twins  # fmt: skip  # isort: skip
from .. kernels.common import INTERPRETED  # fmt: skip  # isort: skip
from . compare import TIES, drawn_from, must, same_draw, same_walk  # fmt: skip  # isort: skip

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
AGAIN = 20  # times that a walk is repeated where programs run at once: a race would show as another walk


def randn(*shape: int, device: torch.device, dtype=torch.float32, seed: int = 0, scale: float = 1.0) -> Tensor:
    """The same numbers on every device."""
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return (torch.randn(*shape, generator=generator) * scale).to(device, dtype)


def rollout_arguments(
    device: torch.device, shape: tuple[int, ...], dtype: torch.dtype, pool: int, scales=(1.0, 1.0, 1.0)
) -> tuple[Any, ...]:
    """given, z, base, table, weight_hh, w_s, w2 and ids of a rollout (`rollout.rollout_greedy`); z, base and w_s are strided views.

    Args:
        shape: batch, slots, gru, rank, vocab, known tokens. pool: tokens of it, 0 for the vocabulary. scales: of weight_hh, w_s, w2.
    """
    batch, slots, gru, rank, vocab, known = shape
    make = partial(randn, device=device)
    given = torch.randint(vocab, (batch, known), generator=torch.Generator().manual_seed(0)).to(device)
    z, base = make(batch, slots + 1, rank, dtype=dtype)[:, 1:], make(batch, slots + 1, vocab)[:, 1:]
    table, w_hh = make(vocab, 3 * gru, dtype=dtype), make(3 * gru, gru, dtype=dtype, scale=scales[0])
    w_s, w2 = make(rank, 5 + gru, dtype=dtype, scale=scales[1])[:, 5:], make(vocab, rank, dtype=dtype, scale=scales[2])
    ids = None
    if pool:
        ids = base.amax(dim=1).topk(pool).indices.sort(dim=-1).values
        base, w2 = twins.gather_pool(base, w2, ids)
    return given, z, base, table, w_hh, w_s, w2, ids


def _uniform(*shape: int, device: torch.device) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(1)).to(device)


def _pool(device: torch.device) -> None:
    for dtype in DTYPES:
        base, w2 = randn(2, 3, 100, device=device), randn(100, 37, device=device, dtype=dtype)
        ids = base.amax(dim=1).topk(41).indices
        for got, expected in zip(ops.gather_pool(base, w2, ids), twins.gather_pool(base, w2, ids), strict=True):
            must(torch.equal(got, expected), f"{dtype}: another number was gathered")


def _sample(device: torch.device) -> None:
    logits, noise = randn(6, 1500, device=device, scale=3), _uniform(6, device=device)
    for temperature, top_k, top_p in ((1.0, 0, 1.0), (0.7, 20, 0.8), (1.3, 0, 0.6)):
        places, q = ops.sample(logits, noise, temperature, top_k, top_p)
        same_draw(places, q, *twins.sample(logits, noise, temperature, top_k, top_p), noise)


def _greedy(dtype: torch.dtype, pool: int, device: torch.device) -> None:
    # tails of every tile, and more texts than one holds
    for shape in ((1, 3, 16, 8, 40, 2), (17, 3, 24, 40, 65, 3)):
        args = rollout_arguments(device, shape, dtype, pool)
        same_walk(ops.rollout_greedy(*args), args, TIES[dtype])


def _drawn(dtype: torch.dtype, pool: int, device: torch.device) -> None:
    args, noise = rollout_arguments(device, (3, 5, 20, 12, 130, 2), dtype, pool), _uniform(3, 4, device=device)
    how: tuple[Any, ...] = (*args, noise, 0.8, 20, 0.9)  # temperature, top_k, top_p
    places, q = ops.rollout_sample(*how)
    drawn_from(places, q, noise, 1e-6)
    if dtype == torch.float32:  # elsewhere a state on the edge of two values may move q
        expected, expected_q = twins.rollout_sample(*how)
        must(torch.equal(places, expected), "another token was drawn than the twin draws")
        torch.testing.assert_close(q, expected_q, atol=1e-4, rtol=1e-4)


def _published(batch: int, pool: int, device: torch.device) -> None:
    """The head of a published drafter, an eighth of its vocabulary, on all multiprocessors.

    Weights are scaled so that each product is about as large as its input: base logits and corrections of size one, the best a
    quarter ahead of the next. Sums in another order then move a logit by 0.005 at most: a state falls to the other neighbour.
    """
    scales = (1 / 32, 1 / 32, 1 / 16)
    args = rollout_arguments(device, (batch, 16, 1024, 256, 19_000, 2), torch.bfloat16, pool, scales)
    noise = _uniform(batch, 15, device=device)
    greedy, (drawn, q) = ops.rollout_greedy(*args), ops.rollout_sample(*args, noise, 0.8, 20, 0.95)
    same_walk(greedy, args, 2e-2)
    drawn_from(drawn, q, noise, 5e-5)  # hundreds of partial sums in float32
    for _ in range(AGAIN):
        must(torch.equal(ops.rollout_greedy(*args), greedy), "the same walk again gave other tokens")
        again, again_q = ops.rollout_sample(*args, noise, 0.8, 20, 0.95)
        must(torch.equal(again, drawn) and torch.equal(again_q, q), "the same draw again gave other tokens")


def _cases() -> dict[str, Callable[[torch.device], None]]:
    found: dict[str, Callable[[torch.device], None]] = {"pool": _pool, "sample": _sample}
    for dtype in DTYPES:
        for over, pool in (("vocabulary", 0), ("pool", 33)):
            named = f"{over}, {str(dtype).removeprefix('torch.')}"
            found[f"greedy rollout, {named}"] = partial(_greedy, dtype, pool)
            found[f"sampled rollout, {named}"] = partial(_drawn, dtype, pool)
    if INTERPRETED:  # one program after the other, and slowly
        return found
    for batch in (1, 8, 32):
        for over, pool in (("vocabulary", 0), ("pool", 1024)):
            found[f"published shape, {over}, {batch} texts"] = partial(_published, batch, pool)
    return found


CASES = _cases()
