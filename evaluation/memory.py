"""Peak memory of a stretch of work: the device's, or on a CPU the process's."""

from __future__ import annotations

from pathlib import Path

import torch

STATUS, REFERENCES = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def reset_peak(device: torch.device) -> None:
    """Start a stretch."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    try:
        REFERENCES.write_text("5")  # Linux: forget the highest resident size
    except OSError:
        return


def peak(device: torch.device) -> int | None:
    """Bytes at the highest since `reset_peak`: allocated on CUDA, resident of the whole process on Linux, else None."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        lines = STATUS.read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM")), None)
