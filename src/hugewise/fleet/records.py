"""What stands in the log of a fleet, as types: `log.jsonl`, a record a line, on disk before what it says is done.

Reading them again is all that a resumed coordinator knows; what a host said of its progress is not kept, and asked for
again. `decision` makes a state of them.

What the records of a fleet add up to. Pure: the same records make the same state, whoever reads them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

import msgspec

from hugewise.errors import RunError
from hugewise.fleet.inventory import Stratum
from hugewise.fleet.protocol import Cost, FleetQuestion, Installed, KeeperState

Purpose = Literal["check", "study"]
"""Of an assignment: `check` is the host's own comparison of the same with the same, before its study."""


class _Record(msgspec.Struct, frozen=True, kw_only=True, tag_field="record"):
    """`t`: UTC epoch seconds of the coordinator, for the reader."""

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
    """What a host is, before anything was begun on it. `stratum` is also its name's key in the report."""

    host: str
    stratum: Stratum
    machine: str | None
    name: str
    root: bool
    installed: Installed
    labels: Mapping[str, str] = {}
    left_out: tuple[str, ...] = ()


class QueueStatus(_Record, frozen=True, kw_only=True, tag="stood"):
    """Which hosts measure, and which stand by for one that is lost; the same for all of a fleet's life. `seed` of the
    lot that they were drawn by.
    """

    measuring: tuple[str, ...]
    spare: tuple[str, ...]
    seed: str = ""


class Assigned(_Record, frozen=True, kw_only=True, tag="assigned"):
    """A host is to run: written before it is told. `place`: of a study, the host that was to measure it first.
    `replaces`: the number before it in that place, whose host is out of reach or has failed: what still comes of it is
    late.
    """

    number: int
    host: str
    purpose: Purpose
    place: str | None = None
    replaces: int | None = None


class HostGone(_Record, frozen=True, kw_only=True, tag="host_gone"):
    """A host gave no answer."""

    host: str
    reason: str


class HostReturned(_Record, frozen=True, kw_only=True, tag="host_returned"):
    """It answers again."""

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
    cost: Cost = Cost()


class Checked(_Record, frozen=True, kw_only=True, tag="checked"):
    """What a host's comparison of the same with the same has shown. `reason`: why it did not pass; None: it did."""

    number: int
    reason: str | None = None


class RunShipped(_Record, frozen=True, kw_only=True, tag="run_shipped"):
    """Its folder lies whole in the fleet's folder, at `folder` (relative). `digest`: SHA-256 over its manifest.

    `late`: another host took its place before; both have part in the report. `foreign`: why it is not a run of that
    host as it was greeted; that has none. `seed_hash` is that of the run: each run has coins of its own.
    """

    number: int
    folder: str
    digest: str
    files: int
    size: int
    late: bool = False
    foreign: str | None = None
    seed_hash: str = ""


class RunForgotten(_Record, frozen=True, kw_only=True, tag="run_forgotten"):
    """Its host keeps nothing of it, or nothing that can be asked for."""

    number: int


class RunGivenUp(_Record, frozen=True, kw_only=True, tag="run_given_up"):
    """Nothing was brought back of it, and nothing is waited for any more. `over`: its host has nothing of it either;
    else it is brought when the host answers again.
    """

    number: int
    reason: str
    over: bool = False


class FleetClosed(_Record, frozen=True, kw_only=True, tag="fleet_closed"):
    """Last record, for now: every assignment has come to its end, or was given up."""

    reason: str


FleetRecord = (
    FleetOpened
    | HostGreeted
    | QueueStatus
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

Passed = Literal["not yet", "passed", "failed"]


@dataclass
class HostStanding:
    """A host. `out`: since when it is out of reach, as the log has it; `quarantined`: why nothing is begun on it."""

    name: str
    greeted: HostGreeted | None = None
    out: HostGone | None = None
    quarantined: str | None = None
    check: Passed = "not yet"


@dataclass
class FleetWork:
    """An assignment. `replaced`: the number that took its place: what still comes of it is late."""

    assigned: Assigned
    settled: RunSettled | None = None
    shipped: RunShipped | None = None
    checked: Checked | None = None
    given_up: RunGivenUp | None = None
    forgotten: bool = False
    replaced: int | None = None

    @property
    def number(self) -> int:
        """Its fence."""
        return self.assigned.number

    @property
    def began(self) -> bool:
        """Whether its run had a folder when it came to its end: its first attempt may have begun."""
        return self.settled is not None and self.settled.run is not None

    @property
    def open(self) -> bool:
        """Whether its host may still have something of it that is to be brought or removed."""
        return not self.forgotten

    @property
    def counted(self) -> bool:
        """Whether its run is one of those that are judged together."""
        whole = self.shipped is not None and not self.shipped.late and self.shipped.foreign is None
        return self.assigned.purpose == "study" and whole and self.replaced is None


@dataclass
class FleetState:
    """All of it. `places`: the assignment that measures the study in the place of each host by now; `seeds`: by the
    hash of a seed, the host whose run had it first.
    """

    opened: FleetOpened
    hosts: dict[str, HostStanding] = field(default_factory=dict)
    works: dict[int, FleetWork] = field(default_factory=dict)
    places: dict[str, FleetWork] = field(default_factory=dict)
    stood: QueueStatus | None = None
    closed: FleetClosed | None = None
    seeds: dict[str, str] = field(default_factory=dict)
    _highest: int = 0
    _by_host: dict[str, list[FleetWork]] = field(default_factory=lambda: defaultdict(list))

    @classmethod
    def of(cls, records: Iterable[FleetRecord]) -> FleetState:
        """From all records, the first of which opened the fleet. Raises RunError where they do not fit together."""
        found = iter(records)
        first = next(found)
        assert isinstance(first, FleetOpened)  # `FleetFolder.records` sees to it
        state = cls(first, {name: HostStanding(name) for name in first.hosts})
        try:
            for record in found:
                state.add(record)
        except KeyError as error:
            told = f"the log of the fleet {first.fleet} speaks of {error.args[0]!r} before that is there"
            raise RunError(told, hint="put a copy of its log.jsonl back") from None
        return state

    def add(self, record: FleetRecord) -> None:
        """Take in one more record."""
        match record:
            case HostGreeted() | HostGone() | HostReturned() | HostQuarantined():
                self._of_host(record, self.hosts[record.host])
            case Assigned():
                self._assigned(record)
            case RunSettled() | Checked() | RunShipped() | RunForgotten() | RunGivenUp():
                self._of_work(record, self.works[record.number])
            case QueueStatus():
                self.stood = record
            case FleetClosed():
                self.closed = record
            case FleetOpened():
                pass

    def _of_host(self, record: HostGreeted | HostGone | HostReturned | HostQuarantined, host: HostStanding) -> None:
        match record:
            case HostGreeted():
                host.greeted = record
            case HostGone():
                host.out = record
            case HostReturned():
                host.out = None
            case HostQuarantined():
                host.quarantined = record.reason

    def _assigned(self, record: Assigned) -> None:
        work = self.works[record.number] = FleetWork(record)
        self._by_host[record.host].append(work)
        self._highest = max(self._highest, record.number)
        if record.place is not None:
            self.places[record.place] = work
        if record.replaces is not None:
            self.works[record.replaces].replaced = record.number
        self.closed = None

    def _of_work(self, record: RunSettled | Checked | RunShipped | RunForgotten | RunGivenUp, work: FleetWork) -> None:
        match record:
            case RunSettled():
                work.settled, work.given_up = record, None  # it has come after all
            case Checked():
                work.checked = record
                self.hosts[work.assigned.host].check = "passed" if record.reason is None else "failed"
            case RunShipped():
                work.shipped = record
                if record.seed_hash:
                    self.seeds.setdefault(record.seed_hash, work.assigned.host)
            case RunForgotten():
                work.forgotten = True
            case RunGivenUp():
                work.given_up = record

    @property
    def next_number(self) -> int:
        """Larger than every number before."""
        return self._highest + 1

    def of_host(self, host: str) -> Sequence[FleetWork]:
        """Its assignments, the first ones first."""
        return self._by_host.get(host, ())

    def counted(self) -> list[FleetWork]:
        """The runs that are judged together, the first ones first: each place has one at most."""
        return [work for work in self.works.values() if work.counted]
