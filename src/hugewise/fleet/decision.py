"""Coordinator's decisions: from the log and this process's observations to orders and records. Pure.

Time is seconds of a clock that nobody sets. Nothing is decided by a wall's clock, here or on a host.

`Decider` decides for one host at a time. `Agenda` knows which hosts have to be looked at: those that were
changed (`mark_changed`), and those that are due. So a decision costs as much with ten thousand hosts as with ten.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

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
    ended    numbers that were ordered to end
    """

    begun: set[int] = field(default_factory=set)
    seen: dict[int, AssignmentSeen] = field(default_factory=dict)
    due: dict[str, float] = field(default_factory=dict)
    busy: set[str] = field(default_factory=set)
    out: dict[str, float] = field(default_factory=dict)
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
    """Decisions about one host; `Agenda` knows which hosts need one."""

    state: FleetState
    view: Observations
    rules: FleetRules

    # -- records

    def of_host(self, name: str) -> Quarantine | Assign | GiveUp | None:
        """Return the record due for a host, or None."""
        host = self.state.hosts[name]
        if host.quarantined is None and (reason := self.unfit_reason(host)) is not None:
            return Quarantine(name, reason)
        if self.rules.ending:
            return None
        work, gone = self.study_of(name), self.view.out.get(name, 0.0)
        if host.quarantined is None and name not in self.view.out and self._idle(name):
            if self.rules.check and host.check == "not yet":
                return Assign(name, "check")
            if work is None:
                return Assign(name, "study")
        if gone < self.rules.wait:
            return None
        why = f"{name} was out of reach for {gone:.0f} s"
        if work is None:
            return Quarantine(name, why) if host.quarantined is None else None
        return GiveUp(work.number, why) if work.given_up is None and work.settled is None else None

    def study_of(self, name: str) -> AssignmentState | None:
        """Return the host's assignment of the study."""
        return next((work for work in self.state.of_host(name) if work.assigned.purpose == "study"), None)

    def unfit_reason(self, host: HostState) -> str | None:
        for work in self.state.of_host(host.name):
            what = "the check before the study" if work.assigned.purpose == "check" else "the study"
            settled = work.settled
            if work.checked is not None and work.checked.reason is not None:
                return f"{what}: {work.checked.reason}"
            if work.shipped is not None and work.shipped.foreign is not None:
                return f"{what}: {work.shipped.foreign}"
            if settled is not None and settled.state != "ended" and settled.reason != ENDED:
                return f"{what} has {settled.state} there: {settled.reason or 'nobody knows why'}"
            if work.given_up is not None and settled is None:
                return f"{what}: {work.given_up.reason}"
        return None

    def _idle(self, host: str) -> bool:
        return not any(work.open for work in self.state.of_host(host))

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
            if self.rules.ending:
                return "look" if work.number in self.view.ended else "end"
            return "look" if work.number in self.view.begun else "begin"
        if settled.run is not None and work.shipped is None:
            return "ship"
        if work.assigned.purpose == "check" and work.shipped is not None and work.checked is None:
            return "judge"
        return "forget"

    # -- waiting

    def to_ask(self, name: str) -> bool:
        return name not in self.view.out and not self._idle(name)

    def awaited(self, name: str) -> bool:
        if self.rules.ending:
            return False
        work = self.study_of(name)
        over = work is not None and (work.settled is not None or work.given_up is not None)
        if name in self.view.out and self.state.hosts[name].quarantined is None and not over:
            return True
        return work is not None and self._to_come(work)

    def _to_come(self, work: AssignmentState) -> bool:
        ended = work.settled is not None and work.settled.state == "ended" and work.shipped is None
        gone = self.view.out.get(work.assigned.host)
        return ended and work.given_up is None and gone is not None and gone < self.rules.wait

    def told(self) -> str:
        """Describe how the fleet ended, in a sentence; names the hosts whose runs did not end regularly."""
        counted = self.state.counted()
        whole = sum(work.settled is not None and work.settled.state == "ended" for work in counted)
        others = [
            f"{work.assigned.host} {work.settled.state}"
            for work in counted
            if work.settled is not None and work.settled.state != "ended"
        ]
        more = f" and {len(others) - _MOST_NAMED} more" if len(others) > _MOST_NAMED else ""
        unfinished = f"; before its end: {', '.join(others[:_MOST_NAMED])}{more}" if others else ""
        return f"{whole} of {len(self.state.hosts)} hosts have measured{unfinished}"


class Agenda:
    """Agenda of a fleet. `state` and `view` belong to the caller, who marks the hosts that changed in them."""

    def __init__(self, state: FleetState, view: Observations, rules: FleetRules) -> None:
        self._state, self._view = state, view
        self._moment = Decider(state, view, rules)
        self._touched: dict[str, None] = dict.fromkeys(state.hosts)
        self._to_ask: set[str] = set()
        self._awaited: set[str] = set()
        self._due: list[tuple[float, int, str]] = []
        self._count = itertools.count()

    def mark_changed(self, host: str) -> None:
        self._touched[host] = None

    def wrote(self, record: FleetRecord) -> None:
        match record:
            case Assigned():
                self.mark_changed(record.host)
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
            if (record := self._moment.of_host(name)) is not None:
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

    def _known(self, name: str, now: float) -> None:
        _set_member(self._to_ask, name, holds=self._moment.to_ask(name))
        _set_member(self._awaited, name, holds=self._moment.awaited(name))
        if any(work.open for work in self._state.of_host(name)) and name not in self._view.busy:
            self._ask(name, max(now, self._view.due.get(name, now)))

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
