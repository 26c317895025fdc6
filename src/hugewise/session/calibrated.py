"""Which cells take a design by themselves: where the study leaves it to what a calibration on this host has shown."""

from __future__ import annotations

from pathlib import Path

import msgspec

from hugewise.host.local_host import LocalHost
from hugewise.model.design import beside_its_own
from hugewise.model.scene import Staged
from hugewise.plan.plan import Plan
from hugewise.plan.venue import GuestHouse
from hugewise.session.feasibility import make_plan
from hugewise.session.identity import withheld
from hugewise.store.records import Opened
from hugewise.study.study import Study

__all__ = ["planned", "residents"]


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
