"""A sanitizer for interpreted kernels: every address that a kernel reads or writes lies in one of the tensors it was given.

triton-viz 3.0 has one that reasons about all addresses at once. It follows the draw and the pool, but not the rollout (docs/kernels.md).
This one looks at the addresses of each access as it happens, on whatever inputs a test runs.
"""

from contextlib import contextmanager

import numpy as np
import pytest
from triton.runtime.interpreter import GridExecutor, interpreter_builder

ACCESSES = {  # method of the builder -> places of pointers and mask among its arguments
    "create_masked_load": (0, 1),
    "create_masked_store": (0, 2),
    "create_atomic_rmw": (1, 3),
    "create_atomic_cas": (0, None),
}


class OutOfBounds(Exception):
    """Names the access, and how far it is from the nearest tensor, in bytes."""


def extent(tensor) -> tuple[int, int]:
    """First address and the one behind the last, of a view what itself can reach."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size() if tensor.numel() else 0


@contextmanager
def watched():
    """Within it an access outside raises `OutOfBounds`, which the interpreter wraps in its `InterpreterError`. Yields the number of
    accesses that were looked at, by name."""
    ranges: list[tuple[int, int]] = []
    seen = dict.fromkeys(ACCESSES, 0)
    prepare = GridExecutor._init_args_hst

    def prepared(self, args, kwargs):
        args, kwargs = prepare(self, args, kwargs)
        ranges[:] = [extent(arg) for arg in (*args, *kwargs.values()) if hasattr(arg, "data_ptr")]
        return args, kwargs

    def look(name, places, access):
        def looked(*given):
            pointers, mask = given[places[0]], True if places[1] is None else given[places[1]].data
            at = np.broadcast_arrays(pointers.data, mask)
            addresses = at[0][at[1].astype(bool)]
            if addresses.size:
                seen[name] += 1
                width = max(1, pointers.get_element_ty().primitive_bitwidth // 8)
                low, high = int(addresses.min()), int(addresses.max()) + width
                if not any(start <= low and high <= end for start, end in ranges):
                    raise OutOfBounds(f"{name} of [{low:#x}, {high:#x}), tensors lie at {ranges}")
            return access(*given)

        return looked

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GridExecutor, "_init_args_hst", prepared)
        for name, places in ACCESSES.items():
            patch.setattr(interpreter_builder, name, look(name, places, getattr(interpreter_builder, name)))
        yield seen
