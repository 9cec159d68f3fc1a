"""Runs the methods one after the other and reports every step as it happens.

One after the other, since two models on one device would slow each other; each step carries the time at which it came, so that
both can be shown side by side at their true pace afterwards.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from ..evaluation.answering import decoding, run
from ..evaluation.losslessness import first_gap
from ..evaluation.methods import METHODS, PLAIN, Models
from ..evaluation.watch import Call
from ..generation.statistics import Round
from .limits import LIMITS, Ask
from .observe import said
from .ticket import Halt, Ticket

# The queue lets one request through at a time; this holds where a generation outlives its request for a round.
SLOT = threading.Lock()


@dataclass(frozen=True)
class Step:
    """One forward of the target.

    Attributes:
        seconds: since the call began. tokens: it added, the bonus token last. told: the engine's round, as far as the answer
            took it; None of the prefill and of loops that tell nothing.
    """

    method: str
    seconds: float
    tokens: list[int]
    told: Round | None = None


@dataclass(frozen=True)
class Done:
    """A method's end. `ids` are its new tokens; `halted` is "stopped", "time" or None."""

    method: str
    call: Call
    ids: list[int]
    halted: str | None


@dataclass(frozen=True)
class Compared:
    """Both texts.

    Attributes:
        place: the first difference. gap: of the target's logits for the two tokens there, of greedy texts. own: whether Domino's loop says
            the same without drafts, this difference included.
    """

    same: bool
    gap: float | None = None
    place: int | None = None
    own: bool | None = None


class Listener:
    """A streamer that keeps the time: transformers and the engine hand it the prompt first, then each step's tokens.

    The engine tells `on_round` of a round before it hands over the tokens.
    """

    def __init__(self, method: str, events: queue.Queue):
        self.method, self.events = method, events
        self.began: float | None = None
        self.told: Round | None = None

    def on_round(self, row: int, told: Round) -> None:
        self.told = told

    def put(self, tokens) -> None:
        now = time.perf_counter()
        if self.began is None:
            self.began = now
            return
        told, self.told = self.told, None
        new = tokens.flatten().tolist()
        told = said(told, len(new)) if told is not None else None
        self.events.put(Step(self.method, now - self.began, new, told))

    def end(self) -> None:
        pass


def methods(ask: Ask) -> tuple[str, str]:
    """The two that are compared, as `domino eval` names them."""
    return PLAIN, "engine" if ask.head else "dflash"


def options(ask: Ask, method: str) -> dict[str, Any]:
    """Arguments of `generate`, those of `domino eval` and what the visitor set."""
    found = decoding(ask.temperature, int(ask.max_new_tokens))
    if ask.temperature > 0:
        found["top_p"] = ask.top_p
    if method == "engine" and ask.drafts:
        found["budget"] = int(ask.drafts)
    return found


def measure(
    models: Models, ask: Ask, inputs: dict[str, torch.Tensor], ticket: Ticket
) -> Iterator[Step | Done | Compared]:
    """Both methods on the same prompt.

    Args:
        inputs: ids and mask [1, length], of `answering.encode`.

    Yields:
        `Step`s, each method's `Done`, and `Compared` where both came to their end and should be equal. Closing the iterator ends
        the generation within a round, and returns once it has ended.
    """
    ticket.renew()  # ZeroGPU may have let it wait for a device longer than a lease
    texts = []
    for method in methods(ask):
        event: Step | Done | None = None
        for event in _listen(models, method, ask, inputs, ticket):
            yield event
        if not isinstance(event, Done) or event.halted:
            return
        texts.append(torch.tensor([inputs["input_ids"][0].tolist() + event.ids]))
    if ask.temperature == 0 or ask.head:  # transformers' own loop draws other random numbers than plain generate
        with SLOT:
            compared = _compare(models, ask, inputs, *texts)
        yield compared


def _compare(models: Models, ask: Ask, inputs, plain: torch.Tensor, ours: torch.Tensor) -> Compared:
    if torch.equal(plain, ours):
        return Compared(True)
    shorter = min(plain.shape[1], ours.shape[1])
    differing = (plain[0, :shorter] != ours[0, :shorter]).nonzero().flatten().tolist()
    place, target = (differing[0] if differing else shorter), models.target
    gap = first_gap(target, plain.to(target.device), ours.to(target.device)) if ask.temperature == 0 else None
    prompt, own = inputs["input_ids"].shape[1], None
    if ask.head:
        further = options(ask, PLAIN) | {"max_new_tokens": place + 1 - prompt}
        text, _ = run(models, METHODS["engine-plain"], inputs, int(ask.seed), **further)
        own = text[0].tolist() == ours[0, : place + 1].tolist()
    return Compared(False, gap, place - prompt, own)


def _listen(models: Models, method: str, ask: Ask, inputs, ticket: Ticket) -> Iterator[Step | Done]:
    events: queue.Queue = queue.Queue()
    worker = threading.Thread(target=_work, args=(models, method, ask, inputs, ticket, events), daemon=True)
    worker.start()
    finished = False
    try:
        while not finished:
            event = events.get()
            if isinstance(event, BaseException):
                raise event
            finished = isinstance(event, Done)
            yield event
    finally:
        if not finished:  # nobody reads any more
            ticket.revoke()
        worker.join()


def _work(models: Models, method: str, ask: Ask, inputs, ticket: Ticket, events: queue.Queue) -> None:
    halt = Halt(ticket, LIMITS.seconds)
    try:
        with SLOT:
            listener = Listener(method, events)
            # A loop of one's own gets no `streamer` from transformers, but what it names itself.
            own = {"drafter_streamer": listener, "on_round": listener.on_round}
            further = own if method == "engine" else {"streamer": listener}
            further |= {"stopping_criteria": [halt], **options(ask, method)}
            ids, call = run(models, METHODS[method], inputs, int(ask.seed), **further)
        events.put(Done(method, call, ids[0, inputs["input_ids"].shape[1] :].tolist(), halt.reason))
    except BaseException as error:  # raised again where the steps are read
        events.put(error)
