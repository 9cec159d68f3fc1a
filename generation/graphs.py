"""Work on a GPU that is recorded once for a shape and then replayed as one launch: CUDA graphs.

A recording is fixed: addresses, shapes, and every number that Python knew. So it lives for one call, whose caches it writes to; what
changes from round to round is handed over in tensors, and the number of visible cache slots grows in steps of `BUCKET`.
"""

import logging
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any

import torch
from torch import Tensor

BUCKET = 256  # slots by which the visible part of a cache grows, each step a recording of its own
Outputs = tuple[Any, ...]  # tensors and None
Recorder = Callable[[Callable[[], Outputs]], tuple[Callable[[], None], Outputs]]
logger = logging.getLogger(__name__)


def recorder(device: torch.device) -> Recorder | None:
    """What records on this device: takes the work, gives what replays it and where its results will lie. None: nothing does."""
    return _record if device.type == "cuda" else None


def _record(work: Callable[[], Outputs]) -> tuple[Callable[[], None], Outputs]:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = work()
    return graph.replay, outputs


class Graphs:
    """The recordings of one call. If one fails, the rest of the call runs without, and a warning says why."""

    def __init__(self, record: Recorder):
        self.record: Recorder | None = record
        self.forget()

    def __call__(self, key: Hashable, work: Callable[..., Outputs], **inputs: Tensor) -> Outputs:
        """work(**inputs): done at the first time, which makes what is made lazily, recorded at the second, then replayed.

        Args:
            key: all that the work depends on besides its inputs. inputs: read at fixed places, so copied there each time.

        Returns:
            the work's results, copied, for the next replay overwrites them.
        """
        known = key, *((name, value.shape, value.dtype) for name, value in inputs.items())
        if self.record is None or known not in self.seen:
            self.seen.add(known)
            return work(**inputs)
        if known not in self.recorded and not self._recorded(known, work, inputs):
            return work(**inputs)
        held, replay, outputs = self.recorded[known]
        for name, value in inputs.items():
            held[name].copy_(value)
        replay()
        return tuple(None if out is None else out.clone() for out in outputs)

    def _recorded(self, known: Hashable, work: Callable[..., Outputs], inputs: dict[str, Tensor]) -> bool:
        assert self.record is not None
        held = {name: value.clone() for name, value in inputs.items()}
        try:
            self.recorded[known] = held, *self.record(partial(work, **held))
        except RuntimeError as error:
            logger.warning("This call goes on without CUDA graphs, as recording one failed: %s", error)
            self.record = None
        return self.record is not None

    def forget(self) -> None:
        """The tensors that the recordings write to are gone."""
        self.seen: set[Hashable] = set()
        self.recorded: dict[Hashable, tuple[dict[str, Tensor], Callable[[], None], Outputs]] = {}
