"""What a verdict would take, in words: pairs and time of a forecast, or the reason why there is none. Pure."""

from __future__ import annotations

import math

from hugewise.analysis.forecast import FEWEST, Row
from hugewise.quantity import format_duration
from hugewise.report import numbers
from hugewise.stats.power import MOST

__all__ = ["UNKNOWN", "hours", "pairs", "spread"]

UNKNOWN = "unknown"


def pairs(row: Row | None) -> str:
    """Pairs; planned from fewer than a forecast wants, with what the spread of these leaves open."""
    if row is None:
        return "no forecast: nothing was measured in pairs"
    if row.needed is None:
        if row.reason is not None:
            return f"no forecast: {row.reason}"
        return f"more than {MOST:,}{_of_few(row)}"
    return f"{row.needed:,}{_of_few(row)}"


def hours(row: Row | None) -> str:
    """The time of these pairs."""
    if row is None or row.needed is None or row.seconds is None:
        return UNKNOWN
    return format_duration(row.needed * row.seconds)


def spread(row: Row) -> str:
    """The deviation of a pair as the change that it is, with its interval (95%) where that is known."""
    interval = f" ({_percent(row.sd_low)} to {_percent(row.sd_high)})" if row.sd_low is not None else ""
    return f"{_percent(row.sd)}{interval}"


def _of_few(row: Row) -> str:
    if row.pairs >= FEWEST or row.sd is None:
        return ""
    ends = f"{_count(row.needed_low)} to {_count(row.needed_high)}"
    return f" ({ends}: {row.pairs} pairs alone tell the spread, {spread(row)})"


def _count(needed: int | None) -> str:
    return f"more than {MOST:,}" if needed is None else f"{needed:,}"


def _percent(sd: float | None) -> str:
    """A spread of log-ratios as the change that it is."""
    return numbers.NOTHING if sd is None else numbers.share(math.expm1(sd))
