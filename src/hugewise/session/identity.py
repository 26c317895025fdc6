"""First record of a run: cells and treatments, and the programs that take part.

A resumed run is compared with it. The cells that take turns, where the study leaves the design open, are recorded here
too.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.metadata import version
from pathlib import Path

import msgspec

from hugewise.errors import RunError
from hugewise.machine import fingerprint, probe
from hugewise.model import pages
from hugewise.model.design import Kind, TakingTurns, interleaved
from hugewise.model.host import Host
from hugewise.model.policy import Deployment, mechanism
from hugewise.model.workload import without_defaults
from hugewise.plan.arms import Arm, GuestHouse
from hugewise.plan.cells import TakesTurns
from hugewise.plan.plan import Cell, Plan
from hugewise.session.feasibility import make_plan
from hugewise.store.records import ArmRecord, CellRecord, Opened
from hugewise.study.study import Study


def cell_records(plan: Plan, kind: Kind, deployment: Callable[[Cell, Arm, int], Deployment]) -> tuple[CellRecord, ...]:
    """Return the plan's cells as they are stored: a resumed run must find the same.

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
            memory=cell.memory if pages.pressed(cell.memory_age) else None,
            also=cell.also,
            copies=cell.copies,
        )
        for cell in plan.cells
    )


def compared(cells: Iterable[CellRecord]) -> list[CellRecord]:
    """Return the parts of the cells that a resumed run must find again: not the deployment, which is only told."""
    nothing = Deployment(note="")
    return [
        msgspec.structs.replace(
            cell,
            values=without_defaults(cell.values),
            arms=tuple(msgspec.structs.replace(arm, deployment=nothing) for arm in cell.arms),
        )
        for cell in cells
    ]


def versions() -> dict[str, str]:
    """Return the programs that take part, by name."""
    return {
        "hugewise": version("hugewise"),
        "hugewise-probe": probe.version(),
        "python": platform.python_version(),
        "libc": " ".join(platform.libc_ver()),
        "kernel": platform.release(),
    }


def check_study(path: Path, study: Study) -> None:
    """Raise RunError where the study of the run in the folder `path` has a key of earlier versions that changes what is
    measured: attempts of now would not be like those before.
    """
    of_before = (
        ("resident of [guest]", study.guest is not None and study.guest.resident),
        ("covariate", study.covariate is not None),
        ("compact of [between]", study.between.compact),
        ("drop_caches of [between]", study.between.drop_caches),
        ("idle of [sampling]", study.sampling.idle > 0),
    )
    if names := [name for name, said in of_before if said]:
        raise RunError(
            f"{path}: its study has {', '.join(names)}, which this version does not offer",
            hint="start a new run of the study without it; the run's report can be read",
        )


def check_host(path: Path, opened: Opened, host: Host) -> None:
    """Raise RunError where machine, kernel or mechanism are not those at the run's begin.

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
    """Yield the programs and page settings that have changed since the run began."""
    for before, now in ((opened.versions, versions), (opened.settings, settings)):
        yield from (f"{said} when the run began" for said in differing(before, now))


def differing(before: Mapping[str, str] | None, now: Mapping[str, str]) -> Iterator[str]:
    """Yield the values that differ from `before`, in words; nothing where `before` is unknown."""
    for name, value in now.items() if before is not None else ():
        if (known := (before or {}).get(name)) != value:
            yield f"{name} is {value}, it was {known}"


def in_turns(opened: Opened) -> dict[str, TakesTurns]:
    """Return the cells of a run that take turns though its study does not say so, with the metric that is judged."""
    return {
        cell.id: TakesTurns(cell.kind, cell.metric.name)
        for cell in opened.cells
        if cell.kind is not None and interleaved(cell.kind)
    }


def planned(study: Study, guests: GuestHouse | None = None) -> Plan:
    """Return the plan of a new run of `study`. Where the study leaves the design open, a cell takes turns if its
    workload can and no arm is lost by that. Raises StudyError, UserError.
    """
    plan = make_plan(study, guests=guests)
    if study.design.kind != "auto" or study.guest is not None or study.design.slots:
        return plan
    able = {cell.id: TakesTurns("interleaved") for cell in plan.cells if isinstance(cell.workload, TakingTurns)}
    arms = {cell.id: len(cell.arms) for cell in make_plan(study, in_turns=able).cells} if able else {}
    whole = {cell.id: able[cell.id] for cell in plan.cells if cell.id in able and arms.get(cell.id) == len(cell.arms)}
    return make_plan(study, in_turns=whole) if whole else plan
