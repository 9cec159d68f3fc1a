"""Starts the Space: `app_file` of the Hub, and `domino space`.

Imports are absolute, so that this file also runs as a script beside the package.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

# Before torch and Gradio read them: threads that wait by spinning starve each other, and nothing is sent anywhere.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
with contextlib.suppress(ImportError):
    import spaces  # noqa: F401  # ZeroGPU's, which replaces parts of CUDA and must come before torch

import torch
from domino.evaluation.settings import ModelSettings
from domino.settings import DTYPES
from domino.space.deploy import staged_pair
from domino.space.page import build, look
from domino.space.pairs import DTYPE, Shelf
from domino.space.zero import ON_ZERO


def leave_a_core() -> None:
    """One thread fewer than cores, unless OMP_NUM_THREADS says otherwise.

    The server, and at home the browser, draw each new token meanwhile; a forward that is split over all cores waits for the one that
    they took.
    """
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(torch.get_num_threads() - 1, 1))


def serve(
    target: str | None = None,
    drafter: str | None = None,
    dtype: str | None = None,
    port: int | None = None,
    browser=False,
) -> None:
    """Load the models in the background and serve the page until interrupted.

    Args:
        target, drafter: folders or Hub ids; None is the embedded pair, or what lies beside this file (`deploy.py`).
        dtype: None is that of the environment variable DOMINO_SPACE_DTYPE, else bfloat16. browser: open one.

    Raises:
        `ValueError`: no such dtype, before anything is loaded.
    """
    dtype = dtype or os.environ.get(DTYPE) or DTYPES[0]
    if dtype not in DTYPES:
        raise ValueError(f"{DTYPE} must be one of {', '.join(DTYPES)}, got {dtype!r}.")
    staged = staged_pair(Path(__file__).resolve().parent) if target is None else None
    shelf = Shelf(staged or ModelSettings(target, drafter), dtype)
    leave_a_core()
    demo = build(shelf)
    if ON_ZERO:
        shelf.load(shelf.first)  # ZeroGPU wants weights on "cuda" before the first request
    else:
        shelf.start(shelf.first)
    demo.launch(server_port=port, inbrowser=browser, **look())


if __name__ == "__main__":
    serve()
