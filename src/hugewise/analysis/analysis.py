"""From a run's folder to its results: the methods see the stored blocks again, and everything is summed up.

Nothing here asks the machine: a run can be analysed anywhere.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from hugewise import published
from hugewise.analysis import over_time, series
from hugewise.analysis.ageing import aged_arms
from hugewise.analysis.beside import beside
from hugewise.analysis.causes import Processor, causes
from hugewise.analysis.guest_arms import boots_of, counted, guests
from hugewise.analysis.work import with_work
from hugewise.errors import RunError, UserError
from hugewise.model.design import beside_its_own, qualified
from hugewise.model.policy import Treatment
from hugewise.model.results import ArmSummary, CellResult, Comparison, Integrity, Results
from hugewise.model.trial import Attempt, Block, Judged
from hugewise.model.workload import ParameterValue, StandIn
from hugewise.quantity import format_size
from hugewise.stats.changepoint import host_changes
from hugewise.stats.end_points import EndPoint
from hugewise.stats.family import conclude, methods_for
from hugewise.stats.method import Contrast, Method
from hugewise.stats.pairs import Pair, Pairs
from hugewise.stats.summary import summarise
from hugewise.store.folder import RunFolder
from hugewise.store.going import going_on
from hugewise.store.records import ArmRecord, CellRecord, Noted, Run
from hugewise.study.study import Study

__all__ = ["Judging", "analyze", "judged", "results_of", "stand_ins_of"]

# Whoever can damage records can choose whose; no test can count what it does not know of.
_HASH = re.compile("[0-9a-fA-F]{64}")
_SALVAGED = "records are missing: the run was salvaged"


def analyze(path: Path, *, salvage: bool = False, expect: str | None = None) -> Results:
    """What the run in the folder `path` has found so far. Raises RunError.

    `salvage`: what is damaged is left out, and told; then there are estimates and no verdicts. `expect`: the running
    hash that it must have; UserError where it is none.
    """
    if expect is not None and _HASH.fullmatch(expect.strip()) is None:
        raise UserError(f"--expect {expect}: not 64 hexadecimal digits", hint="copy the whole hash that was noted")
    run = RunFolder(path).read(salvage=salvage)
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
        self._study, self._methods = run.study, methods_for(run.study, run.opened.cells)
        self._of_cell = defaultdict[str, list[Method]](list)
        for method in self._methods:
            self._of_cell[method.contrast.cell].append(method)
        self._seen = 0

    def found(self, blocks: Sequence[Block]) -> list[tuple[Method, Comparison]]:
        """Each method after all of the `blocks`, with what it says. They begin with those of the last call."""
        for block in blocks[self._seen :]:
            for method in self._of_cell[block.cell]:  # the blocks of other cells change nothing
                method.observe(block)
        self._seen = len(blocks)
        concluded = conclude(self._methods, self._study.confidence, self._study.margin)
        return list(zip(self._methods, concluded, strict=True))


def judged(run: Run) -> list[tuple[Method, Comparison]]:
    """Each method of the run's study after all of its blocks, with what it says."""
    return Judging(run).found(run.blocks)


def results_of(run: Run, found: Sequence[tuple[Method, Comparison]] | None = None) -> Results:
    """The same of a run that was read; `found`: as `judged` has it, if that is known already. Raises RunError."""
    opened, study, blocks, closed = run.opened, run.study, run.blocks, run.closed
    found = judged(run) if found is None else found
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
        earlier=opened.earlier,
        earlier_shared=opened.earlier_shared,
        earlier_unread=opened.earlier_unread,
        integrity=_integrity(run),
        command=opened.command,
    )
    if study.published is None:
        return results
    uses = [(use.called, use.published) for use in study.workload]
    stood = beside(published.load(study.published), uses, study.published_arms, results)
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
                deployment=arm.deployment,
            ),
            judged=_judged(cell, arm),
        )
        for arm in cell.arms
    }
    mine = [one for one in attempts if one.cell == cell.id and one.state == "accepted"]
    kind = cell.kind or run.study.design.first
    if cell.together and kind == "sequential":  # guests that ran together were a duet
        kind = "duet"
    boots = boots_of(mine) or None if run.study.resident else None
    comparisons: list[Comparison] = []
    end_points: list[Comparison] = []
    declared: list[Comparison] = []
    for method, comparison in found:
        if method.contrast.cell == cell.id:
            further = method.contrast.metric.name != cell.metric.name
            key = beside_its_own(cell.id, method.contrast.metric.name) if further else cell.id
            said = qualified(comparison, kind, run.opened.withheld.get(key), boots)
            said = with_work(said, cell, own, run.study.margin)
            said = _estimate(said) if run.left_out else said
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
        declared=tuple(declared),
        facts=series.shared(cell.id, attempts),
        differing=series.differing(cell.id, names, attempts),
        steadiness=series.steady_arms(cell.id, names, attempts),
        tail=tuple(over_time.tail(contrasts, mine, paired)),
        idle=tuple(over_time.idle_memory(names, contrasts, mine, paired)),
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
    """What runs in a workload in place of what others publish figures of; one that is gone tells nothing."""
    from hugewise.workloads import discover  # noqa: PLC0415  (loads every workload)

    workload = discover().get(name)
    if not isinstance(workload, StandIn):
        return ()
    with contextlib.suppress(KeyError):  # of a version with other parameters
        return workload.stand_ins(values)
    return ()


def _estimate(comparison: Comparison) -> Comparison:
    """The comparison without anything that a test has said."""
    return msgspec.structs.replace(
        comparison,
        verdict="none",
        reason=f"withheld: {_SALVAGED}",
        reach=None,
        tiers=(),
        p=None,
        spread=None,
        evidence=None,
        evidence_larger=None,
        evidence_smaller=None,
    )


def _integrity(run: Run) -> Integrity:
    if run.left_out:
        return Integrity(state="salvaged", hash=None, left_out=run.left_out)
    return Integrity(state="consistent" if run.chained else "no running hash", hash=run.hash)


def _judged(cell: CellRecord, arm: ArmRecord) -> Judged:
    """What a verdict on `arm` speaks of: its setting where no delivery was required of it."""
    required = cell.delivery.of(arm.judged).share > 0 and arm.treatment.target.kind != "any"
    return "backing" if required else "setting"


def _with_shares(comparison: Comparison, arms: Mapping[str, ArmSummary]) -> Comparison:
    """The comparison with what is judged of its two sides, and how much of their memory was backed as promised."""
    arm, baseline = arms[comparison.arm], arms[comparison.baseline]
    return msgspec.structs.replace(
        comparison,
        judged=arm.judged,
        delivered_share=arm.delivered_share,
        baseline_judged=baseline.judged,
        baseline_share=baseline.delivered_share,
    )


def described(treatment: Treatment) -> str:
    """What a treatment does, in a line."""
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
    """The study's other keys as used, in the units of the file's reference."""
    told = msgspec.to_builtins(study)
    named = ("scale", "method", "covariate", "window", "budget", "between", "validity", "attempt", "policies", "file")
    return {key: told[key] for key in named}


def _disturbances(run: Run, attempts: Sequence[Attempt]) -> tuple[str, ...]:
    said = [record.text for record in run.records if isinstance(record, Noted)]
    said += [f"block {one.number} ({one.cell}): {one.state}: {one.reason}" for one in run.blocks if one.reason]
    for attempt in attempts:
        where = f"block {attempt.block} ({attempt.cell}), {attempt.arm}"
        said += [f"{where}: {disturbance}" for disturbance in attempt.disturbances]
    return tuple(said)


def _host_changes(cells: Sequence[CellRecord], blocks: Sequence[Block]) -> list[str]:
    """Warnings that the level of a cell changed, from what is blind to the labels: log(arm) + log(baseline)."""
    said, of_cell = [], defaultdict[str, list[Block]](list)
    for block in blocks:
        of_cell[block.cell].append(block)
    for cell in cells:
        pairs: dict[str, list[Pair]] = {}
        for arm in cell.arms:
            if arm.name != cell.baseline:
                stream = Pairs(Contrast(cell.id, arm.name, cell.baseline, cell.metric, proof_demanded=False))
                pairs[arm.name] = [pair for block in of_cell[cell.id] if (pair := stream.take(block)) is not None]
        longest = max(pairs.values(), key=len, default=[])
        sums = [math.log(p.arm) + math.log(p.baseline) if p.arm and p.baseline else None for p in longest]
        said += [f"{cell.id}: {change.sentence}" for change in host_changes(sums)]
    return said
