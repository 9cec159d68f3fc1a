"""What one method did, token by token, and its figures as `domino eval` defines them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ..evaluation.metrics import acceptance_by_position, accepted_lengths, tau_per_step, used_share
from ..evaluation.summary import STAGES
from ..evaluation.watch import Call
from ..generation.statistics import Round
from .decode import Done, Step
from .observe import by_lookup, chance, depth
from .pieces import Pieces


@dataclass(frozen=True)
class Token:
    """One token of an answer.

    Attributes:
        seconds: since the call began. round: 0 is the prefill. place: in its round, from 1. bonus: the target's own choice, which
            ends a round; else an accepted draft. chance: of an accepted draft, that it would be kept, where it is known.
            lookup: a draft that lookup alone had found.
    """

    id: int
    text: str
    seconds: float
    round: int
    place: int
    bonus: bool
    chance: float | None
    lookup: bool = False


@dataclass
class Trace:
    """A method's answer as it grows.

    Attributes:
        told: the engine's rounds; empty of loops that tell nothing. call: what was measured, once it is over. halted: see `Done`.
    """

    method: str
    pieces: Pieces
    tokens: list[Token] = field(default_factory=list)
    rounds: int = 0
    told: list[Round] = field(default_factory=list)
    call: Call | None = None
    halted: str | None = None

    def add(self, step: Step) -> None:
        """Take in a step. Round 0 is the prefill's one token, each later step a round whose last token is the bonus."""
        if self.tokens:
            self.rounds += 1
        if step.told is not None:
            self.told.append(step.told)
        drafts = len(step.tokens) - 1 if step.told is None else len(step.told.path)
        for place, token in enumerate(step.tokens, 1):
            piece, likely, found = self.pieces.add(token), None, False
            if step.told is not None and place <= drafts:
                tree, node = step.told.tree, step.told.path[place - 1]
                likely, found = chance(tree, node), by_lookup(tree, node)
            self.tokens.append(Token(token, piece, step.seconds, self.rounds, place, place > drafts, likely, found))

    def finish(self, done: Done) -> None:
        """Take in the end."""
        self.call, self.halted = done.call, done.halted

    @property
    def text(self) -> str:
        """The answer; a character that is not complete yet is left out until the end."""
        return "".join(token.text for token in self.tokens) + (self.pieces.rest() if self.call else "")

    @property
    def seconds(self) -> float:
        """Of the whole call, or until the latest token."""
        if self.call is not None:
            return self.call.seconds
        return self.tokens[-1].seconds if self.tokens else 0.0

    @property
    def tokens_per_second(self) -> float:
        return len(self.tokens) / self.seconds if self.seconds else 0.0

    @property
    def tau(self) -> float:
        """Tokens a round, the prefill's left out."""
        if self.call is not None:
            return tau_per_step([self.call.advanced])
        return (len(self.tokens) - 1) / self.rounds if self.rounds else 0.0

    @property
    def found_by_lookup(self) -> int:
        """Tokens of the answer that lookup alone had found."""
        return sum(token.lookup for token in self.tokens)

    @property
    def acceptance_by_position(self) -> list[float]:
        """Share of the rounds that drafted so deep and kept as many; empty before the end."""
        if self.call is None:
            return []
        deepest = [depth(told) for told in self.told] or self.call.drafted
        return acceptance_by_position(self.call.advanced, deepest)

    def figures(self) -> dict[str, Any]:
        """Everything that is known, as plain values for the API."""
        known: dict[str, Any] = {
            "method": self.method,
            "text": self.text,
            "tokens": len(self.tokens),
            "seconds": self.seconds,
            "tokens_per_second": self.tokens_per_second,
            "rounds": self.rounds,
            "tau": self.tau,
            "found_by_lookup": self.found_by_lookup,
            "halted": self.halted,
        }
        if self.call is None:
            return known
        call = self.call
        stages = {name: getattr(call, name) for name in STAGES}
        return known | {
            "prompt_tokens": call.prompt_tokens,
            "seconds_by_stage": stages,
            "advanced": call.advanced,
            "drafted": call.drafted,
            "depths": [depth(told) for told in self.told],
            "lookup": [sum(by_lookup(told.tree, node) for node in told.path) for told in self.told],
            "acceptance_by_position": self.acceptance_by_position,
            "accepted_lengths": accepted_lengths(call.advanced),
            "used_share": used_share(call.advanced, call.drafted),
            "token_ids": [token.id for token in self.tokens],
            "token_seconds": [token.seconds for token in self.tokens],
        }
