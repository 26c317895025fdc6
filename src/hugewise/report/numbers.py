"""Numbers as people read them: units, and as many digits as the interval supports.

A value is shown to the decimal place at which the half-width of its interval has two significant digits (the rule of
the Guide to the Expression of Uncertainty in Measurement, JCGM 100:2008, 7.2.6); without an interval to four digits.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterable
from typing import NamedTuple

MINUS = "−"
NOTHING = "–"  # a value that is not there (never 0)

_TIME = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
_TIME_UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_BINARY = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
# A factor beyond which nothing is told apart: an interval from two blocks can reach to 1e36.
_FAR = 10_000.0
_WIDE = 100.0  # beyond, a percentage has more digits than anybody reads
_MOST_PLACES = 4
_THOUSANDS = ((1e12, "T"), (1e9, "G"), (1e6, "M"))


class Scale(NamedTuple):
    """A unit for a group of values that are compared: shown value = value * factor."""

    factor: float
    unit: str

    def number(self, value: float | None, half_width: float | None = None) -> str:
        """`value` in this unit, without the unit, to the digits that `half_width` (same unit as `value`) supports."""
        if value is None or not math.isfinite(value):
            return NOTHING
        return _number(value * self.factor, None if half_width is None else half_width * self.factor)

    def text(self, value: float | None, half_width: float | None = None) -> str:
        """`value` with its unit."""
        number = self.number(value, half_width)
        return number if number == NOTHING or not self.unit else f"{number} {self.unit}"


def scale(unit: str, values: Iterable[float | None]) -> Scale:
    """Return the unit in which the middle of `values` reads best: 0.0123 s as ms, 1.3e6 faults/s as M faults/s."""
    found = sorted(abs(value) for value in values if value and math.isfinite(value))
    if not found:
        return Scale(1.0, unit)
    middle = found[len(found) // 2]
    if unit in _TIME_UNITS:
        base = _TIME_UNITS[unit]
        size, name = next((step for step in _TIME if middle * base >= step[0]), _TIME[-1])
        return Scale(base / size, name)
    if unit in {"bytes", "B", "bytes/s", "B/s"}:
        step, name = next(((step, name) for step, name in _BINARY if middle >= step), (1, "bytes"))
        return Scale(1 / step, name + ("/s" if unit.endswith("/s") else ""))
    large, name = next(((step, f"{name} {unit}") for step, name in _THOUSANDS if middle >= step), (1.0, unit))
    return Scale(1 / large, name)


def decimals(half_width: float, *, significant: int = 2, most: int = 6) -> int:
    """Return how many decimals show `half_width` to `significant` digits (0 for a width of no use)."""
    if not math.isfinite(half_width) or half_width <= 0:
        return 0
    exponent = math.floor(math.log10(half_width))
    if round(half_width, significant - 1 - exponent) >= 10 ** (exponent + 1):
        exponent += 1  # 0.0996 is 0.10 to two digits
    return min(max(significant - 1 - exponent, 0), most)


def _number(value: float, half_width: float | None) -> str:
    if half_width is None or half_width <= 0 or not math.isfinite(half_width):
        if value == 0:
            return "0"
        if half_width == 0 and value.is_integer():
            return f"{value:,.0f}"  # a count that does not vary
        return f"{value:,.{decimals(abs(value), significant=4, most=9)}f}"
    return f"{value:,.{decimals(half_width)}f}"


def change(ratio: float | None, *, places: int = 1, sign: bool = True) -> str:
    """Return a ratio as a change: 1.123 -> `+12.3%`, `-99.6%`; above 10,000 only that it is."""
    if ratio is None or math.isnan(ratio):
        return NOTHING
    if ratio > _FAR:
        return f">{'+' if sign else ''}{_FAR * 100:,.0f}%"
    if ratio > 0 and round(ratio * 100, places) == 0:
        places = next((more for more in range(places, _MOST_PLACES + 1) if round(ratio * 100, more) > 0), places)
    text = f"{(ratio - 1) * 100:{'+' if sign else ''},.{places}f}%"
    return text.lstrip("+-") if float(text.rstrip("%").replace(",", "")) == 0 else text.replace("-", MINUS)


def exact(ratio: float | None) -> str:
    """Return a ratio that does not vary with its digits, at most two behind the point: 0.0625 -> `-93.75%`."""
    if ratio is None or math.isnan(ratio):
        return NOTHING
    if ratio > _FAR:
        return change(ratio)
    percents = abs(ratio - 1) * 100
    text = change(ratio, places=2 if percents >= 0.1 or percents < 1e-6 else decimals(percents, most=6)).rstrip("%")
    return f"{text.rstrip('0').rstrip('.') if '.' in text else text}%"


_NO_WIDTH = 1e-9


def ends(low: float | None, high: float | None) -> tuple[float | None, float | None]:
    """Return the ends of an interval of a ratio that bound something: None for one that is not there, or says nothing.

    That an effect is no larger than by a factor of 10,000, or no smaller than by one in 10,000, says nothing; unless
    all of the interval lies beyond.
    """
    above = high if high is not None and high <= _FAR else None
    below = low if low is not None and low > 0 else None
    if below is not None and below < 1 / _FAR and (above is None or above >= 1 / _FAR):
        below = None
    return below, above


def _places(ratio: float | None, low: float | None, high: float | None) -> int:
    known = [end for end in (low, high) if end is not None and math.isfinite(end)]
    if not known:
        return 1
    whole = len(known) == 2
    beside = known[0] if ratio is None or not math.isfinite(ratio) else ratio
    width = known[1] - known[0] if whole else 2 * abs(beside - known[0])
    if whole and width <= _NO_WIDTH:
        return 2
    return decimals(width * 50, most=_MOST_PLACES) if width > _NO_WIDTH else 1


def _of_end(end: float, places: int) -> int:
    # An end just beside "no change" must not be rounded onto it: whether the interval excludes it is the verdict.
    while places < _MOST_PLACES and end != 1 and round(abs(end - 1) * 100, places) == 0:
        places += 1
    return places


def point(ratio: float | None, low: float | None, high: float | None) -> str:
    """Return the change of an estimate to the digits of its interval: `-25.2%`, or the failures in place of a ratio."""
    if ratio is not None and ratio in {0.0, math.inf}:
        return "no finite ratio, as failures outweigh"
    below, above = ends(low, high)
    places = _places(ratio, below, above)
    if ratio is not None and ((below or 0.0) > 1 or (above or math.inf) < 1):  # what differs is not shown as "0%"
        places = _of_end(ratio, places)
    return change(ratio, places=places)


def interval(ratio: float | None, low: float | None, high: float | None) -> str:
    """Return the interval of a change: `-25.5% to -24.9%`, `at least +12%`; an end above 100 times as a factor."""
    below, above = ends(low, high)
    places = _places(ratio, below, above)
    if below is None:
        return "" if above is None else f"at most {_end(above, places)}"
    if above is None:
        return f"{'' if below > _FAR else 'at least '}{_end(below, places)}"
    return f"{_end(below, places)} to {_end(above, places)}"


def _end(ratio: float, places: int) -> str:
    return (
        change(ratio, places=_of_end(ratio, places)) if not _WIDE < ratio <= _FAR else f"×{float(f'{ratio:.3g}'):,.0f}"
    )


def bound(ratio: float | None, low: float | None, high: float | None) -> str:
    """Return the only end of an interval: `at least 30% lower`, `at most 4% higher`; empty unless there is one."""
    below, above = ends(low, high)
    end = above if below is None else below
    if end is None or (below is not None and above is not None):
        return ""
    if end == 1:
        return "not lower" if above is None else "not higher"
    size = _size(end, _places(ratio, below, above))
    limit = "at least" if (end > 1) == (above is None) else "at most"
    return f"{f'{limit} ' if end <= _FAR else ''}{size} {'higher' if end > 1 else 'lower'}"


def room(ratio: float | None, low: float | None, high: float | None) -> str:
    """Return an interval in words: `38.0% to 42.0% lower`, `at least 30% lower`; empty where nothing is bounded."""
    below, above = ends(low, high)
    if below is None or above is None:
        return bound(ratio, low, high)
    places = _places(ratio, below, above)
    if above < 1:
        return f"{_size(above, places)} to {_size(below, places)} lower"
    if below > 1 and above <= _WIDE:
        return f"{_size(below, places)} to {_size(above, places)} higher"
    return f"{_sided(below, places)} to {_sided(above, places)}"


def _size(end: float, places: int) -> str:
    return change(end, places=_of_end(end, places), sign=False).lstrip(MINUS)


def _sided(ratio: float, places: int) -> str:
    if ratio > _WIDE:
        return f"{float(f'{ratio:.3g}'):,.0f} times as high"
    return "no change" if ratio == 1 else f"{_size(ratio, places)} {'higher' if ratio > 1 else 'lower'}"


def effect(ratio: float | None, low: float | None, high: float | None, same: int | None = None) -> str:
    """`-25.2% (-25.5% to -24.9%)`, `-45% (at most -30%)`, to the digits that the interval supports.

    `same`: the number of blocks that all have this ratio, so that there is no spread: `-93.75%, the same in all 3
    blocks`. An interval of no width would promise more than is known.
    """
    if ratio is None:
        return NOTHING
    if same is not None:
        return f"{exact(ratio)}, the same in all {same} blocks"
    span = interval(ratio, low, high)
    return point(ratio, low, high) + (f" ({span})" if span else "")


def ratio(value: float | None, low: float | None = None, high: float | None = None) -> str:
    """`0.748 (0.745 to 0.751)`, `0.55 (at most 0.70)`; `∞` where failures outweigh."""
    if value is None or math.isnan(value):
        return NOTHING
    below, above = ends(low, high)
    if below is None and above is None:
        return _plain(value)
    if below is not None and above is not None:
        if above - below <= _NO_WIDTH:
            return f"{value:.6g}"
        places = _off_one(max(decimals((above - below) / 2, most=6), 2), below, above)
        return f"{_fixed(value, places)} ({_fixed(below, places)} to {_fixed(above, places)})"
    end = below if below is not None else above
    assert end is not None
    distance = abs(value - end) if math.isfinite(value) else 0.0
    places = _off_one(max(decimals(distance, most=6), 2) if distance > _NO_WIDTH else 3, end)
    limit = "" if end > _FAR else "at most " if below is None else "at least "
    return f"{_fixed(value, places)} ({limit}{_fixed(end, places)})"


def _off_one(places: int, *known: float) -> int:
    while places < 6 and any(end != 1 and round(end, places) == 1 for end in known):
        places += 1
    return places


def _plain(value: float) -> str:
    return _fixed(value, 3) if value >= 0.1 or value == 0 else f"{value:.3g}"


def _fixed(value: float, places: int) -> str:
    if value == 0 or math.isinf(value):
        return "0" if value == 0 else "∞"
    return f"{value:.{places}f}" if value <= _FAR else f">{_FAR:,.0f}"


def like(value: float, ratio: float | None, low: float | None, high: float | None) -> str:
    """Return the change of another ratio, to the digits that are shown of `ratio`."""
    return change(value, places=_places(ratio, *ends(low, high)))


def times(factor: float) -> str:
    """Return a factor to two digits: `9.8`, `0.10`, `123`."""
    return f"{factor:,.{decimals(factor)}f}"


def bounded(change: float | None) -> bool:
    """Return whether the largest change still possible, as |ratio-1|, says anything."""
    return change is not None and change <= _FAR


def largest(change: float | None) -> str:
    """Return the largest change still possible, as |ratio-1|: `2.3%`; above 10,000 only that it is."""
    if change is None or math.isnan(change):
        return NOTHING
    return percent(round(change, 4)) if change <= _FAR else f"above {_FAR * 100:,.0f}%"


def given(value: float | None, form: str) -> str:
    """Return a value as Python's format writes it, where there is one."""
    return NOTHING if value is None else format(value, form)


def percent(part: float | None) -> str:
    """Return a level, margin or limit as short as it is exact: 0.95 -> `95%`, 0.005 -> `0.5%`."""
    return NOTHING if part is None else f"{part * 100:.6g}%"


def share(part: float | None) -> str:
    """Return a measured share: `99.8%`; `100%` and `0%` only when it is so."""
    if part is None or not math.isfinite(part):
        return NOTHING
    part = round(part, 9)  # sums of shares
    if part in {0.0, 1.0}:
        return f"{part:.0%}"
    if part < 0.001:
        return "<0.1%"
    return f"{min(part * 100, 99.9) if part < 1 else part * 100:.1f}%"


def size(count: float | None) -> str:
    """Return bytes with a binary unit, to three digits: `1.00 GiB`; 0 is `none`."""
    if count is None:
        return NOTHING
    if count == 0:
        return "none"
    step, name = next(((step, name) for step, name in _BINARY if count >= step), (1, "bytes"))
    value = count / step
    return f"{value:.0f} {name}" if step == 1 or value >= 100 else f"{value:.{2 if value < 10 else 1}f} {name}"


def shortened(name: str, most: int) -> str:
    """Return a name of at most so many characters: of a longer one beginning and end, which tell cells apart."""
    half = most // 2
    return name if len(name) <= most else f"{name[: half - 1]}…{name[-(most - half) :]}"


def when(epoch: float) -> str:
    """Return seconds since the epoch as UTC: `2026-11-20 19:30:05 UTC`."""
    return datetime.datetime.fromtimestamp(epoch, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
