"""Log of a fleet, as types: `log.jsonl`, a record a line, on disk before the recorded action.

`FleetState` is the state that follows from the records (pure). A resumed coordinator knows nothing else; hosts' reports
of progress are not kept, and asked for again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

import msgspec

from hugewise.errors import RunError
from hugewise.fleet.inventory import Stratum
from hugewise.fleet.protocol import FleetQuestion, Installed, KeeperState

Purpose = Literal["check", "study"]
"""Purpose of an assignment: `check` is the host's own comparison of a setting with itself, before its study."""


class _Record(msgspec.Struct, frozen=True, kw_only=True, tag_field="record"):
    # `t`: UTC epoch seconds of the coordinator, for the reader.

    t: Annotated[float, msgspec.Meta(ge=0, lt=1e12)]


class FleetOpened(_Record, frozen=True, kw_only=True, tag="fleet_opened"):
    """First record. `hosts` are the names in the inventory, `digest` that of the study, as each run has it."""

    format: int = 1
    fleet: str
    study: str
    digest: str
    question: FleetQuestion
    hosts: tuple[str, ...]
    installed: Installed


class HostGreeted(_Record, frozen=True, kw_only=True, tag="host_greeted"):
    """Identity of a host, before anything was begun on it. `stratum` is also its name's key in the report."""

    host: str
    stratum: Stratum
    machine: str | None
    name: str
    root: bool
    installed: Installed
    left_out: tuple[str, ...] = ()


class Placement(_Record, frozen=True, kw_only=True, tag="stood"):
    """Record of fleets of before, some hosts of which stood by."""


class Assigned(_Record, frozen=True, kw_only=True, tag="assigned"):
    """A host is to run: written before it is told."""

    number: int
    host: str
    purpose: Purpose


class HostGone(_Record, frozen=True, kw_only=True, tag="host_gone"):
    """A host gave no answer."""

    host: str
    reason: str


class HostReturned(_Record, frozen=True, kw_only=True, tag="host_returned"):
    """A host answers again."""

    host: str


class HostQuarantined(_Record, frozen=True, kw_only=True, tag="host_quarantined"):
    """Nothing more is begun there, and why. What it has already measured stays what it is."""

    host: str
    reason: str


class RunSettled(_Record, frozen=True, kw_only=True, tag="run_settled"):
    """The run of an assignment has come to an end on its host; it is still to be shipped, where there is a folder."""

    number: int
    state: KeeperState
    run: str | None
    reason: str | None = None
    restarts: int = 0


class Checked(_Record, frozen=True, kw_only=True, tag="checked"):
    """Result of a host's comparison of a setting with itself. `reason`: why it did not pass; None: it did."""

    number: int
    reason: str | None = None


class RunShipped(_Record, frozen=True, kw_only=True, tag="run_shipped"):
    """A run's folder lies whole in the fleet's folder, at `folder` (relative). `digest`: SHA-256 over its manifest.

    `foreign`: why it is not a run of that host as it was greeted; such a run has no part. `seed_hash` is that of the
    run: each run has coins of its own.
    """

    number: int
    folder: str
    digest: str
    files: int
    size: int
    foreign: str | None = None
    seed_hash: str = ""


class RunForgotten(_Record, frozen=True, kw_only=True, tag="run_forgotten"):
    """The host keeps nothing of the run, or nothing that can be asked for."""

    number: int


class RunGivenUp(_Record, frozen=True, kw_only=True, tag="run_given_up"):
    """Nothing was brought of it, and nothing is waited for. `over`: its host has nothing of it either."""

    number: int
    reason: str
    over: bool = False


class FleetClosed(_Record, frozen=True, kw_only=True, tag="fleet_closed"):
    """Last record, for now: every assignment has come to its end, or was given up."""

    reason: str


FleetRecord = (
    FleetOpened
    | HostGreeted
    | Placement
    | Assigned
    | HostGone
    | HostReturned
    | HostQuarantined
    | RunSettled
    | Checked
    | RunShipped
    | RunForgotten
    | RunGivenUp
    | FleetClosed
)

CheckResult = Literal["not yet", "passed", "failed"]


@dataclass
class HostState:
    """A host. `out`: since when it is out of reach, as the log has it; `quarantined`: why nothing is begun on it."""

    name: str
    greeted: HostGreeted | None = None
    out: HostGone | None = None
    quarantined: str | None = None
    check: CheckResult = "not yet"


@dataclass
class AssignmentState:
    """An assignment."""

    assigned: Assigned
    settled: RunSettled | None = None
    shipped: RunShipped | None = None
    checked: Checked | None = None
    given_up: RunGivenUp | None = None
    forgotten: bool = False

    @property
    def number(self) -> int:
        return self.assigned.number

    @property
    def open(self) -> bool:
        """True if the host may still have files of the run that are to be brought or removed."""
        return not self.forgotten

    @property
    def counted(self) -> bool:
        """True if the run is one of those that are judged together."""
        return self.assigned.purpose == "study" and self.shipped is not None and self.shipped.foreign is None


@dataclass
class FleetState:
    """The fleet's state. `seeds`: host by the hash of its run's seed."""

    opened: FleetOpened
    hosts: dict[str, HostState] = field(default_factory=dict)
    assignments: dict[int, AssignmentState] = field(default_factory=dict)
    closed: FleetClosed | None = None
    seeds: dict[str, str] = field(default_factory=dict)
    _highest: int = 0
    _by_host: dict[str, list[AssignmentState]] = field(default_factory=lambda: defaultdict(list))

    @classmethod
    def of(cls, records: Iterable[FleetRecord]) -> FleetState:
        """Make the state from all records, the first of which opened the fleet. Raises RunError."""
        remaining = iter(records)
        first = next(remaining)
        assert isinstance(first, FleetOpened)  # `FleetFolder.records` sees to it
        state = cls(first, {name: HostState(name) for name in first.hosts})
        try:
            for record in remaining:
                state.add(record)
        except KeyError as error:
            why = f"the log of the fleet {first.fleet} speaks of {error.args[0]!r} before that is there"
            raise RunError(why, hint="put a copy of its log.jsonl back") from None
        return state

    def add(self, record: FleetRecord) -> None:
        match record:
            case HostGreeted():
                self.hosts[record.host].greeted = record
            case HostGone() | HostReturned():
                self.hosts[record.host].out = record if isinstance(record, HostGone) else None
            case HostQuarantined():
                self.hosts[record.host].quarantined = record.reason
            case Assigned():
                self._assigned(record)
            case RunSettled():
                assignment = self.assignments[record.number]
                assignment.settled, assignment.given_up = record, None  # it arrived after all
            case Checked():
                assignment = self.assignments[record.number]
                assignment.checked = record
                self.hosts[assignment.assigned.host].check = "passed" if record.reason is None else "failed"
            case RunShipped():
                assignment = self.assignments[record.number]
                assignment.shipped = record
                if record.seed_hash and record.foreign is None:
                    self.seeds.setdefault(record.seed_hash, assignment.assigned.host)
            case RunForgotten():
                self.assignments[record.number].forgotten = True
            case RunGivenUp():
                self.assignments[record.number].given_up = record
            case FleetClosed():
                self.closed = record

    def _assigned(self, record: Assigned) -> None:
        assignment = self.assignments[record.number] = AssignmentState(record)
        self._by_host[record.host].append(assignment)
        self._highest = max(self._highest, record.number)
        self.closed = None

    @property
    def next_number(self) -> int:
        return self._highest + 1

    def of_host(self, host: str) -> Sequence[AssignmentState]:
        return self._by_host.get(host, ())

    def counted(self) -> list[AssignmentState]:
        """Return the runs that are judged together, the first ones first: each host has one at most."""
        return [work for work in self.assignments.values() if work.counted]
