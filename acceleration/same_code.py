"""What code says: whether a function is one we know, since what a view exchanges must do what we think it does, and what a module mentions."""

import inspect
import sys
from functools import cache
from types import FunctionType
from typing import Any


def same_code(one: Any, known: Any) -> bool:
    """Plain functions whose bytecode, names and constants agree, docstrings aside, and likewise what they call by a global name."""
    if not (type(one) is FunctionType and type(known) is FunctionType) or _text(one) != _text(known):
        return False
    used = [name for name in known.__code__.co_names if name in known.__globals__ or name in one.__globals__]
    pairs = [(one.__globals__.get(name), known.__globals__.get(name)) for name in used]
    return all(a is b or same_code(a, b) for a, b in pairs)


@cache
def mentions(module_name: str, *words: str) -> bool:
    """Whether the source of a module, torch's own aside, has one of these words in it; where it cannot be read it may."""
    if module_name.startswith("torch.") or module_name == "builtins":
        return False
    try:
        source = inspect.getsource(sys.modules[module_name])
    except (OSError, TypeError, KeyError):
        return True
    return any(word in source for word in words)


def _text(function: FunctionType) -> tuple:
    code = function.__code__
    constants = tuple(constant for constant in code.co_consts if constant != function.__doc__)
    return code.co_code, code.co_names, code.co_varnames, constants, function.__defaults__, function.__closure__
