"""Fleets on disk, with runs that are written here: what a coordinator would have brought back."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hugewise.fleet.folder import FleetFolder
from hugewise.fleet.inventory import Stratum
from hugewise.fleet.protocol import FleetQuestion, Installed
from hugewise.fleet.records import (
    Assigned,
    FleetClosed,
    FleetOpened,
    FleetRecord,
    HostGreeted,
    HostQuarantined,
    RunSettled,
    RunShipped,
)
from hugewise.store.records import CellRecord
from tests.analysis.test_forecast import cell, the_study, write_run
from tests.build.logs import rewritten


def stratum(cpu: str, **changes: str) -> Stratum:
    facts = {"microcode": "0x1", "kernel": "6.18", "libc": "glibc 2.36", "pages": "base 4096", "hypervisor": "none"}
    return Stratum(cpu=cpu, **facts | {"memory": "fresh"} | changes)


FAST, SLOW = stratum("Fast 9"), stratum("Slow 1")


class FleetHostMade(NamedTuple):
    """A host of a fleet: its effects (log-ratios of thp) by pair, or why it has none."""

    name: str
    of: Stratum = FAST
    effect: float = -0.1
    sd: float = 0.03
    pairs: int = 12
    quarantined: str = ""
    failing: bool = False
    changes: Mapping[str, Any] = {}


def installed() -> Installed:
    return Installed(
        version="0.1.0", package="0" * 64, probe="1" * 64, probe_version="0.1.0", python="3.11", machine="x86_64"
    )


def a_fleet(
    results: Path,
    hosts: Sequence[FleetHostMade],
    *,
    cells: tuple[CellRecord, ...] = (cell("chase", "thp"),),
    study: Mapping[str, Any] | None = None,
    records: Sequence[FleetRecord] = (),
    closed: bool = True,
    first: int = 1,
) -> Path:
    """A fleet's folder; each host has a run with an id, a seed and a mechanism of its own. `records` end its log.
    Machines and runs are numbered from `first` on: those of another fleet begin elsewhere.
    """
    of = the_study(**study or {})
    made = FleetFolder.new(results, of.name)
    made.make(study_toml="", hosts_toml="")
    made.append(
        FleetOpened(
            t=1.0,
            fleet=made.fleet,
            study=of.name,
            digest=of.digest,
            question=FleetQuestion(text="x"),
            hosts=tuple(host.name for host in hosts),
            installed=installed(),
        )
    )
    for number, host in enumerate(hosts, first):
        made.append(
            HostGreeted(
                t=2.0,
                host=host.name,
                stratum=host.of,
                machine=f"{number:016x}",
                name=host.name,
                root=True,
                installed=installed(),
            )
        )
        if host.quarantined:
            made.append(HostQuarantined(t=3.0, host=host.name, reason=host.quarantined))
            continue
        made.append(Assigned(t=3.0, number=number, host=host.name, purpose="study"))
        shipped = _run(results / "made", of, host, number, cells)
        place = made.path / "hosts" / host.name / f"20261120T21{number:04d}Z-{number:04d}"
        place.parent.mkdir()
        shutil.move(shipped, place)
        made.append(RunSettled(t=4.0, number=number, state="ended", run=place.name))
        folder = str(place.relative_to(made.path))
        made.append(RunShipped(t=5.0, number=number, folder=folder, digest="2" * 64, files=3, size=1))
    for record in (*records, *([FleetClosed(t=9.0, reason="all have measured")] if closed else [])):
        made.append(record)
    return made.path


def _run(results: Path, of: Any, host: FleetHostMade, number: int, cells: tuple[CellRecord, ...]) -> Path:
    random = np.random.default_rng(number % 1000)
    differences: list[float | None] = list(host.effect + host.sd * random.standard_normal(host.pairs))
    if host.failing:
        differences = [None] * host.pairs
    path = write_run(results / host.name, of, differences, cells=cells, seed=number)
    named = {"run": f"20261120T21{number:04d}Z-{number:04d}", "seed_hash": f"{number:064x}"}
    named |= {"host": {"name": host.name}} | dict(host.changes)
    rewritten(path, lambda records: [records[0] | named, *records[1:]])
    return path
