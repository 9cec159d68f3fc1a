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
    if not _scored(task, checks, execute):
        return None
    if task == "math500":
        return answers.same_expression(text, str(checks["answer"]))
    if task not in CODE_TASKS:
        return answers.same_number(text, str(checks["answer"]))
    return sandbox.run(_program(task, checks, text)).passed


def refuse_unscorable(task: str, asked: dict[str, dict[str, Any]], execute: bool) -> None:
    """What `score` could only stop at after an answer was made: {question: checks} that are none, or a machine that cannot.

    Raises:
        `ValueError`: as `score` does, and for checks of another form; the question is named.
    """
    scored = {name: checks for name, checks in asked.items() if _scored(task, checks, execute)}
    for name, checks in scored.items():
        try:
            if task in CODE_TASKS:
                _program(task, checks, "")
            elif task != "math500":
                answers.same_number("", str(checks["answer"]))
        except (ValueError, TypeError, AttributeError, SyntaxError) as error:
            raise ValueError(f"{name} cannot be scored: {error}") from error
    if scored and task in CODE_TASKS:
        sandbox.run("")
    elif scored and task == "math500":
        answers.same_expression("", "1")


def _scored(task: str, checks: dict[str, Any], execute: bool) -> bool:
    fields = _FIELDS.get(task)
    return fields is not None and all(field in checks for field in fields) and (execute or task not in CODE_TASKS)


def _program(task: str, checks: dict[str, Any], text: str) -> str:
    build = programs.humaneval if task == "humaneval" else programs.mbpp
    return build(text, **{field: checks[field] for field in _FIELDS[task]})
