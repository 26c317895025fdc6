"""Coordinator's decisions: from the log and this process's observations to orders and records. Pure.

Time is seconds of a clock that nobody sets. Nothing is decided by a wall's clock, here or on a host.

`Decider` decides for one host or place at a time. `Agenda` knows which hosts have to be looked at: those that were
changed (`mark_changed`), and those that are due. So a decision costs as much with ten thousand hosts as with ten.
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
    AssignmentState,
    Checked,
    FleetClosed,
    FleetOpened,
    FleetRecord,
    FleetState,
    HostState,
    Placement,
    Purpose,
    RunForgotten,
    RunGivenUp,
    RunSettled,
    RunShipped,
)

_MOST_NAMED = 10

Step = Literal["begin", "look", "end", "ship", "judge", "forget"]


@dataclass(frozen=True)
class FleetRules:
    """Rules from the inventory; see `inventory.FleetTable`. `ending`: nothing is begun, and what runs is ended."""

    replace: bool = True
    patience: float = 600.0
    wait: float = 3600.0
    look: float = 60.0
    check: bool = True
    ending: bool = False


@dataclass
class Observations:
    """Observations of this process; a restart needs none of them.

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
class Decider:
    """Decisions about one host or one place; `Agenda` knows which of them need one."""

    state: FleetState
    view: Observations
    rules: FleetRules

    # -- records

    def of_host(self, name: str) -> Quarantine | Assign | None:
        host = self.state.hosts[name]
        if host.quarantined is None and (reason := self.unfit_reason(host)) is not None:
            return Quarantine(name, reason)
        if self.rules.ending or not self.rules.check or host.check != "not yet" or host.quarantined is not None:
            return None
        return Assign(name, "check") if self._idle(name) and name not in self.view.out else None

    def unfit_reason(self, host: HostState) -> str | None:
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

    def _ready(self, host: HostState) -> bool:
        checked = host.check == "passed" or not self.rules.check
        return host.quarantined is None and checked and host.name not in self.view.out and self._idle(host.name)

    def in_place(self, place: str, free: Callable[[Stratum], str | None]) -> Assign | GiveUp | Quarantine | None:
        """Return the record due for a host's place, or None; `free` names a host of a stratum that stands by."""
        if self.rules.ending:
            return None
        work, host = self.current(place)
        if work is None and self._ready(host):
            return Assign(host.name, "study", place=place)
        if work is not None and work.settled is not None and work.settled.state == "ended" and work.shipped is not None:
            return None
        if work is not None and work.began and work.settled is not None and work.settled.state != "ended":
            return None  # the treatment may be the cause: another host's result does not replace it
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

    def current(self, place: str) -> tuple[AssignmentState | None, HostState]:
        """Return the assignment that now measures in a place, and the host that has it, or is to have it."""
        work = self.state.places.get(place)
        return work, self.state.hosts[place if work is None else work.assigned.host]

    def free(self, name: str) -> bool:
        unused = all(work.assigned.purpose == "check" for work in self.state.of_host(name))
        host = self.state.hosts[name]
        return unused and self._ready(host) and self.unfit_reason(host) is None

    # -- orders

    def order(self, name: str, now: float) -> Act | None:
        """Return the host's next order: about its first assignment left. None while it is being asked, or not due."""
        if name in self.view.busy or now < self.view.due.get(name, 0.0):
            return None
        work = next((work for work in self.state.of_host(name) if work.open), None)
        return None if work is None else Act(self._step(work), work.number, name)

    def _step(self, work: AssignmentState) -> Step:
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

    # -- waiting

    def to_ask(self, name: str) -> bool:
        return name not in self.view.out and not self._idle(name)

    def awaited(self, place: str) -> bool:
        if self.rules.ending:
            return False
        work, host = self.current(place)
        over = work is not None and (work.settled is not None or work.given_up is not None)
        if host.name in self.view.out and host.quarantined is None and not over:
            return True
        return work is not None and self._to_come(work)

    def _to_come(self, work: AssignmentState) -> bool:
        ended = work.settled is not None and work.settled.state == "ended" and work.shipped is None
        gone = self.view.out.get(work.assigned.host)
        return ended and work.given_up is None and gone is not None and gone < self.rules.wait

    def told(self) -> str:
        """Describe how the fleet ended, in a sentence; names the hosts whose runs did not end regularly."""
        places = () if self.state.placement is None else self.state.placement.measuring
        counted = self.state.counted()
        whole = sum(work.settled is not None and work.settled.state == "ended" for work in counted)
        others = [
            f"{work.assigned.host} {work.settled.state}"
            for work in counted
            if work.settled is not None and work.settled.state != "ended"
        ]
        more = f" and {len(others) - _MOST_NAMED} more" if len(others) > _MOST_NAMED else ""
        unfinished = f"; before its end: {', '.join(others[:_MOST_NAMED])}{more}" if others else ""
        return f"{whole} of {len(places)} hosts have measured{unfinished}"


class Agenda:
    """Agenda of a fleet. `state` and `view` belong to the caller, who marks the hosts that changed in them."""

    def __init__(self, state: FleetState, view: Observations, rules: FleetRules) -> None:
        self._state, self._view = state, view
        self._moment = Decider(state, view, rules)
        placement = state.placement
        self._measuring = frozenset(() if placement is None else placement.measuring)
        self._spare = frozenset(() if placement is None else placement.spare)
        # In the order of their numbers, then hosts without a part.
        named = () if placement is None else (*placement.measuring, *placement.spare)
        self._touched: dict[str, None] = dict.fromkeys((*named, *state.hosts))
        self._to_ask: set[str] = set()
        self._awaited: set[str] = set()
        self._free: defaultdict[Stratum, dict[str, None]] = defaultdict(dict)
        self._wanting: defaultdict[Stratum, dict[str, None]] = defaultdict(dict)
        self._due: list[tuple[float, int, str]] = []
        self._count = itertools.count()

    def mark_changed(self, host: str) -> None:
        self._touched[host] = None

    def wrote(self, record: FleetRecord) -> None:
        match record:
            case Assigned():
                self.mark_changed(record.host)
                if record.replaces is not None:
                    self.mark_changed(self._state.assignments[record.replaces].assigned.host)
            case RunSettled() | Checked() | RunShipped() | RunForgotten() | RunGivenUp():
                self.mark_changed(self._state.assignments[record.number].assigned.host)
            case FleetOpened() | Placement() | FleetClosed():
                pass
            case _:
                self.mark_changed(record.host)

    def decide(self, now: float, most: int) -> list[Decision]:
        """Return the decisions due now: one record, or an order for each idle host of `most`; empty: wait."""
        while self._touched:
            name = next(iter(self._touched))
            if (record := self._written(name)) is not None:
                return [record]
            del self._touched[name]
            self._known(name, now)
        asked: list[Decision] = [*self._orders(now, most)]
        if asked or self._view.busy or self._state.closed is not None or self.waits():
            return asked
        return [Close(self._moment.told())]

    def waits(self) -> bool:
        """Return whether something is still to come: from a host that can be asked, or by a host's return."""
        return bool(self._to_ask or self._awaited)

    def next_due(self) -> float | None:
        return self._due[0][0] if self._due else None

    # -- of one host

    def _places(self, name: str) -> Iterator[str]:
        if name in self._measuring:
            yield name
        for work in self._state.of_host(name):
            if work.assigned.place not in (None, name):
                yield work.assigned.place

    def _written(self, name: str) -> Decision | None:
        if self._state.placement is None:
            return None
        if (name in self._measuring or name in self._spare) and (record := self._moment.of_host(name)) is not None:
            return record
        for place in self._places(name):
            if written := self._moment.in_place(place, lambda stratum, place=place: self._free_host(place, stratum)):  # type: ignore[misc]
                return written
        return None

    def _free_host(self, place: str, stratum: Stratum) -> str | None:
        for name in self._free[stratum]:
            if self._moment.free(name):
                return name
        self._wanting[stratum][place] = None
        return None

    def _known(self, name: str, now: float) -> None:
        _set_member(self._to_ask, name, holds=self._moment.to_ask(name))
        for place in self._places(name):
            _set_member(self._awaited, place, holds=self._moment.awaited(place))
        if name in self._spare:
            self._note_spare(name)
        if any(work.open for work in self._state.of_host(name)) and name not in self._view.busy:
            self._ask(name, max(now, self._view.due.get(name, now)))

    def _note_spare(self, name: str) -> None:
        greeted = self._state.hosts[name].greeted
        if greeted is None:
            return
        known = self._free[greeted.stratum]
        if not self._moment.free(name):
            known.pop(name, None)
        elif name not in known:
            known[name] = None
            for place in self._wanting.pop(greeted.stratum, {}):
                self.mark_changed(self._moment.current(place)[1].name)

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


def _set_member(known: set[str], name: str, *, holds: bool) -> None:
    if holds:
        known.add(name)
    else:
        known.discard(name)
