"""Whether what an earlier run forecast came out: the spread of pairs, on which every planned number rests.

The interval of the forecast is that of the earlier run's spread alone (95%), as `analysis.forecast_rows` gives it. The
later run's own spread has its error too, so that with few pairs a figure outside is no proof of a change.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from hugewise.analysis.forecast import TYPICAL, Forecast, Row
from hugewise.report import numbers
from hugewise.report.document import Block, table
from hugewise.report.numbers import NOTHING

__all__ = ["foretold"]


def foretold(forecasts: Sequence[Forecast]) -> Iterator[Block]:
    """A table of every comparison that two runs have: `forecasts` from each run, the newest first."""
    rows = []
    for newer, cell, arm in _comparisons(forecasts):
        earlier = next((found for one in forecasts[newer + 1 :] if (found := _row(one, cell, arm))), None)
        later = _row(forecasts[newer], cell, arm)
        if earlier is not None and later is not None:
            rows.append(
                (cell, arm, earlier.pairs, _spread(earlier), later.pairs, _percent(later.sd), _word(earlier, later))
            )
    if rows:
        head = ("cell", "policy", "pairs before", "spread forecast (95%)", "pairs after", "spread found", "came out")
        yield table("how much pairs differ: as the run before forecast it, and as it was", head, rows, 2)


def _comparisons(forecasts: Sequence[Forecast]) -> Iterator[tuple[int, str, str]]:
    """Each comparison with the place of the newest run that has its spread."""
    seen: set[tuple[str, str]] = set()
    for place, one in enumerate(forecasts):
        for row in one.rows:
            key = (row.cell, row.arm)
            if key not in seen and _row(one, *key) is not None:
                seen.add(key)
                yield place, *key


def _row(one: Forecast, cell: str, arm: str) -> Row | None:
    return next(
        (row for row in one.rows if (row.cell, row.arm, row.end_point) == (cell, arm, TYPICAL) and row.sd is not None),
        None,
    )


def _percent(sd: float | None) -> str:
    """A spread of log-ratios as the change that it is."""
    return NOTHING if sd is None else numbers.share(math.expm1(sd))


def _spread(row: Row) -> str:
    return f"{_percent(row.sd)} ({_percent(row.sd_low)} to {_percent(row.sd_high)})"


def _word(earlier: Row, later: Row) -> str:
    if earlier.sd_low is None or earlier.sd_high is None or later.sd is None:
        return NOTHING
    if later.sd > earlier.sd_high:
        return "noisier"
    return "quieter" if later.sd < earlier.sd_low else "yes"
