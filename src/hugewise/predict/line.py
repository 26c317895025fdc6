"""Time as a line of TLB events, T = a + b H + sum c M, with its interval, and each layout predicted from the others.

H are hits in the second level of the TLB, M misses of it by the size of the page. The events are simulated; a, b and c
are fitted by least squares to the lower quartile of each layout's runs: other load adds time to some of the runs, and a
virtual machine lends a few of them more speed. The form is that of Agbarya, Yaniv, Gandhi and Tsafrir, Predicting
Execution Times With Partial Simulations in Virtual Memory Research (MICRO 2020).

The interval is that of a further observation in a linear regression (Draper and Smith, Applied Regression Analysis, 3rd
edition, 1998), by the wider of two errors, each with Student's t of its own degrees of freedom: that of the layouts
about the line, and that of the quartiles, so that layouts which lie on the line by chance make no narrow interval. The
error of a quartile is half the distance of the quantiles one standard error of its share on both sides (Woodruff,
Confidence Intervals for Medians and Other Position Measures, JASA 1952). Where as many figures are fitted as there are
layouts, it is the only one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray
from scipy import stats

LEVEL = 0.9
_LEAST_CHANGE = 0.02  # of the events that change most between the layouts
_WEIGHTS = (1.0, 0.1, 1.0)  # a hit in the second level takes some 7 cycles, a walk several times as long
_LEAST_RATE = 1e-5  # events for each instruction: 100 cycles each would be a thousandth of the time

_SHARE = 0.25  # of the runs that are faster than the time of a layout

Numbers = NDArray[np.float64]


class Interval(msgspec.Struct, frozen=True):
    """A time in seconds, and its interval of 90%."""

    value: float
    low: float
    high: float


class Line(NamedTuple):
    """A fitted line: `columns` are the events in it; half an interval is `error` times sqrt(1 + x' `inverse` x) at
    scaled events x.
    """

    columns: tuple[int, ...]
    middle: Numbers
    unit: Numbers
    coefficients: Numbers
    inverse: Numbers
    error: float

    def at(self, events: Sequence[float]) -> Interval:
        """Return the time with these events."""
        row = _row(np.asarray(events, float), self)
        value = float(row @ self.coefficients)
        half = self.error * math.sqrt(1 + float(row @ self.inverse @ row))
        return Interval(value, value - half, value + half)

    def costs(self) -> dict[int, float]:
        """Return the seconds of an event, by column."""
        return dict(zip(self.columns, (self.coefficients[1:] / self.unit).tolist(), strict=True))


def quartile(seconds: Numbers) -> Numbers:
    """Return the time of each layout (row): the lower quartile of its runs (columns)."""
    found: Numbers = np.quantile(seconds, _SHARE, axis=1)
    return found


def columns(events: Numbers, instructions: int) -> tuple[int, ...]:
    """Return the events to fit: those that change between the layouts (rows), not as others do, in the order in which
    they stand; so few that lines without one layout have an interval.
    """
    centred = (events - events.mean(axis=0)) * _WEIGHTS
    largest = float(np.linalg.norm(centred, axis=0).max())
    least = max(_LEAST_CHANGE * largest, _LEAST_RATE * instructions)
    chosen: list[int] = []
    basis: list[Numbers] = []
    for at, column in enumerate(centred.T):
        rest = column - sum((one @ column * one for one in basis), np.zeros(len(column)))
        size = float(np.linalg.norm(rest))
        if size > least and len(chosen) < max(1, len(events) - 3):
            chosen.append(at)
            basis.append(rest / size)
    return tuple(chosen)


def fit(events: Numbers, seconds: Numbers, chosen: tuple[int, ...]) -> Line | None:
    """Fit the line to layouts (rows) by the seconds of their runs (columns, two or more); None where the layouts do not
    tell.
    """
    count = len(seconds)
    used = events[:, list(chosen)]
    middle, unit = used.mean(axis=0), np.maximum(used.std(axis=0), 1e-300)
    matrix = np.column_stack((np.ones(count), (used - middle) / unit))
    if np.linalg.matrix_rank(matrix) < matrix.shape[1]:
        return None
    took = quartile(seconds)
    inverse = np.linalg.inv(matrix.T @ matrix)
    coefficients = inverse @ matrix.T @ took
    freedom = count - matrix.shape[1]
    errors = [(float(((took - matrix @ coefficients) ** 2).sum()) / freedom, freedom)] if freedom else []
    share = math.sqrt(_SHARE * (1 - _SHARE) / seconds.shape[1])
    low, high = np.quantile(seconds, (max(_SHARE - share, 0), _SHARE + share), axis=1)
    errors.append((float((((high - low) / 2) ** 2).mean()), seconds.size - count))
    half = max(float(stats.t.ppf((1 + LEVEL) / 2, free)) * math.sqrt(variance) for variance, free in errors)
    return Line(chosen, middle, unit, coefficients, inverse, half)


def held_out(events: Numbers, seconds: Numbers, chosen: tuple[int, ...]) -> list[Interval | None]:
    """Return for each layout the time that the others predict; None where these do not tell."""
    lines = (fit(np.delete(events, at, 0), np.delete(seconds, at, 0), chosen) for at in range(len(events)))
    return [line and line.at(row) for line, row in zip(lines, events, strict=True)]


def _row(events: Numbers, line: Line) -> Numbers:
    return np.concatenate(([1.0], (events[list(line.columns)] - line.middle) / line.unit))
