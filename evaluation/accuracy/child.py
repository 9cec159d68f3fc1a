"""The inner side of the sandbox: a process that gives up its rights, runs a program and says how that went.

Started by `sandbox.run`, without the package around it, so that nothing heavy is imported.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import sys
import types
from typing import Any

from . import guard, landlock, seccomp

_PR_SET_PDEATHSIG = 1
_MB = 1 << 20


def main() -> None:
    """Read the order and the program from standard input, report on standard output, and leave."""
    write, leave, report = os.write, os._exit, os.dup(1)  # the program may rebind what is in `os`
    with open(0, "rb", closefd=False) as job:
        order, _, program = job.read().partition(b"\n")
    try:
        settings = json.loads(order)
        _detach()
        _confine(settings)
    except BaseException as error:
        write(report, f"{type(error).__name__}: {error}".encode(errors="replace"))
        leave(1)
    nonce = settings["nonce"].encode()
    write(report, nonce)
    verdict = _run(program)
    write(report, nonce if verdict is None else verdict.encode(errors="replace"))
    leave(0)  # no handlers at exit, no waiting for threads


def _detach() -> None:
    """Nothing to read, nobody to print to."""
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    os.close(null)


def _confine(settings: dict[str, Any]) -> None:
    layers = settings["layers"]
    # if the evaluation is killed, this does not stay behind
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))
    calls = seccomp.rules(writing="landlock" in layers)  # looks for libseccomp, so it comes before all limits
    _limit(settings["seconds"], settings["memory_mb"])
    if "landlock" in layers:
        landlock.restrict(settings["folder"])
    calls.load()
    if "audit" in layers:
        guard.install(settings["folder"])


def _limit(seconds: int, memory_mb: int) -> None:
    limits = {
        resource.RLIMIT_CPU: seconds + 1,
        resource.RLIMIT_AS: memory_mb * _MB,
        resource.RLIMIT_FSIZE: 8 * _MB,
        resource.RLIMIT_NOFILE: 64,
        resource.RLIMIT_NPROC: 256,  # counts all threads of the user, and does not bind root
        resource.RLIMIT_CORE: 0,
    }
    for kind, value in limits.items():
        hard = resource.getrlimit(kind)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (value, value))


def _run(program: bytes) -> str | None:
    """Execute it as a module of its own. Returns what went wrong, None if it reached its end."""
    module = types.ModuleType("solution")  # not __main__: examples under that guard are no part of an answer
    for name in [name for name in sys.modules if name.partition(".")[0] == __name__.partition(".")[0]]:
        del sys.modules[name]
    sys.modules["solution"], sys.argv = module, [""]
    try:
        exec(compile(program, "solution.py", "exec", dont_inherit=True), module.__dict__)
    except MemoryError:
        return "memory"
    except PermissionError as error:
        return f"forbidden: {error.strerror}"
    except BaseException as error:  # SystemExit too: a program that leaves has not passed
        return f"exception: {type(error).__name__}"
    return None
