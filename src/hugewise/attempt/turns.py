"""Turns of several participants: one runs for a while and all others are frozen.

Each turn begins with a wash-out, in which caches and queues fill again, and which does not count. Times are by
CLOCK_MONOTONIC, as the probe's; wall-clock times are computed from it, so that setting the clock meanwhile changes no
turn.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import msgspec

_READINGS = 5


class Player(Protocol):
    """Participant that takes turns with others. Each method raises HugewiseError."""

    def thaw(self) -> None:
        """Let the participant go on."""
        ...

    def freeze(self) -> None:
        """Freeze the participant; a frozen one stays so."""
        ...

    def wait(self, until: float) -> bool:
        """Wait until then, in seconds of CLOCK_MONOTONIC, or until its timed command has ended: True."""
        ...


class Turn(msgspec.Struct, frozen=True):
    """Turn, in UTC epoch seconds.

    player  whose it was, by number
    thawed  when it went on
    begin   from when on it counts: after the wash-out; never later than `end`
    end     just before it was frozen again, or when its timed command was seen to have ended
    ended   whether that was seen. The launcher says the end of the command itself, which may lie before
    """

    player: int
    thawed: float
    begin: float
    end: float
    ended: bool


def take_turns(
    players: Sequence[Player],
    order: Iterable[int],
    *,
    length: float,
    wash_out: float,
    monotonic: Callable[[], float] = time.monotonic,
    wall: Callable[[], float] = time.time,
) -> list[Turn]:
    """Let one after the other go on for `length` seconds, the first `wash_out` of which do not count.

    All are frozen to begin with, and in the end, also when something raises. `order` may be without end: it ends when
    every timed command has, and those whose command has ended are passed over. Raises HugewiseError, ValueError where
    nothing of a turn would count.
    """
    if not 0 <= wash_out < length:
        raise ValueError(f"wash_out = {wash_out:g} s: it is at least 0, and shorter than a turn ({length:g} s)")
    for player in players:
        player.freeze()
    # A delay between the two readings lowers the value.
    since_epoch = max(wall() - monotonic() for _ in range(_READINGS))
    on = set(range(len(players)))
    turns: list[Turn] = []
    for number in order:
        if not on:
            break
        if number not in on:
            continue
        player = players[number]
        try:
            player.thaw()
            thawed = monotonic()
            ended = player.wait(thawed + length)
            end = monotonic()
        finally:
            player.freeze()
        thawed, end = since_epoch + thawed, since_epoch + end
        turns.append(Turn(number, thawed, min(thawed + wash_out, end), end, ended))
        if ended:
            on.discard(number)
            if not on:
                break
    return turns
