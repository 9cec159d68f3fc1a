"""What one method did, token by token, and its figures as `domino eval` defines them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ..evaluation.metrics import acceptance_by_position, accepted_lengths, tau_per_step, used_share
from ..evaluation.summary import STAGES
from ..evaluation.watch import Call
from .decode import Done, Step
from .pieces import Pieces


@dataclass(frozen=True)
class Token:
    """One token of an answer.

    Attributes:
        seconds: since the call began. round: 0 is the prefill. place: in its round, from 1. bonus: the target's own choice, which
            ends a round; else an accepted draft. chance: the drafter's probability of an accepted draft, where it is known.
    """

    id: int
    text: str
    seconds: float
    round: int
    place: int
    bonus: bool
    chance: float | None


@dataclass
class Trace:
    """A method's answer as it grows; `call` and `ids` are there when it is over."""

    method: str
    pieces: Pieces
    tokens: list[Token] = field(default_factory=list)
    rounds: int = 0
    call: Call | None = None
    halted: str | None = None

    def add(self, step: Step) -> None:
        """Take in a step. Round 0 is the prefill's one token, each later step a round whose last token is the bonus."""
        if self.tokens:
            self.rounds += 1
        count = len(step.tokens)
        for place, token in enumerate(step.tokens, 1):
            bonus = place == count
            chance = step.chances[place - 1] if not bonus and place <= len(step.chances) else None
            piece = self.pieces.add(token)
            self.tokens.append(Token(token, piece, step.seconds, self.rounds, place, bonus, chance))

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
            "acceptance_by_position": acceptance_by_position(call.advanced, call.drafted),
            "accepted_lengths": accepted_lengths(call.advanced),
            "used_share": used_share(call.advanced, call.drafted),
            "token_ids": [token.id for token in self.tokens],
            "token_seconds": [token.seconds for token in self.tokens],
        }
