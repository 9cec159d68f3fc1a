"""Where an untrusted program may read and write: Linux' Landlock, asked for through ctypes."""

from __future__ import annotations

import ctypes
import os
import sys

_CREATE, _ADD, _RESTRICT = 444, 445, 446  # the same on all architectures
_VERSION_FLAG, _PATH_BENEATH = 1, 1
_LEAST = 3  # older ones let files be truncated anywhere

# LANDLOCK_ACCESS_FS_*
_EXECUTE, _WRITE, _READ, _LIST, _REMOVE_FILE, _MAKE_FILE, _TRUNCATE = (
    1 << 0,
    1 << 1,
    1 << 2,
    1 << 3,
    1 << 5,
    1 << 8,
    1 << 14,
)
_ALL_FILES = (1 << 15) - 1  # of version 3
_DEVICE_IOCTL = 1 << 15  # version 5
_ALL_TCP = 0b11  # bind and connect, version 4
_ALL_SCOPES = 0b11  # abstract sockets and signals to others, version 6

_DEVICES = {"/dev/null": _READ | _WRITE | _TRUNCATE, "/dev/zero": _READ, "/dev/random": _READ, "/dev/urandom": _READ}


class _Ruleset(ctypes.Structure):
    _fields_ = [("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scoped", ctypes.c_uint64)]


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("allowed", ctypes.c_uint64), ("folder", ctypes.c_int32)]


def available() -> bool:
    """Whether this kernel offers a version that keeps all writes in."""
    return sys.platform == "linux" and _call(_CREATE, None, 0, _VERSION_FLAG) >= _LEAST


def restrict(folder: str) -> None:
    """Confine this thread and all it starts, for good, to writing in `folder` and reading Python and system libraries.

    Needs PR_SET_NO_NEW_PRIVS.

    Raises:
        `OSError`: the kernel refused.
    """
    version = _call(_CREATE, None, 0, _VERSION_FLAG)
    rules = _Ruleset(
        _ALL_FILES | (_DEVICE_IOCTL if version >= 5 else 0),
        _ALL_TCP if version >= 4 else 0,
        _ALL_SCOPES if version >= 6 else 0,
    )
    ruleset = _checked(_CREATE, ctypes.byref(rules), ctypes.sizeof(rules), 0)
    for path, allowed in _allowed(folder).items():
        handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
        beneath = _Beneath(allowed, handle)
        _checked(_ADD, ruleset, _PATH_BENEATH, ctypes.byref(beneath), 0)
        os.close(handle)
    _checked(_RESTRICT, ruleset, 0)
    os.close(ruleset)


def _allowed(folder: str) -> dict[str, int]:
    python = {sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix, *sys.path}
    readable = [path for path in (*sorted(python), "/usr", "/lib", "/lib64") if os.path.isdir(path)]
    own = _READ | _LIST | _WRITE | _TRUNCATE | _MAKE_FILE | _REMOVE_FILE
    devices = {path: allowed for path, allowed in _DEVICES.items() if os.path.exists(path)}
    return {**dict.fromkeys(readable, _READ | _LIST | _EXECUTE), **devices, folder: own}


def _checked(number: int, *arguments) -> int:
    result = _call(number, *arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), f"landlock call {number}")
    return result


def _call(number: int, *arguments) -> int:
    """A system call that the C library has no name for."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    return libc.syscall(ctypes.c_long(number), *(ctypes.c_long(a) if isinstance(a, int) else a for a in arguments))
