"""Forecasts on a page: of runs with few pairs, of cells that no run measured, and whether forecasts came out.

A forecast of `hugewise.analysis` wants six pairs of a comparison (`FEWEST`): below, neither the scale of the exact test
nor an interval of the spread for any tails is known. From three pairs on their differences are taken for normal ones:
the standard deviation s has f = n - 1 degrees of freedom, and sigma lies within s * sqrt(f / chi^2_f). From three pairs
the ends of that are a factor of 12 apart, which is told wherever such a figure stands.

The interval of a forecast is that of the earlier run's spread alone (95%). The later run's own spread has its error
too: with few pairs a figure outside is no proof of a change. Pairs are forecast for a change as large as the margin: a
larger one takes fewer.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean, stdev
from typing import NamedTuple

import msgspec

from hugewise import workloads
from hugewise.analysis.budget import timed
from hugewise.analysis.forecast import CHANCE, FEWEST, TYPICAL, Forecast, Planner, Row
from hugewise.model.procedure import Staged
from hugewise.model.results import DECIDED, CellResult, Comparison, Results, Verdict
from hugewise.model.trial import Attempt
from hugewise.model.workload import Workload
from hugewise.plan.cells import Resolved, resolve
from hugewise.quantity import format_duration
from hugewise.report import numbers, remarks
from hugewise.report.document import Block, table
from hugewise.report.numbers import NOTHING
from hugewise.stats import power
from hugewise.study.study import Study

LEAST = 3
"""Fewer pairs leave the spread open by more than a factor of 50: nothing is planned from them."""
_CONFIDENCE = 0.95
_SESSION_COST = 60.0


def with_few_pairs(planned: Forecast | None, results: Results) -> Forecast | None:
    """Return the forecast `planned` from a run, with what its comparisons of few pairs say; where none could be had
    (None), one of those alone. None where the method makes no verdict that could be planned, or nothing was compared.
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
    """Return the comparisons that share the error rate."""
    return [
        (cell, comparison)
        for cell in results.cells
        for comparison in (*cell.comparisons, *cell.declared)
        if cell.metric_named(comparison.metric).better != "neutral"
    ]


def _row(cell: CellResult, comparison: Comparison, results: Results) -> Row:
    blocks = _blocks(cell.cell, results.attempts)
    ratios = [
        math.log(arm / base)
        for block in blocks
        if (arm := _value(block.get(comparison.arm), comparison.metric))
        and (base := _value(block.get(comparison.baseline), comparison.metric))
    ]
    row = Row(
        cell=cell.cell,
        arm=comparison.arm,
        baseline=comparison.baseline,
        metric=comparison.metric,
        pairs=len(ratios),
        failures=comparison.failures_arm + comparison.failures_baseline,
        sessions=1,
        seconds=_seconds(blocks, comparison.arm) + _seconds(blocks, comparison.baseline) or None,
        budget=_declared(results),
    )
    if len(ratios) < LEAST:
        few = f"{len(ratios)} pair{'' if len(ratios) == 1 else 's'}"
        return msgspec.structs.replace(row, reason=f"too few pairs to plan with ({few}; {LEAST} are the least)")
    sd = stdev(ratios)
    if sd <= 0:
        return msgspec.structs.replace(row, reason="all pairs have the same ratio: any number of them will do")
    return _planned(msgspec.structs.replace(row, sd=sd, scale=sd), results, _level(results, comparison))


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
    """Return the interval of the standard deviation of normal values."""
    from scipy.special import chdtri  # noqa: PLC0415  (slow to load)

    tail = (1 - _CONFIDENCE) / 2
    low, high = (sd * math.sqrt(freedom / float(chdtri(freedom, chance))) for chance in (tail, 1 - tail))
    return low, high


def _blocks(cell: str, attempts: Sequence[Attempt]) -> list[Mapping[str, Attempt]]:
    """Return the accepted attempts of a cell by their blocks, each by its arm."""
    found: defaultdict[int, dict[str, Attempt]] = defaultdict(dict)
    for attempt in attempts:
        if attempt.cell == cell and attempt.state == "accepted":
            found[attempt.block][attempt.arm] = attempt
    return list(found.values())


def _value(attempt: Attempt | None, metric: str) -> float | None:
    """Return a value that has a logarithm, or None."""
    value = None if attempt is None else attempt.metrics.get(metric)
    return value if value is not None and value > 0 and math.isfinite(value) else None


def _seconds(blocks: Sequence[Mapping[str, Attempt]], arm: str) -> float:
    """Return the seconds of an attempt of `arm`, with its part of a block's time beyond its attempts; 0 where there is
    none.
    """
    took = [one.ended - one.started for block in blocks if (one := block.get(arm))]
    busy = sum(attempt.ended - attempt.started for block in blocks for attempt in block.values())
    spans = sum(
        max(attempt.ended for attempt in block.values()) - min(attempt.started for attempt in block.values())
        for block in blocks
    )
    return fmean(took) * spans / busy if took and busy > 0 else 0.0


def _level(results: Results, comparison: Comparison | None) -> float:
    """Return the share of the error rate that a comparison has; of the first one where none is named."""
    known = comparison or next((each for _, each in _judged(results)), None)
    if known is not None and known.alpha is not None:
        return known.alpha
    return (1 - results.confidence) / max(1, len(_judged(results)))


def _method(results: Results) -> str:
    return str(results.options.get("method", ""))


def _declared(results: Results) -> int:
    return int(results.options.get("budget", {}).get("blocks", 0))


class UnmeasuredCell(msgspec.Struct, frozen=True, kw_only=True):
    """A cell that was not run.

    neighbour  a measured cell by whose forecast the others are; null where none has one, and `reason` says why
    other      it is one of another workload: nothing nearer has a forecast
    arm        that arm of the neighbour of which a verdict takes longest
    pairs      that its verdict takes for a change as large as the study's margin
    seconds    that these take, the baseline's part included
    floor      they are the leads and measured parts of the cell itself, which is the least that pairs take
    spread     the neighbour's, where so few pairs tell it that its interval belongs to every figure; else empty
    """

    cell: str
    neighbour: str | None = None
    arm: str | None = None
    pairs: int | None = None
    seconds: float | None = None
    other: bool = False
    floor: bool = False
    spread: str = ""
    reason: str = ""


def unmeasured(whole: Study, measured: Mapping[str, Sequence[Row]]) -> tuple[UnmeasuredCell, ...]:
    """Return the cells of the `whole` study that are not among those `measured`, by their forecasts; in its order.

    The neighbour is a cell of the same table of the study where one has a forecast, else one of the same workload, else
    one of another: first of those that judge the same metric, then of servers for servers and commands for commands.
    """
    cells = resolve(whole, workloads.discover())
    there = [cell for cell in cells if cell.id in measured]
    return tuple(_by_neighbour(cell, there, measured) for cell in cells if cell.id not in measured)


def _by_neighbour(cell: Resolved, there: Sequence[Resolved], measured: Mapping[str, Sequence[Row]]) -> UnmeasuredCell:
    reasons: list[str] = []
    for one in sorted(there, key=lambda one: _distance(cell, one)):
        rows = [row for row in measured[one.id] if row.end_point == TYPICAL]
        told = [(row.needed * row.seconds, row) for row in rows if row.needed is not None and row.seconds is not None]
        if told:
            _, row = max(told, key=lambda pair: pair[0])
            return _like(cell, one, row)
        reasons += [f"{one.id}, {row.arm}: {remarks.pairs(row)}" for row in rows]
    why = reasons[0] if reasons else "none was measured in pairs"
    return UnmeasuredCell(cell=cell.id, reason=f"no cell of the study has a forecast ({why})")


def _distance(cell: Resolved, one: Resolved) -> tuple[bool, ...]:
    return (
        one.workload.name != cell.workload.name,
        one.used.called != cell.used.called,
        one.metric.name != cell.metric.name,
        _serves(one.workload) != _serves(cell.workload),
    )


def _serves(workload: Workload) -> bool:
    return isinstance(workload, Staged) and (workload.clients or workload.ports > 0)


def _like(cell: Resolved, one: Resolved, row: Row) -> UnmeasuredCell:
    """The cell by the forecast of another. Of another workload the time is not its own, where that can be told."""
    assert row.needed is not None and row.seconds is not None
    other = one.workload.name != cell.workload.name
    own = 2 * timed(cell.values) if other else 0.0
    return UnmeasuredCell(
        cell=cell.id,
        neighbour=one.id,
        arm=row.arm,
        pairs=row.needed,
        seconds=row.needed * (own or row.seconds),
        other=other,
        floor=own > 0,
        spread=remarks.spread(row) if row.pairs < FEWEST else "",
    )


def unmeasured_table(cells: Sequence[UnmeasuredCell]) -> Iterator[Block]:
    """Yield the table of them."""
    if cells:
        head = ("cell", "if it is as noisy as", "pairs for a change as large as the margin", "time")
        rows = [(cell.cell, neighbour(cell), pairs_needed(cell), time_needed(cell)) for cell in cells]
        yield table("cells of the study that no run was asked for", head, rows, 2)


def neighbour(cell: UnmeasuredCell) -> str:
    """Return the cell whose forecast it is, or why there is none."""
    if cell.neighbour is None:
        return cell.reason or "no cell of its workload has a forecast"
    text = f"{cell.neighbour}, {cell.arm}{', of another workload' if cell.other else ''}"
    return f"{text}; few pairs tell its spread, {cell.spread}" if cell.spread else text


def pairs_needed(cell: UnmeasuredCell) -> str:
    """Return how many pairs it takes."""
    return remarks.UNKNOWN if cell.pairs is None else f"{cell.pairs:,}"


def time_needed(cell: UnmeasuredCell) -> str:
    """Return how long the pairs take."""
    if cell.seconds is None:
        return remarks.UNKNOWN
    return f"{'at least ' if cell.floor else ''}{format_duration(cell.seconds)}"


_OF = ("cell", "policy", "metric", "by")


Key = tuple[str, str, str]
"""A cell, an arm and a metric."""


class RunForecast(NamedTuple):
    """A run with its forecast. A pilot foretells others, and nothing is judged by it: it has no `verdicts`, which are
    by cell, arm and metric.
    """

    forecast: Forecast
    verdicts: Mapping[Key, Verdict] = {}
    pilot: bool = False


class _Check(NamedTuple):
    """A comparison of a run beside what was forecast of it before."""

    before: Row
    after: Row
    verdict: Verdict | None
    by: str


def accuracy_tables(forecasts: Sequence[RunForecast]) -> Iterator[Block]:
    """Tables of every comparison of a run that a pilot or a run before it has too; `forecasts`: the newest first."""
    held = list(_checks(forecasts))
    if held:
        head = ("pairs before", "spread forecast (95%)", "pairs after", "spread found", "came out")
        rows = [(*_named(check), *_spreads(check)) for check in held]
        yield table("how much pairs differ: as forecast before, and as it was", (*_OF, *head), rows, 4)
    taken = [(*_named(check), *_taken(check)) for check in held if check.before.needed is not None]
    if taken:
        beside = ("pairs forecast", "time forecast", "pairs taken", "time taken", "verdict", "came out")
        caption = "pairs and time of a verdict: as forecast for a change as large as the margin, and as they were"
        yield table(caption, (*_OF, *beside), taken, 4)


def _checks(forecasts: Sequence[RunForecast]) -> Iterator[_Check]:
    """Yield each comparison of the newest run that has its spread, beside the newest forecast before it."""
    seen: set[Key] = set()
    for place, one in enumerate(forecasts):
        for row in () if one.pilot else one.forecast.rows:
            key = (row.cell, row.arm, row.metric)
            if key in seen or (after := _row_of(one.forecast, key)) is None:
                continue
            seen.add(key)
            for earlier in forecasts[place + 1 :]:
                if (before := _row_of(earlier.forecast, key)) is not None:
                    yield _Check(before, after, one.verdicts.get(key), "a pilot" if earlier.pilot else "a run")
                    break


def _row_of(forecast: Forecast, key: Key) -> Row | None:
    typical = (row for row in forecast.rows if row.end_point == TYPICAL and row.sd is not None)
    return next((row for row in typical if (row.cell, row.arm, row.metric) == key), None)


def _named(check: _Check) -> tuple[str, str, str, str]:
    return check.after.cell, check.after.arm, check.after.metric, check.by


def _spreads(check: _Check) -> tuple[object, ...]:
    before, after = check.before, check.after
    return before.pairs, remarks.spread(before), after.pairs, _spread_percent(after.sd), _word(before, after)


def _spread_percent(sd: float | None) -> str:
    """Return a spread of log-ratios as the change that it is."""
    return NOTHING if sd is None else numbers.share(math.expm1(sd))


def _word(earlier: Row, later: Row) -> str:
    if earlier.sd_low is None or earlier.sd_high is None or later.sd is None:
        return NOTHING
    if later.sd > earlier.sd_high:
        return "noisier"
    return "quieter" if later.sd < earlier.sd_low else "yes"


def _taken(check: _Check) -> tuple[object, ...]:
    after = check.after
    time = remarks.UNKNOWN if after.seconds is None else format_duration(after.pairs * after.seconds)
    forecast = f"{check.before.needed:,}", remarks.hours(check.before)
    return *forecast, f"{after.pairs:,}", time, check.verdict or remarks.UNKNOWN, _came_out(check)


def _came_out(check: _Check) -> str:
    """Return whether a verdict was there within the forecast pairs: fewer are no failure of the forecast, which is for
    a change as large as the margin.
    """
    needed = check.before.needed or 0
    if check.verdict not in DECIDED:
        return "ended before" if check.after.pairs < needed else "not decided by then"
    if check.after.pairs < needed:
        larger = check.verdict != "equivalent"
        return "decided sooner: larger effects than the margin take fewer pairs" if larger else "decided sooner"
    return "decided with as many" if check.after.pairs == needed else "decided later: it took more"
