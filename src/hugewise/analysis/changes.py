"""Changes of each arm of a cell in every metric: judged ones with their intervals, others as medians. Pure.

Numbers that are not judged are compared by the medians of accepted attempts, without interval or verdict.

`overall` is the geometric mean of an arm's ratios over the programs of a set (a workload whose `program` names what a
cell runs), as SPEC reports one: each program weighs the same, whichever arm is the baseline. All intervals hold
together with at least 1 - sum a_i, whatever their dependence (Boole), and then the mean lies between the geometric
means of their ends. The levels a_i must have been fixed before the data: Holm's, of `fixed-n`, are not, and give no
interval.

Source: P. J. Fleming and J. J. Wallace, How not to lie with statistics, CACM 29:218 (1986).
"""

from __future__ import annotations

import math
import re
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from statistics import geometric_mean

import msgspec

from hugewise.model.metric import COMMON, Metric
from hugewise.model.reason import Known, Reason, ZeroMedian
from hugewise.model.results import CellResult, Comparison, Verdict
from hugewise.model.trial import Attempt, Judged

_OF_EVERY_ATTEMPT = ("wall_s", "cpu_s", "peak_bytes", "pool_bytes")


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """Metric of one arm against its baseline.

    ratio, low, high   arm/baseline; the interval only where the study's method gives one
    n, n_baseline      pairs of a judged comparison; else the accepted attempts of each that have a value
    value, value_baseline   medians over those attempts, in `unit`
    verdict            None: not judged
    judged, delivered_share   whether a verdict speaks of the arm's pages (backing) or its setting; what was delivered
    constant           every pair of a judged comparison has the same ratio
    provisional        of a judged comparison, as `Comparison` has it
    estimand           what `ratio` is of
    reason             why there is no ratio, or no verdict
    """

    metric: str
    unit: str
    arm: str
    baseline: str
    n: int
    n_baseline: int
    value: float | None
    value_baseline: float | None
    ratio: float | None
    low: float | None = None
    high: float | None = None
    confidence: float | None = None
    verdict: Verdict | None = None
    judged: Judged = "backing"
    delivered_share: float | None = None
    constant: bool = False
    provisional: tuple[float, float] | None = None
    estimand: str = "ratio of medians"
    reason: Reason = ""


def changes(cell: CellResult, mine: Values) -> tuple[Change, ...]:
    """Return the judged metric of every compared arm, its end points, metrics judged beside it, then all others."""
    known = known_metrics(cell.workload)
    judged = [_judged(cell, one, mine) for one in cell.judged]
    arms = [arm.arm for arm in cell.arms if arm.arm != cell.baseline]
    with_verdicts = {cell.metric.name, *(one.metric for one in cell.judged)}
    others = [name for name in mine.names if name not in with_verdicts]
    return (
        *judged,
        *(_medians(cell, arm, name, known.get(name), mine) for name in others for arm in arms),
    )


def alone(cell: CellResult, mine: Values) -> tuple[Change, ...]:
    """Return every metric of the baseline beside itself: for a cell in which no other arm ran."""
    known = known_metrics(cell.workload)
    return tuple(_medians(cell, cell.baseline, name, known.get(name), mine) for name in mine.names)


@dataclass(frozen=True)
class Values:
    """The numbers of attempts by arm and metric, gathered in one walk: a run may have a million.

    names      of all metrics that an attempt has or lacks, in the order in which they come
    found      (arm, metric) -> finite values in the order of the attempts
    why        (arm, metric) -> the first reason why one is null
    """

    names: tuple[str, ...]
    found: Mapping[tuple[str, str], Sequence[float]]
    why: Mapping[tuple[str, str], Reason]
    _medians: dict[tuple[str, str], tuple[float | None, int]] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, cell: CellResult, attempts: Iterable[Attempt]) -> Values:
        """Return the values of the cell's accepted attempts among these."""
        raw: defaultdict[str, defaultdict[str, list[float | None]]] = defaultdict(lambda: defaultdict(list))
        latest: dict[str, tuple[tuple[str, ...], Sequence[list[float | None]]]] = {}
        measured: dict[str, None] = {}
        lacking: dict[str, None] = {}
        common: dict[str, None] = {}
        why: dict[tuple[str, str], Reason] = {}
        known = known_metrics(cell.workload)
        for one in attempts:
            if one.state != "accepted" or one.cell != cell.cell:
                continue
            values, metrics = raw[one.arm], one.metrics
            names, columns = latest.get(one.arm, ((), ()))
            if names != tuple(metrics):  # most attempts of an arm have the same
                names, columns = tuple(metrics), [values[name] for name in metrics]
                latest[one.arm] = names, columns
                measured |= dict.fromkeys(metrics)
            for column, value in zip(columns, metrics.values(), strict=True):
                column.append(value)
            for name in _OF_EVERY_ATTEMPT:
                if name not in metrics and (value := getattr(one, name)) is not None:
                    values[name].append(value)
                    common[name] = None
            for name in one.absent:
                lacking[name] = None
                if (one.arm, name) not in why:
                    why[one.arm, name] = absent(one, name, known)
        found = {(arm, name): _finite(several) for arm, values in raw.items() for name, several in values.items()}
        return cls(tuple(measured | lacking | common), found, why)

    def median(self, arm: str, name: str) -> tuple[float | None, int]:
        """Return the median of the arm's values (computed once), and their number."""
        if (known := self._medians.get((arm, name))) is None:
            values = self.found.get((arm, name), ())
            known = self._medians[arm, name] = (statistics.median(values) if values else None), len(values)
        return known


def _finite(several: Sequence[float | None]) -> Sequence[float]:
    known = [value for value in several if value is not None]
    return known if all(map(math.isfinite, known)) else [value for value in known if math.isfinite(value)]


def value_of(attempt: Attempt, metric: str) -> float | None:
    """Return a number of an attempt; the times and memory that every attempt has count as metrics too."""
    if metric in attempt.metrics:
        return attempt.metrics[metric]
    if metric in _OF_EVERY_ATTEMPT:
        value: float | None = getattr(attempt, metric)
        return value
    return None


def emulated_away(cell: CellResult, attempts: Iterable[Attempt]) -> frozenset[str]:
    """Return metrics that none of the cell's attempts has because its guest was emulated: a report says that once."""
    found, known = list(attempts), known_metrics(cell.workload)
    away = [{name for name in one.absent if absent(one, name, known) == Known("emulated")} for one in found]
    return frozenset.intersection(*map(frozenset, away)) if away else frozenset()


def absent(attempt: Attempt, name: str, known: Mapping[str, Metric]) -> Reason:
    """Return why the attempt has no value of the metric; `known` are the metrics of its workload, by name."""
    exact = name in known and known[name].emulated
    if attempt.guest.get("accelerator") == "tcg" and not exact:
        return Known("emulated")
    return attempt.absent[name]


@cache
def known_metrics(workload: str) -> Mapping[str, Metric]:
    """Return the metrics that a workload declares, if it is known, and those of every attempt, by name."""
    from hugewise.workloads import discover  # noqa: PLC0415  (loads every workload)

    declared = discover().get(workload)
    return {metric.name: metric for metric in (*COMMON, *(declared.metrics if declared is not None else ()))}


def _judged(cell: CellResult, one: Comparison, values: Values) -> Change:
    value, _ = values.median(one.arm, one.metric)
    against, _ = values.median(one.baseline, one.metric)
    return Change(
        metric=one.metric,
        unit=cell.metric_named(one.metric).unit,
        arm=one.arm,
        baseline=one.baseline,
        n=one.n,
        n_baseline=one.n,
        value=value,
        value_baseline=against,
        ratio=one.ratio,
        low=one.low,
        high=one.high,
        confidence=one.confidence,
        verdict=one.verdict,
        judged=one.judged,
        delivered_share=one.delivered_share,
        constant=one.constant,
        provisional=one.provisional,
        estimand=one.estimand,
        reason=one.reason,
    )


def _medians(cell: CellResult, arm: str, name: str, metric: Metric | None, values: Values) -> Change:
    value, n = values.median(arm, name)
    against, n_baseline = values.median(cell.baseline, name)
    ratio = value / against if value is not None and against else None
    return Change(
        metric=name,
        unit=metric.unit if metric is not None else "",
        arm=arm,
        baseline=cell.baseline,
        n=n,
        n_baseline=n_baseline,
        value=value,
        value_baseline=against,
        ratio=ratio,
        reason="" if ratio is not None else _why(cell, arm, name, value, against, values),
    )


def _why(  # noqa: PLR0917
    cell: CellResult, arm: str, name: str, value: float | None, against: float | None, values: Values
) -> Reason:
    if value is not None and against is not None:
        return Known("zero") if value == 0 else ZeroMedian(cell.baseline)
    lacking = (arm, cell.baseline) if value is None else (cell.baseline,)
    absent = next((values.why[one, name] for one in lacking if (one, name) in values.why), None)
    return absent or f"{' and '.join(dict.fromkeys(lacking))} gave no value"


# The parameter whose levels are the programs of a set, and the workloads that have it.
PROGRAM = "program"
_SETS = ("integer-set", "speccpu")  # speccpu: of runs of before


class Overall(msgspec.Struct, frozen=True, kw_only=True):
    """Arm against the baseline over all programs of a set. Ratios are arm/baseline.

    name        of the set: that of its cells without the program
    programs    those in the mean
    lacking     those that cannot take the policy: a mean without them is one of another set than that of other arms
    low, high   None at an end that is not bounded for one of the programs
    confidence  of the interval: at least this; None without one
    reason      why there is no mean, or no interval
    """

    name: str
    workload: str
    arm: str
    baseline: str
    metric: str
    programs: tuple[str, ...]
    lacking: tuple[str, ...]
    ratio: float | None
    low: float | None
    high: float | None
    confidence: float | None
    reason: str = ""


def overall(cells: Iterable[CellResult]) -> tuple[Overall, ...]:
    """Return each arm's mean over the programs that can take the policy, for sets of two programs or more; no mean
    while one of them has no estimate.
    """
    sets: dict[tuple[str, str], list[CellResult]] = {}
    for cell in cells:
        if cell.workload in _SETS and PROGRAM in cell.parameters:
            # A cell's name has its label and what else is varied; one set's cells have the same constants.
            sets.setdefault((cell.workload, _name(cell)), []).append(cell)
    found = []
    for (_, name), members in sets.items():
        if len(members) > 1:
            arms = dict.fromkeys(one.arm for cell in members for one in cell.comparisons)
            found += [_of_arm(name, arm, members) for arm in arms]
    return tuple(found)


def _name(cell: CellResult) -> str:
    return re.sub(rf"[- ]?{PROGRAM}={re.escape(str(cell.parameters[PROGRAM]))}", "", cell.cell)


def _of_arm(name: str, arm: str, cells: Sequence[CellResult]) -> Overall:
    by_program = {
        str(cell.parameters[PROGRAM]): next((one for one in cell.comparisons if one.arm == arm), None) for cell in cells
    }
    taking = {program: one for program, one in by_program.items() if one is not None}
    unknown = [program for program, one in taking.items() if not one.ratio]
    ratio = low = high = confidence = None
    if unknown:
        reason = f"no estimate for {', '.join(unknown)}"
    else:
        ratio = geometric_mean([one.ratio for one in taking.values() if one.ratio])
        low, high, confidence, reason = _interval(list(taking.values()))
    return Overall(
        name=name,
        workload=cells[0].workload,
        arm=arm,
        baseline=cells[0].baseline,
        metric=cells[0].metric.name,
        programs=tuple(taking),
        lacking=tuple(program for program in by_program if program not in taking),
        ratio=ratio,
        low=low,
        high=high,
        confidence=confidence,
        reason=reason,
    )


def _interval(comparisons: Sequence[Comparison]) -> tuple[float | None, float | None, float | None, str]:
    if any(one.method not in ("sequential", "exact") for one in comparisons):
        return None, None, None, "an interval needs the method sequential: levels that were fixed before the data"
    low = _mean_of([one.low for one in comparisons])
    high = _mean_of([one.high for one in comparisons])
    if low is None and high is None:
        return None, None, None, "the interval of a program is not bounded yet"
    confidence = 1 - math.fsum(1 - one.confidence for one in comparisons)
    if confidence <= 0:
        return None, None, None, "the programs' intervals together hold with no confidence"
    return low, high, confidence, ""


def _mean_of(known: Sequence[float | None]) -> float | None:
    bounds = [end for end in known if end is not None and 0 < end < math.inf]
    return geometric_mean(bounds) if len(bounds) == len(known) else None
