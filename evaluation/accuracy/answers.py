"""Final answers of maths tasks: the last \\boxed{…}, else the last number, compared with the right one."""

from __future__ import annotations

import re
import string
import threading
from decimal import Decimal

from ...installing import missing

LONGEST = 1000  # characters of a boxed answer; what is longer is none, and would cost time without bound
TAIL = 2000  # characters at the end of a text in which an unboxed expression is looked for
SECONDS = 5

_NUMBER = re.compile(
    r"(?<![\w.])[-+]?(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)?(?:(?<=[0-9])\.[0-9]+|(?<=[0-9])|\.[0-9]+)"
)
_BRACES = re.compile(r"\\boxed\s*\{|\\.|[{}]", re.S)  # an escaped brace neither opens nor closes
_WORDS = re.compile(r"\\(?:text|mathrm|mbox|textbf)\s*\{[^{}]*\}")
_ORNAMENT = re.compile(r"\\[$%!,;: ]|[$%]|\^\\circ|\^\{\\circ\}")


def same_number(text: str, answer: str) -> bool:
    """Whether the final answer of `text` equals the number `answer` (GSM8K, AIME).

    A boxed answer that is more than a number with a unit is left to `same_expression`.

    Raises:
        `ValueError`: `answer` is no number, or math-verify is needed and not installed.
    """
    right = _plain(answer)
    if right is None:
        raise ValueError(f"The answer of a question in numbers must be a number, got {answer!r}.")
    inside = boxed(text)
    if inside is None:
        numbers = _NUMBER.findall(_bare(text))
        return bool(numbers) and _value(numbers[-1]) == right
    found = _plain(inside)
    return same_expression(text, answer) if found is None else found == right


def same_expression(text: str, answer: str) -> bool:
    """Whether the final answer of `text` means the same as the LaTeX `answer` (MATH-500), by math-verify.

    Raises:
        `ValueError`: math-verify is not installed.
    """
    try:
        from math_verify import parse, verify
    except ImportError as error:
        raise ValueError(missing("Comparing expressions needs math-verify", "eval")) from error
    # Its time limits are alarm signals, which only the main thread can receive.
    seconds = SECONDS if threading.current_thread() is threading.main_thread() else None
    inside = boxed(text)
    found = text[-TAIL:] if inside is None else f"\\boxed{{{inside}}}"
    right, given = (parse(latex, parsing_timeout=seconds) for latex in (f"\\boxed{{{answer}}}", found))
    return bool(verify(right, given, timeout_seconds=seconds))


def boxed(text: str) -> str | None:
    """What the last complete \\boxed{…} holds, nested braces included."""
    opened: list[int | None] = []  # where the boxes around this place begin; None for other braces
    last, found = -1, None
    for token in _BRACES.finditer(text):
        if token[0].endswith("{") and token[0] != "\\{":
            opened.append(token.end() if token[0] != "{" else None)
        elif token[0] == "}" and opened:
            start = opened.pop()
            if start is not None and start > last and token.start() - start <= LONGEST:
                last, found = start, text[start : token.start()]
    return found


def _bare(text: str) -> str:
    return _ORNAMENT.sub("", _WORDS.sub(" ", text.replace("{,}", ",").replace("\u2212", "-")))


def _plain(text: str) -> Decimal | None:
    """The number a text consists of, apart from currency, percent sign and a unit."""
    number = _bare(text).strip().rstrip(string.ascii_letters + string.whitespace + ".")
    return _value(number) if _NUMBER.fullmatch(number) else None


def _value(number: str) -> Decimal:
    return Decimal(number.replace(",", ""))
