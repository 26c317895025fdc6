"""Whether what a pilot or an earlier run forecast came out: the spread of pairs, on which every planned number rests,
and the pairs and hours of a verdict.

The interval of the forecast is that of the earlier run's spread alone (95%), as `analysis.forecast` gives it. The
later run's own spread has its error too, so that with few pairs a figure outside is no proof of a change. Pairs are
forecast for a change as large as the margin: a larger one takes fewer.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from hugewise.analysis.forecast import TYPICAL, Forecast, Row
from hugewise.model.results import Verdict
from hugewise.quantity import format_duration
from hugewise.report import numbers, remarks
from hugewise.report.document import Block, table
from hugewise.report.numbers import NOTHING

_OF = ("cell", "policy", "metric", "by")
_DECIDED = {"better", "worse", "equivalent"}


Key = tuple[str, str, str]
"""A cell, an arm and a metric."""


class Foretelling(NamedTuple):
    """A run with its forecast. A pilot foretells others, and nothing is judged by it: it has no `verdicts`, which are
    by cell, arm and metric.
    """

    forecast: Forecast
    verdicts: Mapping[Key, Verdict] = {}
    pilot: bool = False


class _Held(NamedTuple):
    """A comparison of a run beside what was forecast of it before."""

    before: Row
    after: Row
    verdict: Verdict | None
    by: str


def foretold(told: Sequence[Foretelling]) -> Iterator[Block]:
    """Tables of every comparison of a run that a pilot or a run before it has too; `told`: the newest first."""
    held = list(_comparisons(told))
    if held:
        head = ("pairs before", "spread forecast (95%)", "pairs after", "spread found", "came out")
        rows = [(*_named(one), *_spreads(one)) for one in held]
        yield table("how much pairs differ: as forecast before, and as it was", (*_OF, *head), rows, 4)
    taken = [(*_named(one), *_taken(one)) for one in held if one.before.needed is not None]
    if taken:
        beside = ("pairs forecast", "time forecast", "pairs taken", "time taken", "verdict", "came out")
        caption = "pairs and time of a verdict: as forecast for a change as large as the margin, and as they were"
        yield table(caption, (*_OF, *beside), taken, 4)


def _comparisons(told: Sequence[Foretelling]) -> Iterator[_Held]:
    """Each comparison of the newest run that has its spread, beside the newest forecast before it."""
    seen: set[Key] = set()
    for place, one in enumerate(told):
        for row in () if one.pilot else one.forecast.rows:
            key = (row.cell, row.arm, row.metric)
            if key in seen or (after := _row(one.forecast, key)) is None:
                continue
            seen.add(key)
            for earlier in told[place + 1 :]:
                if (before := _row(earlier.forecast, key)) is not None:
                    yield _Held(before, after, one.verdicts.get(key), "a pilot" if earlier.pilot else "a run")
                    break


def _row(one: Forecast, key: Key) -> Row | None:
    typical = (row for row in one.rows if row.end_point == TYPICAL and row.sd is not None)
    return next((row for row in typical if (row.cell, row.arm, row.metric) == key), None)


def _named(one: _Held) -> tuple[str, str, str, str]:
    return one.after.cell, one.after.arm, one.after.metric, one.by


def _spreads(one: _Held) -> tuple[object, ...]:
    before, after = one.before, one.after
    return before.pairs, remarks.spread(before), after.pairs, _percent(after.sd), _word(before, after)


def _percent(sd: float | None) -> str:
    """A spread of log-ratios as the change that it is."""
    return NOTHING if sd is None else numbers.share(math.expm1(sd))


def _word(earlier: Row, later: Row) -> str:
    if earlier.sd_low is None or earlier.sd_high is None or later.sd is None:
        return NOTHING
    if later.sd > earlier.sd_high:
        return "noisier"
    return "quieter" if later.sd < earlier.sd_low else "yes"


def _taken(one: _Held) -> tuple[object, ...]:
    after = one.after
    time = remarks.UNKNOWN if after.seconds is None else format_duration(after.pairs * after.seconds)
    forecast = f"{one.before.needed:,}", remarks.hours(one.before)
    return *forecast, f"{after.pairs:,}", time, one.verdict or remarks.UNKNOWN, _came_out(one)


def _came_out(one: _Held) -> str:
    """Whether a verdict was there within the pairs that were forecast: fewer are no failure of the forecast, which is
    for a change as large as the margin.
    """
    needed = one.before.needed or 0
    if one.verdict not in _DECIDED:
        return "ended before" if one.after.pairs < needed else "not decided by then"
    if one.after.pairs < needed:
        larger = one.verdict != "equivalent"
        return "decided sooner: larger effects than the margin take fewer pairs" if larger else "decided sooner"
    return "decided with as many" if one.after.pairs == needed else "decided later: it took more"
