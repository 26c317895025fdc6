"""Analysis of a run's folder: the methods see the stored blocks again, and everything is summed up. No machine is
asked.

Only accepted attempts are summed up, as for medians.

A command, or a load, that does less work under an arm ends sooner, which is not the pages' doing. Only its own value
`operations` tells how much was done. Where arms differ in it by more than chance, the report says so; by more than the
margin, a time has no verdict: a time for each operation, or a rate, has one.

`Followed` has the results of a run that goes on: its log only grows, under a running hash, so that a method sees each
block once. When the run has ended, all is read anew.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, median, stdev

import msgspec

from hugewise import published, workloads
from hugewise.analysis import over_time
from hugewise.analysis.causes import Processor, causes
from hugewise.analysis.published import published_rows
from hugewise.errors import RunError, UserError
from hugewise.model.design import beside_its_own, qualified
from hugewise.model.guest import Accelerator, Backing, GuestsRecord
from hugewise.model.metric import OPERATIONS, WALL_US, Metric
from hugewise.model.policy import Deployment, Treatment
from hugewise.model.reason import CarryOver, Known, Withheld, WorkDiffers
from hugewise.model.results import (
    AgedArm,
    ArmSummary,
    CellResult,
    Comparison,
    Control,
    Fact,
    FactDifference,
    GuestArm,
    Guests,
    Integrity,
    Results,
    Steadiness,
)
from hugewise.model.trial import Attempt, Block, Judged, arm_of, label, pairs_of
from hugewise.model.workload import ParameterValue, StandIn
from hugewise.plan.deployment import GuestMemory, Planned, made_again
from hugewise.quantity import format_size
from hugewise.stats import inversion, signflip
from hugewise.stats.carry_over import bias, exposure
from hugewise.stats.changepoint import host_changes, steadiness
from hugewise.stats.classical import summarise
from hugewise.stats.end_points import EndPoint
from hugewise.stats.family import conclude, methods_for
from hugewise.stats.method import Contrast, Method
from hugewise.stats.paired import Student, paired
from hugewise.stats.pairs import Pair, Pairs, log_ratio, ratio_of
from hugewise.store.folder import RunFolder
from hugewise.store.log import going_on
from hugewise.store.records import ArmRecord, CellRecord, Noted, Run
from hugewise.study.study import Study


def aged_arms(cell: str, arms: Sequence[str], attempts: Sequence[Attempt]) -> tuple[AgedArm, ...]:
    """Return the memory state of each arm whose accepted attempts recorded it."""
    found = []
    for arm in arms:
        own = [one.aged for one in attempts if one.cell == cell and one.arm == arm and one.state == "accepted"]
        told = [one for one in own if one.get("free")]
        swapped = [int(one["swapped"]) for one in told if "swapped" in one]
        if told:
            found.append(
                AgedArm(
                    arm=arm,
                    n=len(told),
                    huge_share=max(one["free_huge"] / one["free"] for one in told),
                    huge_bytes=int(max(one["free_huge"] for one in told)),
                    pinned=int(median(one["pinned"] for one in told)),
                    swapped=int(median(swapped)) if swapped else None,
                )
            )
    return tuple(found)


_ACCELERATORS: Mapping[str, Accelerator] = {"kvm": "kvm", "tcg": "tcg"}

# Facts of a guest that every attempt of an arm has in common.
_SAME = (
    *("kernel_release", "kernel_sha256", "accelerator", "cpu_model", "guest_cpus", "guest_memory_bytes", "qemu"),
    *("image", "initramfs_sha256"),
)


def guests(
    cells: Sequence[CellRecord], attempts: Sequence[Attempt], record: GuestsRecord | None, versions: Mapping[str, str]
) -> Guests | None:
    """Return the guests of a run, by its `guests.json` or (older runs) its `versions`; None for a run on the host."""
    arms: dict[str, ArmRecord] = {}
    for cell in cells:
        for arm in cell.arms:
            if arm.kernel is not None:
                arms.setdefault(arm.name, arm)
    if not arms:
        return None
    found = tuple(_arm(arm, [one for one in attempts if one.arm == name]) for name, arm in arms.items())
    told = versions.get("accelerator", "").partition(": ")
    baseline = arms.get(cells[0].baseline)
    return Guests(
        arch=None if record is None else record.arch,
        accelerator=_ACCELERATORS.get(told[0]) if record is None else record.accelerator,
        why=told[2] if record is None else record.why,
        counting=record is not None and record.counting,
        baseline=record.baseline if record is not None else (baseline.kernel or "" if baseline is not None else ""),
        arms=found,
        kernels=() if record is None else record.kernels,
        shared_boots=boots_of(attempts),
    )


def boots_of(attempts: Sequence[Attempt]) -> int:
    """Return in how many boots of guests that stayed the attempts were: of runs of earlier versions alone."""
    return len({one.guest["resident_boot"] for one in attempts if "resident_boot" in one.guest})


def counted(metric: Metric, record: GuestsRecord | None) -> Metric:
    """Return the metric in the words of its source: counting guests have no hardware counter of instructions."""
    if record is None or not record.counting or metric.name != "instructions":
        return metric
    words = "instructions of the timed region, counted by emulation: the guest's clock goes by them"
    return msgspec.structs.replace(metric, description=words)


def _arm(arm: ArmRecord, attempts: Sequence[Attempt]) -> GuestArm:
    told = [one.guest for one in attempts if one.guest and one.state in ("accepted", "failed")]
    shares = [share for facts in told if isinstance(share := facts.get("backing_share"), int | float)]
    mapped = [share for facts in told if isinstance(share := facts.get("kvm_share"), int | float)]
    weakest = min(told, key=lambda facts: _number(facts.get("backing_share")), default={})

    def same(name: str) -> str:
        return " or ".join(_distinct(told, name))

    return GuestArm(
        arm=arm.name,
        policy=arm.treatment.policy,
        attempts=len(told),
        kernel=arm.kernel or "",
        release=same("kernel_release"),
        sha256=same("kernel_sha256"),
        backing=arm.backing or Backing(),
        share=min(shares, default=None),
        proof=str(weakest.get("backing_proof", "")),
        accelerator=same("accelerator"),
        cpu_model=same("cpu_model"),
        cpus=_whole(told, "guest_cpus"),
        memory=_whole(told, "guest_memory_bytes"),
        qemu=same("qemu"),
        image=same("image"),
        initramfs=same("initramfs_sha256"),
        kvm_share=min(mapped) if mapped and len(mapped) == len(told) else None,
        varied={name: tuple(values) for name in _SAME if len(values := _distinct(told, name)) > 1},
    )


def _distinct(told: Sequence[Mapping[str, Fact]], name: str) -> list[str]:
    return list(dict.fromkeys(str(facts[name]) for facts in told if name in facts))


def _whole(told: Sequence[Mapping[str, Fact]], name: str) -> int | None:
    return next((value for facts in told if isinstance(value := facts.get(name), int)), None)


def _number(value: Fact | None) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


def series_by_arm(cell: str, arms: Iterable[str], attempts: Iterable[Attempt]) -> dict[str, list[tuple[float, ...]]]:
    """Return the series of the accepted attempts of `cell` by arm, work a second, in the order of `arms`."""
    found: dict[str, list[tuple[float, ...]]] = {arm: [] for arm in arms}
    for attempt in attempts:
        if attempt.cell == cell and attempt.arm in found and attempt.state == "accepted" and attempt.series:
            found[attempt.arm].append(attempt.series)
    return {arm: several for arm, several in found.items() if several}


def steady_arms(cell: str, arms: Iterable[str], attempts: Iterable[Attempt]) -> tuple[Steadiness, ...]:
    """Return whether the throughput of each arm of `cell` had settled; empty where the workload has no series."""
    return tuple(steadiness(arm, several) for arm, several in series_by_arm(cell, arms, attempts).items())


def shared_facts(cell: str, attempts: Iterable[Attempt]) -> dict[str, Fact]:
    """Return the facts that all accepted attempts of `cell` have, with one value: the same data, versions, place."""
    told = [attempt.facts for attempt in _told(cell, attempts)]
    return {
        name: value
        for name, value in (told[0] if told else {}).items()
        if all(name in facts and facts[name] == value for facts in told)
    }


def differing_facts(cell: str, arms: Sequence[str], attempts: Iterable[Attempt]) -> tuple[FactDifference, ...]:
    """Return facts of `cell` in which arms or attempts differ: texts anywhere, and numbers that are fixed within each
    arm of two attempts at least (others are counts of what was done).
    """
    told = _told(cell, attempts)
    names = dict.fromkeys(name for attempt in told for name in attempt.facts)
    found = []
    for name in names:
        by_arm = {arm: [a.facts.get(name) for a in told if a.arm == arm] for arm in arms}
        by_arm = {arm: values for arm, values in by_arm.items() if values}
        distinct = {arm: tuple(dict.fromkeys(values)) for arm, values in by_arm.items()}
        if len({value for values in distinct.values() for value in values}) > 1 and _fixed(by_arm, distinct):
            found.append(FactDifference(name=name, values=distinct))
    return tuple(found)


def _told(cell: str, attempts: Iterable[Attempt]) -> list[Attempt]:
    # leaves out attempts of versions without facts
    return [a for a in attempts if a.cell == cell and a.state == "accepted" and a.facts]


def _fixed(by_arm: Mapping[str, Sequence[Fact | None]], distinct: Mapping[str, Sequence[Fact | None]]) -> bool:
    if any(isinstance(value, str) for values in distinct.values() for value in values):
        return True
    return all(len(values) == 1 for values in distinct.values()) and min(map(len, by_arm.values())) > 1


_COUNTING = ("command", "service")  # workloads that can be told a value
_FOR_EACH = (WALL_US.name, "server_cpu_us")
_ALPHA = 0.01
_LEAST = 0.001  # operations: none at all has a logarithm too


def with_work(one: Comparison, cell: CellRecord, blocks: Sequence[Block], margin: float) -> Comparison:
    """Return the comparison with the work behind it; without its verdict where that differs by more than `margin`."""
    named = _named(cell)
    if cell.workload not in _COUNTING or one.metric in _FOR_EACH or one.metric in named:
        return one
    if OPERATIONS not in named:
        return one if cell.workload == "command" or one.n == 0 else _unknown(one)
    pairs = list(_pairs(one, blocks))
    if len(pairs) < 2 or not _differ(pairs):
        return one
    ratio = math.exp(median(math.log(arm / base) for arm, base in pairs))
    differs = WorkDiffers(one.arm, one.baseline, ratio, len(pairs))
    if abs(ratio - 1) <= margin:
        return msgspec.structs.replace(one, warnings=(*one.warnings, differs))
    return msgspec.structs.replace(one, verdict="none", reason=Withheld("work", differs, one.reason), reach=None)


def with_carry_over(one: Comparison, blocks: Sequence[Block]) -> Comparison:
    """Return the comparison with the bias of its ratio that the orders of turns do not exclude, where kept."""
    if one.end_point:
        return one
    points = []
    for block in blocks:
        if not block.turns or block.state != "complete":
            continue
        both = pairs_of(block.attempts, one.arm, one.baseline)
        values = [(mine.value(one.metric) or 0.0, other.value(one.metric) or 0.0) for mine, other in both]
        if values and min(map(min, values)) > 0:
            x = exposure(block.turns, [*map(arm_of, block.arms)], one.arm, one.baseline)
            points.append((x, fmean(math.log(arm / baseline) for arm, baseline in values)))
    if not points:
        return one
    low, high = map(math.exp, found) if (found := bias(points, one.confidence)) else (None, None)
    return msgspec.structs.replace(one, warnings=(*one.warnings, CarryOver(low, high, len(points))))


def control(cell: CellRecord, blocks: Iterable[Block], study: Study) -> Control | None:
    """Return the comparison of each arm's two attempts in each of these blocks; None where there are none.

    The coin that draws the places also draws which of the two is the first, so that the test is exact.
    """
    ratios = []
    for block in blocks:
        known = {
            attempt.label: value
            for attempt in block.attempts
            if attempt.state == "accepted" and (value := attempt.value(cell.metric.name)) is not None and value > 0
        }
        if block.state == "complete":
            both = ((label(arm.name, 1), label(arm.name, 2)) for arm in cell.arms)
            ratios += [log_ratio(known[one], known[two]) for one, two in both if one in known and two in known]
    if not ratios:
        return None
    alpha, tests = 1 - study.confidence, paired(ratios)
    ends = tests.interval(alpha) if isinstance(tests, Student) else None
    return Control(
        n=len(ratios),
        ratio=ratio_of(inversion.point(ratios)),
        low=None if ends is None else ratio_of(ends[0]),
        high=None if ends is None else ratio_of(ends[1]),
        confidence=study.confidence,
        deviation=stdev(ratios) if len(ratios) > 1 else None,
        different=signflip.verdict(ratios, alpha, len(cell.arms) * math.ceil(study.budget.blocks / cell.copies)) != 0,
    )


def _unknown(one: Comparison) -> Comparison:
    return msgspec.structs.replace(one, warnings=(*one.warnings, Known("work unknown")))


def _named(cell: CellRecord) -> set[str]:
    given = cell.values.get("values", ())
    return {str(each).partition(",")[0].strip() for each in (given if isinstance(given, list | tuple) else ())}


def _pairs(one: Comparison, blocks: Sequence[Block]) -> Iterator[tuple[float, float]]:
    for block in blocks:
        sides = [
            [
                max(work, _LEAST)
                for attempt in block.attempts
                if attempt.arm == name
                and attempt.state == "accepted"
                and (work := attempt.metrics.get(OPERATIONS)) is not None
            ]
            for name in (one.arm, one.baseline)
        ]
        if all(sides):
            yield fmean(sides[0]), fmean(sides[1])


def _differ(pairs: Sequence[tuple[float, float]]) -> bool:
    if all(len(set(side)) == 1 for side in zip(*pairs, strict=True)):
        return pairs[0][0] != pairs[0][1]
    differences = [math.log(arm / base) for arm, base in pairs]
    return signflip.run(differences, _ALPHA, len(differences)).sign != 0


# Whoever can damage records can choose whose; no test can count what it does not know of.
_HASH = re.compile("[0-9a-fA-F]{64}")


def analyze(path: Path, *, expect: str | None = None) -> Results:
    """Return the results so far of the run in `path`; `expect`: its running hash. Raises RunError, UserError."""
    if expect is not None and _HASH.fullmatch(expect.strip()) is None:
        raise UserError(f"--expect {expect}: not 64 hexadecimal digits", hint="copy the whole hash that was noted")
    run = RunFolder(path).read()
    results = results_of(run)
    if expect is None:
        return results
    if run.torn:
        raise RunError(
            f"{path}: behind the last newline of run.jsonl stands what is no record: it has no hash",
            hint="a kill or a full disk may leave that, and so may others: look at it, and cut it off",
        )
    if run.hash is None or expect.strip().lower() != run.hash:
        here = f"is {run.hash}" if run.hash else "is not there" if run.chained else "was not kept by its version"
        raise RunError(
            f"{path}: its last running hash {here}: it is not the one that was expected",
            hint="records were altered, cut off or added since that was noted; a run that was resumed has a new one",
        )
    return msgspec.structs.replace(results, integrity=Integrity(state="unaltered", hash=run.hash))


class Judging:
    """The methods of a run's study, which see its blocks as they come."""

    def __init__(self, run: Run) -> None:
        self._study = run.study
        self._methods = methods_for(run.study, run.opened.cells, coins=run.opened.coins)
        self._of_cell = defaultdict[str, list[Method]](list)
        for method in self._methods:
            self._of_cell[method.contrast.cell].append(method)
        self._seen = 0

    def found(self, blocks: Sequence[Block]) -> list[tuple[Method, Comparison]]:
        """Return each method after all of the `blocks`, with what it says. They begin with those of the last call."""
        for block in blocks[self._seen :]:
            for method in self._of_cell[block.cell]:  # the blocks of other cells change nothing
                method.observe(block)
        self._seen = len(blocks)
        concluded = conclude(self._methods, self._study.confidence, self._study.margin)
        return list(zip(self._methods, concluded, strict=True))


def judge_run(run: Run) -> list[tuple[Method, Comparison]]:
    """Return each method of the run's study after all of its blocks, with what it says."""
    return Judging(run).found(run.blocks)


def results_of(run: Run, found: Sequence[tuple[Method, Comparison]] | None = None) -> Results:
    """Return the results of a run that was read; `found`: as `judged` has it, if known already. Raises RunError."""
    opened, study, blocks, closed = run.opened, run.study, run.blocks, run.closed
    looked = run.looked_last
    found = judge_run(run) if found is None else found
    attempts = [attempt for block in blocks for attempt in block.attempts]
    attempts += run.left_open.attempts if run.left_open is not None else []
    states = Counter(block.state for block in blocks)
    problems: list[str] = []
    cells = tuple(_cell(cell, run, attempts, found, problems) for cell in opened.cells)
    results = Results(
        run=opened.run,
        study=opened.study,
        question=study.question,
        folder=str(run.path),
        state=closed.state if closed is not None else "running" if going_on(run.path) else "interrupted",
        started=opened.t,
        ended=run.records[-1].t,
        seed_hash=opened.seed_hash,
        seed=closed.seed if closed is not None else None,
        confidence=study.confidence,
        margin=study.margin,
        mechanism="system" if opened.mechanism == "system" else "process",
        host=opened.host,
        versions=opened.versions,
        settings=opened.settings,
        options=_options(study),
        blocks_complete=states["complete"],
        blocks_incomplete=states["incomplete"],
        blocks_disturbed=states["disturbed"],
        disturbances=(*_disturbances(run, attempts), *_host_changes(opened.cells, blocks), *problems),
        left_out=opened.left_out,
        cells=cells,
        attempts=tuple(attempts),
        guests=guests(opened.cells, attempts, run.guests, opened.versions),
        earlier=looked.earlier,
        earlier_shared=looked.earlier_shared,
        earlier_unread=looked.earlier_unread,
        integrity=_integrity(run),
        command=opened.command,
    )
    if study.published is None:
        return results
    uses = [(use.called, use.published) for use in study.workload]
    stood = published_rows(published.load(study.published), uses, study.published_arms, results)
    return msgspec.structs.replace(results, beside=stood)


def _cell(
    cell: CellRecord,
    run: Run,
    attempts: Sequence[Attempt],
    found: Sequence[tuple[Method, Comparison]],
    problems: list[str],
) -> CellResult:
    names = [arm.name for arm in cell.arms]
    metric = counted(cell.metric, run.guests)
    own = [block for block in run.blocks if block.cell == cell.id]
    arms = {
        arm.name: msgspec.structs.replace(
            summarise(
                own,
                arm.name,
                metric,
                run.study.confidence,
                policy=arm.treatment.policy,
                mechanism=arm.treatment.mechanism,
                treatment=described(arm.treatment),
                deployment=_deployed(cell, arm, run),
            ),
            judged=_judged(cell, arm),
        )
        for arm in cell.arms
    }
    mine = [one for one in attempts if one.cell == cell.id and one.state == "accepted"]
    kind = cell.kind or run.study.design.first
    if cell.together and kind == "sequential":  # guests that ran together were a duet
        kind = "duet"
    boots = boots_of(mine) or None
    comparisons: list[Comparison] = []
    end_points: list[Comparison] = []
    declared: list[Comparison] = []
    for method, comparison in found:
        if method.contrast.cell == cell.id:
            further = method.contrast.metric.name != cell.metric.name
            key = beside_its_own(cell.id, method.contrast.metric.name) if further else cell.id
            said = qualified(comparison, kind, run.opened.withheld.get(key), boots)
            said = with_carry_over(with_work(said, cell, own, run.study.margin), own)
            its = end_points if isinstance(method, EndPoint) else declared if further else comparisons
            its.append(_with_shares(said, arms))
    compared = [method.contrast for method, _ in found if method.contrast.cell == cell.id]
    first = [one for one in compared if one.baseline == cell.baseline and one.metric.name == cell.metric.name]
    contrasts = list({one.arm: one for one in first}.values())
    paired = over_time.BesideJudged(own, run.study.budget.blocks, run.study.confidence, run.study.margin)
    stalls = tuple(over_time.worst_stalls(names, mine))
    machine = Processor.of(run.opened.host, guests=run.guests is not None)
    return CellResult(
        cell=cell.id,
        workload=cell.workload,
        parameters=cell.values,
        metric=metric,
        baseline=cell.baseline,
        arms=tuple(arms.values()),
        comparisons=tuple(comparisons),
        end_points=tuple(end_points),
        also=cell.also,
        copies=cell.copies,
        control=control(cell, own, run.study) if cell.copies > 1 else None,
        declared=tuple(declared),
        facts=shared_facts(cell.id, attempts),
        differing=differing_facts(cell.id, names, attempts),
        steadiness=steady_arms(cell.id, names, attempts),
        tail=tuple(over_time.tail(contrasts, mine, paired)),
        footprints=tuple(over_time.footprints(contrasts, mine, paired)),
        stalls=stalls,
        over_time=tuple(over_time.series_of_arms(run.path, names, metric.name, mine, problems)),
        sampler=over_time.sampler_cost(mine),
        memory_age=cell.memory_age,
        memory=cell.memory,
        aged=aged_arms(cell.id, names, attempts),
        stand_ins=stand_ins_of(cell.workload, cell.values),
        causes=causes(metric, comparisons, own, arms, machine, memory_age=cell.memory_age, stalls=stalls),
    )


def stand_ins_of(name: str, values: Mapping[str, ParameterValue]) -> tuple[str, ...]:
    """Return the programs of a workload that stand in for those of published figures; none for an unknown workload."""
    workload = workloads.discover().get(name)
    if not isinstance(workload, StandIn):
        return ()
    with contextlib.suppress(KeyError):  # of a version with other parameters
        return workload.stand_ins(values)
    return ()


def _integrity(run: Run) -> Integrity:
    return Integrity(state="consistent" if run.chained else "no running hash", hash=run.hash)


def _judged(cell: CellRecord, arm: ArmRecord) -> Judged:
    required = cell.delivery.of(arm.judged).share > 0 and arm.treatment.target.kind != "any"
    return "backing" if required else "setting"


def _with_shares(comparison: Comparison, arms: Mapping[str, ArmSummary]) -> Comparison:
    arm, baseline = arms[comparison.arm], arms[comparison.baseline]
    return msgspec.structs.replace(
        comparison,
        judged=arm.judged,
        delivered_share=arm.delivered_share,
        baseline_judged=baseline.judged,
        baseline_share=baseline.delivered_share,
    )


def _deployed(cell: CellRecord, arm: ArmRecord, run: Run) -> Deployment:
    workload, guest = workloads.discover().get(cell.workload), None
    if workload is None:
        return Deployment(note=f"there are no files: hugewise knows no workload {cell.workload}")
    if arm.kernel is not None and arm.backing is not None and run.study.guest is not None:
        kernels = () if run.guests is None else run.guests.kernels
        base = next((one.base_page for one in kernels if one.name == arm.kernel), None)
        emulated = run.guests is not None and run.guests.accelerator == "tcg"
        guest = GuestMemory(arm.kernel, base or 4096, arm.backing, run.study.guest.memory, emulated)
    values = {**cell.values, **arm.treatment.parameters}
    planned = Planned(arm.treatment, workload, values, arm.pool_bytes)
    named = arm.treatment.policy  # a policy that the study derived has the study's name
    registered = next((use.registered for use in run.study.policies if use.name == named), named)
    return made_again(planned, registered, arm.deployment, run.opened.host.get("pages"), guest)


def described(treatment: Treatment) -> str:
    """Describe a treatment in a line."""
    done = [f"{path.removeprefix('/sys/kernel/mm/')}={value}" for path, value in treatment.knobs.items()]
    if treatment.thp_disable != "none":
        done.append(f"prctl(PR_SET_THP_DISABLE, {treatment.thp_disable})")
    if treatment.advice != "none":
        done.append(f"madvise({treatment.advice})")
    if treatment.map_hugetlb is not None:
        done.append(f"mmap(MAP_HUGETLB, {format_size(treatment.map_hugetlb)})")
    if treatment.layout:
        done.append(f"layout({treatment.layout})")
    done += [f"{name}={value}" for name, value in treatment.environment.items()]
    return f"{treatment.mechanism}: {', '.join(done) or 'nothing is turned'}; promises {treatment.target}"


def _options(study: Study) -> dict[str, object]:
    told = msgspec.to_builtins(study)
    told["between"] = {key: value for key, value in told["between"].items() if value is not False}  # keys that are gone
    named = ("scale", "method", "window", "budget", "between", "validity", "attempt", "policies", "file")
    return {key: told[key] for key in named}


def _disturbances(run: Run, attempts: Sequence[Attempt]) -> tuple[str, ...]:
    said = [record.text for record in run.records if isinstance(record, Noted)]
    if run.study.covariate is not None:
        said.append(
            f"the study's covariate {run.study.covariate} was of an earlier version: it is not taken out any more, and"
            " verdicts and intervals may differ from those of then"
        )
    said += [f"block {one.number} ({one.cell}): {one.state}: {one.reason}" for one in run.blocks if one.reason]
    for attempt in attempts:
        where = f"block {attempt.block} ({attempt.cell}), {attempt.arm}"
        said += [f"{where}: {disturbance}" for disturbance in attempt.disturbances]
    if run.closed is not None and run.closed.early:
        said.append(run.closed.early)
    return tuple(said)


def _host_changes(cells: Sequence[CellRecord], blocks: Sequence[Block]) -> list[str]:
    said, of_cell = [], defaultdict[str, list[Block]](list)
    for block in blocks:
        of_cell[block.cell].append(block)
    for cell in cells:
        pairs: dict[str, list[Pair]] = {}
        for arm in cell.arms:
            if arm.name != cell.baseline:
                contrast = Contrast(cell.id, arm.name, cell.baseline, cell.metric, False, cell.copies)
                stream = Pairs(contrast)
                pairs[arm.name] = [pair for block in of_cell[cell.id] for pair in stream.take(block)]
        longest = max(pairs.values(), key=len, default=[])
        sums = [math.log(p.arm) + math.log(p.baseline) if p.arm and p.baseline else None for p in longest]
        said += [f"{cell.id}: {change.sentence}" for change in host_changes(sums)]
    return said


class Followed:
    """The run in `folder`, read again when `results` is asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = RunFolder(folder)
        self._run: Run | None = None
        self._judging: Judging | None = None

    def results(self) -> Results:
        """Return what `analysis.analyze` finds now. Raises RunError; earlier results are kept."""
        before, run = self._run, self._folder.read(self._run)
        if before is not None and run is not before and run.closed is not None:
            run = self._folder.read()
        judging, self._judging = self._judging, None  # one that was broken off has seen nobody knows what
        if judging is None or before is None or not run.goes_on_from(before):
            judging = Judging(run)
        found = judging.found(run.blocks)
        self._run, self._judging = run, judging
        return results_of(run, found)
