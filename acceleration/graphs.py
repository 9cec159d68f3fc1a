"""Work on a GPU that is recorded once for a shape and then replayed as one launch: CUDA graphs.

A recording is fixed: addresses, shapes, and every number that Python knew. So it lives for one call, whose caches it writes to; what
changes from round to round is handed over in tensors, and the number of visible cache slots grows in steps of `BUCKET`.
"""

import logging
from collections.abc import Callable, Hashable
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

BUCKET = 256  # slots by which the visible part of a cache grows, each step a recording of its own
Outputs = tuple[Any, ...]  # tensors and None
Recorder = Callable[[Callable[[], Outputs]], tuple[Callable[[], None], Outputs]]
logger = logging.getLogger(__name__)


def recorder(device: torch.device) -> Recorder | None:
    """What records on this device: takes the work, gives what replays it and where its results will lie. None: nothing does."""
    return partial(_record, device) if device.type == "cuda" else None


def _record(device: torch.device, work: Callable[[], Outputs]) -> tuple[Callable[[], None], Outputs]:
    """On a stream of the very device: torch's own lies on the one that was current first, and would record nothing of another's work."""
    graph = torch.cuda.CUDAGraph()
    # A recording that fails leaves its stream as the current one: the context around it takes that back. "thread_local": what other
    # threads do meanwhile neither fails nor spoils it.
    with (
        torch.cuda.device(device),
        torch.cuda.stream(torch.cuda.current_stream(device)),
        torch.cuda.graph(graph, stream=_side_stream(device), capture_error_mode="thread_local"),
    ):
        outputs = work()
    return graph.replay, outputs


@cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    """One a device, as each stream keeps a workspace for matrix products."""
    return torch.cuda.Stream(device)


class Graphs:
    """The recordings of one call. If one fails, the rest of the call runs without, and a warning says why."""

    def __init__(self, record: Recorder):
        self.record: Recorder | None = record
        self.forget()

    def __call__(self, name: str, work: Callable[..., Outputs], *state: Hashable, **inputs: Tensor) -> Outputs:
        """work(**inputs): done at the first time, which makes what is made lazily, recorded at the second, then replayed.

        Args:
            name: of the work. One recording of it is kept, the last: its shapes grow and do not come back, and each holds memory.
            state: all that the work depends on besides its inputs. inputs: read at fixed places, so copied there each time.

        Returns:
            the work's results, copied, for the next replay overwrites them.
        """
        known = name, *state, *((key, value.shape, value.dtype) for key, value in inputs.items())
        if self.record is None or known not in self.seen:
            self.seen.add(known)
            return work(**inputs)
        if (name not in self.recorded or self.recorded[name][0] != known) and not self._recorded(known, work, inputs):
            return work(**inputs)
        _, held, replay, outputs = self.recorded[name]
        for key, value in inputs.items():
            held[key].copy_(value)
        replay()
        return tuple(None if out is None else out.clone() for out in outputs)

    def _recorded(self, known: tuple, work: Callable[..., Outputs], inputs: dict[str, Tensor]) -> bool:
        assert self.record is not None
        self.recorded.pop(known[0], None)
        held = {key: value.clone() for key, value in inputs.items()}
        try:
            self.recorded[known[0]] = known, held, *self.record(partial(work, **held))
        except RuntimeError as error:
            logger.warning("This call goes on without CUDA graphs, as recording one failed: %s", error)
            self.record = None
        return self.record is not None

    def forget(self) -> None:
        """The tensors that the recordings write to are gone."""
        self.seen: set[Hashable] = set()
        self.recorded: dict[str, tuple[tuple, dict[str, Tensor], Callable[[], None], Outputs]] = {}
