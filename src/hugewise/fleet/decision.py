"""What a coordinator does next: from what the log says, and what this process has seen, to orders and records. Pure.

Time is seconds of a clock that nobody sets. Nothing is decided by a wall's clock, here or on a host.

Which hosts a coordinator has to look at: those that something has happened to, and those that are due.

What is decided is `decision`'s, and of one host or place at a time. So a decision costs as much with ten thousand hosts
as with ten: everything that could change it is of a host, which is `touched` then.
"""

from __future__ import annotations

import heapq
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from hugewise.fleet.inventory import Stratum
from hugewise.fleet.protocol import ENDED, AssignmentSeen
from hugewise.fleet.records import (
    Assigned,
    Checked,
    FleetClosed,
    FleetOpened,
    FleetRecord,
    FleetState,
    FleetWork,
    HostStanding,
    Purpose,
    QueueStatus,
    RunForgotten,
    RunGivenUp,
    RunSettled,
    RunShipped,
)

_MOST_NAMED = 10

Step = Literal["begin", "look", "end", "ship", "judge", "forget"]


@dataclass(frozen=True)
class FleetRules:
    """What the inventory says of it; see `inventory.FleetTable`. `ending`: nothing is begun, and what runs is ended."""

    replace: bool = True
    patience: float = 600.0
    wait: float = 3600.0
    look: float = 60.0
    check: bool = True
    ending: bool = False


@dataclass
class View:
    """What this process has seen: nothing of it is needed to go on.

    begun    numbers that their hosts have confirmed, or were seen there
    seen     the last answer to a look, by number
    due      when a host is to be asked next; one that is not listed: now
    busy     hosts that are being asked
    out      seconds for which a host is known to give no answer, by calls that failed
    alone    the same, while it was not one of many that gave none
    ended    numbers that were ordered to end
    """

    begun: set[int] = field(default_factory=set)
    seen: dict[int, AssignmentSeen] = field(default_factory=dict)
    due: dict[str, float] = field(default_factory=dict)
    busy: set[str] = field(default_factory=set)
    out: dict[str, float] = field(default_factory=dict)
    alone: dict[str, float] = field(default_factory=dict)
    ended: set[int] = field(default_factory=set)


@dataclass(frozen=True)
class Act:
    """Do that step of an assignment, on its host."""

    step: Step
    number: int
    host: str


@dataclass(frozen=True)
class Assign:
    """Have a host run; its number is the next one."""

    host: str
    purpose: Purpose
    place: str | None = None
    replaces: int | None = None


@dataclass(frozen=True)
class Quarantine:
    """Begin nothing more on it."""

    host: str
    reason: str


@dataclass(frozen=True)
class GiveUp:
    """Wait for nothing more of an assignment."""

    number: int
    reason: str


@dataclass(frozen=True)
class Close:
    """Nothing is left to do."""

    reason: str


Decision = Act | Assign | Quarantine | GiveUp | Close


@dataclass(frozen=True)
class Moment:
    """What holds of one host or one place, by itself: which of them has to be looked at is what `Agenda` knows."""

    state: FleetState
    view: View
    rules: FleetRules

    # -- what is written down

    def of_host(self, name: str) -> Quarantine | Assign | None:
        """What is to be written down of a host itself: that nothing more is begun there, or its check."""
        host = self.state.hosts[name]
        if host.quarantined is None and (reason := self.unfit(host)) is not None:
            return Quarantine(name, reason)
        if self.rules.ending or not self.rules.check or host.check != "not yet" or host.quarantined is not None:
            return None
        return Assign(name, "check") if self._idle(name) and name not in self.view.out else None

    def unfit(self, host: HostStanding) -> str | None:
        """Why nothing more is to be begun on it: what ran there last did not come to its end as a run does."""
        for work in self.state.of_host(host.name):
            what = "the check before the study" if work.assigned.purpose == "check" else "the study"
            settled = work.settled
            if work.checked is not None and work.checked.reason is not None:
                return f"{what}: {work.checked.reason}"
            if work.shipped is not None and work.shipped.foreign is not None:
                return f"{what}: {work.shipped.foreign}"
            if work.replaced is not None:
                continue
            if settled is not None and settled.state != "ended" and settled.reason != ENDED:
                return f"{what} has {settled.state} there: {settled.reason or 'nobody knows why'}"
            if work.given_up is not None and settled is None:
                return f"{what}: {work.given_up.reason}"
        return None

    def _idle(self, host: str) -> bool:
        return not any(work.open for work in self.state.of_host(host))

    def _ready(self, host: HostStanding) -> bool:
        """Whether a study can be begun on it."""
        checked = host.check == "passed" or not self.rules.check
        return host.quarantined is None and checked and host.name not in self.view.out and self._idle(host.name)

    def in_place(self, place: str, free: Callable[[Stratum], str | None]) -> Assign | GiveUp | Quarantine | None:
        """What the place of a host needs: its first assignment, another one, or nothing. `free` names a host of a
        stratum that stands by and could measure at once, where there is one.
        """
        if self.rules.ending:
            return None
        work, host = self.now_in(place)
        if work is None and self._ready(host):
            return Assign(host.name, "study", place=place)
        if work is not None and work.settled is not None and work.settled.state == "ended" and work.shipped is not None:
            return None
        if work is not None and work.began and work.settled is not None and work.settled.state != "ended":
            return None  # it may have failed of the treatment: what another host would say is no answer to that
        gone, alone = self.view.out.get(host.name, 0.0), self.view.alone.get(host.name, 0.0)
        over = work is None or work.settled is not None or work.given_up is not None
        failed = host.quarantined is not None and over
        if not failed and max(alone, gone if gone >= self.rules.wait else 0.0) < self.rules.patience:
            return None
        replace = self.rules.replace and (failed or alone >= self.rules.patience)
        spare = free(host.greeted.stratum) if replace and host.greeted is not None else None
        if spare is not None:
            return Assign(spare, "study", place=place, replaces=None if work is None else work.number)
        if gone < self.rules.wait:
            return None
        why = f"{host.name} was out of reach for {gone:.0f} s, and no other host of its stratum was free"
        if work is None:
            return Quarantine(host.name, why) if host.quarantined is None else None
        return GiveUp(work.number, why) if work.given_up is None and work.settled is None else None

    def now_in(self, place: str) -> tuple[FleetWork | None, HostStanding]:
        """What measures in a place by now, and the host that does, or is to."""
        work = self.state.places.get(place)
        return work, self.state.hosts[place if work is None else work.assigned.host]

    def free(self, name: str) -> bool:
        """Whether a host that stands by could measure at once."""
        unused = all(work.assigned.purpose == "check" for work in self.state.of_host(name))
        host = self.state.hosts[name]
        return unused and self._ready(host) and self.unfit(host) is None

    # -- what is ordered

    def order(self, name: str, now: float) -> Act | None:
        """The next one to a host: of what it may still have, the first. None while it is being asked, or not due."""
        if name in self.view.busy or now < self.view.due.get(name, 0.0):
            return None
        work = next((work for work in self.state.of_host(name) if work.open), None)
        return None if work is None else Act(self._step(work), work.number, name)

    def _step(self, work: FleetWork) -> Step:
        settled = work.settled
        if work.given_up is not None and work.given_up.over:
            return "forget"
        if settled is None:
            wanted = work.replaced is None and not self.rules.ending
            if wanted and work.number not in self.view.begun:
                return "begin"
            return "look" if wanted or work.number in self.view.ended else "end"
        if settled.run is not None and work.shipped is None:
            return "ship"
        if work.assigned.purpose == "check" and work.shipped is not None and work.checked is None:
            return "judge"
        return "forget"

    # -- what is waited for

    def to_ask(self, name: str) -> bool:
        """Whether something is still to come of a host that can be asked."""
        return name not in self.view.out and not self._idle(name)

    def awaited(self, place: str) -> bool:
        """Whether the return of a host is waited for, which has a place."""
        if self.rules.ending:
            return False
        work, host = self.now_in(place)
        over = work is not None and (work.settled is not None or work.given_up is not None)
        if host.name in self.view.out and host.quarantined is None and not over:
            return True
        return work is not None and self._to_come(work)

    def _to_come(self, work: FleetWork) -> bool:
        """Whether its run has ended on a host that is out of reach, and may still be brought."""
        ended = work.settled is not None and work.settled.state == "ended" and work.shipped is None
        gone = self.view.out.get(work.assigned.host)
        return ended and work.given_up is None and gone is not None and gone < self.rules.wait

    def told(self) -> str:
        """How it ended, in a sentence; by name what did not end as a run does."""
        places = () if self.state.stood is None else self.state.stood.measuring
        counted = self.state.counted()
        whole = sum(work.settled is not None and work.settled.state == "ended" for work in counted)
        others = [
            f"{work.assigned.host} {work.settled.state}"
            for work in counted
            if work.settled is not None and work.settled.state != "ended"
        ]
        more = f" and {len(others) - _MOST_NAMED} more" if len(others) > _MOST_NAMED else ""
        told = f"; before its end: {', '.join(others[:_MOST_NAMED])}{more}" if others else ""
        return f"{whole} of {len(places)} hosts have measured{told}"


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
            case FleetOpened() | QueueStatus() | FleetClosed():
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
