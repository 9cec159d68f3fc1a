"""One answer to one question, right or wrong."""

from __future__ import annotations

from typing import Any

from . import answers, programs, sandbox

CODE_TASKS = ("humaneval", "mbpp")
_FIELDS = {
    "gsm8k": ("answer",),
    "aime24": ("answer",),
    "aime25": ("answer",),
    "math500": ("answer",),
    "humaneval": ("prompt", "entry_point", "test"),
    "mbpp": ("test_imports", "test_list"),
}


def score(task: str, checks: dict[str, Any], text: str, execute: bool) -> bool | None:
    """Whether `text` answers a question of `task`.

    Args:
        checks: what the question is checked by, the fields of its row (`answer`; `prompt`, `entry_point`, `test`;
            `test_imports`, `test_list`). execute: run the program of an answer to a code task.

    Returns:
        None where nothing can be said: a task without an automatic check, a row without its fields, or a code task with
        `execute` off.

    Raises:
        `ValueError`: math-verify is needed and not installed, or programs cannot be run safely on this machine.
    """
    fields = _FIELDS.get(task)
    if fields is None or any(field not in checks for field in fields):
        return None
    if task == "math500":
        return answers.same_expression(text, str(checks["answer"]))
    if task not in CODE_TASKS:
        return answers.same_number(text, str(checks["answer"]))
    if not execute:
        return None
    build = programs.humaneval if task == "humaneval" else programs.mbpp
    return sandbox.run(build(text, **{field: checks[field] for field in fields})).passed
