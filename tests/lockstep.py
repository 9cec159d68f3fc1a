"""Runs the persistent rollout in Triton's interpreter with several programs that wait for one another, as on a GPU.

The interpreter runs programs one after the other, so a barrier would wait for ever. Here each program is a thread, one of them
at a time has the turn, and at a barrier it gives it up; between two barriers the programs run in a random order. What a program
reads before the barrier that should protect it, another has then not written yet.
"""

import functools
import inspect
import random
import threading
from contextlib import contextmanager

import triton.language as tl  # noqa: F401  (the interpreter finds the language in the globals of what it runs)
from domino.kernels import rollout
from triton.runtime.interpreter import InterpretedFunction, interpreter_builder


class Turns:
    """Who runs: programs that have not arrived at the present barrier, in random order."""

    def __init__(self, programs: int, seed: int):
        self.programs, self.random, self.meetings = programs, random.Random(seed), 0
        self.wakes = [threading.Event() for _ in range(programs)]
        self.local, self.errors = threading.local(), []
        self.waiting = self._order()
        self.skip = lambda target: False  # whether a program runs past the barrier of this target

    def _order(self) -> list[int]:
        return self.random.sample(range(self.programs), self.programs)

    def next(self) -> None:
        if not self.waiting:
            self.meetings += 1
            self.waiting = self._order()
        self.wakes[self.waiting.pop()].set()

    def await_turn(self) -> None:
        program = self.local.program
        self.wakes[program].wait()
        self.wakes[program].clear()
        interpreter_builder.set_grid_idx(program, 0, 0)

    def meet(self, counter, target) -> None:
        if self.skip(int(target)):
            return
        self.next()
        self.await_turn()

    def run(self, kernel, args) -> None:
        """All programs to their end; they pass equally many barriers."""
        threads = [threading.Thread(target=self._program, args=(p, kernel, args)) for p in range(self.programs)]
        for thread in threads:
            thread.start()
        self.next()
        for thread in threads:
            thread.join()
        if self.errors:
            raise self.errors[0]

    def _program(self, program: int, kernel, args) -> None:
        self.local.program = program
        self.await_turn()
        try:
            kernel(**args)
        except Exception as error:
            self.errors.append(error)
        if self.waiting:
            self.wakes[self.waiting.pop()].set()


@contextmanager
def lockstep(monkeypatch, programs: int, seed: int):
    """Within it a rollout is walked by `programs` programs; yields their `Turns`."""
    turns = Turns(programs, seed)
    kernel = rollout.rollout_kernel.rewrite()

    @functools.wraps(kernel)
    def together(**args):
        if interpreter_builder.grid_idx[0] == programs - 1:  # called once for each program; the last call runs them all
            turns.run(kernel, args)

    together.__signature__ = inspect.signature(kernel)  # the interpreter asks for it
    with monkeypatch.context() as patch:
        patch.setitem(InterpretedFunction.rewritten_fn, rollout.rollout_kernel.fn, together)
        patch.setattr(rollout, "meet", lambda counter, target: turns.meet(counter, target))
        patch.setattr(rollout, "programs_at_once", lambda device: programs)
        yield turns
