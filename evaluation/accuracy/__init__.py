"""Whether an answer is right: final answers of maths tasks, and programs run against their tests in a sandbox."""

from .score import CODE_TASKS, score

__all__ = ["CODE_TASKS", "score"]
