"""What a verdict holds for: one kind of device, under one driver, with these versions."""

import hashlib
import importlib
import os
import platform
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

import torch

VERSION_FILE = Path("/proc/driver/nvidia/version")
# Whatever in these folders changes may run differently on a device.
CHECKED = ("acceleration", "devices", "doctor", "drafting", "generation", "kernels", "verification")


def identity(device: torch.device) -> dict[str, str]:
    """Device, driver and versions, as strings. A verdict with another identity says nothing.

    Triton's interpreter is another Triton: what ran in it did not run on the device.
    """
    interpreted = ", interpreted" if os.environ.get("TRITON_INTERPRET") == "1" else ""
    return {**_device(device), "torch": torch.__version__, "triton": triton_version() + interpreted, "domino": digest()}


def _device(device: torch.device) -> dict[str, str]:
    if device.type != "cuda":
        return {"device": f"{device.type}, {platform.machine()}", "capability": "", "driver": ""}
    major, minor = torch.cuda.get_device_capability(device)
    return {"device": torch.cuda.get_device_name(device), "capability": f"{major}.{minor}", "driver": driver()}


def triton_version() -> str:
    """As the package itself says: torch's own builds of it go by other distribution names."""
    try:
        return importlib.import_module("triton").__version__
    except ImportError:
        return "absent"


@cache
def driver() -> str:
    """NVIDIA's driver: from the kernel module, or where that is hidden (WSL) from its tool; else "unknown"."""
    try:
        found = re.search(r"\b\d{3}\.\d+(\.\d+)?\b", VERSION_FILE.read_text(encoding="utf-8"))
        if found:
            return found[0]
    except OSError:
        pass
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return "unknown"
    query = [tool, "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        lines = subprocess.run(query, capture_output=True, text=True, timeout=10).stdout.split()
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return lines[0] if lines else "unknown"


@cache
def digest() -> str:
    """Of the code that is checked, twelve hexadecimal digits: a copy that the Hub delivered has no version of its own."""
    root, total = Path(__file__).resolve().parent.parent, hashlib.sha256()
    for file in sorted(file for folder in CHECKED for file in (root / folder).glob("*.py")):
        total.update(f"{file.relative_to(root)}\0".encode() + file.read_bytes() + b"\0")
    return total.hexdigest()[:12]
