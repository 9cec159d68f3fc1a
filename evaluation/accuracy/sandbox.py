"""Run a program that a language model wrote, in a process that can do no harm.

The kernel refuses it everything but computing: seccomp (libseccomp) leaves system calls without which Python cannot run,
Landlock (py-landlock) a temporary folder to write in. Resource limits bound what it uses, a wall clock how long. An audit
hook stands before both. nsjail and bubblewrap would replace more of this, but need user namespaces, which plain containers
refuse; sandlock 0.9 lets sockets be opened, and modes and times of files be changed.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import secrets
import select
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from ...installing import missing
from . import landlock, seccomp

LONGEST_REPORT = 4096
_SAID = ("memory", "forbidden: ", "exception: ")
# The child's modules as a package of their own: importing this one by its name would import the library around it.
_START = """
import sys, types
package = sys.modules["sandboxed"] = types.ModuleType("sandboxed")
package.__path__ = [sys.argv[1]]
from sandboxed.child import main
main()
"""


@dataclass(frozen=True)
class Outcome:
    """How a program ended.

    Attributes:
        reason: "passed", "timeout", "memory", "exception: <type>", "forbidden: <what>", "killed: <signal>", or
            "exited: <status>" for a process that was gone before the program's end.
    """

    passed: bool
    reason: str


def layers() -> list[str]:
    """What confines a program here, the strongest first; empty where `run` refuses.

    Without Landlock (of Linux 6.2 and later) seccomp refuses all writing to files, in the program's own folder too.
    """
    if not seccomp.available():
        return []
    return ["seccomp", *(["landlock"] if landlock.available() else []), "rlimits", "audit"]


def run(program: str, seconds: float = 5.0, memory_mb: int = 1024) -> Outcome:
    """Whether a program runs to its end: the last of its lines, without an exception.

    A program that leaves early has not passed, whatever its exit status and whatever it prints: success is a secret, written
    by the process to a pipe once the program ended. The process is the program's own, though. One that searches its
    interpreter for the secret can find it, as it can return an object equal to everything: this keeps the machine safe
    and guards against accidents, it does not make tests unbeatable.

    Args:
        seconds: on the wall clock, the start of Python included. memory_mb: of address space.

    Raises:
        `ValueError`: there is no seccomp here, so code cannot be executed safely, or the process could not be
        confined.
    """
    active = layers()
    if not active:
        raise ValueError(
            "Code cannot be executed safely here, so leave the execution of programs off. It takes Linux with seccomp and "
            + missing("the system's libseccomp with its Python binding", "eval")
        )
    nonce = secrets.token_hex(16)
    with (
        tempfile.TemporaryDirectory(prefix="domino-", ignore_cleanup_errors=True) as folder,
        tempfile.TemporaryFile() as job,
    ):
        order = {
            "nonce": nonce,
            "folder": folder,
            "layers": active,
            "memory_mb": memory_mb,
            "seconds": math.ceil(seconds),
        }
        job.write(json.dumps(order).encode() + b"\n" + program.encode(errors="replace"))
        job.seek(0)
        heard, late, status = _execute(job, folder, seconds)
    return _outcome(heard, nonce.encode(), late, status)


def _execute(job, folder: str, seconds: float) -> tuple[bytes, bool, int]:
    """Report, whether time ran out, and exit status of a child, of which nothing is left."""
    command = [sys.executable, "-I", "-B", "-c", _START, str(Path(__file__).resolve().parent)]
    process = subprocess.Popen(
        command,
        stdin=job,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=folder,
        env={"OMP_NUM_THREADS": "1"},  # and nothing of ours; pools of a thread per core would not fit the memory limit
        start_new_session=True,
    )
    assert process.stdout is not None
    with process.stdout as pipe:
        try:
            heard, late = _listen(pipe.fileno(), time.monotonic() + seconds)
        finally:
            # Not waited for yet, so its number cannot have gone to another group.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            status = process.wait()
    return heard, late, status


def _listen(pipe: int, deadline: float) -> tuple[bytes, bool]:
    """What is written until the pipe closes, the time is over, or it is too much to be a report."""
    poll, heard = select.poll(), b""
    poll.register(pipe, select.POLLIN)
    while len(heard) < LONGEST_REPORT:
        left = deadline - time.monotonic()
        if left <= 0 or not poll.poll(1000 * left):
            return heard, True
        chunk = os.read(pipe, LONGEST_REPORT)
        if not chunk:
            break
        heard += chunk
    return heard, False


def _outcome(heard: bytes, nonce: bytes, late: bool, status: int) -> Outcome:
    if heard == nonce + nonce:
        return Outcome(True, "passed")
    if late:
        return Outcome(False, "timeout")
    if not heard.startswith(nonce):  # written as soon as the process is confined, before the program
        raise ValueError(f"The process could not be confined: {heard.decode(errors='replace') or f'status {status}'}.")
    said = heard[len(nonce) :].decode(errors="replace")
    if said.startswith(_SAID) and said.isprintable():
        return Outcome(False, said[:200])
    return Outcome(False, f"killed: {signal.Signals(-status).name}" if status < 0 else f"exited: {status}")
