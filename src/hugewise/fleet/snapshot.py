"""What a coordinator sees now, for who asks meanwhile: `now.json` in the fleet's folder. Nothing goes on from it."""

from __future__ import annotations

from pathlib import Path

import msgspec

from hugewise.files import storing, write_whole
from hugewise.fleet.folder import RESUME
from hugewise.fleet.orders import AssignmentSeen
from hugewise.model.clock import Clock

__all__ = ["FleetSnapshot", "Snapshots"]

_EVERY_S = 2.0
_MOST_SHARE = 0.02  # of the coordinator's time, where a large fleet takes long to write


class FleetSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """By host the last answer to a look, and why a host is out of reach. `t`: UTC epoch seconds."""

    t: float
    seen: dict[str, AssignmentSeen]
    out: dict[str, str]


class Snapshots:
    """Written every two seconds, or more seldom."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path, self._clock = path, clock
        self._next = float("-inf")

    def due(self, now: float) -> bool:
        """Whether it is time for one."""
        return now >= self._next

    def write(self, snapshot: FleetSnapshot) -> None:
        """Have it on disk. Raises StorageError."""
        began = self._clock.up()
        with storing(str(self._path), RESUME):
            write_whole(self._path, msgspec.json.encode(snapshot))
        took = self._clock.up() - began
        self._next = began + max(_EVERY_S, took / _MOST_SHARE)
