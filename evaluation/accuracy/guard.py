"""What an untrusted program may ask of Python: the portable layer over the kernel's, which says what was refused."""

from __future__ import annotations

import errno
import os
import sys

_FORBIDDEN = (
    "ctypes.",
    "socket.",
    "subprocess.",
    "pty.",
    "os.exec",
    "os.fork",
    "os.posix_spawn",
    "os.spawn",
    "os.system",
    "os.startfile",
    "os.kill",
    "signal.pthread_kill",
    "resource.setrlimit",
    "resource.prlimit",
    "os.mkdir",
    "os.rmdir",
    "os.link",
    "os.symlink",
    "os.chmod",
    "os.chown",
    "os.chflags",
    "os.utime",
    "os.setxattr",
    "os.removexattr",
)  # as beginnings
_PATHS = {"open": 1, "os.remove": 1, "os.truncate": 1, "os.rename": 2}  # how many of the first arguments are paths
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


def install(folder: str) -> None:
    """Refuse, with `PermissionError` and for good, what reaches beyond this process and writing outside `folder`."""
    # Held by the closure: the program can rebind the names in any module.
    forbidden, paths, writing, inside = _FORBIDDEN, _PATHS, _WRITING, _inside(os.path.realpath(folder))

    def hook(event: str, arguments: tuple) -> None:
        if event.startswith(forbidden):
            raise PermissionError(errno.EPERM, event)
        if event not in paths or (event == "open" and not arguments[2] & writing):
            return
        for path in arguments[: paths[event]]:
            if not inside(path):
                raise PermissionError(errno.EPERM, f"{event} {path!r:.100}")

    sys.addaudithook(hook)


def _inside(folder: str):
    realpath, fsdecode, separator, null = os.path.realpath, os.fsdecode, os.sep, os.devnull
    prefix = folder + separator

    def inside(path: object) -> bool:
        if isinstance(path, int):  # open already
            return True
        name = fsdecode(path)  # type: ignore[arg-type]
        return name == null or f"{realpath(name)}{separator}".startswith(prefix)  # the folder itself: nameless files

    return inside
