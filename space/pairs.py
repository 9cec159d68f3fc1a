"""The targets and drafters that the Space offers, and those that are loaded."""

from __future__ import annotations

import logging
import os
import re
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch

from ..evaluation.methods import METHODS, Models
from ..evaluation.run import load_models, warm_up
from ..evaluation.settings import ModelSettings
from ..evaluation.tasks import Question
from .limits import Refused
from .zero import ON_ZERO

log = logging.getLogger(__name__)
ANY_MODEL = "DOMINO_SPACE_ANY_MODEL"  # set to 1, visitors may type Hub ids
DTYPE = "DOMINO_SPACE_DTYPE"
METHODS_USED = ("plain", "engine", "dflash")
# the throw-away question
WARM_UP = "How many primes are there below 50?"
KEPT = 2  # pairs in memory: the first one for good, and the one asked for last
# Drafters of the paper's authors; only offered where a GPU can hold them.
PUBLISHED = [
    ModelSettings("Qwen/Qwen3-4B", "Huang2020/Qwen3-4B-Domino-b16", name="Qwen3-4B"),
    ModelSettings("Qwen/Qwen3-8B", "Huang2020/Qwen3-8B-Domino-b16", name="Qwen3-8B"),
]
HUB_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*", re.ASCII)


def typed(target: str, drafter: str) -> ModelSettings:
    """A pair a visitor typed. Raises `Refused`: not allowed here, or no Hub ids (paths of this machine are none)."""
    if os.environ.get(ANY_MODEL) != "1":
        raise Refused("This Space only runs the models it lists.")
    for name in (target, drafter):
        if not HUB_ID.fullmatch(name) or Path(name).exists():
            raise Refused(f"{name[:80]!r} is no Hub id: write owner/name for both target and drafter.")
    return ModelSettings(target, drafter, name=f"{target} + {drafter}")


@dataclass
class Shelf:
    """Loaded pairs by name.

    Attributes:
        first: loaded at start and kept. dtype: of all.
    """

    first: ModelSettings
    dtype: str
    loaded: dict[str, Models] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    since: dict[str, float] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def offered(self) -> list[ModelSettings]:
        """The short list."""
        more = PUBLISHED if torch.cuda.is_available() else []
        return [self.first, *(pair for pair in more if pair.name != self.first.name)]

    def find(self, name: str, target: str = "", drafter: str = "") -> ModelSettings:
        """The pair of that name, the first one for "", or the one typed. Raises `Refused`."""
        if target or drafter:
            return typed(target.strip(), drafter.strip())
        for pair in self.offered():
            if name in ("", pair.name):
                return pair
        raise Refused(f"There is no model {name[:80]!r} here; there are: {', '.join(p.name for p in self.offered())}.")

    def load(self, pair: ModelSettings) -> None:
        """Load and warm up a pair; does nothing where it is loaded. A failure is kept in `failed`."""
        with self.lock:
            if pair.name in self.loaded:
                return
            self.failed.pop(pair.name, None)
            self.since[pair.name] = time.monotonic()
            others = [name for name in self.loaded if name != self.first.name]
            for name in others[: max(len(self.loaded) + 1 - KEPT, 0)]:
                del self.loaded[name]
            try:
                models = load_models(pair, self.dtype)
                warm(models)
            except Exception as error:  # whatever a download or a file can raise; the visitor is told that it failed
                self.failed[pair.name] = f"{type(error).__name__}: {error}"
                log.exception("loading %s", pair.name)
                return
            self.loaded[pair.name] = models

    def start(self, pair: ModelSettings) -> None:
        """Load in the background, so that the page can say so; an earlier failure is forgotten."""
        self.failed.pop(str(pair.name), None)
        threading.Thread(target=self.load, args=(pair,), daemon=True, name=f"load {pair.name}").start()

    def waited(self, pair: ModelSettings) -> float:
        """Seconds since loading began."""
        return time.monotonic() - self.since.get(pair.name, time.monotonic())


def warm(models: Models) -> None:
    """A short answer by each method that no figure sees, as in `domino eval`; where a GPU is only lent, there is none yet."""
    if not ON_ZERO:
        warm_up(models, {name: METHODS[name] for name in METHODS_USED}, Question("warm-up", [WARM_UP]))
