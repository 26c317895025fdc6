"""What a run's first record says it is: cells and treatments, the programs that take part, what withholds verdicts."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path

from hugewise import fingerprint, probe
from hugewise.errors import ProbeError
from hugewise.host import Host
from hugewise.pages import PageSizes
from hugewise.plan import Arm, Plan
from hugewise.runlog import ArmRecord, CellRecord
from hugewise.study import Study

__all__ = ["cell_records", "cpu", "versions", "withheld"]


def cell_records(plan: Plan, sizes: Callable[[Arm], PageSizes]) -> tuple[CellRecord, ...]:
    """The plan's cells as they are stored: a resumed run must find the same.

    `sizes`: the page sizes of the machine that an arm runs on.
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
                    arm.policy.deployment(sizes(arm), arm.treatment, pool),
                    arm.judged,
                    arm.kernel,
                    arm.backing,
                )
                for arm in cell.arms
            ),
            together=cell.together,
        )
        for cell in plan.cells
    )


def withheld(study: Study, plan: Plan, records: Path, host: Host) -> Mapping[str, str]:
    """Why cells get no verdict: the calibration that the study or its design needs is not there, or not good."""
    if study.design.kind != "duet" and not study.calibration.required:
        return {}
    from hugewise.calibration import record  # noqa: PLC0415  (numpy and the tests behind it)

    facts = fingerprint.fingerprint(host)
    return record.withheld(
        study,
        [
            record.Planned(
                cell.id,
                record.same(cell.workload.name, cell.values, cell.metric.name),
                cell.arm(cell.baseline).treatment,
                {arm.name: arm.treatment for arm in cell.arms if arm.name != cell.baseline},
            )
            for cell in plan.cells
        ],
        record.load(records),
        record.Here(facts["machine"], host.name, facts["kernel"]["release"], time.time()),
    )


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
        "hugewise-probe": version("hugewise-probe"),
        "python": platform.python_version(),
        "libc": " ".join(platform.libc_ver()),
        "kernel": platform.release(),
    }
