"""Runs a persistent kernel in Triton's interpreter with several programs that wait for one another, as a GPU would.

The interpreter runs programs one after the other, so a barrier would wait for ever. Here each program is a thread, one at a
time holds the baton, and at a barrier it passes it on; between two barriers the programs run in a random order.
"""

import random
import threading

from triton.runtime import interpreter


class Lockstep:
    """Context: `kernel` (an interpreted function) runs its programs together. module: where it finds `meet`, its barrier."""

    def __init__(self, module, kernel, programs: int, seed: int):
        self.module, self.kernel, self.programs = module, kernel, programs
        self.random = random.Random(seed)
        self.meetings = 0

    def __enter__(self):
        self.own = self.module.meet, self.module.programs_at_once, interpreter.GridExecutor
        lockstep, executor = self, interpreter.GridExecutor

        class Together(executor):
            def __init__(self, fn, arg_names, grid, *rest):
                super().__init__(lambda **args: lockstep.collect(fn, args), arg_names, grid, *rest)

        self.module.meet = self.meet
        self.module.programs_at_once = lambda device: self.programs
        interpreter.GridExecutor = Together
        return self

    def __exit__(self, *error):
        self.module.meet, self.module.programs_at_once, interpreter.GridExecutor = self.own
