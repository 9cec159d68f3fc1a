"""What is recorded beside every figure."""

from __future__ import annotations

import platform
import shlex
import subprocess
import sys
from pathlib import Path

import torch
import transformers

from ..installing import VERSION


def provenance() -> dict:
    """Machine, versions, threads, command and commit."""
    return {
        "machine": processor(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "domino": VERSION,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "command": shlex.join(["domino", *sys.argv[1:]]),
        "commit": _commit(),
    }


def _commit() -> str:
    """Of the package's own repository: an installed one may lie inside somebody else's, and git may not be there."""
    root = Path(__file__).resolve().parents[1]

    def git(*command: str) -> str:
        return subprocess.run(["git", "-C", root, *command], capture_output=True, text=True).stdout.strip()

    try:
        top = git("rev-parse", "--show-toplevel")
        own = bool(top) and Path(top).resolve() == root
        return (git("describe", "--always", "--dirty") if own else "") or "unknown"
    except OSError:
        return "unknown"


def processor() -> str:
    """The processor's own name where the system tells it; `platform` mostly says x86_64."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())
