"""What the device can do at best: bytes read and operations done per second, measured like the stages."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from .counts import Work
from .timing import measure

SPREAD = 0.02  # of random values: the size of trained weights, far from denormals and from overflow


@dataclass(frozen=True)
class Ceilings:
    """read, gemv: bytes per second of a sum over a large buffer and of a matrix-vector product. compute: FLOPs per second of a
    large matrix product. All the best of the repeats, the last two in the dtype of the run."""

    read: float
    gemv: float
    compute: float

    @property
    def bandwidth(self) -> float:
        """Bytes per second: the faster way of reading, since kernels of some dtypes do not reach the memory's speed."""
        return max(self.read, self.gemv)

    def seconds(self, work: Work) -> float:
        """The roofline: no less time than either ceiling allows."""
        return max(work.bytes / self.bandwidth, work.flops / self.compute)

    def bound(self, work: Work) -> str:
        """Which ceiling that is: "memory" or "compute"."""
        return "memory" if work.bytes / self.bandwidth >= work.flops / self.compute else "compute"


@torch.inference_mode()
def measure_ceilings(dtype: torch.dtype, device: torch.device, repeats: int) -> Ceilings:
    """Read a buffer beyond any cache (1 GiB, on CUDA 4 GiB), and multiply square matrices."""
    return Ceilings(*_reading(dtype, device, repeats), _computing(dtype, device, repeats))


def _reading(dtype: torch.dtype, device: torch.device, repeats: int) -> tuple[float, float]:
    width, size = 4096, 2**32 if device.type == "cuda" else 2**30
    matrix = random_values((size // (width * dtype.itemsize), width), dtype, device)
    vector = random_values((1, width), dtype, device)
    # float32 sums are fast everywhere, and to the memory all bits are alike
    summed = measure(matrix.view(torch.float32).sum, device, repeats)
    multiplied = measure(lambda: F.linear(vector, matrix), device, repeats)
    return size / summed.fastest, size / multiplied.fastest


def _computing(dtype: torch.dtype, device: torch.device, repeats: int) -> float:
    size = 8192 if device.type == "cuda" else 2048
    left, right = (random_values((size, size), dtype, device) for _ in range(2))
    return 2 * size**3 / measure(lambda: left @ right, device, repeats).fastest


def random_values(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Small normal values, see `fill`."""
    return fill(torch.empty(shape, dtype=dtype, device=device))


def fill(tensor: Tensor) -> Tensor:
    """Fill a contiguous tensor in place from a pool of a million normal values: billions of draws would take minutes."""
    flat, size = tensor.view(-1), 2**20
    pool = torch.empty(min(size, flat.numel()), dtype=tensor.dtype, device=tensor.device).normal_(std=SPREAD)
    for part in flat.split(size):
        part.copy_(pool[: part.numel()])
    return tensor
