"""How a fleet is, in lines: from its log, and from what its coordinator saw last.

What a coordinator sees now, for who asks meanwhile: `now.json` in the fleet's folder. Nothing goes on from it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from hugewise import reading
from hugewise.files import storing, write_whole
from hugewise.fleet.folder import RESUME, FleetFolder
from hugewise.fleet.protocol import AssignmentSeen
from hugewise.fleet.records import FleetState, HostStanding
from hugewise.model.host import Clock
from hugewise.quantity import format_duration
from hugewise.visible import printable

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


_OLD_S = 60.0


def lines(path: Path) -> Iterator[str]:
    """The fleet in the folder `path`. Raises RunError."""
    state = FleetState.of(FleetFolder(path).records())
    try:
        snapshot = reading.stored(path / "now.json", FleetSnapshot)
    except reading.UnreadableError:
        snapshot = FleetSnapshot(t=0.0, seen={}, out={})
    yield f"fleet {state.opened.fleet} of {state.opened.study}: {_how(state, snapshot)}"
    for host in state.hosts.values():
        yield printable(f"  {host.name}: {_of_host(state, host, snapshot)}")
    if state.closed is None:
        yield f"to go on, where no coordinator works on it: hugewise fleet resume {path}"


def _how(state: FleetState, snapshot: FleetSnapshot) -> str:
    if state.closed is not None:
        return f"over; {state.closed.reason}"
    age = time.time() - snapshot.t
    if not snapshot.t or age > _OLD_S:
        return "under way; no coordinator has looked" + (f" for {format_duration(age)}" if snapshot.t else "")
    return "under way"


def _of_host(state: FleetState, host: HostStanding, snapshot: FleetSnapshot) -> str:
    works = state.of_host(host.name)
    work = works[-1] if works else None
    spare = state.stood is not None and host.name in state.stood.spare
    parts = []
    if host.quarantined is not None:
        parts.append(f"quarantined ({host.quarantined})")
    if host.out is not None:
        parts.append(f"out of reach ({host.out.reason})")
    if work is None or (work.assigned.purpose == "check" and work.forgotten):
        parts.append("stands by" if spare else "nothing begun yet" if work is None else "checked")
        return "; ".join(parts)
    what = "check" if work.assigned.purpose == "check" else "study"
    seen = snapshot.seen.get(host.name)
    if work.shipped is not None:
        late = "; late: another host took its place" if not work.counted and what == "study" else ""
        ended = "" if work.settled is None or work.settled.state == "ended" else f" ({work.settled.state})"
        parts.append(f"{what} brought{ended}: {work.shipped.folder}{late}")
    elif work.given_up is not None:
        parts.append(f"{what} given up: {work.given_up.reason}")
    elif work.settled is not None:
        parts.append(f"{what} {work.settled.state}, to be brought")
    elif seen is not None and seen.assignment.number == work.number:
        parts.append(f"{what} {_progress(seen)}")
    else:
        parts.append(f"{what} begun")
    return "; ".join(parts)


def _progress(seen: AssignmentSeen) -> str:
    left = "" if seen.left_s is None else f", {format_duration(seen.left_s)} left"
    share = "" if seen.cost.share is None else f", worker {seen.cost.share:.2%} of a core"
    why = f" ({seen.reason})" if seen.reason else ""
    return f"{seen.state}{why}: {seen.closed}/{seen.blocks} blocks{left}{share}"
