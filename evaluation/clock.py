"""Time on the device's own clock."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import torch


class Clock:
    """Marks in time on the device's own clock: CUDA events, which wait for nothing, or the process's."""

    def __init__(self, device: torch.device):
        self.cuda = device.type == "cuda"

    def mark(self) -> Any:
        if not self.cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self, start: Any, end: Any) -> float:
        """Between two marks; on CUDA after a synchronization."""
        return start.elapsed_time(end) / 1000 if self.cuda else end - start


@dataclass
class Span:
    """A piece of work: its stage, the marks of its begin and end, and the pieces of other stages within it."""

    stage: str
    start: Any
    end: Any = None
    inside: list[Span] = field(default_factory=list)

    def seconds(self, clock: Clock) -> float:
        """What is within counts for its own stage alone."""
        return clock.seconds(self.start, self.end) - sum(clock.seconds(span.start, span.end) for span in self.inside)
