"""How many pairs a verdict takes, by a run that has too few of them for a forecast. Pure.

A forecast wants six pairs of a comparison (`forecast_rows.FEWEST`): below, neither the scale of the exact test nor an
interval of the spread for any tails is known. Where there are three or more, their differences are taken for normal
ones: the standard deviation s has f = n - 1 degrees of freedom, and sigma lies within s * sqrt(f / chi^2_f). From three
pairs the ends of that are a factor of 12 apart, and so it is told wherever such a figure stands.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev

import msgspec

from hugewise.analysis.forecast import CHANCE, FEWEST, TYPICAL, Forecast, Row
from hugewise.analysis.forecast_rows import Planner
from hugewise.model.results import CellResult, Comparison, Results
from hugewise.model.trial import Attempt
from hugewise.stats import power

__all__ = ["LEAST", "completed"]

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
