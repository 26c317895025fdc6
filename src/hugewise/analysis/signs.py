"""Whether a published sign, size or trend and a measured one agree, in words. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from hugewise.model.published_rows import Level, Measured

__all__ = ["BEYOND", "NOT_HERE", "ROUNDED", "Size", "agreement", "agreement_of_change", "sign", "size", "trend"]

NOT_HERE = "not measured here"
BEYOND = "beyond what was published"
ROUNDED = "an effect here, and the published 0% is rounded: it has room for the least that our interval has"
_NONE_PUBLISHED = "an effect here, none published"

Size = Literal["within", "rounded", "larger", "smaller"]
"""Where a published change lies: within our interval, beyond it by no more than it is rounded, or beyond all of it."""


def sign(value: float) -> int:
    """1, 0 or -1."""
    return (value > 0) - (value < 0)


def agreement(published: int | None, measured: Measured | None, ratio: float | None) -> str:
    """Whether both have the same sign, in words. `published` None: no change is printed; `ratio`: of the same sense."""
    if measured is None:
        return NOT_HERE
    match measured.verdict:
        case "not judged":
            return "not judged here"
        case "none":
            return "no verdict here"
        case "undecided":
            return "undecided here"
        case "equivalent":
            return "no effect in either" if published == 0 else "equivalent here"
    if published is None:
        return "no change published"
    if published == 0:
        return _NONE_PUBLISHED
    return "same sign" if ratio is not None and sign(ratio - 1) == published else "opposite sign"


def agreement_of_change(percent: float | None, measured: Measured | None, ratio: float | None) -> str:
    """The same of a change in percent as it is printed. A printed 0 is rounded, and may have been an effect as small as
    one here.
    """
    found = agreement(None if percent is None else sign(percent), measured, ratio)
    if percent == 0 and found == _NONE_PUBLISHED and size(percent, measured) in {"within", "rounded"}:
        return ROUNDED
    return found


def _rounding(percent: float) -> float:
    """Half a unit of the last digit that is printed, which a number does not tell where it is a 0 behind the point."""
    return 0.5 * 10.0 ** -len(f"{percent:.12f}".rstrip("0").partition(".")[2])


def size(percent: float | None, measured: Measured | None) -> Size | None:
    """Whether the change `percent` that was published lies within the measured interval, or is larger or smaller than
    all of it, in its own direction (a published 0 has that of the interval). It is known to half a unit of its last
    digit: rounded where it lies outside and such a value within. None where nothing is published, or there is no
    interval: of what was not judged there is none. An end that is not there bounds nothing.
    """
    if percent is None or measured is None or (measured.low is None and measured.high is None):
        return None
    low = -math.inf if not measured.low else math.log(measured.low)
    high = math.inf if measured.high is None else math.log(measured.high) if measured.high else -math.inf
    if low <= _log(percent) <= high:
        return "within"
    least, most = (_log(percent + side * _rounding(percent)) for side in (-1, 1))
    if low <= most and least <= high:
        return "rounded"
    return "larger" if (least > high) == ((percent or low) > 0) else "smaller"


def _log(percent: float) -> float:
    """The log-ratio of a change."""
    return math.log1p(percent / 100) if percent > -100 else -math.inf


def trend(levels: Sequence[Level], better: str) -> tuple[str, str]:
    """Whether the gain grows from the first level to the last, in words, and why not where that is not decided."""
    first, last = levels[0].measured, levels[-1].measured
    if len(levels) < 2 or first is None or last is None:
        lacking = next((level.reason for level in (levels[0], levels[-1]) if level.reason), "there is one level here")
        return NOT_HERE, lacking
    before, after = _gain(first, better), _gain(last, better)
    if before is None or after is None:
        judged = "not judged" not in {first.verdict, last.verdict}
        return ("no verdict here", "an interval is missing") if judged else ("not judged here", "")
    if after[0] > before[1]:
        return "same trend", ""
    if after[1] < before[0]:
        return "opposite trend", ""
    return "undecided here", f"the intervals at {levels[0].value} and {levels[-1].value} overlap"


def _gain(measured: Measured, better: str) -> tuple[float, float] | None:
    """The interval of the gain as a ratio: above 1 is better, whichever direction the metric has.

    An end that is not there is 0 or infinity; None where both are.
    """
    low, high = measured.low or 0.0, math.inf if measured.high is None else measured.high
    if measured.verdict in {"none", "not judged"} or (low <= 0 and math.isinf(high)):
        return None
    if better == "lower":
        return 1 / high, 1 / low if low > 0 else math.inf
    return low, high
