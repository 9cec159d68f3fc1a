"""What the page's events do; each gives HTML for the components that page.py lists as its outputs."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import gradio as gr

from .compare import Comparison, Runner
from .insight import NOTHING, block_note, block_table, insight
from .limits import Ask, Refused
from .observe import telling
from .panes import empty, panes
from .tree import UNTOLD, tree_view
from .verdict import message, verdict

log = logging.getLogger(__name__)
WRONG = "Something went wrong on our side; it has been noted. Try again, or take another prompt."
# Run and Stop
WAITING = gr.update(interactive=False), gr.update(interactive=True)
FREE = gr.update(interactive=True), gr.update(interactive=False)
NO_BLOCK: dict[str, Any] = {"value": 1, "minimum": 1, "maximum": 2, "visible": False}


class Handlers:
    """The events of one page.

    Args:
        runner: of the models. device, dtype: as the page names them.
    """

    def __init__(self, runner: Runner, device: str, dtype: str):
        self.runner, self.device, self.dtype = runner, device, dtype

    def greet(self, request: gr.Request) -> tuple:
        """A timer asks again until the models are loaded, outside of the queue. Outputs: verdict, the timer."""
        shelf, over = self.runner.shelf, gr.Timer(active=False)
        if str(request.session_hash) in self.runner.desk.held:  # Run was pressed: the verdict's place is the run's
            return gr.skip(), over
        if shelf.first.name in shelf.loaded:
            return message("Ready. Press Run to watch both ways of decoding write the same answer."), over
        if shelf.first.name in shelf.failed:
            return message(
                "The models could not be loaded; whoever runs this page finds the reason in its log.", "wrong"
            ), over
        return message(f"Loading the models … {shelf.waited(shelf.first):.0f} s", "busy"), gr.skip()

    def enter(self, request: gr.Request) -> tuple:
        """A click on Run: into the queue. Outputs: the ticket's name, verdict, Run, Stop."""
        ticket = self.runner.desk.issue(str(request.session_hash))
        return ticket.name, message("Waiting: one request runs at a time …", "busy"), *WAITING

    def leave(self, request: gr.Request) -> tuple:
        """After a run, however it ended. Outputs: Run, Stop."""
        return WAITING if str(request.session_hash) in self.runner.desk.held else FREE

    def stop(self, request: gr.Request) -> tuple:
        """Ends the session's generation within a round, or takes it out of the queue. Outputs: verdict, Run, Stop."""
        desk, session = self.runner.desk, str(request.session_hash)
        if not desk.stop(session) or session in desk.held:
            return (gr.skip(),) * 3  # the run itself says how it ended
        return message("Stopped before its turn came."), *FREE

    def gone(self, request: gr.Request) -> None:
        """The tab was closed."""
        self.runner.desk.stop(str(request.session_hash))

    def turned_away(self, request: gr.Request) -> tuple:
        """The queue was full. Outputs: verdict, Run, Stop."""
        self.gone(request)
        return message("Too many requests are waiting: try again in a minute.", "wrong"), *FREE

    def compare(self, request: gr.Request, name: str, *values) -> Iterator[tuple]:
        """Outputs: left, right, verdict, insight, state of the rounds, their slider, a round's tree and block."""
        session, desk, same = str(request.session_hash), self.runner.desk, (gr.skip(),) * 4
        ticket = desk.begin(session, name)
        if ticket is None:
            yield (gr.skip(),) * 7
            return
        try:
            prompt, head, pair, temperature, top_p, seed, tokens, drafts, *typed = values
            ask = Ask(prompt, temperature, top_p, seed, tokens, drafts, head, pair or "")
            now = None
            for now in self.runner.compare(ask, ticket, *typed):
                if now.phase not in ("done", "stopped", "time"):
                    yield (*panes(now), verdict(now, self.dtype, self.device), *same)
            if now is not None and desk.held.get(session) is ticket:  # else a later click owns the page
                yield (*panes(now), verdict(now, self.dtype, self.device), *self._insight(now))
        except Refused as error:
            yield (*empty(), message(str(error), "wrong"), *same)
        except Exception:
            log.exception("a comparison failed")
            yield (*empty(), message(WRONG, "wrong"), *same)
        finally:
            desk.give_back(session, ticket)

    def _insight(self, now: Comparison) -> tuple:
        """Insight, state, slider, tree and block of the round with the most kept drafts; rounds with branches come first."""
        if now.ours.call is None or now.ours.rounds == 0:
            return NOTHING, None, gr.update(**NO_BLOCK), ""
        best = max(range(1, now.ours.rounds + 1), key=lambda number: self._shows(now, number))
        state = {
            "pair": now.pair,
            "ids": [*(now.prompt_ids or []), *(t.id for t in now.ours.tokens)],
            # where the text before round r ends: the prompt and all tokens of earlier rounds
            "ends": [
                len(now.prompt_ids or []) + sum(t.round < r for t in now.ours.tokens)
                for r in range(1, now.ours.rounds + 1)
            ],
            "told": now.ours.told,
            "ask": now.ask,
        }
        slider = gr.update(minimum=1, maximum=max(now.ours.rounds, 2), value=best, visible=True)
        return insight(now), state, slider, self.block(state, best)

    @staticmethod
    def _shows(now: Comparison, number: int) -> tuple[bool, int]:
        """How much a round has to show."""
        if now.ours.told:
            return telling(now.ours.told[number - 1])
        return False, sum(token.round == number for token in now.ours.tokens)

    def block(self, state: dict[str, Any] | None, number: float) -> str:
        """A round's tree and block, from the state `_insight` left."""
        if not state:
            return ""
        number = min(max(int(number), 1), len(state["ends"]))
        try:
            models, ids = self.runner.models(state["pair"]), state["ids"][: state["ends"][number - 1]]
            told = state["told"][number - 1] if state["told"] else None
            tree = message(UNTOLD) if told is None else tree_view(models, told, number, ids[-1])
            if told is not None and not len(told.tree):
                return tree
            block = self.runner.block(state["pair"], ids)
            return tree + block_table(models, block, block_note(state["ask"], told))
        except Refused as error:
            return message(str(error), "wrong")
        except Exception:
            log.exception("a block failed")
            return message(WRONG, "wrong")
