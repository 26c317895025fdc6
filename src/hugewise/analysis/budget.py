"""Whether a study's budget can decide anything: asked before hours are spent, not told after them.

No comparison is decided before a number of pairs that follows from its share of the error rate alone (`stats.power`),
however large its effect is. A budget with fewer blocks, or with time for fewer, ends undecided whatever is measured.
How long a round of all cells takes is known from the newest run of the study. Where runs measured parts of it, or a
pilot did, their cells tell their own time, and that of others of the same workload: what such an attempt takes beside
its lead and its measured part. Of all else these two are what an attempt takes at least.

How many pairs a verdict takes, by a run that has too few of them for a forecast. Pure.

A forecast wants six pairs of a comparison (`forecast.FEWEST`): below, neither the scale of the exact test nor an
interval of the spread for any tails is known. Where there are three or more, their differences are taken for normal
ones: the standard deviation s has f = n - 1 degrees of freedom, and sigma lies within s * sqrt(f / chi^2_f). From three
pairs the ends of that are a factor of 12 apart, and so it is told wherever such a figure stands.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import fmean, stdev
from typing import NamedTuple

import msgspec

from hugewise.analysis import earlier, forecast
from hugewise.analysis.earlier import called, of_study
from hugewise.analysis.forecast import CHANCE, FEWEST, TYPICAL, Forecast, Planner, Row
from hugewise.errors import HugewiseError
from hugewise.model.design import Kind
from hugewise.model.results import CellResult, Comparison, Results
from hugewise.model.trial import Attempt
from hugewise.plan.plan import Cell
from hugewise.quantity import format_duration
from hugewise.stats import power
from hugewise.stats.family import ComparedCell
from hugewise.store.records import CellRecord
from hugewise.study.study import Study

_ROOM = 1.1  # times what the blocks so far have taken
_NEWEST = 3  # runs that are read wholly: a long campaign has hundreds


class Round(NamedTuple):
    """Seconds that one block of every cell takes at least, and how that is known."""

    seconds: float
    source: str


def too_small(study: Study, cells: Sequence[Cell], results: Path) -> str | None:
    """Why the study's budget decides no comparison, and the cure; None where it may decide one.

    `results` is the folder of earlier runs, which tell how long a block takes. A screening makes no verdict, and counts
    that repeat have a method that one block more may decide: for them it is None.
    """
    if study.method not in ("sequential", "fixed-n"):
        return None
    comparisons = len(earlier.judged_comparisons(study, cells))
    if not comparisons:
        return None
    blocks = study.budget.blocks
    least: int | None = blocks
    if study.method == "sequential":
        least = power.least_pairs(forecast.level(study, comparisons), blocks)
        if least is None:
            return _few_blocks(study, comparisons)
    assert least is not None
    return _short(study, least, measured(study, cells, results) or in_part(study, cells, results))


def measured(study: Study, cells: Sequence[ComparedCell], results: Path) -> Round | None:
    """From the newest runs of the study below `results`: the first that measured each of its arms. None: none did."""
    for _, run in of_study(study, results)[:_NEWEST]:
        with suppress(HugewiseError):
            known = earlier.read(study, [run.path])
            costs = [known[cell.id].cost(arm.name) if cell.id in known else 0.0 for cell in cells for arm in cell.arms]
            if all(costs):
                return Round(sum(costs), f"took {format_duration(sum(costs))} in {run.path}")
    return None


class _Seen(NamedTuple):
    """A cell of an earlier run, and what attempts of its arms took, in seconds."""

    record: CellRecord
    kind: Kind
    costs: Mapping[str, float]

    @property
    def mean(self) -> float:
        """Of an attempt, whatever its arm."""
        return fmean(self.costs.values())


def in_part(study: Study, cells: Sequence[Cell], results: Path) -> Round:
    """From the newest runs and pilots of the study, whatever part they measured; else as `declared`."""
    seen = list(_seen(study, results))
    told = {cell.id: took for cell in cells if (took := _by_seen(cell, seen)) is not None}
    if not told:
        return declared(cells)
    others = [cell for cell in cells if cell.id not in told]
    total = sum(told.values()) + declared(others).seconds
    beside = f", and {len(others)} by their measured parts and leads alone" if others else ""
    source = f"takes about {format_duration(total)}: {len(told)} cells by earlier runs of parts of the study{beside}"
    return Round(total, source)


def _seen(study: Study, results: Path) -> Iterator[_Seen]:
    names = (study.name, forecast.pilot_name(study.name))
    for folder in called(names, results)[:_NEWEST]:
        with suppress(HugewiseError):
            of = folder.study(folder.opened())
            for pilot in earlier.read(of, [folder.path]).values():
                costs = {arm.name: cost for arm in pilot.record.arms if (cost := pilot.cost(arm.name))}
                if costs:
                    yield _Seen(pilot.record, pilot.record.kind or of.design.first, costs)


def _by_seen(cell: Cell, seen: Sequence[_Seen]) -> float | None:
    """Seconds of a block of the cell by what runs have seen of it, else of another of its workload in the same design.
    None: by nothing.
    """
    alike = [one for one in seen if one.record.workload == cell.workload.name and one.kind == cell.kind]
    own = next((one for one in alike if one.record.id == cell.id), None)
    if own is not None and dict(own.record.values) == dict(cell.values):
        return sum(own.costs.get(arm.name, own.mean) for arm in cell.arms)
    if not alike:
        return None
    near = own or alike[0]
    beside = near.mean - (timed(near.record.values) if cell.kind == "sequential" else 0.0)
    return sum(max(beside, 0.0) + (timed(cell.given(arm)) if cell.kind == "sequential" else 0.0) for arm in cell.arms)


def declared(cells: Sequence[Cell]) -> Round:
    """From the parameters: lead and measured part of the workloads that run for a time, one arm after the other."""
    total = sum(timed(cell.given(arm)) for cell in cells if cell.kind == "sequential" for arm in cell.arms)
    return Round(total, f"takes {format_duration(total)} at least: the measured parts and their leads alone")


def timed(values: Mapping[str, object]) -> float:
    """Seconds of the lead and the measured part; 0 where the work is given, not the time."""
    if values.get("operations") or values.get("transactions"):
        return 0.0
    parts = (values.get(name) for name in ("duration", "lead"))
    return sum(float(part) for part in parts if isinstance(part, int | float))


def _short(study: Study, least: int, round_: Round) -> str | None:
    time = study.budget.time
    if time is None or round_.seconds * least <= time:
        return None
    room = int(time / round_.seconds)
    has = f"has room for {room} block{'' if room == 1 else 's'} of each cell" if room else "ends within the first round"
    before = f"none of its comparisons is decided before block {least}"
    if study.method == "fixed-n":
        before = f"its method decides after all of its {least} blocks"
    needed = format_duration(math.ceil(round_.seconds * least / 60) * 60)
    return (
        f"the budget is too small to decide anything: its time of {format_duration(time)} {has}"
        f" (a round {round_.source}), and {before}: {needed} or more, or fewer cells and arms (--only, --arms)"
    )


def more_time(seconds: float, *, asked: bool) -> str:
    """The cure of a time that was too short, where a verdict takes these `seconds` or more; `asked`: of a command
    line.
    """
    minutes = math.ceil(_ROOM * seconds / 60)
    if not asked:
        return f"{format_duration(60 * minutes)} or more"
    return f"begin it anew with --time {minutes}m or more, or with fewer cells and arms (--only, --arms)"


def _few_blocks(study: Study, comparisons: int) -> str:
    needed = next(n for n in range(study.budget.blocks + 1, power.WALKED) if _decides(study, comparisons, n))
    several = f"{comparisons} comparison{'' if comparisons == 1 else 's'}"
    return (
        f"the budget is too small to decide anything: {study.budget.blocks} blocks cannot decide {several} at a"
        f" confidence of {study.confidence:g} together, however large an effect is: --blocks {needed} or more"
    )


def _decides(study: Study, comparisons: int, blocks: int) -> bool:
    return power.least_pairs(forecast.level(study, comparisons), blocks) is not None


LEAST = 3
"""Fewer pairs leave the spread open by more than a factor of 50: nothing is planned from them."""
_CONFIDENCE = 0.95
_SESSION_COST = 60.0


def completed(planned: Forecast | None, results: Results) -> Forecast | None:
    """The forecast `planned` from a run, with what its comparisons of few pairs say; where none could be had (None),
    one of those alone. None where the method makes no verdict that could be planned, or nothing was compared.
    """
    found = {(row.cell, row.arm, row.metric): row for row in _rows(results)}
    if planned is not None:
        rows = tuple(found.get((row.cell, row.arm, row.metric), row) if _open(row) else row for row in planned.rows)
        return msgspec.structs.replace(planned, rows=rows)
    if not found:
        return None
    level, blocks = _level(results, None), _declared(results)
    return Forecast(
        study=results.study,
        method=_method(results),
        runs=(results.folder or results.run,),
        effect=results.margin,
        margin=results.margin,
        chance=CHANCE,
        alpha=1 - results.confidence,
        level=level,
        comparisons=len(_judged(results)),
        blocks=blocks,
        time=results.options.get("budget", {}).get("time"),
        time_blocks=None,
        least=power.least_pairs(level, blocks) if _method(results) != "fixed-n" else blocks,
        session_cost=_SESSION_COST,
        seconds=None,
        rows=tuple(found.values()),
    )


def _open(row: Row) -> bool:
    return row.end_point == TYPICAL and row.needed is None and row.pairs < FEWEST


def _rows(results: Results) -> list[Row]:
    """The typical ratio of every comparison that shares the error rate and has fewer pairs than a forecast wants."""
    if _method(results) in {"", "screening"}:
        return []
    return [_row(cell, one, results) for cell, one in _judged(results) if one.n < FEWEST]


def _judged(results: Results) -> list[tuple[CellResult, Comparison]]:
    """The comparisons that share the error rate."""
    return [
        (cell, one)
        for cell in results.cells
        for one in (*cell.comparisons, *cell.declared)
        if cell.metric_named(one.metric).better != "neutral"
    ]


def _row(cell: CellResult, one: Comparison, results: Results) -> Row:
    blocks = _blocks(cell.cell, results.attempts)
    ratios = [
        math.log(arm / base)
        for block in blocks
        if (arm := _value(block.get(one.arm), one.metric)) and (base := _value(block.get(one.baseline), one.metric))
    ]
    row = Row(
        cell=cell.cell,
        arm=one.arm,
        baseline=one.baseline,
        metric=one.metric,
        pairs=len(ratios),
        failures=one.failures_arm + one.failures_baseline,
        sessions=1,
        seconds=_seconds(blocks, one.arm) + _seconds(blocks, one.baseline) or None,
        budget=_declared(results),
    )
    if len(ratios) < LEAST:
        few = f"{len(ratios)} pair{'' if len(ratios) == 1 else 's'}"
        return msgspec.structs.replace(row, reason=f"too few pairs to plan with ({few}; {LEAST} are the least)")
    sd = stdev(ratios)
    if sd <= 0:
        return msgspec.structs.replace(row, reason="all pairs have the same ratio: any number of them will do")
    return _planned(msgspec.structs.replace(row, sd=sd, scale=sd), results, _level(results, one))


def _planned(row: Row, results: Results, level: float) -> Row:
    assert row.sd is not None
    declared, freedom = _declared(results), row.pairs - 1
    planner = Planner(
        method=_method(results),
        level=level,
        declared=declared,
        budget=declared,
        effect=results.margin,
        end_points=(),
        session_cost=_SESSION_COST,
    )
    low, high = _interval(row.sd, freedom)
    effect = math.log1p(results.margin)
    return msgspec.structs.replace(
        row,
        sd_low=low,
        sd_high=high,
        needed=planner.needed(effect / row.sd, freedom),
        needed_low=planner.known(effect / low),
        needed_high=planner.known(effect / high),
    )


def _interval(sd: float, freedom: int) -> tuple[float, float]:
    """Of the standard deviation of normal values."""
    from scipy.special import chdtri  # noqa: PLC0415  (slow to load)

    tail = (1 - _CONFIDENCE) / 2
    low, high = (sd * math.sqrt(freedom / float(chdtri(freedom, chance))) for chance in (tail, 1 - tail))
    return low, high


def _blocks(cell: str, attempts: Sequence[Attempt]) -> list[Mapping[str, Attempt]]:
    """The accepted attempts of a cell by their blocks, each by its arm."""
    found: defaultdict[int, dict[str, Attempt]] = defaultdict(dict)
    for attempt in attempts:
        if attempt.cell == cell and attempt.state == "accepted":
            found[attempt.block][attempt.arm] = attempt
    return list(found.values())


def _value(attempt: Attempt | None, metric: str) -> float | None:
    """What a logarithm is taken of; None where there is none."""
    value = None if attempt is None else attempt.metrics.get(metric)
    return value if value is not None and value > 0 and math.isfinite(value) else None


def _seconds(blocks: Sequence[Mapping[str, Attempt]], arm: str) -> float:
    """Of an attempt of `arm`, with its part of what a block takes beyond its attempts; 0 where there is none."""
    took = [one.ended - one.started for block in blocks if (one := block.get(arm))]
    busy = sum(one.ended - one.started for block in blocks for one in block.values())
    spans = sum(
        max(one.ended for one in block.values()) - min(one.started for one in block.values()) for block in blocks
    )
    return fmean(took) * spans / busy if took and busy > 0 else 0.0


def _level(results: Results, one: Comparison | None) -> float:
    """The share of the error rate that a comparison has; of the first one where none is named."""
    known = one or next((each for _, each in _judged(results)), None)
    if known is not None and known.alpha is not None:
        return known.alpha
    return (1 - results.confidence) / max(1, len(_judged(results)))


def _method(results: Results) -> str:
    return str(results.options.get("method", ""))


def _declared(results: Results) -> int:
    return int(results.options.get("budget", {}).get("blocks", 0))
