"""Earlier runs of a study on this host, whose publication keeps the error rate: they are named and judged together.

Whoever repeats a study until it comes out as wished has no error rate. So every run names the runs before it that had
any of its comparisons, also broken ones and those of another design, and keeps their e-values (`together`). `read`
collects the pairs of each comparison, and the seconds of an attempt, from runs of one study on one machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import msgspec

from hugewise import reading
from hugewise.analysis import analysis
from hugewise.errors import HugewiseError, UserError
from hugewise.model.results import DIRECTIONS, CellResult, Comparison, EarlierComparison, Results, Verdict
from hugewise.model.trial import Block
from hugewise.model.workload import without_defaults
from hugewise.stats import evidence, family
from hugewise.stats.family import ComparedCell, methods_for
from hugewise.stats.method import Contrast
from hugewise.stats.pairs import Pairs
from hugewise.store.folder import RunFolder
from hugewise.store.records import ArmRecord, BlockClosed, BlockOpened, CellRecord, Opened, Resumed, Run
from hugewise.study.study import Study
from hugewise.study.workload import cell_of

# What the studies of two runs must share; name, budget, margin, confidence and method change no pair.
_SAME = ("policies", "workload", "cells", "between", "design", "guest", "kernel")
_OF_RUN = {"pool_bytes", "ready_within"}  # parameters that an advice sets by its pilot and its time
_PLACED = ("cpus", "client_cpus", "storage", "user")
_OF_GUESTS = ("accelerator", "cpu model")


class Earlier(NamedTuple):
    """The runs before a run (`STUDY/RUN`, newest first), what each shares with it, and how many cannot be read."""

    runs: tuple[str, ...]
    shared: Mapping[str, tuple[EarlierComparison, ...]]
    unread: int


class _Found(msgspec.Struct):
    """Part of a comparison in a report that is read here."""

    arm: str
    metric: str
    n: int
    verdict: Verdict
    evidence_larger: float | None = None
    evidence_smaller: float | None = None


class _FoundCell(msgspec.Struct):
    cell: str
    comparisons: tuple[_Found, ...] = ()
    declared: tuple[_Found, ...] = ()


class _Report(msgspec.Struct):
    cells: tuple[_FoundCell, ...] = ()


_REPORT = msgspec.json.Decoder(_Report)


class _Key(NamedTuple):
    """A comparison by its names in a run."""

    cell: str
    arm: str
    metric: str


def earlier_runs(study: Study, opened: Opened, results: Path) -> Earlier:
    """Return the runs below `results`, on the host of `opened`, that have one of its comparisons, whatever the design.
    A run counts from its first record on.
    """
    here = _comparisons(study, opened)
    every, unread = _every(results)
    names: list[str] = []
    seeds = {opened.seed_hash}  # the pairs of a copy, or of two runs with one seed, count once
    shared: dict[str, tuple[EarlierComparison, ...]] = {}
    for first, other, folder in every:
        if first.run == opened.run or _elsewhere(first, opened) is not None:
            continue
        there = _comparisons(other, first)
        common = [key for key in here if key in there]
        if common:
            name = folder.path.relative_to(results).as_posix()
            said = _said(folder)
            judged = first.seed_hash not in seeds and not chooses(other.name)
            if judged and said:
                seeds.add(first.seed_hash)
            names.append(name)
            kept = tuple(EarlierComparison(*here[key], *said.get(there[key], ())) for key in common)
            without = tuple(msgspec.structs.replace(one, larger=None, smaller=None) for one in kept)
            shared[name] = kept if judged else without
    return Earlier(tuple(names), shared, unread)


def chooses(study: str) -> bool:
    """Return whether a study of this name only chooses what to judge (pilot, screening): its e-values do not count."""
    return study.endswith("-pilot") or study == "advise-screening"


def begun_before(study: Study, opened: Opened, results: Path) -> list[RunFolder]:
    """Return the runs of `earlier_runs` that were begun before the run, the newest first."""
    here = _comparisons(study, opened)
    return [
        folder
        for first, other, folder in _every(results)[0]
        if first.t < opened.t
        and first.run != opened.run
        and _elsewhere(first, opened) is None
        and not here.keys().isdisjoint(_comparisons(other, first))
    ]


def of_study(study: Study, results: Path) -> list[tuple[Opened, RunFolder]]:
    """Return runs and pilots that measure all of `study` and no more, the newest first; of each only the first record
    and the study are read, and unreadable folders are passed over.
    """
    return [(first, folder) for first, other, folder in _every(results)[0] if comparable(study, other) is None]


def _comparisons(study: Study, opened: Opened) -> dict[bytes, _Key]:
    uses = [use.called for use in study.workload]
    around = _plain(study.guest)
    found = {}
    for cell in opened.cells:
        place = cell_of(uses, cell.id)
        placed = [] if place is None else [_plain(getattr(study.workload[place], name)) for name in _PLACED]
        arms = {arm.name: _arm(arm, opened) for arm in cell.arms}
        for arm, treated in arms.items():
            for metric in (cell.metric, *cell.also) if arm != cell.baseline else ():
                what = [around, placed, _measured(cell), treated, arms[cell.baseline], metric.name]
                found[msgspec.json.encode(what, order="deterministic")] = _Key(cell.id, arm, metric.name)
    return found


def _measured(cell: CellRecord) -> list[Any]:
    values = {name: value for name, value in without_defaults(cell.values).items() if name not in _OF_RUN}
    return [cell.workload, values, cell.apart, cell.memory_age, cell.memory]


def _arm(arm: ArmRecord, opened: Opened) -> list[Any]:
    kernel = None if arm.kernel is None else opened.versions.get(f"kernel {arm.kernel}", arm.kernel)
    return [_plain(arm.treatment), kernel, _plain(arm.backing)]


def _plain(value: Any) -> Any:
    return msgspec.to_builtins(value)


def _said(folder: RunFolder) -> Mapping[_Key, tuple[int, Verdict, float | None, float | None]]:
    found: Sequence[_FoundCell] | Sequence[CellResult] = ()
    try:
        found = reading.decoded(_REPORT, reading.kept(folder.path / "report.json")).cells
    except (OSError, reading.UnreadableError):
        with suppress(OSError, HugewiseError):
            found = analysis.results_of(folder.read()).cells
    return {
        _Key(cell.cell, one.arm, one.metric): (one.n, one.verdict, one.evidence_larger, one.evidence_smaller)
        for cell in found
        for one in (*cell.comparisons, *cell.declared)
    }


class Judged(NamedTuple):
    """A comparison as a run judged it."""

    results: Results
    cell: CellResult
    comparison: Comparison

    @property
    def higher_is_better(self) -> bool:
        """True if a larger value of its metric is better."""
        return self.cell.metric_named(self.comparison.metric).better == "higher"


class AllRuns(NamedTuple):
    """Evidence on one question of runs and of the earlier runs that they name.

    larger, smaller  products of the runs' e-values; a run that claims nothing, or has none, counts 1
    earlier          runs (`STUDY/RUN`) that only others name, and that have e-values
    unknown          those that have none, though they may have judged it
    """

    larger: float
    smaller: float
    earlier: tuple[str, ...]
    unknown: tuple[str, ...]


def evidence_of(runs: Sequence[Judged]) -> AllRuns:
    """Return the evidence of all runs of a question. Of an earlier run the newest that names it is right."""
    own = {run.results.run for run in runs}
    values = [(run.comparison.evidence_larger, run.comparison.evidence_smaller) for run in runs]
    known: dict[str, EarlierComparison] = {}
    unknown: dict[str, str] = {}
    names: dict[str, str] = {}
    for run in sorted(runs, key=lambda run: run.results.started, reverse=True):
        key = run.cell.cell, run.comparison.arm, run.comparison.metric
        for name, shared in (run.results.earlier_shared or {}).items():
            study, _, earlier = name.rpartition("/")
            mine = [one for one in shared if (one.cell, one.arm, one.metric) == key and one.verdict != "none"]
            for one in mine if earlier not in own else ():
                names.setdefault(earlier, name)
                if one.larger is not None:
                    known.setdefault(earlier, one)
                elif not chooses(study):
                    unknown.setdefault(earlier, name)
    values += [(one.larger, one.smaller) for one in known.values()]
    larger, smaller = (
        evidence.multiply_e_values(1.0 if value is None else value for value in side)
        for side in ([pair[0] for pair in values], [pair[1] for pair in values])
    )
    open_ = tuple(name for run, name in unknown.items() if run not in known)
    return AllRuns(larger, smaller, tuple(names[run] for run in known), open_)


class WithEarlier(NamedTuple):
    """The verdict on a comparison by a run and the earlier runs of the same question together.

    runs     the earlier ones that judged it by e-values; one without a verdict claims nothing
    e_value  by e-Holm over all comparisons of the run that have earlier runs, of the direction that has more; `needed`:
             what a verdict takes
    """

    verdict: Verdict
    runs: tuple[str, ...]
    e_value: float
    needed: float


def together(results: Results) -> dict[tuple[str, str, str], WithEarlier]:
    """Return a run judged together with the earlier runs that it names, by cell, arm and metric."""
    asked = [
        Judged(results, cell, comparison)
        for cell in results.cells
        for comparison in (*cell.comparisons, *cell.declared)
        if comparison.verdict != "none" and comparison.evidence_larger is not None
        if cell.metric_named(comparison.metric).better != "neutral"
    ]
    judged = [(one, every) for one in asked if (every := evidence_of([one])).earlier]
    values = evidence.adjusted([value for _, every in judged for value in (every.larger, every.smaller)])
    needed = 1 / (1 - results.confidence)
    decided = {}
    for (one, every), larger, smaller in zip(judged, values[::2], values[1::2], strict=True):
        most = max(larger, smaller)
        good = larger if one.higher_is_better else smaller
        verdict: Verdict = "undecided" if most < needed else "better" if good == most else "worse"
        key = one.cell.cell, one.comparison.arm, one.comparison.metric
        decided[key] = WithEarlier(verdict, every.earlier, most, needed)
    return decided


def contradicted(results: Results, cell: CellResult, comparison: Comparison) -> WithEarlier | None:
    """Return what all runs say where that takes away the direction that this run's comparison has by itself."""
    all_runs = together(results).get((cell.cell, comparison.arm, comparison.metric))
    takes_away = comparison.verdict in DIRECTIONS and all_runs is not None and all_runs.verdict != comparison.verdict
    return all_runs if takes_away else None


def _listed(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _every(results: Path) -> tuple[list[tuple[Opened, Study, RunFolder]], int]:
    found = []
    places, unread = _folders(results)
    for place in places:
        folder = RunFolder(place)
        try:
            (place / "run.jsonl").lstat()
            first = folder.opened()
            found.append((first, folder.study(first), folder))
        except (FileNotFoundError, NotADirectoryError):
            continue  # no run
        except (OSError, UserError):
            unread += 1
    return sorted(found, key=lambda each: (each[0].t, each[2].path), reverse=True), unread


def _folders(results: Path) -> tuple[list[Path], int]:
    found, unread = [], 0
    for study in results.iterdir() if results.is_dir() else ():
        try:
            found += list(study.iterdir())
        except NotADirectoryError:
            continue
        except OSError:
            unread += 1
    return found, unread


def comparable(study: Study, other: Study) -> str | None:
    """Return the key in which `other` measures something else than `study`, or None: its pairs speak for the study."""
    if study.compared_with != other.compared_with:
        return "baseline"
    for name in _SAME:
        if getattr(study, name, None) != getattr(other, name, None):
            return name
    return None


def unlike(run: Opened, first: Opened) -> str | None:
    """Return how the machine of `run` differs from `first` (host, mechanism, guests' accelerator, CPU model, kernels),
    or None.
    """
    return _differs(_machine(run) | _kernels(run), _machine(first) | _kernels(first))


def _elsewhere(run: Opened, first: Opened) -> str | None:
    return _differs(_machine(run), _machine(first))


def _differs(here: Mapping[str, str], there: Mapping[str, str]) -> str | None:
    for name in dict.fromkeys((*there, *here)):
        if here.get(name) != there.get(name):
            return f"{name} is {here.get(name, 'none')}, there {there.get(name, 'none')}"
    return None


def _machine(opened: Opened) -> dict[str, str]:
    found = {"host": str(opened.host.get("machine") or opened.host.get("name")), "mechanism": opened.mechanism}
    for name in _OF_GUESTS:
        if (version := opened.versions.get(name)) is not None:
            found[name] = version.partition(":")[0] if name == "accelerator" else version
    return found


def _kernels(opened: Opened) -> dict[str, str]:
    return {name: version for name, version in opened.versions.items() if name.startswith("kernel ")}


@dataclass
class Pilot:
    """Measurements of one cell by the runs; pairs by arm and metric."""

    record: CellRecord
    pairs: dict[tuple[str, str], Pairs] = field(default_factory=dict)
    spans: float = 0.0  # seconds of complete blocks, from opened to closed
    busy: float = 0.0  # seconds of their attempts
    seconds: dict[str, list[float]] = field(default_factory=dict)  # of attempts, by arm

    def cost(self, arm: str) -> float:
        """Return seconds of an attempt of `arm`, with its part of what a block takes beyond its attempts."""
        return fmean(self.seconds[arm]) * self.spans / self.busy if self.seconds.get(arm) and self.busy else 0.0


def judged_comparisons(study: Study, cells: Sequence[ComparedCell]) -> list[Contrast]:
    """Return the comparisons that share the error rate, each once: its end points are judged on the same pairs."""
    contrasts = dict.fromkeys(method.contrast for method in methods_for(study, cells))
    claimed = [contrast for contrast in contrasts if contrast.arm not in study.unjudged]
    return [contrast for contrast in claimed if contrast.metric.better != "neutral"]


def claims(study: Study, cells: Sequence[ComparedCell]) -> int:
    """Return the claims that share the error rate: the judged comparisons, and their end points."""
    return family.claims(study, cells, judged_comparisons(study, cells))


def read(study: Study, runs: Sequence[Path]) -> dict[str, Pilot]:
    """Return the pairs of all runs, by cell. Raises UserError, RunError."""
    pilots: dict[str, Pilot] = {}
    first: Opened | None = None
    for path in runs:
        run = RunFolder(path).read()
        key = comparable(study, run.study)
        if key is not None:
            raise UserError(
                f"{path} measured another study: `{key}` differs from {study.name}'s",
                hint=f"a fresh pilot: hugewise plan {study.file or 'STUDY'} --pilot 20",
            )
        first = first or run.opened
        if (difference := unlike(run.opened, first)) is not None:
            raise UserError(
                f"{path} ran on another machine than {runs[0]}: {difference}",
                hint="plan from each by itself: pairs of different machines have no spread in common",
            )
        for cell in run.opened.cells:
            if pilots.setdefault(cell.id, Pilot(cell)).record.kind != cell.kind:  # as a calibration had let it be
                raise UserError(
                    f"{path} measured {cell.id} in another design than {runs[0]}",
                    hint="plan from each by itself: pairs of different designs have no spread in common",
                )
        spans = _spans(run)
        contrasts = judged_comparisons(study, run.opened.cells)
        for block in run.blocks:
            if block.state == "complete" and block.cell in pilots:
                _take(pilots[block.cell], block, spans.get(block.number), contrasts)
    if not any(pilot.spans for pilot in pilots.values()):
        raise UserError("the runs have no complete block", hint="resume them, or: hugewise plan STUDY --pilot 20")
    return pilots


def _take(pilot: Pilot, block: Block, span: float | None, contrasts: Iterable[Contrast]) -> None:
    for contrast in contrasts:
        if contrast.cell == block.cell:
            pilot.pairs.setdefault((contrast.arm, contrast.metric.name), Pairs(contrast)).take(block)
    busy = 0.0
    for attempt in block.attempts:
        pilot.seconds.setdefault(attempt.arm, []).append(attempt.ended - attempt.started)
        busy += attempt.ended - attempt.started
    pilot.busy += busy
    pilot.spans += span if span is not None else _extent(block)


def _extent(block: Block) -> float:
    return max(attempt.ended for attempt in block.attempts) - min(attempt.started for attempt in block.attempts)


def _spans(run: Run) -> dict[int, float]:
    opened: dict[int, float] = {}
    found: dict[int, float] = {}
    for record in run.records:
        if isinstance(record, BlockOpened):
            opened = {record.block: record.t}
        elif isinstance(record, BlockClosed):
            if record.block in opened:
                found[record.block] = record.t - opened[record.block]
        elif isinstance(record, Resumed):
            opened = {}
    return found


def room(study: Study, pilots: Iterable[Pilot]) -> int | None:
    """Return blocks of each cell that the time budget has room for."""
    round_ = sum(pilot.cost(arm.name) for pilot in pilots for arm in pilot.record.arms)
    return None if study.budget.time is None or not round_ else int(study.budget.time / round_)
