"""From the text of an answer to a complete test program."""

from __future__ import annotations

import ast
import builtins
import re

_FENCE = re.compile(r"^[ \t]*```[ \t]*([^`\n]*)\n(.*?)(?:^[ \t]*```|\Z)", re.S | re.M)
_LANGUAGES = ("", "python", "python3", "py")
_FUTURE = re.compile(r"^from __future__ import [^\n]*$", re.M)


def humaneval(text: str, prompt: str, entry_point: str, test: str) -> str:
    """The program of an answer, its prompt's imports and helpers before it, the tests and their call after it."""
    code = extract(text, {entry_point})
    return _join(_before(prompt, entry_point), code, test, f"check({entry_point})")


def mbpp(text: str, test_imports: list[str], test_list: list[str]) -> str:
    """The tests' imports, the program of an answer, the asserts.

    The protocol's question does not name the function that the tests call, so an answer's last function may have any name.

    Raises:
        `SyntaxError`: asserts that are not Python.
    """
    tested = _tested(test_list)
    code = extract(text, tested) if _defines(text, tested) else _last_block(text)
    return _join(*test_imports, code, *_renamed(code, tested), *test_list)


def extract(text: str, names: set[str]) -> str:
    """The last fenced block that defines one of `names`, since later ones correct earlier ones; else the whole text."""
    blocks = [block for block in _blocks(text) if _defines(block, names)]
    return blocks[-1] if blocks else text


def _defines(code: str, names: set[str]) -> bool:
    pattern = rf"^[ \t]*(?:(?:async\s+)?def|class)\s+(?:{_any(names)})\b|^(?:{_any(names)})\s*="
    return bool(re.search(pattern, code, re.M))


def _blocks(text: str) -> list[str]:
    return [block for language, block in _FENCE.findall(text) if language.strip().lower() in _LANGUAGES]


def _last_block(text: str) -> str:
    """The last fenced block with a function in it, else the whole text."""
    blocks = [block for block in _blocks(text) if re.search(r"^def ", block, re.M)]
    return blocks[-1] if blocks else text


def _renamed(code: str, tested: set[str]) -> list[str]:
    """The one function the tests call, as another name of the last one there is, unless it is there itself."""
    defined = re.findall(r"^def\s+(\w+)", code, re.M)
    if len(tested) != 1 or not defined or _defines(code, tested):
        return []
    return [f"{next(iter(tested))} = {defined[-1]}"]


def _before(prompt: str, entry_point: str) -> str:
    """Imports and helper functions of a prompt: an answer that leaves them out is still right, and tests use some."""
    return re.split(rf"^def {re.escape(entry_point)}\b", prompt, maxsplit=1, flags=re.M)[0]


def _tested(test_list: list[str]) -> set[str]:
    calls = [node for test in test_list for node in ast.walk(ast.parse(test)) if isinstance(node, ast.Call)]
    return {call.func.id for call in calls if isinstance(call.func, ast.Name)} - set(dir(builtins))


def _any(names: set[str]) -> str:
    return "|".join(re.escape(name) for name in sorted(names)) or r"(?!)"


def _join(*parts: str) -> str:
    whole = "\n".join(parts) + "\n"
    future = _FUTURE.findall(whole)  # valid only before everything else
    return "\n".join([*future, _FUTURE.sub("", whole)])
