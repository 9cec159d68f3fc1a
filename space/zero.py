"""ZeroGPU's decorator, where there is a ZeroGPU: it lends a GPU to a function for the length of a call."""

from __future__ import annotations

import os

try:
    import spaces  # before anything touches CUDA, which it replaces
except ImportError:
    spaces = None

ON_ZERO = spaces is not None and os.environ.get("SPACES_ZERO_GPU", "").lower() in ("1", "t", "true")


def gpu(seconds: int):
    """Decorator of a function that needs the device; its arguments and what it yields must be picklable.

    Args:
        seconds: the longest a call may hold the GPU.
    """
    return spaces.GPU(duration=seconds) if spaces is not None else lambda function: function
