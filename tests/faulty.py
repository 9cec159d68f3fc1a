"""Cases for the check of a device that go wrong for real: kernels that hang, crash or answer wrongly. See tests/test_devices.py."""

import os
import time

import torch
import triton
import triton.language as tl


@triton.jit
def never_ends(counter):
    while tl.load(counter) == 0:
        pass


@triton.jit
def reads_anywhere(x, out, far):
    tl.store(out, tl.load(x + far))


@triton.jit
def forgets_the_tail(x, out, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out + at, 2 * tl.load(x + at, mask=at < n), mask=at < n - 1)


def right(device):
    assert torch.ones(2, device=device).sum() == 2


def hang(device):
    never_ends[(1,)](torch.zeros(1, dtype=torch.int32, device=device))


def crash(device):
    reads_anywhere[(1,)](torch.zeros(1, device=device), torch.zeros(1, device=device), 2**40)


def wrong(device):
    x, out = torch.arange(1.0, 11, device=device), torch.zeros(10, device=device)
    forgets_the_tail[(1,)](x, out, 10, BLOCK=16)
    assert torch.equal(out, 2 * x), "the tail is missing"


def out_of_memory(device):
    raise torch.OutOfMemoryError("the user's model fills the device")


def not_again(device):
    raise AssertionError("ran although a verdict was kept")


def one_after_the_other(device):
    """Fails where another process runs it at the same time."""
    flag = os.environ["DOMINO_TEST_FLAG"]
    os.close(os.open(flag, os.O_CREAT | os.O_EXCL))
    time.sleep(1)
    os.remove(flag)


RIGHT = {"right": right}
HANGS = {"right": right, "waits": hang}
CRASHES = {"right": right, "reads": crash, "later": right}
WRONG = {"right": right, "doubles": wrong, "later": right}
FULL = {"right": right, "large": out_of_memory}
NOT_AGAIN = {"not again": not_again}
IN_TURN = {"in turn": one_after_the_other}
