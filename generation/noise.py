"""The random numbers of a sampling call: those that plain `generate` would draw, so that a seed gives the same text with drafts and without.

Plain `generate` draws step j's tokens with `torch.multinomial(p, 1)` over p [R, V]. For one draw a row, that takes exponential numbers
e [R, V] from torch's generator and returns argmax(p / e). So a token is a function of p and of e, whatever was drafted: any tree is
lossless whose nodes do not bend p or e. The drafter may know e, too, and drafts argmax(q / e), which is mostly the same token: drafts
and target share their random numbers (coupling without communication, arXiv 2408.07978, section 4).
"""

import torch
from torch import Tensor

from .. verification.verdict import likeliest  # fmt: skip  # isort: skip


class Noise:
    """Exponential numbers [R, V] of the steps of one call, drawn in order as they are asked for.

    Args:
        rows: R, the call began with, ended ones included: plain `generate` draws for those, too. vocab: V. device: of the token ids.

    Worked example: step 4 is asked for first: five times R·V numbers are drawn. If the longest text then ends after 3 tokens,
    `settle(3)` puts the generator where plain `generate` leaves it, behind three of them.
    """

    def __init__(self, rows: int, vocab: int, device: torch.device) -> None:
        self.shape, self.device = (rows, vocab), device
        self.steps: dict[int, Tensor] = {}
        self.states: list[Tensor] = []  # of the generator, before each step
        self.last: Tensor | None = None  # of the generator, behind the last one

    def row(self, row: int, step: int) -> Tensor:
        """[V], float32, of one row's step."""
        while len(self.states) <= step:
            self.states.append(self._state())
            self.steps[len(self.states) - 1] = self._draw()
            self.last = self._state()
        return self.steps[step][row]

    def forget(self, step: int) -> None:
        """No row will ask for steps before this one."""
        for old in [known for known in self.steps if known < step]:
            del self.steps[old]

    def settle(self, steps: int) -> None:
        """The call is over, its longest text took this many steps. What another call has drawn since is not undone."""
        if steps < len(self.states) and self.last is not None and torch.equal(self._state(), self.last):
            self._restore(self.states[steps])

    def _draw(self) -> Tensor:
        return torch.empty(self.shape, dtype=torch.float32, device=self.device).exponential_()

    def _state(self) -> Tensor:
        return torch.cuda.get_rng_state(self.device) if self.device.type == "cuda" else torch.get_rng_state()

    def _restore(self, state: Tensor) -> None:
        if self.device.type == "cuda":
            torch.cuda.set_rng_state(state, self.device)
        else:
            torch.set_rng_state(state)


def draw(logits: Tensor, noise: Tensor) -> int:
    """The token that `torch.multinomial` would draw with these numbers, from logits [V] and noise [V].

    Raises:
        `RuntimeError`: as `torch.multinomial`, where the logits leave no token.
    """
    p = logits.float().softmax(dim=-1)
    token = int(likeliest(p / noise))
    if bool(p[token].isnan()):
        raise RuntimeError("probability tensor contains either `inf`, `nan` or element < 0")
    return token
