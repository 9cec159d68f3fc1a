"""The sanitizer that the kernels' tests run under catches what it is for."""

import pytest
import torch

pytest.importorskip("triton")
import triton
import triton.language as tl
from addresses import watched
from domino.doctor.kernel_cases import rollout_arguments
from domino.kernels import operators as ops
from domino.kernels import sample

pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="it watches Triton's interpreter; see docs/kernels.md"
)


@triton.jit
def copy(x, out, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n, other=0.0), mask=at < n)


@triton.jit
def count(counter, far):
    tl.atomic_add(counter + far, 1)


@triton.jit
def swap(counter, far):
    tl.atomic_cas(counter + far, 0, 1)


@pytest.mark.parametrize(("read", "written"), [(9, 16), (16, 9)])
def test_one_element_too_many(read, written):
    """Within a larger buffer, where nothing crashes: nine elements of sixteen are the tensor's."""
    x, out = torch.zeros(16)[:read], torch.zeros(16)[:written]
    with watched() as seen:
        copy[(1,)](x, out, 9, BLOCK=16)
        assert seen["create_masked_load"] == seen["create_masked_store"] == 1
        access = "load" if read == 9 else "store"
        with pytest.raises(Exception, match=f"OutOfBounds.*create_masked_{access}"):
            copy[(1,)](x, out, 10, BLOCK=16)


@pytest.mark.parametrize("kernel", [count, swap])
@pytest.mark.parametrize("far", [-1, 2])
def test_atomics(kernel, far):
    counter = torch.zeros(8, dtype=torch.int32)[3:5]
    with watched():
        kernel[(1,)](counter, 1)
        with pytest.raises(Exception, match="OutOfBounds.*create_atomic"):
            kernel[(1,)](counter, far)


def test_a_row_that_ends_before_its_size():
    """Our own draw, told that a row is one longer than it is."""
    logits, noise, drawn = torch.randn(1, 20), torch.rand(1), torch.empty(1, dtype=torch.int64)
    filters = {**sample.filters(5, 0.9), "BLOCK": sample.SAMPLE_TILE}
    with watched():
        sample.sample_kernel[(1,)](logits, noise, drawn, 20, 1.0, 5, 0.9, **filters)
        with pytest.raises(Exception, match="OutOfBounds"):
            sample.sample_kernel[(1,)](logits, noise, drawn, 21, 1.0, 5, 0.9, **filters)


def test_a_token_outside_the_vocabulary():
    """The rollout reads a row of its table where a token says: one past the end is caught where the table ends."""
    args = list(rollout_arguments(torch.device("cpu"), (2, 3, 16, 8, 40, 1), torch.float32, 0))
    with watched() as seen:
        ops.rollout_greedy(*args)
        assert min(seen["create_masked_load"], seen["create_masked_store"], seen["create_atomic_rmw"]) > 0
        args[0] = torch.full_like(args[0], 40)
        with pytest.raises(Exception, match="OutOfBounds.*create_masked_load"):
            ops.rollout_greedy(*args)
