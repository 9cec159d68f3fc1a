"""Dataclasses from plain values, as YAML gives them; each error names the setting."""

from __future__ import annotations

import difflib
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

Dtype = Literal["bfloat16", "float32", "float16"]  # that models may be loaded in
DTYPES = get_args(Dtype)


def mapping(values: Any, name: str) -> dict[str, Any]:
    """The values. Raises `ValueError` if they are not a mapping."""
    require(isinstance(values, dict), name, values, "must be a mapping of settings")
    return values


def build(cls, values: Any, prefix: str):
    """A dataclass out of a mapping; `prefix` ("objective." or "") names it. Raises `ValueError`, see `known` and `typed`."""
    kinds = get_type_hints(cls)
    for key in mapping(values, prefix.rstrip(".")):
        known(key, set(kinds), prefix)
    return cls(**{key: typed(value, kinds[key], prefix + key) for key, value in values.items()})


def known(key: str, allowed: set[str], prefix: str) -> None:
    """Raise `ValueError` unless the key is allowed; it names the nearest one, or all if none is near."""
    if key in allowed:
        return
    near = difflib.get_close_matches(str(key), allowed, n=1, cutoff=0.5)
    hint = f"did you mean {prefix}{near[0]}?" if near else f"allowed are {', '.join(sorted(allowed))}."
    raise ValueError(f"Unknown key {prefix}{key}: {hint}")


def _number(value: Any) -> Any:
    """YAML reads 1e-3 as a string; take it for the number it is."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def typed(value: Any, kind: Any, name: str) -> Any:
    """The value, as a number if YAML read a number as a string. Raises `ValueError` if it is of another kind."""
    if get_origin(kind) is Literal:
        require(value in get_args(kind), name, value, f"must be one of {', '.join(map(repr, get_args(kind)))}")
        return value
    kinds = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    plain = tuple(get_origin(k) or k for k in kinds)
    if float in plain:
        value = _number(value)
        plain = (*plain, int)
    # bool is an int to Python, not to the reader of a config
    right = isinstance(value, plain) and (not isinstance(value, bool) or bool in plain)
    if right and isinstance(value, list):
        entries = tuple(entry for k in kinds if get_origin(k) is list for entry in get_args(k))
        entries = (*entries, int) if float in entries else entries  # 0 is a temperature too
        right = not entries or all(isinstance(entry, entries) for entry in value)  # a plain `list` holds anything
    wanted = " or ".join("null" if k is NoneType else str(k) if get_origin(k) else k.__name__ for k in kinds)
    require(right, name, value, f"must be {wanted}")
    return value


def require(ok: bool, name: str, got: Any, rule: str) -> None:
    """Raises `ValueError` with the setting's name, the rule and what was got, unless `ok`."""
    if not ok:
        raise ValueError(f"{name} {rule}, got {got!r}.")
