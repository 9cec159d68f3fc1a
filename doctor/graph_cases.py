"""Recorded work against the same work run: the cases that turn CUDA graphs on by default on a device."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from .. acceleration import graphs  # fmt: skip  # isort: skip
from .. generation.engine import generate  # fmt: skip  # isort: skip
from . compare import must  # fmt: skip  # isort: skip
from . pair import prompts, tiny_pair  # fmt: skip  # isort: skip

TOKENS = graphs.BUCKET + 44  # so that the visible slots grow once


@contextmanager
def _recorded() -> Iterator[None]:
    """Raises `AssertionError` at its end if work was run that should have been recorded."""
    heard: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: heard.append(record.getMessage())  # type: ignore[method-assign]
    graphs.logger.addHandler(handler)
    try:
        yield
    finally:
        graphs.logger.removeHandler(handler)
    must(not heard, " ".join(heard))


def _replay(device: torch.device) -> None:
    """Run, recorded, replayed three times: each has the results of its own inputs, and its own writes to memory from outside."""
    record = graphs.recorder(device)
    if record is None:
        raise AssertionError(f"nothing records on {device}")
    weight, slots = torch.randn(64, 64, device=device), torch.zeros(5, 64, device=device)

    def work(x: torch.Tensor, at: torch.Tensor) -> tuple[torch.Tensor]:
        slots.index_copy_(0, at, x @ weight)
        return (slots.sum(dim=0),)

    with _recorded():
        recorded, expected = graphs.Graphs(record), torch.zeros(5, 64, device=device)
        for step in range(5):
            x, at = torch.randn(1, 64, device=device), torch.tensor([step], device=device)
            expected[step] = (x @ weight)[0]
            (got,) = recorded("work", work, x=x, at=at)
            torch.testing.assert_close(got, expected.sum(dim=0))
        torch.testing.assert_close(slots, expected)


def _greedy(rows: int, device: torch.device) -> None:
    target, draft = tiny_pair(device, torch.float64)
    ids, mask = prompts(device, rows)
    options: dict[str, Any] = {
        "attention_mask": mask,
        "max_new_tokens": TOKENS,
        "do_sample": False,
        "eos_token_id": None,
    }
    with _recorded():
        ours = generate(target, draft, ids, graphs=True, **options)
    must(torch.equal(ours, target.generate(ids, **options)), "the text differs from plain generate's")


def _sampled(device: torch.device) -> None:
    """Noise drawn inside of a recording is drawn anew in each replay: one text twice would be a copy of the first draw."""
    target, draft = tiny_pair(device, torch.bfloat16)
    ids, mask = prompts(device, 2)
    options: dict[str, Any] = {
        "attention_mask": mask,
        "max_new_tokens": 64,
        "do_sample": True,
        "eos_token_id": None,
        "pack": False,
    }
    with _recorded():
        first = generate(target, draft, ids, graphs=True, **options)
        must(not torch.equal(first, generate(target, draft, ids, graphs=True, **options)), "a sample came twice")


CASES = {
    "replay": _replay,
    "greedy, 1 row": partial(_greedy, 1),
    "greedy, 3 ragged rows": partial(_greedy, 3),
    "sampled": _sampled,
}
