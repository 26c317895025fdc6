"""What a run's first record says it is: cells and treatments, the programs that take part, what withholds verdicts.

A resumed run is held against it.

Which cells take a design by themselves: where the study leaves it to what a calibration on this host has shown.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec

from hugewise.errors import ProbeError, RunError
from hugewise.host.local_host import LocalHost
from hugewise.machine import fingerprint, probe
from hugewise.model import age
from hugewise.model.design import Kind, beside_its_own, must_agree
from hugewise.model.host import Host
from hugewise.model.policy import Deployment, mechanism
from hugewise.model.procedure import Staged
from hugewise.model.workload import without_defaults
from hugewise.plan.arms import Arm, GuestHouse
from hugewise.plan.plan import Cell, Plan
from hugewise.session.feasibility import make_plan
from hugewise.store.records import ArmRecord, CellRecord, Opened
from hugewise.study.study import Study


def cell_records(plan: Plan, kind: Kind, deployment: Callable[[Cell, Arm, int], Deployment]) -> tuple[CellRecord, ...]:
    """The plan's cells as they are stored: a resumed run must find the same.

    `kind`: of the study's design. `deployment`: how an arm is deployed whose workload takes so many bytes from a pool.
    """
    return tuple(
        CellRecord(
            id=cell.id,
            workload=cell.workload.name,
            values=cell.values,
            metric=cell.metric,
            baseline=cell.baseline,
            delivery=cell.delivery,
            arms=tuple(
                ArmRecord(
                    arm.name,
                    arm.treatment,
                    pool := cell.workload.pool(arm.treatment, cell.given(arm)),
                    deployment(cell, arm, pool),
                    arm.judged,
                    arm.kernel,
                    arm.backing,
                )
                for arm in cell.arms
            ),
            together=cell.together,
            kind=None if cell.kind == kind else cell.kind,
            at_most=cell.at_most,
            apart=cell.apart,
            memory_age=cell.memory_age,
            memory=cell.memory if age.pressed(cell.memory_age) else None,
            also=cell.also,
        )
        for cell in plan.cells
    )


def compared(cells: Iterable[CellRecord]) -> list[CellRecord]:
    """What of the cells a resumed run must find again: not how they are deployed, which is told and not done."""
    nothing = Deployment(note="")
    return [
        msgspec.structs.replace(
            cell,
            values=without_defaults(cell.values),
            arms=tuple(msgspec.structs.replace(arm, deployment=nothing) for arm in cell.arms),
        )
        for cell in cells
    ]


def withheld(
    study: Study, plan: Plan, records: Path, host: Host, machine: Callable[[Arm], Mapping[str, Any] | None]
) -> Mapping[str, str]:
    """Why cells get no verdict: the calibration that the study or its design needs is not there, or not good.

    `machine`: the guest that an arm runs in, None for this host.
    """
    auto = study.design.kind == "auto"
    if not must_agree(study.design.first) and not study.calibration.required and not auto:
        return {}
    from hugewise.analysis import calibration  # noqa: PLC0415  (numpy and the tests behind it)

    facts = fingerprint.fingerprint(host)
    known = calibration.load(records)
    here = calibration.HostNow(facts["machine"], host.name, facts["kernel"]["release"], time.time())

    def planned(cell: Cell, metric: str, called: str) -> calibration.Planned:
        return calibration.Planned(
            called,
            calibration.calibration_key(cell.workload.name, cell.values, metric, machine(cell.arm(cell.baseline))),
            cell.arm(cell.baseline).treatment,
            {arm.name: arm.treatment for arm in cell.arms if arm.name != cell.baseline},
        )

    own = [planned(cell, cell.metric.name, cell.id) for cell in plan.cells]
    found = calibration.withheld(study, own, known, here)
    # A cell that became resident by itself may have verdicts on its metric: each other has a calibration of its own.
    asked = msgspec.structs.replace(study, design=msgspec.structs.replace(study.design, kind="resident"))
    for cell in plan.cells:
        further = [planned(cell, one.name, beside_its_own(cell.id, one.name)) for one in cell.also]
        found |= calibration.withheld(asked if auto and cell.kind == "resident" else study, further, known, here)
    return found


def cpu() -> probe.Cpu | None:
    """The TLBs as the probe finds them, or None where it cannot say."""
    try:
        found = probe.ask("cpu")
    except ProbeError:
        return None
    return found if isinstance(found, probe.Cpu) else None


def versions() -> dict[str, str]:
    """The programs that take part, by name."""
    return {
        "hugewise": version("hugewise"),
        "hugewise-probe": probe.version(),
        "python": platform.python_version(),
        "libc": " ".join(platform.libc_ver()),
        "kernel": platform.release(),
    }


def check_host(path: Path, opened: Opened, host: Host) -> None:
    """One run measures one machine under one kernel, by one mechanism. Raises RunError on another.

    `opened` is the first record of the run in the folder `path`.
    """
    if opened.mechanism != mechanism(host):
        who = "root" if opened.mechanism == "system" else "an ordinary user"
        raise RunError(f"{path} was begun by {who}: its policies work by another mechanism", hint=f"resume as {who}")
    here = fingerprint.fingerprint(host)
    if opened.host.get("machine") != here["machine"]:
        raise RunError(f"{path} was begun on another machine ({opened.host.get('name')})", hint="resume it there")
    kernel = opened.host.get("kernel")
    before = kernel.get("release") if isinstance(kernel, Mapping) else None
    if before != here["kernel"]["release"]:
        raise RunError(
            f"{path} was begun under the kernel {before}; {here['kernel']['release']} runs now",
            hint="boot that kernel again, or start a new run of its study",
        )


def changes(opened: Opened, versions: Mapping[str, str], settings: Mapping[str, str]) -> Iterator[str]:
    """What is no longer as it was when the run began: programs and page settings."""
    for before, now in ((opened.versions, versions), (opened.settings, settings)):
        yield from (f"{said} when the run began" for said in differing(before, now))


def differing(before: Mapping[str, str] | None, now: Mapping[str, str]) -> Iterator[str]:
    """What is not as it was, in words; nothing where it is not known how it was."""
    for name, value in now.items() if before is not None else ():
        if (known := (before or {}).get(name)) != value:
            yield f"{name} is {value}, it was {known}"


def residents(opened: Opened) -> frozenset[str]:
    """The cells of a run that are resident though its study does not say so."""
    return frozenset(cell.id for cell in opened.cells if cell.kind == "resident")


def planned(study: Study, results: Path, guests: GuestHouse | None = None) -> Plan:
    """The plan of a new run of `study`, whose cells of servers are resident where the study leaves it to that, where a
    calibration in `results` lets them be, of each metric that they judge, and where they lose no arm by it. Raises
    StudyError, UserError.
    """
    plan = make_plan(study, guests=guests)
    if study.design.kind != "auto" or study.guest is not None or study.design.slots:
        return plan
    asked = msgspec.structs.replace(study, design=msgspec.structs.replace(study.design, kind="resident"))
    refused = withheld(asked, plan, results / "calibration", LocalHost(), lambda _: None)
    wanted = {
        cell.id: cell
        for cell in plan.cells
        if isinstance(cell.workload, Staged)
        and not refused.keys() & {cell.id, *(beside_its_own(cell.id, metric.name) for metric in cell.also)}
    }
    made = {cell.id: len(cell.arms) for cell in make_plan(study, resident=wanted).cells} if wanted else {}
    whole = [name for name, cell in wanted.items() if made.get(name) == len(cell.arms)]
    return make_plan(study, resident=whole) if whole else plan
