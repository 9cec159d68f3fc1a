"""Whether an answer is right: final answers of maths tasks, and programs run against their tests in a sandbox."""

from .score import CODE_TASKS, refuse_unscorable, score

__all__ = ["CODE_TASKS", "refuse_unscorable", "score"]
