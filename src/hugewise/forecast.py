"""What a study will need: pairs, hours, and the smallest effect that its budget can show, from measured pairs.

    forecast(study, runs, effect=0.01)   from past runs or pilots of the same study
    pilot(study, blocks, results)        a short run for nothing but this
    missing(study, cells, results)       what to do when there is neither

The spread of a comparison's pairs is taken from the runs; the power is that of the study's own method at its own share
of the error rate (`stats.power`). Pairs are forecast from `stats.spread.scale`; their range carries the relative
interval of the standard deviation over to it. A pilot says how noisy pairs are here, today: no more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, pvariance, stdev

import msgspec

from hugewise.comparability import comparable, unlike
from hugewise.errors import UserError
from hugewise.runlog import BlockClosed, BlockOpened, CellRecord, Opened, RunFolder
from hugewise.stats import power, spread
from hugewise.stats.family import Planned, methods_for
from hugewise.stats.method import Contrast
from hugewise.stats.pairs import Pair, Pairs
from hugewise.stats.sessions import components, pairs_per_session
from hugewise.study import Study
from hugewise.trial import Block

__all__ = ["CHANCE", "FEWEST", "Forecast", "Row", "forecast", "missing", "past_runs", "pilot"]

CHANCE = 0.9
"""The chance of a verdict that pairs and smallest effects are given for."""
FEWEST = 6
"""Fewer pairs have no spread worth planning with."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One comparison. Spreads are of the log-ratio of a pair (0.01 is about 1%), effects are |ratio - 1|.

    pairs, failures, sessions   what the runs have of it
    sd, sd_low, sd_high         standard deviation of the pair difference, with its 95% interval
    scale                       the deviation that the test sees (outliers count less)
    correlation (low, high)     within pairs, of the logarithms of the two sides, with its 95% interval
    variance_ratio              var(D) / (var(arm) + var(baseline)): what pairing leaves of the variance
    needed (low, high)          pairs for the asked effect at 90%: of the declared ones where these are enough, else
                                the fewest to declare; the range follows from the sd's interval
    typical                     pairs after which half of such campaigns have ended
    seconds                     of a pair, hugewise's own share included
    budget                      pairs that the declared blocks and time have room for
    smallest                    the effect that these show with 90%
    per_session                 pairs per session by the rule of Kalibera and Jones, or None with the reason
    reason                      why there is no forecast, or None
    """

    cell: str
    arm: str
    baseline: str
    metric: str
    pairs: int
    failures: int
    sessions: int
    sd: float | None = None
    sd_low: float | None = None
    sd_high: float | None = None
    scale: float | None = None
    correlation: float | None = None
    correlation_low: float | None = None
    correlation_high: float | None = None
    variance_ratio: float | None = None
    needed: int | None = None
    needed_low: int | None = None
    needed_high: int | None = None
    typical: int | None = None
    seconds: float | None = None
    budget: int | None = None
    smallest: float | None = None
    per_session: int | None = None
    per_session_reason: str | None = None
    reason: str | None = None


class Forecast(msgspec.Struct, frozen=True, kw_only=True):
    """A study's forecast. `level` is each comparison's share of the error rate `alpha`; `least` the fewest pairs after
    which any verdict is possible within the declared `blocks`; `seconds` the whole study's at the pairs needed, None
    where a comparison has none; `time_blocks` the blocks of each cell that its time budget has room for.
    """

    format: int = 1
    study: str
    method: str
    runs: tuple[str, ...]
    effect: float
    margin: float
    chance: float
    alpha: float
    level: float
    comparisons: int
    blocks: int
    time: float | None
    time_blocks: int | None
    least: int | None
    session_cost: float
    seconds: float | None
    rows: tuple[Row, ...]


@dataclass
class _Pilot:
    """What the runs have measured of one cell."""

    record: CellRecord
    pairs: dict[str, Pairs] = field(default_factory=dict)
    groups: dict[str, dict[tuple[int, int], list[float]]] = field(default_factory=dict)
    spans: float = 0.0  # seconds of complete blocks, from opened to closed
    busy: float = 0.0  # seconds of their attempts
    seconds: dict[str, list[float]] = field(default_factory=dict)  # of attempts, by arm

    def cost(self, arm: str) -> float:
        """Seconds of an attempt of `arm`, with its part of what a block takes beyond its attempts."""
        return fmean(self.seconds[arm]) * self.spans / self.busy if self.seconds.get(arm) and self.busy else 0.0


def forecast(
    study: Study, runs: Sequence[Path], *, effect: float | None = None, session_cost: float = 60.0
) -> Forecast:
    """The forecast of `study` from `runs` of it, for an `effect` as |ratio - 1| (default: the margin).

    `session_cost` is what a new statistical session takes, in seconds. Raises UserError where a run is another study's
    or there are too few pairs, RunError where it cannot be read.
    """
    effect = study.margin if effect is None else effect
    pilots = _read(study, runs)
    judged = _judged(study, [pilot.record for pilot in pilots.values()])
    level = _level(study, len(judged))
    room = _room(study, pilots.values())
    budget = min(study.budget.blocks, room) if room is not None else study.budget.blocks
    planner = _Planner(study.method, level, study.budget.blocks, budget)
    rows = tuple(_row(contrast, pilots[contrast.cell], planner, effect, session_cost) for contrast in judged)
    if not any(row.pairs >= FEWEST for row in rows):
        most = max((row.pairs for row in rows), default=0)
        raise UserError(
            f"too few pairs to plan with: {most} of a comparison, and {FEWEST} are the least",
            hint=f"a fresh pilot: hugewise plan {study.file or 'STUDY'} --pilot 20",
        )
    return Forecast(
        study=study.name,
        method=study.method,
        runs=tuple(str(run) for run in runs),
        effect=effect,
        margin=study.margin,
        chance=CHANCE,
        alpha=1 - study.confidence,
        level=level,
        comparisons=len(judged),
        blocks=study.budget.blocks,
        time=study.budget.time,
        time_blocks=room,
        least=power.least_pairs(level, study.budget.blocks) if study.method != "fixed-n" else study.budget.blocks,
        session_cost=session_cost,
        seconds=_whole(rows, pilots),
        rows=rows,
    )


def pilot(study: Study, blocks: int, results: Path, *, run: Callable[[Study, Path], RunFolder]) -> Path:
    """Run `blocks` blocks of every cell of `study`, in a folder of its own below `results`; the run's folder.

    Nothing is judged early, so that every comparison has all of its pairs. `run` is `hugewise.session.run`.
    """
    from hugewise.study import with_budget  # noqa: PLC0415  (only here)

    short = with_budget(study, blocks, None)
    name = f"{study.name[:58]}-pilot"
    return run(msgspec.structs.replace(short, name=name, method="fixed-n", end_points=()), results).path


def missing(study: Study, cells: Sequence[Planned], results: Path) -> UserError:
    """What is missing to plan `study` when neither a run nor a pilot is named, and what is known without one."""
    judged = len(_judged(study, cells))
    level = _level(study, judged)
    blocks, floor = study.budget.blocks, ""
    if study.method != "fixed-n":
        least = power.least_pairs(level, blocks)
        floor = f"; {blocks} declared blocks decide none" if least is None else f"; none is decided before pair {least}"
    known = past_runs(study, results)
    cure = f"hugewise plan {study.file or 'STUDY'} " + (f"--from {known[0]}" if known else "--pilot 20")
    return UserError(
        f"no measured pairs to plan {study.name} from: how much pairs differ on this machine is unknown"
        f" (known: {judged} comparison{'' if judged == 1 else 's'} at an error of {level:.3g} each{floor})",
        hint=f"{'a past run of it' if known else 'a short pilot'}: {cure}",
    )


def past_runs(study: Study, results: Path) -> list[Path]:
    """Runs and pilots of `study` below the folder `results`, the newest first."""
    found = []
    for path in results.glob("*/*/run.jsonl"):
        folder = RunFolder(path.parent)
        try:
            if comparable(study, folder.study()) is None and any(b.state == "complete" for b in folder.blocks()):
                found.append((folder.opened().t, path.parent))
        except UserError:
            continue
    return [path for _, path in sorted(found, reverse=True)]


@dataclass(frozen=True)
class _Planner:
    """Pairs and effects by the study's method at one comparison's share of the error rate."""

    method: str
    level: float
    declared: int
    budget: int

    def needed(self, shift: float) -> int | None:
        """Pairs of the declared ones where these are enough, else the fewest to declare."""
        if self.method == "fixed-n":
            return power.student_needed(shift, self.level, chance=CHANCE)
        within = power.pairs_needed(shift, self.level, chance=CHANCE, budget=self.declared)
        return within or power.pairs_needed(shift, self.level, chance=CHANCE)

    def typical(self, shift: float, needed: int | None) -> int | None:
        """Pairs after which half have ended."""
        if needed is None or self.method == "fixed-n":
            return needed
        return power.pairs_needed(shift, self.level, chance=0.5, budget=max(needed, self.declared))

    def smallest(self) -> float | None:
        if self.method == "fixed-n":
            return power.student_shift(self.budget, self.level, chance=CHANCE) if self.budget > 1 else None
        return power.smallest_shift(self.budget, self.level, chance=CHANCE) if self.budget > 0 else None


def _judged(study: Study, cells: Sequence[Planned]) -> list[Contrast]:
    """The comparisons that share the error rate, each once: its end points are judged on the same pairs."""
    contrasts = dict.fromkeys(method.contrast for method in methods_for(study, cells))
    return [contrast for contrast in contrasts if contrast.metric.better != "neutral"]


def _level(study: Study, comparisons: int) -> float:
    """The share of one comparison's typical ratio: what `stats.family` gives it (at Holm's first step for fixed n)."""
    return (1 - study.confidence) / (max(1, comparisons) * (1 + len(study.end_points)))


def _read(study: Study, runs: Sequence[Path]) -> dict[str, _Pilot]:
    """The pairs of all runs, by cell. Raises UserError, RunError."""
    pilots: dict[str, _Pilot] = {}
    first: Opened | None = None
    for number, path in enumerate(runs):
        folder = RunFolder(path)
        key = comparable(study, folder.study())
        if key is not None:
            raise UserError(
                f"{path} measured another study: `{key}` differs from {study.name}'s",
                hint=f"a fresh pilot: hugewise plan {study.file or 'STUDY'} --pilot 20",
            )
        opened = folder.opened()
        if first is None:
            first = opened
        elif (difference := unlike(opened, first)) is not None:
            raise UserError(
                f"{path} ran on another machine than {runs[0]}: {difference}",
                hint="plan from each by itself: pairs of different machines have no spread in common",
            )
        for cell in opened.cells:
            pilots.setdefault(cell.id, _Pilot(cell))
        spans = _spans(folder)
        contrasts = _judged(study, opened.cells)
        for block in folder.blocks():
            if block.state == "complete" and block.cell in pilots:
                _take(pilots[block.cell], block, spans.get(block.number), contrasts, number)
    if not any(pilot.spans for pilot in pilots.values()):
        raise UserError("the runs have no complete block", hint="resume them, or: hugewise plan STUDY --pilot 20")
    return pilots


def _take(pilot: _Pilot, block: Block, span: float | None, contrasts: Iterable[Contrast], run: int) -> None:
    for contrast in contrasts:
        if contrast.cell == block.cell:
            pairs = pilot.pairs.setdefault(contrast.arm, Pairs(contrast))
            pair = pairs.take(block)
            if pair is not None and pair.log_ratio is not None:
                groups = pilot.groups.setdefault(contrast.arm, {})
                groups.setdefault((run, pair.session), []).append(pair.log_ratio)
    busy = 0.0
    for attempt in block.attempts:
        pilot.seconds.setdefault(attempt.arm, []).append(attempt.ended - attempt.started)
        busy += attempt.ended - attempt.started
    pilot.busy += busy
    pilot.spans += span if span is not None else _extent(block)


def _extent(block: Block) -> float:
    return max(attempt.ended for attempt in block.attempts) - min(attempt.started for attempt in block.attempts)


def _spans(folder: RunFolder) -> dict[int, float]:
    """Seconds from a block's opening to its close; not of a block that a resumed run went on with after a pause."""
    opened: dict[int, float] = {}
    found: dict[int, float] = {}
    for record in folder.records():
        if isinstance(record, BlockOpened):
            opened = {record.block: record.t}
        elif isinstance(record, BlockClosed):
            if record.block in opened:
                found[record.block] = record.t - opened[record.block]
        else:
            opened = {}
    return found


def _room(study: Study, pilots: Iterable[_Pilot]) -> int | None:
    """Blocks of each cell that the time budget has room for."""
    round_ = sum(pilot.cost(arm.name) for pilot in pilots for arm in pilot.record.arms)
    return None if study.budget.time is None or not round_ else int(study.budget.time / round_)


def _row(contrast: Contrast, pilot: _Pilot, planner: _Planner, effect: float, session_cost: float) -> Row:
    known = pilot.pairs.get(contrast.arm) or Pairs(contrast)
    bad_high = contrast.metric.better == "higher"
    differences = [pair.difference(higher_is_better=bad_high) for pair in known.usable]
    finite = [pair for pair in known.usable if pair.log_ratio is not None]
    row = Row(
        cell=contrast.cell,
        arm=contrast.arm,
        baseline=contrast.baseline,
        metric=contrast.metric.name,
        pairs=len(known.usable),
        failures=known.failures(),
        sessions=len(pilot.groups.get(contrast.arm, {})),
        seconds=pilot.cost(contrast.arm) + pilot.cost(contrast.baseline) or None,
        budget=planner.budget,
    )
    refusal = known.refusal(known.seen)
    if refusal is not None:
        return msgspec.structs.replace(row, reason=refusal)
    scale = spread.scale(differences)
    if scale is None or len(finite) < FEWEST:
        what = f"{row.failures} of {row.pairs} pairs have a failure" if row.failures else f"{row.pairs} pairs"
        return msgspec.structs.replace(row, reason=f"too few pairs to plan with ({what}; {FEWEST} are the least)")
    row = _spreads(row, finite, scale)
    row = _pairs(row, planner, math.log1p(effect))
    return _sessions(row, list(pilot.groups[contrast.arm].values()), session_cost)


def _spreads(row: Row, finite: Sequence[Pair], scale: float) -> Row:
    logs = [pair.log_ratio for pair in finite if pair.log_ratio is not None]
    arm = [math.log(pair.arm) for pair in finite if pair.arm is not None]
    baseline = [math.log(pair.baseline) for pair in finite if pair.baseline is not None]
    low, high = spread.deviation_interval(logs) or (None, None)
    both = pvariance(arm) + pvariance(baseline)
    together = spread.correlated(arm, baseline)
    return msgspec.structs.replace(
        row,
        sd=stdev(logs),
        sd_low=low,
        sd_high=high,
        scale=scale,
        correlation=together[0] if together else None,
        correlation_low=together[1] if together else None,
        correlation_high=together[2] if together else None,
        variance_ratio=pvariance(logs) / both if both > 0 else None,
    )


def _pairs(row: Row, planner: _Planner, effect: float) -> Row:
    """Pairs for the effect, and the effect for the budget's pairs."""
    assert row.scale is not None and row.sd is not None
    if row.scale <= 0 or row.sd <= 0:
        return msgspec.structs.replace(row, reason="all pairs have the same ratio: any number of them will do")
    shift = effect / row.scale
    needed = planner.needed(shift)
    low = None if row.sd_low is None else planner.needed(shift * row.sd / row.sd_low) if row.sd_low > 0 else needed
    high = None if row.sd_high is None else planner.needed(shift * row.sd / row.sd_high)
    smallest = planner.smallest()
    return msgspec.structs.replace(
        row,
        needed=needed,
        needed_low=low,
        needed_high=high,
        typical=planner.typical(shift, needed),
        smallest=None if smallest is None else math.expm1(min(700.0, smallest * row.scale)),
    )


def _sessions(row: Row, groups: Sequence[Sequence[float]], session_cost: float) -> Row:
    if sum(len(group) > 1 for group in groups) < 2:
        reason = "the spread between sessions takes two sessions of two pairs: give more runs with --from"
        return msgspec.structs.replace(row, per_session_reason=reason)
    between, within = components(groups)
    if between == 0:
        reason = f"the {len(groups)} sessions do not differ more than their pairs do: as many as a session has time for"
        return msgspec.structs.replace(row, per_session_reason=reason)
    return msgspec.structs.replace(
        row, per_session=pairs_per_session(between, within, session_cost, row.seconds or 1.0)
    )


def _whole(rows: Sequence[Row], pilots: dict[str, _Pilot]) -> float | None:
    """Seconds of the study at the pairs needed: each arm until its own pairs are there, the baseline to the last."""
    if any(row.needed is None for row in rows):
        return None
    total = 0.0
    for name, pilot in pilots.items():
        own = [row for row in rows if row.cell == name]
        total += sum((row.needed or 0) * pilot.cost(row.arm) for row in own)
        total += max((row.needed or 0 for row in own), default=0) * pilot.cost(pilot.record.baseline)
    return total
