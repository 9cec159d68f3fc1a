"""How many threads torch works with."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

THREADS_SLEEP = os.environ.get("OMP_WAIT_POLICY", "").upper() == "PASSIVE"  # where they wait for work


@contextmanager
def one_thread() -> Iterator[None]:
    """torch works with one thread; OpenMP counts for each calling thread by itself, so calls at once do not meet."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
