"""What stands in the log of a fleet, as types: `log.jsonl`, a record a line, on disk before what it says is done.

Reading them again is all that a resumed coordinator knows; what a host said of its progress is not kept, and asked for
again. `decision` makes a state of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec

from hugewise.fleet.orders import Cost, FleetQuestion, Installed, KeeperState
from hugewise.fleet.strata import Stratum

__all__ = [
    "Assigned",
    "Checked",
    "FleetClosed",
    "FleetOpened",
    "FleetRecord",
    "HostGone",
    "HostGreeted",
    "HostQuarantined",
    "HostReturned",
    "Purpose",
    "RunForgotten",
    "RunGivenUp",
    "RunSettled",
    "RunShipped",
    "Stood",
]

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


class Stood(_Record, frozen=True, kw_only=True, tag="stood"):
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
    | Stood
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
