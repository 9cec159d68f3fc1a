"""The named endpoints, for gradio_client and others (docs/space.md has examples)."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import gradio as gr

from .compare import Runner
from .handlers import WRONG
from .limits import LIMITS, Ask, Refused

log = logging.getLogger(__name__)


@contextmanager
def told() -> Iterator[None]:
    """Failures as messages for the caller, without a trace of the inside."""
    try:
        yield
    except Refused as error:
        raise gr.Error(str(error), print_exception=False) from None
    except Exception:
        log.exception("an API call failed")
        raise gr.Error(WRONG, print_exception=False) from None


class Api:
    """The endpoints of one Space."""

    def __init__(self, runner: Runner):
        self.runner = runner

    def compare(
        self,
        prompt: str,
        temperature: float = 0.0,
        top_p: float = 1.0,
        seed: int = 0,
        max_new_tokens: int = 128,
        drafts: int = 0,
        head: bool = True,
        model: str = "",
        request: gr.Request = None,  # type: ignore[assignment]  # Gradio fills it in
    ) -> Iterator[dict[str, Any]]:
        """Plain generate and Domino on one prompt: both texts and all figures, a few times a second while they grow."""
        session = str(request.session_hash)
        with told():
            ticket = self.runner.desk.issue(session)
            self.runner.desk.begin(session, ticket.name)
            try:
                ask = Ask(prompt, temperature, top_p, seed, max_new_tokens, drafts, head, model)
                for now in self.runner.compare(ask, ticket):
                    yield now.figures()
            finally:
                self.runner.desk.give_back(session, ticket)

    def stop(self, request: gr.Request = None) -> bool:  # type: ignore[assignment]
        """Ends this client's comparison within a round; whether there was one."""
        return self.runner.desk.stop(str(request.session_hash))

    def status(self) -> dict[str, Any]:
        """Models, whether they are loaded, and the limits."""
        shelf = self.runner.shelf
        return {
            "models": [pair.name for pair in shelf.offered()],
            "loaded": sorted(shelf.loaded),
            "busy": len(self.runner.desk.held),
            "limits": vars(LIMITS),
        }
