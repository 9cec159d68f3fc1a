"""What the page's events do; each gives HTML for the components that page.py lists as its outputs."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from typing import Any

import gradio as gr

from .compare import Comparison, Runner
from .insight import NOTHING, block_table, insight
from .limits import Ask, Refused
from .panes import empty, panes
from .verdict import message, verdict

log = logging.getLogger(__name__)
WRONG = "Something went wrong on our side; it has been noted. Try again, or take another prompt."
NO_BLOCK: dict[str, Any] = {"value": 1, "minimum": 1, "maximum": 2, "visible": False}


class Handlers:
    """The events of one page.

    Args:
        runner: of the models. device, dtype: as the page names them.
    """

    def __init__(self, runner: Runner, device: str, dtype: str):
        self.runner, self.device, self.dtype = runner, device, dtype

    def greet(self) -> Iterator[str]:
        """The verdict's place until the models are there."""
        shelf = self.runner.shelf
        while shelf.first.name not in shelf.loaded:
            if shelf.first.name in shelf.failed:
                log.error("loading %s: %s", shelf.first.name, shelf.failed[shelf.first.name])
                yield message(
                    "The models could not be loaded; whoever runs this page finds the reason in its log.", "wrong"
                )
                return
            yield message(f"Loading the models … {shelf.waited(shelf.first):.0f} s", "busy")
            time.sleep(0.5)
        yield message("Ready. Press Run to watch both ways of decoding write the same answer.")

    def enter(self, request: gr.Request) -> tuple:
        """A click on Run: into the line. Outputs: verdict, Run, Stop."""
        self.runner.desk.issue(str(request.session_hash))
        return (
            message("In line: one request runs at a time …", "busy"),
            gr.update(interactive=False),
            gr.update(interactive=True),
        )

    def leave(self) -> tuple:
        """After a run, however it ended. Outputs: Run, Stop."""
        return gr.update(interactive=True), gr.update(interactive=False)

    def stop(self, request: gr.Request) -> None:
        """Ends the session's generation within a round, or takes it out of the line."""
        self.runner.desk.stop(str(request.session_hash))

    def compare(self, request: gr.Request, *values) -> Iterator[tuple]:
        """Outputs: left, right, verdict, insight, state of the block, its slider, its table."""
        session = str(request.session_hash)
        desk = self.runner.desk
        ticket = desk.held.get(session) or desk.issue(session)
        same = (gr.skip(),) * 4
        try:
            ticket.renew()  # its lease begins with its turn
            if not ticket.valid:
                yield (*empty(), message("Stopped before its turn came."), *same)
                return
            prompt, head, pair, temperature, top_p, seed, tokens, drafts, *typed = values
            ask = Ask(prompt, temperature, top_p, seed, tokens, drafts, head, pair or "")
            now = None
            for now in self.runner.compare(ask, ticket, *typed):
                if now.phase not in ("done", "stopped", "time"):
                    yield (*panes(now), verdict(now, self.dtype, self.device), *same)
            if now is not None:
                yield (*panes(now), verdict(now, self.dtype, self.device), *self._insight(now))
        except Refused as error:
            yield (*empty(), message(str(error), "wrong"), *same)
        except Exception:
            log.exception("a comparison failed")
            yield (*empty(), message(WRONG, "wrong"), *same)
        finally:
            desk.give_back(session, ticket)

    def _insight(self, now: Comparison) -> tuple:
        """Insight, state, slider and table, at the round with the most accepted drafts."""
        if now.ours.call is None or now.ours.rounds == 0:
            return NOTHING, None, gr.update(**NO_BLOCK), ""
        best = max(range(1, now.ours.rounds + 1), key=lambda r: sum(t.round == r for t in now.ours.tokens))
        state = {
            "pair": now.pair,
            "ids": [*(now.prompt_ids or []), *(t.id for t in now.ours.tokens)],
            # where the text before round r ends: the prompt and all tokens of earlier rounds
            "ends": [
                len(now.prompt_ids or []) + sum(t.round < r for t in now.ours.tokens)
                for r in range(1, now.ours.rounds + 1)
            ],
        }
        slider = gr.update(minimum=1, maximum=max(now.ours.rounds, 2), value=best, visible=True)
        return insight(now), state, slider, self.block(state, best)

    def block(self, state: dict[str, Any] | None, number: float) -> str:
        """The block of a round, from the state `_insight` left."""
        if not state:
            return ""
        number = min(max(int(number), 1), len(state["ends"]))
        try:
            block = self.runner.block(state["pair"], state["ids"][: state["ends"][number - 1]])
            return block_table(self.runner.shelf.loaded[state["pair"]], block)
        except Refused as error:
            return message(str(error), "wrong")
        except Exception:
            log.exception("a block failed")
            return message(WRONG, "wrong")
