"""Verdicts: what a check on a device found, kept in one JSON file in the user's cache.

The file is `domino/devices/default/verdicts.json` in Hugging Face's folder for assets: `HF_ASSETS_CACHE`, or `HF_HOME/assets`, or
`XDG_CACHE_HOME/huggingface/assets`, by default `~/.cache/huggingface/assets`.
"""

import json
import logging
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path

from huggingface_hub import cached_assets_path

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Verdict:
    """What a check found.

    Attributes:
        what: "triton" or "graphs". passed: whether all cases were right; None where the check itself could not run, which is not kept.
        reason: the first thing that went wrong, "" if nothing did. seconds: the check took. when: in UTC, ISO 8601.
        cases: name of each case -> "right", or what was wrong. identity: see `identity.identity`.
    """

    what: str
    passed: bool | None
    reason: str
    seconds: float
    when: str
    cases: dict[str, str] = field(default_factory=dict)
    identity: dict[str, str] = field(default_factory=dict)


def folder() -> Path:
    """Where verdicts lie; made if absent. Raises `OSError`: it cannot be."""
    try:
        return cached_assets_path("domino", "devices")
    except ValueError as error:  # how it says that a file lies where a folder should
        raise OSError(error) from error


def kept(what: str, identity: dict[str, str]) -> Verdict | None:
    """The verdict that an earlier check left, if there is one with this very identity."""
    found = (entry for entry in _entries() if (entry.what, entry.identity) == (what, identity))
    return next(found, None)


def keep(verdict: Verdict) -> None:
    """Write it in place of an earlier one. A cache that cannot be written costs a warning: the next process checks again."""
    others = [e for e in _entries() if (e.what, e.identity) != (verdict.what, verdict.identity)]
    text = json.dumps([asdict(entry) for entry in [*others, verdict]], indent=1)
    try:
        file = _file()
        partial = file.with_name(f"{file.name}.{os.getpid()}")
        partial.write_text(text, encoding="utf-8")
        partial.replace(file)
    except OSError as error:
        logger.warning("The check's verdict could not be kept, so the next process checks again: %s", error)


def _file() -> Path:
    return folder() / "verdicts.json"


def _entries() -> list[Verdict]:
    """All that are kept; none where the file is absent or is none of ours."""
    try:
        return [Verdict(**entry) for entry in json.loads(_file().read_text(encoding="utf-8"))]
    except (OSError, ValueError, TypeError):
        return []
