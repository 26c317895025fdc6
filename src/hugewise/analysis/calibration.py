"""Calibration records, and whether they let a verdict stand.

A record lies in results/calibration/<host>/, a JSON file a calibration. It is valid for the machine, kernel, workload,
parameters and metric that it was made with, of guests for their accelerator, size, kernel and backing too, and for as
long as the study that asks says.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from hugewise import reading
from hugewise.analysis.calibration_figures import Agreement, Purchase, Relabelled, Stream
from hugewise.files import made_folder, storing, write_whole
from hugewise.model.design import must_agree
from hugewise.model.policy import Treatment
from hugewise.quantity import format_duration
from hugewise.study.study import Study

__all__ = [
    "Calibrated",
    "CalibrationRecord",
    "Here",
    "Planned",
    "identity",
    "load",
    "same",
    "save",
    "turns_of",
    "withheld",
]

_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
_BESIDE = {"service": ("ready_within", "fill_within", "stop_within", "pool_bytes")}


class Calibrated(msgspec.Struct, frozen=True, kw_only=True):
    """A workload's calibration. `key` says for which workload, parameters, metric and guest it counts."""

    key: str
    cell: str
    metric: str
    policy: str
    streams: tuple[Stream, ...]
    relabelled: Relabelled
    purchases: tuple[Purchase, ...]
    agreements: tuple[Agreement, ...]
    passed: bool
    reason: str


class CalibrationRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One calibration of one host. `planted` is the share by which one label's work was larger (0: none); `command` the
    command line that began it, as words: none where a program did, or it was not kept.
    """

    format: int = 1
    made: float
    host: str
    machine: str | None
    kernel: str | None
    versions: Mapping[str, str]
    study: str
    seed: str
    planted: float
    runs: tuple[str, ...]
    cells: tuple[Calibrated, ...]
    command: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether every cell did."""
        return all(cell.passed for cell in self.cells)


def same(workload: str, values: Mapping[str, Any], metric: str, guest: Mapping[str, Any] | None = None) -> str:
    """The key under which a calibration of this workload, parameters and metric is found again.

    `guest` is the machine that the baseline runs in (`Provided.identity`), None for the host: its noise is another's.
    Parameters that say how long to wait, and how much to reserve, change nothing of what is measured.
    """
    values = {name: value for name, value in values.items() if name not in _BESIDE.get(workload, ())}
    asked = [workload, values, metric] if guest is None else [workload, values, metric, guest]
    exact = msgspec.json.encode(asked, order="deterministic")
    return hashlib.sha256(exact).hexdigest()[:16]


def identity(treatment: Treatment) -> str:
    """A treatment's own key: its name does not count, what it does, does."""
    said = msgspec.structs.replace(treatment, policy="")
    exact = msgspec.json.encode(said, order="deterministic")
    if not treatment.surplus:  # those that were made before there was that are still of this treatment
        exact = exact.replace(b'"surplus":false,', b"", 1)
    if not treatment.layout:  # likewise
        exact = exact.removesuffix(b',"layout":""}') + b"}"
    return hashlib.sha256(exact).hexdigest()[:16]


def save(record: CalibrationRecord, folder: Path) -> Path:
    """Write it below `folder`/<host>/. Raises StorageError."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(record.made))
    path = folder / _UNSAFE.sub("-", record.host) / f"{stamp}-{_UNSAFE.sub('-', record.study)}-{record.seed[:4]}.json"
    with storing(str(path)):
        made_folder(path.parent)
        write_whole(path, msgspec.json.format(msgspec.json.encode(record), indent=1))
    return path


def load(folder: Path) -> list[CalibrationRecord]:
    """The records below `folder`, the newest first; what is not one is passed over."""
    found = []
    for path in folder.glob("*/*.json"):
        try:
            found.append(reading.stored(path, CalibrationRecord))
        except reading.UnreadableError:
            continue
    return sorted(found, key=lambda record: record.made, reverse=True)


class Here(msgspec.Struct, frozen=True):
    """The host as it is: machine id, name, kernel release, and the time."""

    machine: str | None
    host: str
    kernel: str | None
    now: float


class Planned(msgspec.Struct, frozen=True):
    """What `withheld` needs of a cell, or of a metric that is judged beside the cell's own (`id`: of both)."""

    id: str
    key: str
    baseline: Treatment
    arms: Mapping[str, Treatment]


def withheld(
    study: Study, cells: Iterable[Planned], records: Sequence[CalibrationRecord], here: Here
) -> dict[str, str]:
    """Why the verdicts of a cell are withheld, by cell; cells that may have verdicts are not in it."""
    kind = study.design.first
    if not (must_agree(kind) or study.calibration.required):
        return {}
    found = {}
    for cell in cells:
        reason = _withheld(study, cell, records, here)
        if reason is not None:
            design = "a duet" if kind == "duet" else f"a {kind} design"
            what = f"{design} must be calibrated" if must_agree(kind) else "the study requires a calibration"
            found[cell.id] = f"{what}, and {reason} (hugewise calibrate {study.file or 'STUDY'})"
    return found


def turns_of(study: Study) -> tuple[float | None, float | None]:
    """Length of a turn and the share of it that does not count, where the design is a resident one, or may be: shorter
    turns find more of what the others left in the caches.
    """
    design = study.design
    return (design.slice, design.wash_out) if design.kind in ("resident", "auto") else (None, None)


def _withheld(study: Study, cell: Planned, records: Sequence[CalibrationRecord], here: Here) -> str | None:
    """The first reason that holds."""
    known_here = [r for r in records if (r.host, r.machine, r.planted) == (here.host, here.machine, 0)]
    mine = [(r, c) for r in known_here for c in r.cells if c.key == cell.key]
    kind = study.design.first
    if must_agree(kind):
        mine = [(r, c) for r, c in mine if any(each.kind == kind for each in c.agreements)]
    if not mine:
        return "there is none of this workload on this host"
    record, calibrated = mine[0]
    if record.kernel != here.kernel:
        return f"the last one was under kernel {record.kernel}"
    age = here.now - record.made
    if age > study.calibration.age:
        return f"the last one is {format_duration(age)} old (age: {format_duration(study.calibration.age)})"
    if not calibrated.passed:
        return f"the last one failed: {calibrated.reason}"
    if must_agree(kind):
        known = {(each.treatment, each.baseline): each for each in calibrated.agreements if each.kind == kind}
        for name, treatment in cell.arms.items():
            held = known.get((identity(treatment), identity(cell.baseline)))
            if held is None:
                return f"the last one had not {name} beside the baseline"
            if (held.slice, held.wash_out) != turns_of(study):
                return f"the last one had other turns (slice, wash_out) for {name}"
            if not held.agrees:
                return f"for {name} {held.reason}"
    return None
