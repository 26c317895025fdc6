"""Two clocks: the wall's, to show when something was, and the machine's own, to say how long it took."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import msgspec

__all__ = ["CLOCK", "Clock", "Moment"]

Moment = Annotated[float, msgspec.Meta(ge=0, lt=253402300800)]
"""UTC epoch seconds before the year 10000: what a folder of somebody else says must be a date too."""


def _since_boot() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True)
class Clock:
    """Both in seconds.

    wall   since the epoch, UTC. Anybody may set it, forwards and back: it is for display alone
    up     since boot, which nobody can set. CLOCK_BOOTTIME, not CLOCK_MONOTONIC: that one stands still while a machine
           is suspended, and a block that was broken off by a night's sleep would look like one that went on
    """

    wall: Callable[[], float] = time.time
    up: Callable[[], float] = _since_boot


CLOCK = Clock()
"""Those of this machine."""
