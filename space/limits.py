"""What one visitor may ask of the Space, and the message where it is too much."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..generation.settings import MOST


class Refused(ValueError):
    """A request that is refused; the message is for the visitor."""


@dataclass(frozen=True)
class Limits:
    """Bounds of the Space.

    Attributes:
        prompt_chars: looked at before anything reads the prompt. prompt_tokens: chat template included. new_tokens: of each answer.
        seconds: of each answer; a longer one is ended. waiting: requests in the queue; further ones are refused.
    """

    prompt_chars: int = 8000
    prompt_tokens: int = 1024
    new_tokens: int = 512
    seconds: float = 60.0
    waiting: int = 24


LIMITS = Limits()


@dataclass(frozen=True)
class Ask:
    """One request.

    Attributes:
        temperature: 0 is greedy. drafts: put to the target each round, at most; 0 is as many as pay. head: False leaves Domino's causal head
            out, which is DFlash. pair: a name of `pairs.offered()`.
    """

    prompt: str
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    max_new_tokens: int = 128
    drafts: int = 0
    head: bool = True
    pair: str = ""

    def __post_init__(self):
        """Raises `Refused`: something is empty, too long or out of range."""
        if not isinstance(self.prompt, str) or not self.prompt.strip():
            raise Refused("The prompt is empty: type a question, or take one of the examples.")
        if len(self.prompt) > LIMITS.prompt_chars:
            raise Refused(
                f"The prompt has {len(self.prompt):,} characters; this page takes {LIMITS.prompt_chars:,}. Shorten it."
            )
        if re.search(r"[\ud800-\udfff]", self.prompt):
            raise Refused("The prompt holds half a character (a lone surrogate): remove it.")
        if not isinstance(self.head, bool):
            raise Refused("Head must be true or false.")
        if not isinstance(self.pair, str):
            raise Refused("The model must be a name.")
        _within("Temperature", self.temperature, 0, 2)
        _within("Top-p", self.top_p, 0.05, 1)
        _whole("Seed", self.seed, 0, 2**31 - 1)
        _whole("New tokens", self.max_new_tokens, 1, LIMITS.new_tokens)
        _whole("Drafts per round", self.drafts, 0, MOST)


def check_length(tokens: int) -> None:
    """Raises `Refused`: more tokens than the Space reads."""
    if tokens > LIMITS.prompt_tokens:
        raise Refused(f"The prompt is {tokens:,} tokens long; this page takes {LIMITS.prompt_tokens:,}. Shorten it.")


def _within(name: str, value, least: float, most: float) -> None:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not least <= value <= most:  # which no NaN is
        raise Refused(f"{name} must be a number from {least:g} to {most:g}.")


def _whole(name: str, value, least: int, most: int) -> None:
    _within(name, value, least, most)
    if value != int(value):
        raise Refused(f"{name} must be a whole number.")
