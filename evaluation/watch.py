"""Watch one `generate` call: the rounds it took and where its time went, whatever drafted.

Nothing of the call is changed: hooks on the target, the drafter and their parts take the time. A *round* is a forward of the
target after the first (the prefill).
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

import torch

from .memory import peak, reset_peak


class Clock:
    """Marks in time on the device's own clock: CUDA events, which wait for nothing, or the process's."""

    def __init__(self, device: torch.device):
        self.cuda = device.type == "cuda"

    def mark(self) -> Any:
        if not self.cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self, start: Any, end: Any) -> float:
        """Between two marks; on CUDA after a synchronization."""
        return start.elapsed_time(end) / 1000 if self.cuda else end - start


@dataclass
class Call:
    """What one call did. Times in seconds.

    Attributes:
        prompt_tokens, new_tokens: of the call. seconds: wall clock of the whole call.
        prefill: the target's forwards up to the one that reads the prompt's end. verify, draft, head: the target's other forwards, the drafter's backbone with its
            base logits, and its serial head. What remains of `seconds` is overhead.
        setup: before the first forward of all, once a call: checks, caches, packed weights. Results from before it was told apart
            have it in their overhead.
        peak: bytes of memory at the highest, see `memory.peak`.
        advanced: tokens each round added to the text, the bonus token included. drafted: drafts put to the target in it.
    """

    prompt_tokens: int
    new_tokens: int
    seconds: float
    prefill: float
    verify: float
    draft: float
    head: float
    peak: int | None
    advanced: list[int] = field(default_factory=list)
    drafted: list[int] = field(default_factory=list)
    setup: float = 0.0

    @property
    def overhead(self) -> float:
        return self.seconds - self.setup - self.prefill - self.verify - self.draft - self.head


class Watch:
    """Hooks for the length of a `with` block; `call()` tells what happened in it.

    Args:
        target: the model whose `generate` is called. drafter: a `DominoModel`, an ordinary draft model, or None.
    """

    def __init__(self, target, drafter=None):
        self.target, self.drafter, self.clock = target, drafter, Clock(target.device)
        self.starts: list[int] = []  # tokens in the target's cache when each of its forwards began
        self.read: list[int] = []  # tokens each of its forwards read
        self.spans: dict[str, list[tuple[Any, Any]]] = {"target": [], "draft": [], "head": []}
        self.open: list[tuple[str, Any]] = []
        self.timed_rollout = hasattr(drafter, "rollout")
        self.setup: float | None = None

    def __enter__(self) -> Watch:
        hooks = self._hooks(self.target, "target", self._note)
        head = self.target.get_output_embeddings()
        if self.drafter is not None:
            hooks += self._hooks(self.drafter, "draft")
            if self.timed_rollout:
                hooks += self._hooks(head, "draft")  # base logits; a head inside a forward is that forward's
                self.rollout = self.drafter.__dict__.get("rollout")
                self.drafter.rollout = self._timed(self.drafter.rollout)
        self.handles = hooks
        reset_peak(self.target.device)
        self.wall = time.perf_counter()
        return self

    def __exit__(self, *_) -> None:
        if self.clock.cuda:
            torch.cuda.synchronize(self.target.device)
        self.seconds = time.perf_counter() - self.wall
        self.peak = peak(self.target.device)
        for handle in self.handles:
            handle.remove()
        if self.timed_rollout:
            del self.drafter.rollout
            if self.rollout is not None:
                self.drafter.rollout = self.rollout

    def _hooks(self, module, stage: str, note=None) -> list:
        def before(module, args, kwargs):
            if torch.compiler.is_compiling():  # a part of a compiled whole, which a hook would break in two
                return
            if note is not None:
                note(args, kwargs)
            self._push(stage)

        def after(module, args, kwargs, output):
            if not torch.compiler.is_compiling():
                self._pop()

        return [
            module.register_forward_pre_hook(before, with_kwargs=True),
            module.register_forward_hook(after, with_kwargs=True, always_call=True),
        ]

    def _timed(self, function):
        @wraps(function)
        def timed(*args, **kwargs):
            self._push("head")
            try:
                return function(*args, **kwargs)
            finally:
                self._pop()

        return timed

    def _push(self, stage: str) -> None:
        if self.setup is None:
            self.setup = time.perf_counter() - self.wall
        self.open.append((stage, self.clock.mark()))

    def _pop(self) -> None:
        stage, start = self.open.pop()
        if not self.open:  # a stage within a stage is the outer one's
            self.spans[stage].append((start, self.clock.mark()))

    def _note(self, args, kwargs) -> None:
        cache = kwargs.get("past_key_values")
        self.starts.append(cache.get_seq_length() if cache is not None else 0)
        tokens = kwargs.get("input_ids", args[0] if args else None)
        self.read.append(tokens.shape[1])

    def call(self, prompt_tokens: int, new_tokens: int) -> Call:
        """What happened, given how long the text was before and how much was added.

        Worked example: a prompt of 10 tokens, 6 new ones. Forward 0 starts at 0 and reads 10; forward 1 starts at 10 and reads
        5 (the anchor and 4 drafts), forward 2 starts at 13: forward 1 added 3 tokens. The text ends with 16 tokens, the
        last of them unread, so forward 2 added 16 - 1 - 13 = 2, and forward 0 the one that is left.
        """
        # Forwards that end within the prompt are its chunks; the first that reaches its end closes the prefill, drafts or not.
        chunks = sum(start + read < prompt_tokens for start, read in zip(self.starts, self.read, strict=True)) + 1
        ends = [*self.starts[1:], prompt_tokens + new_tokens - 1]
        advanced = [end - start for start, end in zip(self.starts, ends, strict=True)]
        target, draft, head = (
            [self.clock.seconds(*span) for span in self.spans[stage]] for stage in ("target", "draft", "head")
        )
        return Call(
            prompt_tokens,
            new_tokens,
            self.seconds,
            prefill=sum(target[:chunks]),
            verify=sum(target[chunks:]),
            draft=sum(draft),
            head=sum(head),
            peak=self.peak,
            advanced=advanced[chunks:],
            drafted=[read - 1 for read in self.read[chunks:]],
            setup=self.setup or 0.0,
        )
