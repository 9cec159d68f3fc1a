"""See, or change, the sessions that a drafter opens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any


@contextmanager
def opening(drafter, change: Callable[[Any], None]) -> Iterator[None]:
    """Within it every session that drafters of this class open is shown to `change` first.

    At the class, since the engine asks a view of the drafter, which is another object of it.
    """
    kind = type(drafter)
    own, opened = vars(kind).get("open"), kind.open

    @wraps(opened)
    def changed(*args, **kwargs):
        session = opened(*args, **kwargs)
        change(session)
        return session

    kind.open = changed
    try:
        yield
    finally:
        if own is None:
            del kind.open  # it was inherited
        else:
            kind.open = own
