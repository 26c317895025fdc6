"""What a run says to the keeper of a fleet that started it, and waits for: when attempts begin, when a block is over.

By a socket of the two, one JSON line at a time, each answered by one byte before the run goes on: so the keeper has
stopped what disturbs before the attempt begins. It falls into no timed region. A keeper that is gone is not waited for.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Literal

import msgspec

from hugewise.session import progress

__all__ = ["Told", "telling"]


class Told(msgspec.Struct, frozen=True):
    """A line. `closed` of `blocks` blocks count by now, and `left_s` seconds remain, where that is known."""

    event: Literal["started", "attempt", "block"]
    run: str = ""
    closed: int = 0
    blocks: int = 0
    left_s: float | None = None


def telling(descriptor: int, listener: progress.Listener) -> progress.Listener:
    """`listener`, and before it the keeper at the other end of the socket `descriptor`."""
    os.set_inheritable(descriptor, False)  # nothing that the run starts has it
    keeper = socket.socket(fileno=descriptor)
    tell = _teller(keeper)

    def both(event: progress.Event) -> None:
        match event:
            case progress.Started():
                tell(Told("started", run=event.run, closed=event.closed, blocks=event.blocks))
            case progress.AttemptStarted():
                tell(Told("attempt"))
            case progress.BlockEnded():
                tell(Told("block", closed=event.closed, blocks=event.blocks, left_s=event.left_s))
            case progress.Message():
                pass
        listener(event)

    return both


def _teller(keeper: socket.socket) -> Callable[[Told], None]:
    there = True

    def tell(what: Told) -> None:
        nonlocal there
        if there:
            there = False
            with suppress(OSError):
                keeper.sendall(msgspec.json.encode(what) + b"\n")
                there = bool(keeper.recv(1))

    return tell
