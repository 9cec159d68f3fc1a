"""Where an untrusted program may read and write: Linux' Landlock."""

from __future__ import annotations

import os
import sys

_LEAST = 3  # older versions let files be truncated anywhere
_DEVICES = ("/dev/zero", "/dev/random", "/dev/urandom")


def available() -> bool:
    """Whether this kernel offers a version that keeps all writes in, and the library to ask for it is here."""
    try:
        from py_landlock import LandlockError, get_abi_version
    except ImportError:
        return False
    try:
        return get_abi_version() >= _LEAST
    except LandlockError:
        return False


def restrict(folder: str) -> None:
    """Confine this thread and all it starts, for good, to writing in `folder` and reading Python and system libraries.

    Network, signals to others and abstract sockets are refused where the kernel's version can; sets PR_SET_NO_NEW_PRIVS.

    Raises:
        `py_landlock.LandlockError`: the kernel refused.
    """
    from py_landlock import AccessFs, Landlock

    python = {sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix, *sys.path}
    readable = [path for path in (*sorted(python), "/usr", "/lib", "/lib64") if os.path.isdir(path)]
    devices = [path for path in _DEVICES if os.path.exists(path)]
    change = AccessFs.WRITE_FILE | AccessFs.TRUNCATE
    own = change | AccessFs.READ_FILE | AccessFs.READ_DIR | AccessFs.MAKE_REG | AccessFs.REMOVE_FILE
    (
        Landlock()
        .add_path_rule(*readable, access=AccessFs.READ_FILE | AccessFs.READ_DIR | AccessFs.EXECUTE)
        .add_path_rule(*devices, access=AccessFs.READ_FILE)
        .add_path_rule(os.devnull, access=AccessFs.READ_FILE | change)
        .add_path_rule(folder, access=own)
        .apply()
    )
