"""When a kernel's answer is right: what may differ from its twin's, and no more. Tests and the check on a device share it."""

from typing import Any

import torch
from torch import Tensor

from .. kernels import twins  # fmt: skip  # isort: skip

# Both sides sum in float32, in another order: a few units in the last place of sums of size ten.
SUMS: dict[str, Any] = {"atol": 2e-5, "rtol": 2e-5}
# Logits of size ten. A state on the edge of two bfloat16 values may fall to either side, and moves a logit by about that much.
TIES = {torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 2e-1}


def must(right: object, what: str) -> None:
    """Raises `AssertionError` that says what is not so, under `python -O` too."""
    if not right:
        raise AssertionError(what)


def same_walk(places: Tensor, args: tuple[Any, ...], allowed: float) -> None:
    """Where a greedy walk and its twin part for the first time the twin's two logits are a tie; the twin then goes on with the
    other's token.

    Args:
        places: [batch, n - f] of `rollout_greedy(*args)`. allowed: by how much logits of a tie may differ, see `TIES`.

    Raises:
        `AssertionError`: it was no tie.
    """
    steps: list[Tensor] = []

    def choose(logits: Tensor, step: int) -> Tensor:
        steps.append(logits)
        return places[:, step]

    must(((places >= 0) & (places < args[2].shape[2])).all(), "a place lies outside")
    twins.rollout_steps(*(*args, choose))
    for step, logits in enumerate(steps):
        best = logits.argmax(dim=-1)
        for row in (places[:, step] != best).nonzero()[:, 0].tolist():
            gap = float(logits[row, best[row]] - logits[row, places[row, step]])
            must(gap <= allowed, f"row {row}, step {step}: the logit of its place is {gap:g} below the best")


def same_draw(places: Tensor, q: Tensor, expected: Tensor, expected_q: Tensor, noise: Tensor) -> None:
    """A draw equals its twin's: `sample`'s places [batch] and q [batch, size] given the noise [batch].

    Raises:
        `AssertionError`: q differs, or a place differs by more than a rounding of the sum.
    """
    must(torch.equal(q.isneginf(), expected_q.isneginf()), "other tokens are cut")
    torch.testing.assert_close(q, expected_q, **SUMS)
    must(q.gather(1, places[:, None]).isfinite().all(), "a token that is cut was drawn")
    wide = expected_q.double().softmax(-1).cumsum(-1)
    for row in (places != expected).nonzero()[:, 0].tolist():
        # between the two lies an edge of the distribution that the noise meets within a rounding of the sum
        low, high = sorted((int(places[row]), int(expected[row])))
        must((wide[row, low:high] - noise[row]).abs().max() <= 1e-5, f"row {row}: another token was drawn")


def drawn_from(places: Tensor, q: Tensor, noise: Tensor, allowed: float) -> None:
    """Places [batch, n] were drawn from q, logits [batch, n, size]: the noise lies between q's sums, in float64, before and at each
    place, but for the rounding of the sum.

    Raises:
        `AssertionError`: it does not.
    """
    total = q.double().softmax(-1).cumsum(-1)
    at = total.gather(2, places[..., None])[..., 0]
    before = torch.where(places > 0, total.gather(2, (places - 1).clamp(min=0)[..., None])[..., 0], 0.0)
    must(((before - allowed <= noise) & (noise <= at + allowed)).all(), "a token was not drawn from the q it came with")
