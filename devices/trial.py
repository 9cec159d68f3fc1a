"""A check in a process of its own with a time limit: a hang or a crash costs that process, never the caller's."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path

import torch

from . verdict import Verdict  # fmt: skip  # isort: skip

LIMIT = 180.0  # seconds: dozens of kernels are compiled on first use
PATIENCE = 10.0  # seconds that a killed process may take to die; one that waits for a GPU's driver may not
TOLD = 2000  # characters of stderr that are kept


def trial(
    what: str, cases: str, device: torch.device, limit: float, identity: dict[str, str], environment: dict[str, str]
) -> Verdict:
    """Run cases on a device.

    Args:
        what: the verdict is on. cases: `module:attribute`, see `child.py`; found on this process's `sys.path`.
        limit: in seconds, for all cases. identity: what the verdict holds for.
        environment: variables that the check gets besides this process's.

    Returns:
        the verdict, kept nowhere yet.
    """
    began, when = time.monotonic(), datetime.now(timezone.utc).isoformat(timespec="seconds")
    with tempfile.TemporaryDirectory(prefix="domino-check-") as name:
        folder = Path(name)
        ended = _run(folder, cases, device, limit, {**os.environ, **environment})
        passed, reason, found = _read(folder, ended, limit)
    return Verdict(what, passed, reason, round(time.monotonic() - began, 1), when, found, identity)


def _run(folder: Path, cases: str, device: torch.device, limit: float, environment: dict[str, str]) -> int | None:
    """The exit status of `child.py`, None if it had to be killed. Results are in "results", its words in "words"."""
    given = {
        "path": [str(Path(entry).absolute()) for entry in sys.path],  # "" is where this process stands
        "cases": cases,
        "device": str(device),
        "file": str(folder / "results"),
        "limit": limit + PATIENCE,
    }
    command = [sys.executable, str(Path(__file__).with_name("child.py")), json.dumps(given)]
    with (folder / "words").open("wb") as words:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=words,
            stderr=words,
            env=environment,
            start_new_session=True,  # with the compilers it starts it is one group, which is killed as one
        )
        try:
            return process.wait(limit)
        except subprocess.TimeoutExpired:
            return None
        finally:
            _kill(process)


def _kill(process: subprocess.Popen) -> None:
    """With all it started. What the driver does not let go is left behind."""
    with suppress(OSError):  # gone already
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
    with suppress(subprocess.TimeoutExpired):
        process.wait(PATIENCE)


def _read(folder: Path, ended: int | None, limit: float) -> tuple[bool | None, str, dict[str, str]]:
    """Whether all was right, the first thing that was not, and the result of each case.

    Worked example: lines begun a, right a, begun b and exit status -6: b crashed with signal 6, and so the check failed.
    """
    file = folder / "results"
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.exists() else []
    found: dict[str, str] = {}
    for line in lines:
        if "right" in line:
            found[line["right"]] = "right"
        elif "wrong" in line:
            found[line["wrong"]] = line["why"]
        elif "unable" in line:
            return None, line["unable"], found
    begun = [line["begun"] for line in lines if "begun" in line]
    if ended in (-signal.SIGKILL, -signal.SIGTERM):  # as where memory runs out; says nothing of the code
        return None, f"something ended the process ({signal.Signals(-ended).name})", found
    if not (lines and "ended" in lines[-1]):
        how = f"did not end within {limit:g} s" if ended is None else _crash(ended)
        if not begun:
            return None, f"it {how} before its first case. {_words(folder)}", found
        found[begun[-1]] = how
    reason = next((f"{name}: {why}" for name, why in found.items() if why != "right"), "")
    return not reason, reason, found


def _crash(status: int) -> str:
    """In words: -6 is SIGABRT."""
    if status >= 0:
        return f"ended the process with exit status {status}"
    return f"crashed the process ({signal.Signals(-status).name})"


def _words(folder: Path) -> str:
    return (folder / "words").read_text(encoding="utf-8", errors="replace").strip()[-TOLD:]
