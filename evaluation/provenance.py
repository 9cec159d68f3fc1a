"""What stands beside every figure."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import torch
import transformers


def provenance() -> dict:
    """Machine, versions, threads, command and commit."""
    root = Path(__file__).resolve().parent
    commit = subprocess.run(["git", "-C", root, "describe", "--always", "--dirty"], capture_output=True, text=True)
    return {
        "machine": _processor(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "command": " ".join(["domino", *sys.argv[1:]]),
        "commit": commit.stdout.strip() or "unknown",
    }


def _processor() -> str:
    """The processor's own name where the system tells it; `platform` mostly says x86_64."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())
