"""Versions, machine and devices, as a bug report wants them."""

import importlib.metadata
import os
import platform
from typing import Any

import psutil
import torch

from .. import __version__
from ..devices.identity import driver, triton_version
from ..evaluation.provenance import processor

LIBRARIES = ("transformers", "huggingface-hub", "safetensors", "accelerate")
# What changes how it runs.
VARIABLES = (
    "DOMINO_KERNELS", "TRITON_INTERPRET", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "OMP_WAIT_POLICY", "MKL_NUM_THREADS"
)  # fmt: skip


def versions() -> dict[str, str]:
    """Name -> version; "absent" for what is not installed, and for the driver where there is no NVIDIA GPU."""
    found = {
        "domino": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": triton_version(),
        "cuda": torch.version.cuda or "absent",
        "driver": driver() if torch.cuda.is_available() else "absent",
    }
    for name in LIBRARIES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "absent"
    return found


def machine() -> dict[str, Any]:
    """Processor, memory in bytes, threads and the variables that are set."""
    memory = psutil.virtual_memory()
    return {
        "system": platform.platform(),
        "processor": processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "memory": memory.total,
        "memory_free": memory.available,
        "variables": {name: os.environ[name] for name in VARIABLES if name in os.environ},
    }


def devices() -> list[dict[str, Any]]:
    """The GPUs that torch sees, memory in bytes."""
    found = []
    for index in range(torch.cuda.device_count()):
        properties, (free, total) = torch.cuda.get_device_properties(index), torch.cuda.mem_get_info(index)
        capability = f"{properties.major}.{properties.minor}"
        found.append(
            {
                "device": f"cuda:{index}",
                "name": properties.name,
                "capability": capability,
                "multiprocessors": properties.multi_processor_count,
                "memory": total,
                "memory_free": free,
            }
        )
    return found
