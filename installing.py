"""The name this package is installed by, its version, and the sentence about a package that is missing."""

from __future__ import annotations

DISTRIBUTION = "domino-decoding"  # as in pyproject.toml; `domino` belongs to somebody else on the package index
VERSION = "0.1.0"  # pyproject.toml reads it here


def missing(what: str, extra: str) -> str:
    """A sentence with the command that installs a package; `what` says what needs it, `extra` is one of pyproject.toml's."""
    return f'{what}: pip install "{DISTRIBUTION}[{extra}]".'
