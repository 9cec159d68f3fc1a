"""Time a repeated step: warm-up, then median and quartiles."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from ..clock import Clock

WARM_UP = 2


@dataclass(frozen=True)
class Timing:
    """Seconds of one run. median, and the quartiles low and high; fastest of all."""

    median: float
    low: float
    high: float
    fastest: float

    @classmethod
    def of(cls, seconds: list[float]) -> Timing:
        """The summary of at least one run."""
        quartiles = torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64)
        low, median, high = torch.tensor(seconds, dtype=torch.float64).quantile(quartiles).tolist()
        return cls(median, low, high, min(seconds))


@torch.inference_mode()
def measure(
    step: Callable[[], object], device: torch.device, repeats: int, undo: Callable[[], object] | None = None
) -> Timing:
    """Run `step` a few times unseen and `repeats` times timed; `undo`, untimed, brings back the state it started from.

    On CUDA each run starts with an idle device, as a round of decoding does: the host waits for the tokens of the last.
    """
    clock, seconds = Clock(device), []
    for run in range(WARM_UP + repeats):
        _wait(device)
        start = clock.mark()
        step()
        end = clock.mark()
        _wait(device)
        if run >= WARM_UP:
            seconds.append(clock.seconds(start, end))
        if undo is not None:
            undo()
    return Timing.of(seconds)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
