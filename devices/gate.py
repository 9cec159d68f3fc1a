"""What never ran on a device is not on by default there: the check that turns it on runs by itself, once."""

import logging
import threading
from contextlib import ExitStack, suppress

import torch
from huggingface_hub.utils import WeakFileLock

from . identity import identity  # fmt: skip  # isort: skip
from . trial import LIMIT, trial  # fmt: skip  # isort: skip
from . verdict import Verdict, folder, keep, kept  # fmt: skip  # isort: skip

logger = logging.getLogger(__name__)
NAMES = {"triton": "Domino's Triton kernels", "graphs": "Domino's CUDA graphs"}
INSTEAD = {"triton": "torch computes instead", "graphs": "operations are launched one by one"}
_settled: dict[tuple, Verdict] = {}  # by this process
_one_at_a_time = threading.Lock()


def verdict(what: str, cases: str, device: torch.device, **environment: str) -> Verdict:
    """What is known of this device; where nothing is, the check runs, with a line in the log before and one after.

    Args:
        what: "triton" or "graphs". cases: `module:attribute`, see `child.py`.
        environment: variables that decide what is checked; the verdict holds for these values only.

    Returns:
        the verdict. One that could not be reached (`passed` None) holds for this process and is not kept.
    """
    with _one_at_a_time:
        key = _key(what, device, environment)
        if key not in _settled:
            _settled[key] = _kept_or_made(what, cases, device, environment)
        return _settled[key]


def _key(what: str, device: torch.device, environment: dict[str, str]) -> tuple:
    return what, str(device), *environment.items()


def _kept_or_made(what: str, cases: str, device: torch.device, environment: dict[str, str]) -> Verdict:
    with ExitStack() as stack:
        # The other processes of this machine wait for the first one's verdict, where the cache can be written, and not for ever.
        with suppress(OSError):
            stack.enter_context(WeakFileLock(folder() / "lock", timeout=2 * LIMIT))
        known = kept(what, {**identity(device), **environment})
        if known is None:
            logger.warning(
                "%s never ran on this device (%s): checking them once in another process, for at most %g s.",
                NAMES[what], device, LIMIT,
            )  # fmt: skip
            return check(what, cases, device, **environment)
    if not known.passed:
        _warn(known, f"the check of {known.when} found: ")
    return known


def check(what: str, cases: str, device: torch.device, **environment: str) -> Verdict:
    """Run the check whatever is known, keep its verdict if it reached one, and log it. Arguments as `verdict`'s."""
    made = trial(what, cases, device, LIMIT, {**identity(device), **environment}, environment)
    _settled[_key(what, device, environment)] = made
    if made.passed is not None:
        keep(made)
    if made.passed:
        logger.warning("%s passed on %s in %g s and are on from now on.", NAMES[what], device, made.seconds)
    else:
        _warn(made, "the check found: " if made.passed is False else "the check could not run: ")
    return made


def _warn(verdict: Verdict, how: str) -> None:
    """The reason's first line; `domino doctor` shows all of it."""
    reason = verdict.reason.strip().partition("\n")[0]
    logger.warning(
        "%s stay off here and %s; %s%s. `domino doctor` checks again and says more.",
        NAMES[verdict.what], INSTEAD[verdict.what], how, reason.rstrip("."),
    )  # fmt: skip
