"""From a request to the two answers, as the page and the API both see them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ..evaluation.answering import encode
from ..evaluation.methods import PLAIN, Models
from ..evaluation.metrics import speedup
from .block import Block, one_block
from .decode import SLOT, Compared, Done, Step, measure, methods
from .limits import LIMITS, Ask, Refused, check_length
from .pairs import Shelf
from .pieces import Pieces
from .ticket import Desk, Ticket
from .trace import Trace
from .zero import gpu

PAUSE = 0.12  # seconds between two looks at a growing answer
GPU_SECONDS = int(2 * LIMITS.seconds)


@dataclass
class Comparison:
    """Both answers so far.

    Attributes:
        phase: "loading", "plain" or "ours" while that one runs, "done", "stopped" or "time". waited: seconds of loading.
    """

    ask: Ask
    plain: Trace
    ours: Trace
    phase: str = "loading"
    waited: float = 0.0
    pair: str = ""
    prompt_ids: list[int] | None = None
    compared: Compared | None = None

    @property
    def speedup(self) -> float | None:
        """Ratio of tokens per second, where both came to their end."""
        if self.phase != "done" or self.plain.call is None or self.ours.call is None:
            return None
        calls = self.plain.call, self.ours.call
        (m, t), (n, s) = ((call.new_tokens, call.seconds) for call in calls)
        return speedup([m], [t], [n], [s])

    def figures(self) -> dict[str, Any]:
        """As plain values for the API."""
        same = self.compared
        return {
            "phase": self.phase,
            "speedup": self.speedup,
            "same_text": same.same if same else None,
            "first_difference": same.place if same else None,
            "logit_gap": same.gap if same else None,
            "same_without_drafts": same.own if same else None,
            "plain": self.plain.figures(),
            "domino": self.ours.figures(),
        }


class Runner:
    """Answers requests with the models of a shelf; whoever calls takes care that there is one call at a time."""

    def __init__(self, shelf: Shelf, desk: Desk):
        self.shelf, self.desk = shelf, desk

        @gpu(GPU_SECONDS)
        def run_on_device(pair: str, ask: Ask, messages: str, ticket: Ticket):
            models = shelf.loaded[pair]
            yield from measure(models, ask, encode(models.tokenizer, messages, models.target.device), ticket)

        @gpu(GPU_SECONDS)
        def block_on_device(pair: str, ids: list[int]) -> Block:
            with SLOT:
                return one_block(shelf.loaded[pair], ids)

        self._run, self._block = run_on_device, block_on_device

    def compare(self, ask: Ask, ticket: Ticket, target: str = "", drafter: str = "") -> Iterator[Comparison]:
        """Both answers as they grow, a few times a second; the last one is complete.

        Raises:
            `Refused`: too long a prompt, no such model, or one that could not be loaded.
        """
        pair = self.shelf.find(ask.pair, target, drafter)
        names = methods(ask)
        for waited in self._ready(pair, ticket):
            nothing = Trace(PLAIN, Pieces(None)), Trace(names[1], Pieces(None))
            yield Comparison(ask, *nothing, "loading", waited)
        models = self.shelf.loaded[str(pair.name)]
        ids = prompt_ids(models, ask.prompt)
        traces = {name: Trace(name, Pieces(models.tokenizer)) for name in names}
        now = Comparison(ask, traces[names[0]], traces[names[1]], "plain", pair=str(pair.name), prompt_ids=ids)
        yield now
        events = self._run(pair.name, ask, ask.prompt, ticket)
        looked = 0.0
        try:
            for event in events:
                ticket.renew()
                if isinstance(event, Compared):
                    now.compared = event
                    continue
                self._take(now, traces, event)
                if time.monotonic() - looked > PAUSE or isinstance(event, Done):
                    yield now
                    looked = time.monotonic()
        finally:
            events.close()
        now.phase = self._end(now, ticket)
        yield now

    @staticmethod
    def _take(now: Comparison, traces: dict[str, Trace], event: Step | Done) -> None:
        trace = traces[event.method]
        now.phase = "plain" if trace is now.plain else "ours"
        if isinstance(event, Step):
            trace.add(event)
        else:
            trace.finish(event)

    @staticmethod
    def _end(now: Comparison, ticket: Ticket) -> str:
        halted = now.plain.halted or now.ours.halted
        return halted or ("done" if now.ours.call else "stopped")

    def _ready(self, pair, ticket: Ticket) -> Iterator[float]:
        """Seconds waited, a few times a second, until the pair is there or the ticket is not."""
        if pair.name not in self.shelf.loaded:
            self.shelf.start(pair)
        while pair.name not in self.shelf.loaded:
            if pair.name in self.shelf.failed:
                raise Refused(f"{pair.name} could not be loaded here. Take another model.")
            if not ticket.valid:
                raise Refused("Stopped.")
            ticket.renew()
            yield self.shelf.waited(pair)
            time.sleep(0.3)

    def models(self, pair: str) -> Models:
        """Those of an earlier comparison. Raises `Refused`: they are gone."""
        if pair not in self.shelf.loaded:
            raise Refused("That model is not loaded any more: run the comparison again.")
        return self.shelf.loaded[pair]

    def block(self, pair: str, ids: list[int]) -> Block:
        """The block behind a text, see `block.one_block`. Raises `Refused`: the pair's models are gone."""
        self.models(pair)
        return self._block(pair, ids)


def prompt_ids(models: Models, prompt: str) -> list[int]:
    """The prompt through the chat template. Raises `Refused`: too long."""
    ids = encode(models.tokenizer, prompt, "cpu")["input_ids"][0].tolist()
    check_length(len(ids))
    return ids
