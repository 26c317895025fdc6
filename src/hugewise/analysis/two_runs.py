"""Two runs held against each other: in what they differ, then what each says of every effect, and whether these differ.

No coin chose which of the two runs came first, or on which host or under which kernel it was made: nothing randomises
what differs *between* them. What a coin did randomise is the order of arm and baseline within each run. So of a
comparison that both have, each run's ratio arm/baseline is a randomised effect, and the second's over the first's is a
difference in differences: whatever makes one run faster as a whole is in both sides of its ratio, and cancels. What is
left besides what the reader changed on purpose is how an effect itself varies from run to run (a boot, an allocation,
another day). One run a side cannot tell these apart, and no interval made of two runs has it in.

Interval. Each run's own interval of a comparison holds in that run at its study's error rate over all comparisons
together, at whatever pair it stopped (method sequential), or at the planned number (fixed n, at the level of Bonferroni
and not of Holm, whose levels hang on the data). With [a, b] of the first and [c, d] of the second, the second's ratio
over the first's lies in [c/b, d/a] wherever both hold: for all comparisons together at 1 less both error rates
(Bonferroni). Nothing is assumed of how pairs spread, and nothing of when the runs ended. It is wider than one that adds
variances would be, by up to 1.41 times; such a one would need estimates that are normal, which those of a run that
stopped early are not.

Levels (the second run's median over the first's, of each arm) have no such protection: everything that differs is in
them. They are told as they are, and have no interval, since attempts of one run are no replicates of it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from hugewise.analysis import analysis
from hugewise.analysis.changes import Change, Values, changes
from hugewise.analysis.combining import end_point, identities
from hugewise.analysis.differing import differences
from hugewise.errors import UserError
from hugewise.model.arm_level import ArmLevel
from hugewise.model.metric import Metric
from hugewise.model.results import CellResult, Comparison, Results
from hugewise.model.trial import Attempt
from hugewise.model.two_runs import EffectOfRun, LevelBeside, MetricBeside, Relation, RunOfTwo, TwoEffects, TwoRuns
from hugewise.model.workload import without_defaults
from hugewise.stats import evidence
from hugewise.stats.evidence import RunEvidence
from hugewise.stats.fixed import FixedN
from hugewise.stats.method import Method
from hugewise.store.folder import RunFolder
from hugewise.store.records import CellRecord, Run

__all__ = ["compared", "compared_runs"]


def compared(first: Path, second: Path) -> TwoRuns:
    """The runs in these two folders. Raises RunError, and UserError where they have nothing in common, or are one."""
    return compared_runs(RunFolder(first).read(), RunFolder(second).read())


def compared_runs(first: Run, second: Run) -> TwoRuns:
    """Two runs that were read. Raises UserError where they have no comparison in common, or are the same run."""
    coins = [
        RunEvidence(run=r.opened.run, seed_hash=r.opened.seed_hash, host="", comparisons=()) for r in (first, second)
    ]
    if (same := evidence.not_separate(coins)) is not None:
        raise UserError(same, hint="name two runs; a run is compared with another one, not with a copy of itself")
    one, other = _Side(first), _Side(second)
    margin = max(first.study.margin, second.study.margin)
    effects = tuple(
        _both(one, other, key, margin) for key in one.comparisons if key in other.comparisons
    )  # in the first run's order
    if not effects:
        raise UserError(
            "the runs have no comparison in common (cell, arm, baseline, metric and end point)",
            hint="compare runs of one study; see the comparisons of each: hugewise report RUN",
        )
    shared = [cell.cell for cell in one.results.cells if cell.cell in other.cells]
    unlike = {cell: tuple(_unlike_cells(one, other, cell)) for cell in shared}
    machine, there = first.opened.host.get("machine"), second.opened.host.get("machine")
    return TwoRuns(
        first=one.told(),
        second=other.told(),
        same_study=first.opened.digest == second.opened.digest,
        same_host=machine == there if machine and there else None,
        differences=differences(first, second),
        confidence=max(0.0, first.study.confidence + second.study.confidence - 1),
        margin=margin,
        effects=effects,
        levels=tuple(level for cell in shared for level in _levels(one, other, cell, unlike[cell])),
        others=tuple(each for cell in shared for each in _others(one, other, cell)),
        alone=(*_alone(one, other), *_alone(other, one)),
    )


def _coins(run: Run) -> RunEvidence:
    return RunEvidence(run=run.opened.run, seed_hash=run.opened.seed_hash, host="", comparisons=())


_Key = tuple[str, str, str, str, str]


class _Side:
    """A run with what it found, by cell and by comparison."""

    def __init__(self, run: Run) -> None:
        found = analysis.judged(run)
        self.run = run
        self.results: Results = analysis.results_of(run, found)
        self.records: Mapping[str, CellRecord] = {cell.id: cell for cell in run.opened.cells}
        self.cells: Mapping[str, CellResult] = {cell.cell: cell for cell in self.results.cells}
        self.comparisons: dict[_Key, tuple[CellResult, Comparison]] = {}
        for cell in self.results.cells:
            for one in cell.judged:
                self.comparisons[cell.cell, one.arm, one.baseline, one.metric, end_point(one)] = cell, one
        self._methods: dict[tuple[str, str, str], Method] = {
            (method.contrast.cell, method.contrast.arm, method.contrast.metric.name): method for method, _ in found
        }
        self.attempts: defaultdict[str, list[Attempt]] = defaultdict(list)
        for attempt in self.results.attempts:
            self.attempts[attempt.cell].append(attempt)

    def told(self) -> RunOfTwo:
        opened, found = self.run.opened, self.results
        kernel = opened.host.get("kernel")
        return RunOfTwo(
            run=found.run,
            folder=found.folder,
            study=found.study,
            study_digest=opened.digest,
            state=found.state,
            started=found.started,
            ended=found.ended,
            host=str(opened.host.get("name") or ""),
            kernel=kernel.get("release") if isinstance(kernel, Mapping) else None,
            mechanism=found.mechanism,
            confidence=found.confidence,
            margin=found.margin,
            blocks=found.blocks_complete,
            hash=self.run.hash,
        )

    def effect(self, key: _Key) -> tuple[EffectOfRun, str]:
        """What it says of a comparison, and why no difference can be made of it; empty where one can."""
        cell, one = self.comparisons[key]
        low, high = one.low, one.high
        method = self._methods.get((cell.cell, one.arm, one.metric))
        if isinstance(method, FixedN):  # at Bonferroni's level
            effect = method.decision().effect
            low, high = (None, None) if effect is None else (effect.low, effect.high)
        said = EffectOfRun(n=one.n, ratio=one.ratio, low=low, high=high, verdict=one.verdict, reason=one.reason)
        run = self.results.run
        if self.run.study.method == "screening":
            return said, f"{run} is a screening, which claims nothing"
        if one.verdict == "none":
            return said, f"{run} gives no verdict: {one.reason}"
        if not one.final and isinstance(method, FixedN):
            return said, f"{run} has {one.n} of {one.planned} planned pairs, and its intervals hold when it has all"
        return said, ""


def _both(first: _Side, second: _Side, key: _Key, margin: float) -> TwoEffects:
    cell, one = first.comparisons[key]
    _, other = second.comparisons[key]
    unlike = tuple(_unlike(first, second, one, other, cell.cell))
    (here, why), (there, why_there) = first.effect(key), second.effect(key)
    reason = "; ".join(filter(None, (why, why_there)))
    usable = not reason
    ratio = _over(there.ratio, here.ratio)
    low = _over(there.low, here.high) if usable else None
    high = _over(there.high, here.low) if usable else None
    relation = _relation(low, high, margin) if usable and not unlike else "not comparable"
    if relation == "not told apart":
        reason = _open(low, high, margin)
    return TwoEffects(
        cell=cell.cell,
        arm=one.arm,
        baseline=one.baseline,
        metric=one.metric,
        unit=cell.metric_named(one.metric).unit,
        better=cell.metric_named(one.metric).better,
        end_point=key[-1],
        first=here,
        second=there,
        ratio=ratio,
        low=low,
        high=high,
        relation=relation,
        reason=reason,
        unlike=unlike,
    )


def _over(value: float | None, by: float | None) -> float | None:
    return None if value is None or not by or by == float("inf") or value == float("inf") else value / by


def _relation(low: float | None, high: float | None, margin: float) -> Relation:
    if low is not None and high is not None and 1 / (1 + margin) <= low and high <= 1 + margin:
        return "alike"
    if low is not None and low > 1:
        return "higher"
    return "lower" if high is not None and high < 1 else "not told apart"


def _open(low: float | None, high: float | None, margin: float) -> str:
    if low is None and high is None:
        return "an interval of one of the runs is not bounded"
    return f"the interval has no change in it, and reaches beyond the margin of {margin:.3g}"


def _unlike(first: _Side, second: _Side, one: Comparison, other: Comparison, cell: str) -> Iterator[str]:
    here = identities(first.records[cell], one, first.run.study.design)
    there = identities(second.records[cell], other, second.run.study.design)
    for name, value in here.items():
        if value == there[name]:
            continue
        if name == "parameters":
            yield from _parameters(first.records[cell], second.records[cell])
        elif name.startswith("treatment"):
            arm = one.arm if name.endswith("arm") else one.baseline
            yield f"{arm} is not set alike: {_described(first, cell, arm)} / {_described(second, cell, arm)}"
        else:
            yield f"{name}: {value} / {there[name]}"


def _unlike_cells(first: _Side, second: _Side, cell: str) -> Iterator[str]:
    """Why the levels of a cell are not of the same work."""
    here, there = first.records[cell], second.records[cell]
    if here.workload != there.workload:
        yield f"workload: {here.workload} / {there.workload}"
    yield from _parameters(here, there)
    metrics = [(one.metric.name, one.metric.unit) for one in (here, there)]
    if metrics[0] != metrics[1]:
        yield "metric: " + " / ".join(f"{name} in {unit}" for name, unit in metrics)


def _parameters(here: CellRecord, there: CellRecord) -> Iterator[str]:
    mine, theirs = without_defaults(here.values), without_defaults(there.values)
    for name in dict.fromkeys((*mine, *theirs)):
        if (one := mine.get(name)) != (other := theirs.get(name)):
            yield f"parameter {name}: {_shown(one)} / {_shown(other)}"


def _shown(value: object) -> str:
    return "none" if value is None else msgspec.json.encode(value).decode()


def _described(side: _Side, cell: str, arm: str) -> str:
    return next(analysis.described(one.treatment) for one in side.records[cell].arms if one.name == arm)


def _levels(first: _Side, second: _Side, cell: str, unlike: Sequence[str]) -> Iterator[LevelBeside]:
    metric: Metric = first.cells[cell].metric
    others = {arm.arm: arm for arm in second.cells[cell].arms}
    for here in first.cells[cell].arms:
        if (there := others.get(here.arm)) is None:
            continue
        yield LevelBeside(
            cell=cell,
            metric=metric.name,
            unit=metric.unit,
            first=ArmLevel.of(here),
            second=ArmLevel.of(there),
            ratio=None if unlike else _over(there.median, here.median),
            reason=f"not the same work: {'; '.join(unlike)}" if unlike else "",
        )


def _others(first: _Side, second: _Side, cell: str) -> Iterator[MetricBeside]:
    there = {(one.arm, one.baseline, one.metric): one for one in _medians(second, cell)}
    for here in _medians(first, cell):
        other = there.get((here.arm, here.baseline, here.metric))
        if other is None:
            continue
        reasons = dict.fromkeys(filter(None, (here.reason, other.reason)))
        yield MetricBeside(
            cell=cell,
            arm=here.arm,
            baseline=here.baseline,
            metric=here.metric,
            unit=here.unit,
            first=here.ratio,
            second=other.ratio,
            ratio=_over(other.ratio, here.ratio),
            reason="; ".join(reasons),
        )


def _medians(side: _Side, cell: str) -> Iterator[Change]:
    """What is not judged."""
    found = side.cells[cell]
    yield from (each for each in changes(found, Values.of(found, side.attempts[cell])) if each.verdict is None)


def _alone(one: _Side, other: _Side) -> Iterator[str]:
    for key in one.comparisons:
        if key not in other.comparisons:
            cell, arm, baseline, metric, point = key
            yield f"{arm} against {baseline} on {cell}, {metric}, {point}: only in {one.results.run}"
