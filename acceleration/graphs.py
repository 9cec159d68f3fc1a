"""Work on a GPU that is recorded once for a shape and then replayed as one launch: CUDA graphs.

A recording is fixed: addresses, shapes, and every number that Python knew. So it lives for one call, whose caches it writes to; what
changes from round to round is handed over in tensors, and the number of visible cache slots grows in steps of `BUCKET`.
"""

import logging
from collections.abc import Callable, Hashable
from functools import cache, partial
from typing import Any, Literal
from weakref import WeakSet

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from .. devices.gate import check, verdict  # fmt: skip  # isort: skip
from .. devices.verdict import Verdict  # fmt: skip  # isort: skip
from .. kernels.seam import uses_triton  # fmt: skip  # isort: skip

CASES = f"{__name__.rpartition('.acceleration.')[0]}.doctor.graph_cases:CASES"
BUCKET = 256  # slots by which the visible part of a cache grows, each step a recording of its own
Outputs = tuple[Any, ...]  # tensors and None
Recorder = Callable[[Callable[[], Outputs]], tuple[Callable[[], None], Outputs]]
logger = logging.getLogger(__name__)
_unfit: WeakSet[nn.Module] = WeakSet()  # targets of which a recording failed


def graphs_for(
    setting: bool | Literal["auto"], fits: bool, target: PreTrainedModel, draft: PreTrainedModel
) -> "Graphs | None":
    """The recordings of this call; None: the call runs without graphs.

    Args:
        setting: True wherever a device can; "auto" only where the check of `graph_cases` passed on this device, and neither this
            target failed before nor hooks wait for what a replay would not tell them. fits: whether the call asks for nothing that
            graphs exclude.

    A target that cannot be recorded is one of "auto" no longer: torch's allocator may stay as in a recording after a failure.
    """
    if setting is False or setting == "auto" and not (fits and able(target.device)):
        return None
    devices = {tensor.device for model in (target, draft) for tensor in model.parameters()}
    # of another device nothing would be recorded
    record = recorder(target.device) if len(devices) == 1 else None
    if setting == "auto":
        if record is None or target in _unfit or hooked(target, draft) or not passed(target.device):
            return None
        return Graphs(record, lambda: _unfit.add(target))
    if record is None:
        named = ", ".join(sorted(map(str, devices)))
        logger.warning("graphs=True is for models on one CUDA device; on %s the call goes on without.", named)
    return record and Graphs(record)


def passed(device: torch.device) -> bool:
    """Whether recorded work is right on this device, with the head's kernels as they run there. The first call runs the check."""
    return verdict("graphs", CASES, device, **_head(device)).passed is True


def checked_anew(device: torch.device) -> Verdict:
    """Run the check, whatever an earlier one found, and return its verdict."""
    return check("graphs", CASES, device, **_head(device))


def _head(device: torch.device) -> dict[str, str]:
    return {"DOMINO_KERNELS": "triton" if uses_triton(device) else "torch"}


def hooked(*models: nn.Module) -> bool:
    """Whether any module has hooks on its forward, besides those by which transformers collects hidden states."""
    modules = (module for model in models for module in model.modules())
    hooks = (
        hook
        for module in modules
        for own in (module._forward_hooks, module._forward_pre_hooks)
        for hook in own.values()
    )
    return any(not (getattr(hook, "__module__", None) or "").startswith("transformers.") for hook in hooks)


def recorder(device: torch.device) -> Recorder | None:
    """The device's recorder: takes work, returns a function that replays it and the tensors of its results. None: there is none."""
    return partial(_record, device) if able(device) else None


def able(device: torch.device) -> bool:
    """Whether a device has graphs."""
    return device.type == "cuda"


def _record(device: torch.device, work: Callable[[], Outputs]) -> tuple[Callable[[], None], Outputs]:
    """Record on a stream of this device. torch's own stream lies on the device that was current first and records nothing of another's work."""
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
    """The recordings of one call. If one fails, the rest of the call runs without, a warning says why, and `failed` is called."""

    def __init__(self, record: Recorder, failed: Callable[[], None] = lambda: None):
        self.record: Recorder | None = record
        self.failed = failed
        self.forget()

    def __call__(self, name: str, work: Callable[..., Outputs], *state: Hashable, **inputs: Tensor) -> Outputs:
        """Do work(**inputs). The first time it runs, which makes what is made lazily; the second time it is recorded, then replayed.

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
            self.failed()
        return self.record is not None

    def forget(self) -> None:
        """Drop the recordings: the tensors that they write to are gone."""
        self.seen: set[Hashable] = set()
        self.recorded: dict[str, tuple[tuple, dict[str, Tensor], Callable[[], None], Outputs]] = {}
