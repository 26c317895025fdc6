"""Record of an attempt: its outcome, the proof of its pages, and disturbances of the host (`hugewise.machine.noise`).

An attempt is never dropped for its noise, which the treatment itself may cause. On an emulated machine an attempt has
counts and sizes, and never a time: QEMU's TCG has no TLB, cache or pipeline, and its clock is the host's, or with
`-icount shift=0` one nanosecond an instruction (QEMU, docs/devel/tcg-icount.rst).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from hugewise.attempt import context, launching, outcome
from hugewise.attempt.context import AttemptState, Group
from hugewise.attempt.launching import unsampled
from hugewise.attempt.outcome import Outcome
from hugewise.host.pool import pool_folder
from hugewise.machine import noise, probe
from hugewise.machine.noise import CPU, Difference
from hugewise.model.metric import COMMON, NOT_IN_EMULATION, Metric
from hugewise.model.pages import pressed
from hugewise.model.policy import Treatment
from hugewise.model.trial import Attempt, Delivery
from hugewise.model.workload import OutputParser, OwnPool
from hugewise.plan.plan import Cell
from hugewise.processes import TICK
from hugewise.quantity import format_size
from hugewise.reading import UnreadableError
from hugewise.store import dataset
from hugewise.study.tables import Validity

# Clock sources that cost a device access for each reading, or (jiffies) are as coarse as a tick.
_SLOW_CLOCKS = ("hpet", "acpi_pm", "pit", "jiffies", "refined-jiffies")
_BACKGROUND = 0.005  # share of CPU time
_THP_TOLERANCE = 0.05  # share of memory: see `disturbances`


def disturbances(change: Difference, rules: Validity) -> tuple[str, ...]:
    """Return the rules that were broken between two snapshots, a sentence each; empty when the host was quiet.

    Both snapshots are to be taken while no attempt lives. Three rules need more than a comparison:

    - steal is counted in clock ticks, so it must be above the rule by more than one tick;

    - the load average contains the attempt itself, and earlier ones. The load of others is the average times their
    share of the CPU time used between the snapshots, so that a program with many threads does not flag itself;

    - huge pages of other programs flag when their amount changed: by any page of a hugetlb pool, or for transparent
    ones by more than 5% of memory. Under an arm that turns THP on for the whole machine every program gets some; a
    lower limit would flag that arm for what it does itself.
    """
    before, after = change.before, change.after
    found: list[str] = []
    capacity = change.elapsed_s * after.cpus
    if capacity > 0 and change.steal_s - TICK > rules.steal * capacity:
        found.append(f"steal {change.steal_s / capacity:.1%} of CPU time (rule: at most {rules.steal * 100:g}%)")
    if change.other_load is not None and change.other_load > rules.load_per_cpu * after.cpus:
        load = change.other_load / after.cpus
        found.append(f"load of other processes {load:.1f} per CPU (rule: at most {rules.load_per_cpu:g})")
    if change.swap_pages:
        found.append(f"{change.swap_pages:,} pages swapped (rule: none)")
    if change.throttles:
        found.append(f"throttled for heat at least {change.throttles:,} times (rule: none)")
    found += [
        f"{path.removeprefix(f'{CPU}/')} changed from {before.frequency.get(path)} to {value} (rule: no change)"
        for path, value in after.frequency.items()
        if before.frequency.get(path) != value
    ]
    if before.clock_source != after.clock_source:
        found.append(f"clock source changed from {before.clock_source} to {after.clock_source} (rule: no change)")
    elif after.clock_source in _SLOW_CLOCKS:
        found.append(f"clock source {after.clock_source} is slow to read (rule: the CPU's own counter)")
    return (*found, *_huge_page_users(change, after.memory_bytes))


def shared_work(background: Mapping[str, float], cpu_s: float | None, arms: int) -> Iterator[str]:
    """Yield the kernel threads whose work in the turns is above 0.5% of an arm's CPU time and a tick."""
    spent = sum(background.values())
    if cpu_s and spent - TICK > _BACKGROUND * cpu_s * arms:
        share = spent / (cpu_s * arms)
        names = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in sorted(background.items()))
        yield f"the kernel worked in the background ({names}): {share:.1%} of the CPU time of the arms, which share it"


def _huge_page_users(change: Difference, memory_bytes: int | None) -> Iterator[str]:
    for kind, delta in change.huge_in_use.items():
        moved = f"huge pages of other programs ({kind}) changed by {delta / (1 << 20):+,.0f} MiB"
        if kind.startswith("hugetlb:"):
            if delta:
                yield f"{moved} (rule: none)"
        elif memory_bytes is not None and abs(delta) > _THP_TOLERANCE * memory_bytes:
            yield f"{moved} (rule: at most {_THP_TOLERANCE:.0%} of memory)"


def only_exact(found: Outcome, own: Sequence[Metric], counted: int | None = None) -> Outcome:
    """`found` with what emulation counts exactly; everything else is null, with that reason.

    `own` are the metrics of the workload beside the common ones; `counted` the instructions of the timed region where
    the guest counts them.
    """
    kept = {metric.name for metric in (*COMMON, *own) if metric.emulated}
    metrics = {name: value if name in kept else None for name, value in found.metrics.items()}
    absent = {name: why for name, why in found.absent.items() if name in kept}
    absent |= {name: NOT_IN_EMULATION for name in metrics if name not in kept}
    if counted is not None:
        metrics["instructions"] = counted
        absent.pop("instructions", None)
    return msgspec.structs.replace(found, metrics=metrics, absent=absent, cpu_s=None)


def instructions(events: Sequence[probe.Event]) -> int | None:
    """Instructions of a micro-workload's timed region, on a guest whose clock goes by them: its nanoseconds."""
    result = outcome.last(events, probe.Result)
    return None if result is None else result.wall_ns


# Share of the memory of an arm in turns: memory that a server takes and returns meanwhile may have other pages.
_CHANGED = 0.02


def stored(group: Group, work: AttemptState) -> Attempt:
    """Return the attempt as it is kept, from everything that its steps have found."""
    bench, cell, arm, trial, driver = group.bench, group.cell, work.arm, work.trial, work.driver
    assert group.before is not None and group.after is not None
    host, change, timeless = noise.difference(group.before, group.after), work.change, work.site.machine.emulated
    proof = _proof(group, work, change)
    result = outcome.with_memory_kills(_outcome(group, work, change, proof), change)
    exited = outcome.last(work.events, probe.Exit)
    measured = exited.wall_ns / 1e9 if exited is not None else 0.0
    cpu_s = result.metrics.get("cpu_s", result.cpu_s)
    found, unread = _over_time(group, work, result.state, cpu_s)
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
        copy=trial.copy,
        slot=trial.slot,
        number=work.number,
        state=result.state,
        reason=result.reason,
        started=group.started,
        ended=group.ended,
        wall_s=result.wall_s,
        cpu_s=cpu_s,
        # The one clock is this host's, the other that of the machine where the command ran.
        overhead_s=max(0.0, time.monotonic() - group.clock - measured) if not timeless else None,
        steal_s=host.steal_s,
        pressure=host.pressure,
        boot_id=bench.boot_id,
        delivery=proof,
        knobs=work.knobs,
        metrics=result.metrics,
        absent=result.absent,
        # Events on this host move no count.
        disturbances=(
            *(() if timeless else disturbances(host, _rules(group))),
            *driver.marks,
            *shared_work(group.background, cpu_s, len(group.works)),
            *launching.marks(found.sampled),
        ),
        environment_pad=trial.environment_pad,
        peak_bytes=(sum(driver.peaks) or result.peak_bytes) if work.cgroup_peak is None else work.cgroup_peak,
        pool_bytes=cell.workload.pool(arm.treatment, cell.given(arm)),
        exit_code=result.exit_code,
        timed_out=result.timed_out,
        signal=result.signal,
        series=() if timeless else driver.reading.series,
        facts=driver.facts(),
        guest=work.backed.facts,
        begun=dict(driver.begun) if driver.served else _begun(work),
        aged=_aged(group, host),
        laid={} if work.laid is None else context.summary(work.laid),
        sampled=found.sampled,
        unsampled=unread,
        stalls=found.stalls,
    )


def _over_time(group: Group, work: AttemptState, state: str, cpu_s: float | None) -> tuple[launching.OverTime, str]:
    """Return the series over time, which lie in the attempt's folder then, or the reason why there are none."""
    why = unsampled(group, work) or ("" if work.events else "nothing was launched")
    if state != "accepted" or not group.alone(work):
        return launching.OverTime(), why or f"the attempt was not accepted ({state})"
    around = None if work.boarded.own else work.driver.around  # it is by this host's clock
    found = launching.over_time(work.events, around, cpu_s=cpu_s, base_size=work.site.base_size)
    if found.stored is not None:
        dataset.keep_samples(work.draft, found.stored)
    if found.sampled is None or found.sampled.period_s is None:
        return found, why or "the probe told no counters: see probe-stderr in the attempt's folder"
    return found, ""


def _rules(group: Group) -> Validity:
    # swapping is no disturbance where the study makes programs swap
    rules = group.bench.study.validity
    return msgspec.structs.replace(rules, swap=False) if pressed(group.cell.memory_age) else rules


def _aged(group: Group, host: noise.Difference) -> Mapping[str, int | float]:
    if not group.aged or not pressed(group.cell.memory_age) or host.swap_pages is None:
        return group.aged
    return {**group.aged, "swapped": host.swap_pages * group.works[0].site.base_size}


def _begun(work: AttemptState) -> dict[str, int]:
    exited = outcome.last(work.events, probe.Exit)
    counts = {} if exited is None else {name: getattr(exited, name) for name in ("forked", "executed", "threads")}
    return {name: count for name, count in counts.items() if count is not None}


def _proof(group: Group, work: AttemptState, change: noise.Difference | None) -> Delivery:
    """Return the proof of the attempt's pages. A layout that the library did not apply, or large pages that a server
    did not take by its own option, are not delivered, whatever is demanded.
    """
    found, cell, treatment = _backed(group, work, change), group.cell, work.arm.treatment
    why = None if work.laid is None else context.undelivered(work.laid, treatment)
    if isinstance(cell.workload, OwnPool):
        why = why or cell.workload.short(treatment, cell.given(work.arm), found.coverage)
    if work.arm.kernel is None:  # a guest has pools of its own
        why = why or _of_others(group, treatment, found.coverage)
    return found if why is None else msgspec.structs.replace(found, delivered=False, reason=why)


def _of_others(group: Group, treatment: Treatment, coverage: Mapping[str, int]) -> str | None:
    """Return why an arm that asks for no pool has pages reserved for others: its server takes pool pages that it finds.
    For a pool that existed before, nobody can tell whose its pages are.
    """
    if treatment.target.kind == "hugetlb" or treatment.layout:
        return None
    for size, pages in group.bench.pools.items():
        if not pages or not coverage.get(f"hugetlb:{size}"):
            continue
        if group.bench.settings.initial.get(f"{pool_folder(size)}/nr_hugepages") == "0":
            cure = "have its server told not to take them (PostgreSQL: huge_pages=off), or have no pool in this run"
            return f"it took pages of the pool that this run has reserved for other arms: {cure}"
    return None


def needs_twin(group: Group, work: AttemptState) -> bool:
    """Return whether the pages of a command are to be seen in an untimed twin, while its memory grows: as its workload
    asks, or where what a scan at its exit saw proves nothing. A process left before the root did; pages of a pool may
    have been given back; or most of the memory was, and the kernel's counters do not show the promised pages.
    Processes that were scanned while they were frozen need no twin: the scan saw all of them when they had most memory.
    """
    seen = outcome.total_coverage(event.bytes for event in work.events if isinstance(event, probe.Coverage))
    if work.command.proof != "exit":
        scanned = work.scanned_frozen and not outcome.gave_back(work.events, seen)
        return work.command.proof == "twin" and not scanned
    exited = outcome.last(work.events, probe.Exit)
    if exited is not None and exited.early_exits > 0 and not work.scanned_frozen:
        return True
    if outcome.pool_unseen(seen, work.arm.treatment.target, group.cell.threshold(work.arm).share):
        return True
    given_back = outcome.gave_back(work.events, seen)
    return given_back and _delivery_of(group, work, work.driver.coverage, work.change).delivered is not True


def _backed(group: Group, work: AttemptState, change: noise.Difference | None) -> Delivery:
    # an attempt that took turns is judged both before and after them
    if work.driver.filled is None:
        return _delivery_of(group, work, work.driver.coverage, change)
    before, after = (_delivery_of(group, work, seen, change) for seen in (work.driver.filled, work.driver.coverage))
    if before.delivered is not True:
        return msgspec.structs.replace(before, reason=f"before its turns: {before.reason}")
    demanded, first, last = group.cell.threshold(work.arm).share > 0, before.share or 0.0, after.share or 0.0
    if after.delivered is True and demanded and abs(last - first) > _CHANGED:
        why = f"its pages changed while the arms took turns: {first:.1%} at the stated size, then {last:.1%}"
        return msgspec.structs.replace(after, delivered=False, reason=why)
    return after


def _delivery_of(
    group: Group, work: AttemptState, seen: Sequence[probe.Coverage], change: noise.Difference | None
) -> Delivery:
    """Return the proof by what was `seen` of the servers, or by the attempt's own events."""
    cell, arm, command, site = group.cell, work.arm, work.command, work.site
    faults = work.cgroup_faults if work.cgroup_faults is not None else _faults(work.events)
    return outcome.coverage_proof(
        seen if work.driver.served else work.events,
        work.twin,
        noise.coverage_from_counters(change, faults, site.base_size)
        if change is not None and group.alone(work)
        else None,
        target=arm.treatment.target,
        proof="live" if work.scanned_frozen and command.proof == "twin" else command.proof,
        source=site.source,
        share=cell.threshold(arm).share,
        base_above=cell.threshold(arm).base_above,
        base_size=site.base_size,
        thp_disabled_by_us=arm.treatment.thp_disable != "none",
        success=command.success,
    )


def _outcome(group: Group, work: AttemptState, change: noise.Difference | None, proof: Delivery) -> Outcome:
    # each step adds its knowledge, and overrides the steps above it
    cell, driver, command, site = group.cell, work.driver, work.command, work.site
    # A client of servers has its own event with its figures, which the workload reads.
    elsewhere = group.bench.counting.elsewhere(work.trial.block) if work.arm.kernel is None else {}
    result = outcome.outcome(
        work.events,
        micro=command.micro and not driver.served,
        timeout_s=group.timeout,
        success=command.success,
        elsewhere=elsewhere,
    )
    around = change if driver.around is None else noise.difference(*driver.around)
    if around is not None:
        result = outcome.with_kernel_work(result, around, site.base_size, alone=group.alone(work))
    result = outcome.staged(
        result,
        driver.problem,
        driver.reading,
        servers=driver.use("sut") if driver.served else None,
        counted=driver.counted,
        seconds=driver.seconds,
        footprint=driver.footprint,
        elsewhere=elsewhere,
    )
    if driver.peaks:
        result = result.adding({"peak_bytes": max(driver.peaks)})
    if driver.visited:
        result = result.adding({"wall_s": None}, "one client was timed, which visited the servers of all arms")
    if isinstance(cell.workload, OutputParser) and work.broken is None:  # the output may have gone with its guest
        result = outcome.with_work(outcome.with_output(result, _parsed_output(cell.workload, cell, work)))
    result = outcome.with_footprint(result, proof).adding(
        {"lifetime_faults": work.cgroup_faults, "charged_peak_bytes": work.cgroup_peak}, "no cgroup counted it"
    )
    if site.machine.emulated:
        result = only_exact(result, cell.workload.metrics, work.boarded.instructions(work.events))
    if work.boarded.own and change is not None:  # anonymous faults served at each page size meanwhile
        served = {format_size(size): count for size, (count, _) in change.faults_by_size.items()}
        result = result.adding({f"allocations_{size}": count for size, count in served.items()})
    if work.broken is not None:
        # The emulator is not to blame for what the command had done by then.
        return result.failed(work.broken, "rejected" if work.let_down and not work.events else "failed")
    if group.faults_in_turns and result.state == "accepted" and (result.wall_s or 0.0) > cell.timeout:
        late = result.failed(f"timed out after {cell.timeout:g} s of its turns")
        return msgspec.structs.replace(late, timed_out=True)
    if work.backed.problem is not None and result.state == "accepted":
        return msgspec.structs.replace(result, state="rejected", reason=work.backed.problem)
    return result


def _parsed_output(workload: OutputParser, cell: Cell, work: AttemptState) -> Mapping[str, float] | str:
    try:
        return outcome.parse_output(workload, work.draft, cell.given(work.arm))
    except UnreadableError as error:
        return error.reason


def _faults(events: list[probe.Event]) -> int | None:
    usage = outcome.last(events, probe.Usage)
    return None if usage is None else usage.minor_faults + usage.major_faults
