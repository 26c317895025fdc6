"""Which hosts a coordinator has to look at: those that something has happened to, and those that are due.

What is decided is `decision`'s, and of one host or place at a time. So a decision costs as much with ten thousand hosts
as with ten: everything that could change it is of a host, which is `touched` then.
"""

from __future__ import annotations

import heapq
import itertools
from collections import defaultdict
from collections.abc import Iterator

from hugewise.fleet.decision import Act, Close, Decision, FleetRules, Moment, View
from hugewise.fleet.records import (
    Assigned,
    Checked,
    FleetClosed,
    FleetOpened,
    FleetRecord,
    RunForgotten,
    RunGivenUp,
    RunSettled,
    RunShipped,
    Stood,
)
from hugewise.fleet.state import FleetState
from hugewise.fleet.strata import Stratum

__all__ = ["Agenda"]


class Agenda:
    """Of a fleet. `state` and `view` are its caller's, who says of which host something was changed in them."""

    def __init__(self, state: FleetState, view: View, rules: FleetRules) -> None:
        self._state, self._view = state, view
        self._moment = Moment(state, view, rules)
        stood = state.stood
        self._measuring = frozenset(() if stood is None else stood.measuring)
        self._spare = frozenset(() if stood is None else stood.spare)
        # In the order in which they are numbered, then any that has no part.
        named = () if stood is None else (*stood.measuring, *stood.spare)
        self._touched: dict[str, None] = dict.fromkeys((*named, *state.hosts))
        self._to_ask: set[str] = set()
        self._awaited: set[str] = set()
        self._free: defaultdict[Stratum, dict[str, None]] = defaultdict(dict)
        self._wanting: defaultdict[Stratum, dict[str, None]] = defaultdict(dict)
        self._due: list[tuple[float, int, str]] = []
        self._count = itertools.count()

    def look_at(self, host: str) -> None:
        """Something was changed that is of this host."""
        self._touched[host] = None

    def wrote(self, record: FleetRecord) -> None:
        """A record was added to the state."""
        match record:
            case Assigned():
                self.look_at(record.host)
                if record.replaces is not None:
                    self.look_at(self._state.works[record.replaces].assigned.host)
            case RunSettled() | Checked() | RunShipped() | RunForgotten() | RunGivenUp():
                self.look_at(self._state.works[record.number].assigned.host)
            case FleetOpened() | Stood() | FleetClosed():
                pass
            case _:
                self.look_at(record.host)

    def decide(self, now: float, most: int) -> list[Decision]:
        """What is to be done now. What is to be written down comes alone, and one by one: with it the next look at the
        state differs. Orders: one for each host that is not being asked already, of `most` hosts, who waits longest
        first. An empty list: wait, until something is answered or due.
        """
        while self._touched:
            name = next(iter(self._touched))
            if (found := self._written(name)) is not None:
                return [found]
            del self._touched[name]
            self._known(name, now)
        asked: list[Decision] = [*self._orders(now, most)]
        if asked or self._view.busy or self._state.closed is not None or self.waits():
            return asked
        return [Close(self._moment.told())]

    def waits(self) -> bool:
        """Whether something is still to come: of a host that can be asked, or whose return a place waits for."""
        return bool(self._to_ask or self._awaited)

    def next_due(self) -> float | None:
        """When a host is to be asked next; None where none is."""
        return self._due[0][0] if self._due else None

    # -- of one host

    def _places(self, name: str) -> Iterator[str]:
        """Those that it has, or had: its own first."""
        if name in self._measuring:
            yield name
        for work in self._state.of_host(name):
            if work.assigned.place not in (None, name):
                yield work.assigned.place

    def _written(self, name: str) -> Decision | None:
        if self._state.stood is None:
            return None
        if (name in self._measuring or name in self._spare) and (found := self._moment.of_host(name)) is not None:
            return found
        for place in self._places(name):
            if written := self._moment.in_place(place, lambda stratum, place=place: self._one_for(place, stratum)):  # type: ignore[misc]
                return written
        return None

    def _one_for(self, place: str, stratum: Stratum) -> str | None:
        """A free host of the stratum; where there is none, the place is looked at again when there is."""
        for name in self._free[stratum]:
            if self._moment.free(name):
                return name
        self._wanting[stratum][place] = None
        return None

    def _known(self, name: str, now: float) -> None:
        """Nothing of it is to be written down: note what is to come of it, and when."""
        _noted(self._to_ask, name, holds=self._moment.to_ask(name))
        for place in self._places(name):
            _noted(self._awaited, place, holds=self._moment.awaited(place))
        if name in self._spare:
            self._stands_by(name)
        if any(work.open for work in self._state.of_host(name)) and name not in self._view.busy:
            self._ask(name, max(now, self._view.due.get(name, now)))

    def _stands_by(self, name: str) -> None:
        greeted = self._state.hosts[name].greeted
        if greeted is None:
            return
        known = self._free[greeted.stratum]
        if not self._moment.free(name):
            known.pop(name, None)
        elif name not in known:
            known[name] = None
            for place in self._wanting.pop(greeted.stratum, {}):
                self.look_at(self._moment.now_in(place)[1].name)

    # -- orders

    def _ask(self, name: str, when: float) -> None:
        heapq.heappush(self._due, (when, next(self._count), name))

    def _orders(self, now: float, most: int) -> Iterator[Act]:
        while most > 0 and self._due and self._due[0][0] <= now:
            _, _, name = heapq.heappop(self._due)
            act = self._moment.order(name, now)
            if act is not None:
                most -= 1
                yield act
            elif name not in self._view.busy and (due := self._view.due.get(name, 0.0)) > now:
                self._ask(name, due)


def _noted(known: set[str], name: str, *, holds: bool) -> None:
    if holds:
        known.add(name)
    else:
        known.discard(name)
