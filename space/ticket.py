"""Permission to go on with one generation.

A ticket is a small file: there is nothing else that a page's handler and a process forked by ZeroGPU both see at once. It is revoked
by removing the file, and runs out by itself when whoever reads the tokens is gone and renews it no more.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch
from transformers import StoppingCriteria

LEASE = 30.0  # seconds without a reader after which a generation ends; the longest prompt is read in a third of it


@dataclass(frozen=True)
class Ticket:
    """A ticket's file."""

    path: str

    @property
    def name(self) -> str:
        return os.path.basename(self.path)

    def renew(self) -> None:
        """Somebody still reads."""
        if os.path.exists(self.path):
            os.utime(self.path)

    def revoke(self) -> None:
        """The generation ends within a round."""
        Path(self.path).unlink(missing_ok=True)

    @property
    def valid(self) -> bool:
        try:
            return time.time() - os.stat(self.path).st_mtime < LEASE
        except FileNotFoundError:
            return False


class Halt(StoppingCriteria):
    """Ends a generation whose ticket is not valid any more or whose time is up; `reason` says which.

    Args:
        ticket: of the request. seconds: from now.
    """

    def __init__(self, ticket: Ticket, seconds: float):
        self.ticket, self.deadline = ticket, time.monotonic() + seconds
        self.reason: str | None = None

    def __call__(self, input_ids, scores, **kwargs):
        if self.reason is None and not self.ticket.valid:
            self.reason = "stopped"
        if self.reason is None and time.monotonic() > self.deadline:
            self.reason = "time"
        return torch.full((input_ids.shape[0],), self.reason is not None, device=input_ids.device)


@dataclass
class Desk:
    """Hands out tickets, one a session; Stop finds the right one here, also that of a request still in line.

    Attributes:
        held: each session's latest. begun: paths of those whose turn has come.
    """

    folder: str = field(default_factory=lambda: tempfile.mkdtemp(prefix="domino-space-"))
    held: dict[str, Ticket] = field(default_factory=dict)
    begun: set[str] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def issue(self, session: str) -> Ticket:
        """A ticket for the session's request; one it still holds is revoked."""
        handle, path = tempfile.mkstemp(dir=self.folder)
        os.close(handle)
        ticket = Ticket(path)
        with self.lock:
            before, self.held[session] = self.held.get(session), ticket
        if before is not None:
            before.revoke()
        return ticket

    def begin(self, session: str, name: str) -> Ticket | None:
        """The ticket of that name at its turn; None where it was stopped in line or a later one took its place."""
        with self.lock:
            ticket = self.held.get(session)
            if ticket is None or ticket.name != name:
                return None
            self.begun.add(ticket.path)
        ticket.renew()  # its lease begins with its turn
        return ticket

    def stop(self, session: str) -> bool:
        """Revoke the session's ticket; one still in line is off the desk at once. Returns whether it held one that was valid."""
        with self.lock:
            ticket = self.held.get(session)
        if ticket is None:
            return False
        valid = ticket.valid or ticket.path not in self.begun  # in line its lease has not begun
        if ticket.path in self.begun:
            ticket.revoke()
        else:
            self.give_back(session, ticket)
        return valid

    def give_back(self, session: str, ticket: Ticket) -> None:
        """The request is over."""
        ticket.revoke()
        with self.lock:
            self.begun.discard(ticket.path)
            if self.held.get(session) is ticket:
                del self.held[session]
