"""Runs of one question judged together by e-values, and two runs compared: what differs, and each effect of both.

Together (`answer`): only e-values are combined (`hugewise.stats.evidence`); a common effect or interval would need a
model of how hosts and sessions differ. Runs of one copy and of two are judged together: the null, that labels change
nothing, is the same, and only a direction is claimed.

Differences: both runs are flattened to `key.key` -> text. Entries of a list that have a name go by it.

Compared: no coin chose what differs *between* two runs. What a coin randomised is the order of arm and baseline within
each, so that a comparison is a difference in differences: what makes one run faster as a whole cancels. How an effect
varies from run to run (a boot, an allocation, another day) does not, and no interval made of two runs has it in.

- Interval. With [a, b] of the first run and [c, d] of the second, the second's ratio over the first's lies in
  [c/b, d/a] wherever both hold (Bonferroni, over all comparisons). Nothing is claimed by it: where runs of one effect
  differ by 1%, a nominal 2% finds half of such couples different.
- Spread between runs. Runs begun before either one, on its host, that differ from it in nothing but keys of the study
  in which the two agree, repeat it. With two runs of each kind at least, the means of their log-ratios are compared by
  Welch's t with the degrees of freedom of the smaller side, which is conservative (Mickey and Brown 1966, Ann. Math.
  Statist. 37:639); Bonferroni over the comparisons.
- Levels (medians of each arm) are told as they are, without an interval.
- Copies. The typical ratio of pairs and that of the means of two attempts are one where log-ratios are symmetric. Where
  they are skewed, the second is nearer to the mean (-1% in 72% of pairs and +10% in the others: 4.1% and 3.6%, mean
  2.0%). So typical ratios of runs with other numbers of copies are not compared. End points are always made of pairs.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import fmean, variance
from typing import Any

import msgspec

from hugewise.analysis import analysis
from hugewise.analysis.changes import Change, Values, changes
from hugewise.analysis.earlier import begun_before
from hugewise.errors import HugewiseError, UserError
from hugewise.model.metric import Metric
from hugewise.model.policy import Treatment
from hugewise.model.reason import FewRuns, NoVerdictOf, Reason, Together
from hugewise.model.results import CellResult, Comparison, Guests, Results
from hugewise.model.trial import Attempt
from hugewise.model.two_runs import (
    ArmLevel,
    Aspect,
    EffectOfRun,
    LevelBeside,
    MetricBeside,
    Relation,
    RunDifference,
    RunOfTwo,
    TwoEffects,
    TwoRuns,
)
from hugewise.model.workload import without_defaults
from hugewise.stats import evidence
from hugewise.stats.evidence import TYPICAL, Carried, Combined, RunEvidence
from hugewise.stats.fixed import FixedN
from hugewise.stats.method import Method
from hugewise.store.folder import RunFolder
from hugewise.store.records import CellRecord, Opened, Run
from hugewise.study.tables import Design


class Combination(msgspec.Struct, frozen=True, kw_only=True):
    """Result of several runs together; `alone` names the comparisons that only one of them has."""

    format: int = 1
    runs: tuple[str, ...]
    confidence: float
    comparisons: tuple[Combined, ...]
    alone: tuple[str, ...]


def answer(runs: Sequence[Path], confidence: float | None = None) -> Combination:
    """Return the runs judged together at `confidence` (default: that of their studies). Raises UserError."""
    if len(runs) < 2:
        raise UserError("one run alone has nothing to be combined with", hint="hugewise combine RUN RUN...")
    read = [RunFolder(path).read() for path in runs]
    _alike_enough(read)
    chosen = _level(read) if confidence is None else confidence
    return combined([carried(run, analysis.results_of(run)) for run in read], chosen)


def combined(sources: Sequence[RunEvidence], confidence: float) -> Combination:
    """Judge several runs' evidence together at `confidence`. Raises UserError where nothing can be put together."""
    found = evidence.combine(sources, 1 - confidence)
    if not found:
        raise UserError(
            "the runs have no comparison in common (cell, arm, baseline, metric and end point)",
            hint="combine runs of one study; see the comparisons of each: hugewise report RUN",
        )
    shared = {one.key for one in found}
    alone = [
        f"{one.arm} against {one.baseline} on {one.cell}, {one.metric}, {one.end_point}: only in {source.run}"
        for source in sources
        for one in source.comparisons
        if one.key not in shared
    ]
    return Combination(
        runs=tuple(source.run for source in sources), confidence=confidence, comparisons=found, alone=tuple(alone)
    )


def _alike_enough(runs: Sequence[Run]) -> None:
    for run in runs:
        if (method := run.study.method) != "sequential":
            raise UserError(
                f"{run.path}: the method {method} gives no e-values", hint='combine runs with method = "sequential"'
            )
    opened = [run.opened for run in runs]
    if (same := evidence.not_separate([_unread(first) for first in opened])) is not None:
        raise UserError(same, hint="each run needs coins of its own: name different runs, made without --seed")
    if len({first.mechanism for first in opened}) > 1:
        told = ", ".join(f"{first.run} is by {first.mechanism}" for first in opened)
        raise UserError(
            f"different mechanisms are never merged: {told}", hint="combine the runs of each mechanism by themselves"
        )


def _level(runs: Sequence[Run]) -> float:
    levels = sorted({run.study.confidence for run in runs})
    if len(levels) > 1:
        raise UserError(
            f"the studies have different confidences: {', '.join(f'{level:.6g}' for level in levels)}",
            hint=f"choose one, such as --confidence {levels[-1]:.6g}",
        )
    return levels[0]


def _unread(opened: Opened) -> RunEvidence:
    name = opened.host.get("name")
    host = name if isinstance(name, str) else ""
    return RunEvidence(run=opened.run, seed_hash=opened.seed_hash, host=host, comparisons=())


def carried(run: Run, results: Results) -> RunEvidence:
    """Return a run's evidence for a combination. Raises UserError for counts of guests whose agent is not known."""
    guests = results.guests
    if guests is not None and guests.counting and any(arm.attempts and not arm.initramfs for arm in guests.arms):
        raise UserError(
            f"{run.path}: which agent its guests had was not kept, and a count is of one agent",
            hint="run its study again, or leave it out",
        )
    cells = {cell.id: cell for cell in run.opened.cells}
    comparisons = [
        _carried(cells[cell.cell], one, run.study.design, guests)
        for cell in results.cells
        for one in cell.judged
        if cell.metric_named(one.metric).better != "neutral"
    ]
    return msgspec.structs.replace(_unread(run.opened), comparisons=tuple(comparisons))


def _carried(cell: CellRecord, one: Comparison, design: Design, guests: Guests | None) -> Carried:
    judged, metric = one.verdict != "none", cell.metric_named(one.metric)
    absent: Reason = "" if judged else one.reason
    if judged and (one.evidence_larger is None or one.evidence_smaller is None):
        absent = f"none was kept of its {end_point(one)}"
    return Carried(
        cell=cell.id,
        arm=one.arm,
        baseline=one.baseline,
        metric=one.metric,
        higher_is_better=metric.better == "higher",
        identity=identities(cell, one, design) | ({} if guests is None else _machines(guests, one)),
        pairs=one.n,
        larger=one.evidence_larger if judged else None,
        smaller=one.evidence_smaller if judged else None,
        absent=absent,
        end_point=end_point(one),
    )


def identities(cell: CellRecord, one: Comparison, design: Design) -> dict[str, str]:
    """Return what two runs of one question must have in common, by name in words; guests apart."""
    metric = cell.metric_named(one.metric)
    arms = {arm.name: arm.treatment for arm in cell.arms}
    rules = {arm.name: cell.delivery.of(arm.judged) for arm in cell.arms}
    return {
        "workload": cell.workload,
        "parameters": _exactly(without_defaults(cell.values)),
        "metric": _exactly([metric.unit, metric.better]),
        "delivery rule": _exactly([rules[one.arm], rules[one.baseline]]),
        "treatment of the arm": _identity(arms[one.arm]),
        "treatment of the baseline": _identity(arms[one.baseline]),
        "design": f"{design.kind} {design.turns}" if design.kind == "crossover" else design.kind,
        "estimand": one.estimand,
        "client": "on a host of its own" if cell.apart else "beside its servers",
    }


def _identity(treatment: Treatment) -> str:
    # what a treatment does counts, and its name does not
    return _exactly(msgspec.structs.replace(treatment, policy=""))


def end_point(one: Comparison) -> str:
    """Return the end point of the metric that is judged, as the study names it."""
    return one.end_point or TYPICAL


def _machines(guests: Guests, one: Comparison) -> dict[str, str]:
    """Return the guests of both sides: another accelerator, kernel, backing or size makes another question.

    Where they count, so do another QEMU and another agent.
    """
    known = {arm.arm: arm for arm in guests.arms}
    origins = {kernel.name: kernel.origin for kernel in guests.kernels}

    def machine(name: str) -> str:
        arm = known[name]
        kernel = origins.get(arm.kernel, arm.sha256)
        return _exactly([kernel, arm.backing, arm.cpu_model, arm.cpus, arm.memory, arm.qemu if guests.counting else ""])

    agents = [known[name].initramfs for name in (one.arm, one.baseline)] if guests.counting else []
    return {
        "accelerator": guests.accelerator or "",
        "agent of the counts": _exactly(agents),
        "guest of the arm": machine(one.arm),
        "guest of the baseline": machine(one.baseline),
    }


def _exactly(value: object) -> str:
    return msgspec.json.encode(value, order="deterministic").decode()


_FEWEST_RUNS = 2  # of a kind
_NAMES = ("name", "called", "id", "arm")
_MOST = 400  # characters of a value
# The study's place and what else there was to choose are no part of what was asked, and the caches and TLBs in older
# runs follow from the CPU's model.
_PASSED_OVER = {"study": ("file", "whole"), "host": ("tlbs", "tlbs_caveat", "caches")}
# What a node had begun to use, in older runs, grew from run to run on some kernels; a node's whole memory is compared
# where both runs kept it.
_USED = re.compile(r"memory\.nodes\.node\d+\.bytes")
_WHOLE = re.compile(r"memory\.nodes\.node\d+\.present_bytes")


def differences(first: Run, second: Run) -> tuple[RunDifference, ...]:
    """Every key in which the runs differ, by aspect and in the order in which the keys stand."""
    here, there = _aspects(first), _aspects(second)
    found: list[RunDifference] = []
    for aspect, values in here.items():
        others = there[aspect]
        found += (
            RunDifference(aspect=aspect, key=key, first=values.get(key), second=others.get(key))
            for key in dict.fromkeys((*values, *others))
            if values.get(key) != others.get(key) and not (aspect == "host" and _unlike_kept(key, values, others))
        )
    return tuple(found)


def _unlike_kept(key: str, values: Mapping[str, str], others: Mapping[str, str]) -> bool:
    if _WHOLE.fullmatch(key):  # a node that only one host has differs in its CPUs, too
        return key not in values or key not in others
    return _USED.fullmatch(key) is not None


def _aspects(run: Run) -> dict[Aspect, dict[str, str]]:
    opened = run.opened
    client = None if opened.client is None else msgspec.to_builtins(opened.client)
    told: dict[Aspect, Any] = {
        "study": msgspec.to_builtins(run.study),
        "host": opened.host,
        "page settings": opened.settings,
        "versions": opened.versions,
        "run": {"mechanism": opened.mechanism, "client": client},
    }
    return {aspect: _told(value, _PASSED_OVER.get(aspect, ())) for aspect, value in told.items()}


def _told(value: Mapping[str, Any], passed: tuple[str, ...]) -> dict[str, str]:
    kept = {key: each for key, each in value.items() if key not in passed}
    return {key: text[:_MOST] for key, text in _flat(kept, "")}


def _flat(value: Any, at: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from _flat(each, f"{at}.{key}" if at else str(key))
    elif isinstance(value, list | tuple) and value and all(isinstance(each, Mapping) for each in value):
        for number, each in enumerate(value, 1):
            name = next((each[key] for key in _NAMES if isinstance(each.get(key), str)), str(number))
            yield from _flat(each, f"{at}[{name}]")
    elif value is not None:
        yield at, value if isinstance(value, str) else msgspec.json.encode(value, order="deterministic").decode()


def compared(first: Path, second: Path) -> TwoRuns:
    """Return the runs in two folders, compared. Raises RunError; UserError where they share nothing, or are one."""
    one, other = RunFolder(first).read(), RunFolder(second).read()
    return compared_runs(one, other, repeated(one, other))


def repeated(first: Run, second: Run) -> tuple[list[Run], list[Run]]:
    """Return the earlier runs on its host that repeat each of two runs; each run repeats one side alone."""
    told_apart = {one.key for one in differences(first, second) if one.aspect == "study"}
    taken = {first.opened.seed_hash, second.opened.seed_hash}
    found: dict[str, list[Run]] = {}
    for run in sorted((first, second), key=lambda each: each.opened.t):
        mine = found.setdefault(run.opened.run, [])
        results = RunFolder(run.path).results(run.study.name)
        for folder in begun_before(run.study, run.opened, results) if results else ():
            with suppress(OSError, HugewiseError):
                other = folder.read()
                alike = all(d.aspect == "study" and d.key not in told_apart for d in differences(run, other))
                if alike and other.opened.seed_hash not in taken:
                    taken.add(other.opened.seed_hash)
                    mine.append(other)
    return found[first.opened.run], found[second.opened.run]


def compared_runs(first: Run, second: Run, repetitions: tuple[Sequence[Run], Sequence[Run]] = ((), ())) -> TwoRuns:
    """Return two runs compared, with the repetitions of each. Raises UserError where they share no comparison."""
    coins = [
        RunEvidence(run=r.opened.run, seed_hash=r.opened.seed_hash, host="", comparisons=()) for r in (first, second)
    ]
    if (same := evidence.not_separate(coins)) is not None:
        raise UserError(same, hint="name two runs; a run is compared with another one, not with a copy of itself")
    one, other = _Side(first), _Side(second)
    margin = max(first.study.margin, second.study.margin)
    shared_keys = [key for key in one.comparisons if key in other.comparisons]  # in the first run's order
    confidence = max(0.0, first.study.confidence + second.study.confidence - 1)
    level = (1 - confidence) / max(1, len(shared_keys))
    kinds = tuple((side, *map(_Side, each)) for side, each in zip((one, other), repetitions, strict=True))
    effects = tuple(_both(kinds, key, margin, level) for key in shared_keys)
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
        confidence=confidence,
        margin=margin,
        effects=effects,
        levels=tuple(level for cell in shared for level in _levels(one, other, cell, unlike[cell])),
        others=tuple(each for cell in shared for each in _others(one, other, cell)),
        alone=(*_alone(one, other), *_alone(other, one)),
    )


_Key = tuple[str, str, str, str, str]


class _Side:
    """A run with what it found, by cell and by comparison."""

    def __init__(self, run: Run) -> None:
        found = analysis.judge_run(run)
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

    def effect(self, key: _Key) -> tuple[EffectOfRun, Reason]:
        """Return the run's effect of a comparison, and why no difference can be made of it; empty where one can."""
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
            return said, NoVerdictOf(run, one.reason)
        if not one.final and isinstance(method, FixedN):
            return said, f"{run} has {one.n} of {one.planned} planned pairs, and its intervals hold when it has all"
        return said, ""


def _both(kinds: Sequence[Sequence[_Side]], key: _Key, margin: float, level: float) -> TwoEffects:
    (first, *_), (second, *_) = kinds
    cell, one = first.comparisons[key]
    _, other = second.comparisons[key]
    unlike = tuple(_unlike(first, second, one, other, cell.cell))
    (here, why), (there, why_there) = first.effect(key), second.effect(key)
    against = tuple(each for each in (why, why_there) if each)
    reason: Reason = Together(against) if against else ""
    usable = not against
    ratio = _over(there.ratio, here.ratio)
    low = _over(there.low, here.high) if usable else None
    high = _over(there.high, here.low) if usable else None
    relation: Relation = "not comparable"
    of_runs = [_log_ratios(sides, key) for sides in kinds]
    runs = len(of_runs[0]), len(of_runs[1])
    if usable and not unlike:
        if (span := _between_runs(of_runs, level)) is None:
            relation, reason = "spread unknown", FewRuns(*runs)
        else:
            low, ratio, high = map(math.exp, span)
            relation = _relation(low, high, margin)
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
        runs=runs,
        ratio=ratio,
        low=low,
        high=high,
        relation=relation,
        reason=reason,
        unlike=unlike,
    )


def _log_ratios(sides: Sequence[_Side], key: _Key) -> list[float]:
    (first, *others), found = sides, []
    for side in (first, *others):
        if key not in side.comparisons or list(
            _unlike(first, side, first.comparisons[key][1], side.comparisons[key][1], key[0])
        ):
            continue
        effect, against = side.effect(key)
        if effect.ratio and math.isfinite(effect.ratio) and not against:
            found.append(math.log(effect.ratio))
    return found


def _between_runs(of_runs: Sequence[Sequence[float]], level: float) -> tuple[float, float, float] | None:
    from scipy.special import stdtrit  # noqa: PLC0415  (slow to load)

    fewest = min(map(len, of_runs))
    if fewest < _FEWEST_RUNS:
        return None
    middle = fmean(of_runs[1]) - fmean(of_runs[0])
    error = math.sqrt(math.fsum(variance(each) / len(each) for each in of_runs))
    half = float(stdtrit(fewest - 1, 1 - level / 2)) * error
    return middle - half, middle, middle + half


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
    copies = [side.records[cell].copies for side in (first, second)]
    if copies[0] != copies[1] and end_point(one) == TYPICAL:
        yield f"attempts of each policy in a block: {copies[0]} / {copies[1]}"
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
        reasons = tuple(dict.fromkeys(each for each in (here.reason, other.reason) if each))
        yield MetricBeside(
            cell=cell,
            arm=here.arm,
            baseline=here.baseline,
            metric=here.metric,
            unit=here.unit,
            first=here.ratio,
            second=other.ratio,
            ratio=_over(other.ratio, here.ratio),
            reason=Together(reasons) if reasons else "",
        )


def _medians(side: _Side, cell: str) -> Iterator[Change]:
    found = side.cells[cell]
    yield from (each for each in changes(found, Values.of(found, side.attempts[cell])) if each.verdict is None)


def _alone(one: _Side, other: _Side) -> Iterator[str]:
    for key in one.comparisons:
        if key not in other.comparisons:
            cell, arm, baseline, metric, point = key
            yield f"{arm} against {baseline} on {cell}, {metric}, {point}: only in {one.results.run}"
