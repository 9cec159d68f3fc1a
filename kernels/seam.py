"""The one place that says whether Triton or torch computes: `auto`, `triton` or `torch`.

`DOMINO_KERNELS` says it for a process, `forced` for a stretch of code. `auto` is Triton on NVIDIA's GPUs from compute capability 8
on, for which the kernels are built, where the package is installed and a check on that very device passed (`devices/gate.py`).
"""

import functools
import importlib
import importlib.util
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import ModuleType

import torch

from .. devices.gate import verdict  # fmt: skip  # isort: skip

CHOICES = ("auto", "triton", "torch")
CASES = f"{__name__.rpartition('.kernels.')[0]}.doctor.kernel_cases:CASES"
logger = logging.getLogger(__name__)
_forced: ContextVar[str | None] = ContextVar("domino_kernels", default=None)


@contextmanager
def forced(choice: str) -> Iterator[None]:
    """Within it, `choice` holds whatever the environment says."""
    token = _forced.set(_checked(choice))
    try:
        yield
    finally:
        _forced.reset(token)


def uses_triton(device: torch.device) -> bool:
    """Whether the operators on tensors of this device are Triton's.

    Raises:
        `ValueError`: an unknown choice, or Triton is asked for where it cannot run.
    """
    return _decide(choice(), device)


def choice() -> str:
    """What was asked for. Raises `ValueError`: no such choice."""
    return _forced.get() or _checked(os.environ.get("DOMINO_KERNELS", "auto"))


def _checked(choice: str) -> str:
    if choice not in CHOICES:
        raise ValueError(f"DOMINO_KERNELS must be one of {', '.join(CHOICES)}, got {choice!r}.")
    return choice


@functools.cache
def _decide(asked: str, device: torch.device) -> bool:
    """Decided and logged once for each choice and device."""
    installed = importlib.util.find_spec("triton") is not None
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    if asked == "triton" and not installed:
        raise ValueError("DOMINO_KERNELS=triton, but the package triton is not installed.")
    if asked == "triton" and not interpreted and not able(device):
        raise ValueError(
            f"DOMINO_KERNELS=triton on device {str(device)!r} runs only in the interpreter: TRITON_INTERPRET=1."
        )
    used = asked == "triton" or (asked == "auto" and installed and able(device) and passed(device))
    logger.info("Domino's head on %s: %s (%s asked for).", device, "triton" if used else "torch", asked)
    return used


def able(device: torch.device) -> bool:
    """Whether the kernels can be compiled for it; AMD's GPUs are of type cuda too, but do not know the launch settings."""
    if device.type != "cuda" or torch.version.hip is not None:
        return False
    return torch.cuda.get_device_capability(device) >= (8, 0)


def passed(device: torch.device) -> bool:
    """Whether the kernels were right on this device; the first time that this is asked on it a check runs."""
    return verdict("triton", CASES, device).passed is True


def operators() -> ModuleType:
    """The module with the Triton operators; importing it is what needs triton."""
    return importlib.import_module(".operators", __package__)
