"""Watch one `generate` call: the rounds it took and where its time went, whatever drafted.

Nothing of the call is changed: hooks on the target, the drafter and their parts take the time. A *round* is a forward of the
target after the first (the prefill).
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import wraps

import torch

from .clock import Clock, Span
from .memory import peak, reset_peak
from .sessions import opening


@dataclass
class Call:
    """What one call did. Times in seconds, each piece of work in one stage only.

    Attributes:
        prompt_tokens, new_tokens: of the call. seconds: wall clock of the whole call.
        prefill: the target's forwards up to the one that reads the prompt's end. verify: its other forwards. draft: the drafter's
            backbone and base logits. head: the rest of a proposal, its serial head. What remains of `seconds` is overhead.
        setup: before the first forward of all, once a call: checks, caches, packed weights. Results from before it was told apart
            have it in their overhead.
        peak: bytes of memory at the highest, see `memory.peak`.
        advanced: tokens each round added to the text, the bonus token included. drafted: nodes put to the target in it.
        depths: of the deepest of these nodes; of a chain as many as there are. Results from before there were trees have none.
        lookup: of the kept nodes those that only lookup had found, where the engine decoded.
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
    depths: list[int] = field(default_factory=list)
    lookup: list[int] = field(default_factory=list)

    def __post_init__(self):
        self.depths = self.depths or self.drafted

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
        self.positions: list[torch.Tensor] = []  # of these tokens
        self.spans: list[Span] = []
        self.open: list[Span] = []
        self.statistics = getattr(drafter, "statistics", None)
        self.setup: float | None = None

    def __enter__(self) -> Watch:
        self.undo = ExitStack()
        self._hooks(self.target, "target", self._note)
        if self.drafter is not None:
            self._hooks(self.drafter, "draft")
            if hasattr(type(self.drafter), "open"):
                self._hooks(self.target.get_output_embeddings(), "draft")  # base logits
                self.undo.enter_context(opening(self.drafter, self._time))
        reset_peak(self.target.device)
        self.wall = time.perf_counter()
        return self

    def __exit__(self, *_) -> None:
        if self.clock.cuda:
            torch.cuda.synchronize(self.target.device)
        self.seconds = time.perf_counter() - self.wall
        self.peak = peak(self.target.device)
        self.undo.close()

    def _hooks(self, module, stage: str, note=None) -> None:
        def skipped() -> bool:
            if torch.compiler.is_compiling():  # a part of a compiled whole, which a hook would break in two
                return True
            # the LM head in the target's own forward is verification; while that forward's own hooks run it is not within itself
            return stage != "target" and bool(self.open) and self.open[-1].stage == "target"

        def before(module, args, kwargs):
            if skipped():
                return
            if note is not None:
                note(args, kwargs)
            self._push(stage)

        def after(module, args, kwargs, output):
            if not skipped():
                self._pop()

        for handle in (
            module.register_forward_pre_hook(before, with_kwargs=True),
            module.register_forward_hook(after, with_kwargs=True, always_call=True),
        ):
            self.undo.callback(handle.remove)

    def _time(self, session) -> None:
        """Proposals of a session are the head's, but for what is the backbone's."""
        propose = session.propose

        @wraps(propose)
        def timed(*args, **kwargs):
            self._push("head")
            try:
                return propose(*args, **kwargs)
            finally:
                self._pop()

        session.propose = timed

    def _push(self, stage: str) -> None:
        if self.setup is None:
            self.setup = time.perf_counter() - self.wall
        span = Span(stage, self.clock.mark())
        if self.open:
            self.open[-1].inside.append(span)
        self.open.append(span)

    def _pop(self) -> None:
        span = self.open.pop()
        span.end = self.clock.mark()
        self.spans.append(span)

    def _note(self, args, kwargs) -> None:
        cache = kwargs.get("past_key_values")
        self.starts.append(cache.get_seq_length() if cache is not None else 0)
        tokens, positions = kwargs.get("input_ids", args[0] if args else None), kwargs.get("position_ids")
        self.read.append(tokens.shape[1])
        self.positions.append(torch.arange(tokens.shape[1]) if positions is None else positions)

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
            [span.seconds(self.clock) for span in self.spans if span.stage == stage]
            for stage in ("target", "draft", "head")
        )
        statistics = getattr(self.drafter, "statistics", None)
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
            depths=[int(positions.max() - positions.min()) for positions in self.positions[chunks:]],
            lookup=list(statistics.lookup) if statistics and statistics is not self.statistics else [],
        )
