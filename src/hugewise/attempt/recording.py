"""What is stored of an attempt: its outcome, the proof of its pages, and what the host did meanwhile."""

from __future__ import annotations

import time
from collections.abc import Mapping

import msgspec

from hugewise.attempt import emulation, outcome
from hugewise.attempt.disturbances import disturbances
from hugewise.attempt.underway import Group, Work
from hugewise.machine import noise, probe
from hugewise.model.trial import Attempt
from hugewise.model.workload import Hearing
from hugewise.plan.plan import Cell
from hugewise.quantity import format_size

__all__ = ["stored"]


def stored(group: Group, work: Work) -> Attempt:
    """The attempt as it is kept, from everything that its steps have found."""
    bench, cell, arm, trial = group.bench, group.cell, work.arm, work.trial
    assert group.before is not None and group.after is not None
    site = group.site(work)
    play, command = work.play, work.command
    # A client of servers has its own event with its figures, which the workload reads.
    own_result = command.micro and not work.is_client
    result = outcome.outcome(work.events, micro=own_result, timeout_s=cell.timeout, success=command.success)
    host = noise.difference(group.before, group.after)
    seen = (work.before, work.after) if work.before is not None and work.after is not None else None
    around = seen if play is None or play.around is None else play.around
    if around is not None:
        result = outcome.with_kernel_work(result, noise.difference(*around), site.base_size)
    if play is not None:
        result = outcome.staged(
            result,
            play.problem,
            play.reading,
            servers=play.use("sut") if work.is_client else None,
            counted=play.counted,
            measured=play.measured if work.is_client or play.scene.window is not None else None,
            footprint=play.footprint,
        )
    if isinstance(cell.workload, Hearing) and work.broken is None:  # what it said may have gone with its guest
        result = outcome.heard(result, _heard(cell.workload, cell, work))
    own_faults = work.cgroup_faults if work.cgroup_faults is not None else _faults(work.events)
    proof = outcome.coverage_proof(
        play.coverage if play is not None and work.is_client else work.events,
        work.twin,
        # The counters are the machine's: they cannot tell attempts apart that ran at once.
        noise.coverage_from_counters(*seen, own_faults, site.base_size)
        if seen is not None and (len(group.works) == 1 or work.guest is not None)
        else None,
        target=arm.treatment.target,
        proof=command.proof,
        source=site.source,
        share=cell.threshold(arm).share,
        base_above=cell.threshold(arm).base_above,
        base_size=site.base_size,
        thp_disabled_by_us=arm.treatment.thp_disable != "none",
        success=command.success,
    )
    result = outcome.with_footprint(result, proof)
    result = outcome.with_cgroup(result, work.cgroup_faults, work.cgroup_peak)
    if site.machine.emulated:
        counted = emulation.instructions(work.events) if work.guest is not None and work.guest.counting else None
        result = emulation.exact(result, cell.workload.metrics, counted)
    if work.guest is not None and result.state == "accepted":
        result = msgspec.structs.replace(result, metrics={**result.metrics, **_allocations(work)})
    if work.broken is not None:
        result = outcome.broken(result, work.broken)
    elif work.backed is not None and work.backed.problem is not None and result.state == "accepted":
        result = msgspec.structs.replace(result, state="rejected", reason=work.backed.problem)
    exited = outcome.last(work.events, probe.Exit)
    measured = exited.wall_ns / 1e9 if exited is not None else 0.0
    return Attempt(
        run=bench.folder.run,
        session=bench.session,
        block=trial.block,
        cell=cell.id,
        arm=arm.name,
        baseline=arm.name == cell.baseline,
        policy=arm.treatment.policy,
        mechanism=arm.treatment.mechanism,
        order=trial.order,
        slot=trial.slot,
        number=work.number,
        state=result.state,
        reason=result.reason,
        started=group.started,
        ended=group.ended,
        wall_s=result.wall_s,
        cpu_s=result.metrics.get("cpu_s", result.cpu_s) if not site.machine.emulated else None,
        # The one clock is this host's, the other that of the machine where the command ran.
        overhead_s=max(0.0, time.monotonic() - group.clock - measured) if not site.machine.emulated else None,
        steal_s=host.steal_s,
        pressure=host.pressure,
        boot_id=bench.boot_id,
        delivery=proof,
        knobs=work.knobs,
        metrics=result.metrics,
        absent=result.absent,
        disturbances=(
            # What happens to this host moves no count.
            *(() if site.machine.emulated else disturbances(group.before, group.after, bench.study.validity)),
            *(play.marks if play is not None else ()),
        ),
        environment_pad=trial.environment_pad,
        peak_bytes=result.peak_bytes if work.cgroup_peak is None else work.cgroup_peak,
        pool_bytes=cell.workload.pool(arm.treatment, cell.given(arm)),
        exit_code=result.exit_code,
        signal=result.signal,
        covariates=group.covariates,
        series=play.reading.series if play is not None and not site.machine.emulated else (),
        facts=play.facts() if play is not None else {},
        guest=work.backed.facts if work.backed is not None else {},
    )


def _heard(workload: Hearing, cell: Cell, work: Work) -> Mapping[str, float] | str:
    """The metrics in what the command said, or why they are not there."""
    stdout, stderr = ((work.draft / name).read_text(errors="replace") for name in ("stdout", "stderr"))
    try:
        return workload.hear(stdout, stderr, cell.given(work.arm))
    except ValueError as error:
        return str(error)


def _allocations(work: Work) -> Mapping[str, int]:
    """Anonymous faults served at each page size meanwhile, where the machine is this attempt's alone."""
    if work.before is None or work.after is None:
        return {}
    served = noise.difference(work.before, work.after).faults_by_size
    return {f"allocations_{format_size(size)}": count for size, (count, _) in served.items()}


def _faults(events: list[probe.Event]) -> int | None:
    usage = outcome.last(events, probe.Usage)
    return None if usage is None else usage.minor_faults + usage.major_faults
