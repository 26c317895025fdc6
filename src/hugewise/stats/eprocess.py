"""Open-ended tests of the same null as `signflip`: e-processes on signed amounts, which multiply.

Under fair coins E[exp(l * s_t)] = cosh(l * a_t) given the magnitude a_t and the past. So for each l

    M_t(l) = prod_i exp(l * s_i) / cosh(l * a_i)

is a martingale with mean 1, and so is any mean of these over l: here over a geometric grid of 16 rates between 0.02
and 3 (shifts between about 1/50 and three standard deviations), for an arm that is larger (up: +l) and one that is
smaller (down: -l), and their mean. By Ville's inequality it ever reaches 1/alpha with chance at most alpha; no budget
is declared. (Mixture martingales: Robbins 1970; symmetry: de la Pena 1999; Vovk and Wang 2022, arXiv 2208.08925.)

E-processes from separate coins multiply: over hosts, sessions, or a study that is taken up again, the product of the
values is an e-value again at any stopping time. That also holds for the products of all `up` and of all `down` values,
whose mean is the better choice where the direction is expected to be the same everywhere.

There are two, by what the amounts s_t are; both are exact under the sharp null, whatever the noise.

EProcess      normal scores (over 10, see `scores`), for the typical ratio: an outlier counts little more than others
SumEProcess   the differences arm - baseline themselves, over the largest magnitude so far, for a mean: an outlier
              counts as much as it is large
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable

import numpy as np

from hugewise.stats.numbers import Numbers
from hugewise.stats.scores import UNIT, Scores

__all__ = ["GRID", "EProcess", "SumEProcess", "combine", "e_values", "finite"]

GRID: tuple[float, ...] = tuple(float(rate) for rate in np.geomspace(0.02, 3.0, 16))
"""The rates l, per unit of the amounts: a standard normal score, or the largest difference."""


class _Mixture:
    """The mixture over the rates for signed amounts, which the two classes below make of differences."""

    def __init__(self, grid: Iterable[float], unit: float) -> None:
        rates = np.array(sorted(grid), dtype=np.float64)
        if not len(rates) or not np.isfinite(rates).all() or rates[0] <= 0:
            raise ValueError("the grid needs at least one rate, and all of them positive")
        self._rates: Numbers = rates / unit
        self._drift = np.zeros(len(rates))  # sum of log cosh(l * a)
        self._walk = 0.0
        self._log_largest = 0.0
        self.pairs = 0

    def _bet(self, amount: float) -> None:
        self._walk += amount
        self._drift += np.logaddexp(self._rates * amount, -self._rates * amount) - math.log(2)
        self.pairs += 1
        # The value is a mean over rates and sides, and so no larger than the largest of them: most are not worked out.
        most = float((self._rates * abs(self._walk) - self._drift).max())
        if most + 1e-9 > self._log_largest:  # rounding
            self._log_largest = max(self._log_largest, self.log_value)

    @property
    def log_up(self) -> float:
        """Natural logarithm of the evidence that the arm is larger."""
        return self._log_mean(self._walk)

    @property
    def log_down(self) -> float:
        """Natural logarithm of the evidence that the arm is smaller."""
        return self._log_mean(-self._walk)

    @property
    def log_value(self) -> float:
        return float(np.logaddexp(self.log_up, self.log_down)) - math.log(2)

    @property
    def up(self) -> float:
        return _exp(self.log_up)

    @property
    def down(self) -> float:
        return _exp(self.log_down)

    @property
    def value(self) -> float:
        """The e-value now, two-sided; infinite beyond the range of a double."""
        return _exp(self.log_value)

    def rejects(self, alpha: float) -> bool:
        """Whether the value has ever been 1/alpha or more. Raises ValueError unless 0 < alpha < 1."""
        if not 0 < alpha < 1:
            raise ValueError("alpha must be within 0 and 1")
        return self._log_largest >= -math.log(alpha)

    def _log_mean(self, walk: float) -> float:
        exponents = self._rates * walk - self._drift
        most = float(exponents.max())
        return most + math.log(float(np.add.reduce(np.exp(exponents - most))) / len(exponents))


class EProcess(_Mixture):
    """Evidence against fair coins, as pairs come. `grid`: the rates, positive; they share their weight equally."""

    def __init__(self, grid: Iterable[float] = GRID) -> None:
        super().__init__(grid, UNIT)
        self._scores = Scores()

    def add(self, difference: float) -> None:
        """Take a pair's difference, log(arm) - log(baseline). Raises ValueError on a NaN."""
        self._bet(self._scores.add(difference))


class SumEProcess(_Mixture):
    """Evidence against fair coins from the differences arm - baseline themselves, in the metric's unit.

    A pair's amount x_t is its difference over the largest magnitude of the pairs up to and including its own, within
    -1 and 1. That scale is made of magnitudes alone, which no coin moves: given |d_t| and the past, x_t is +-|x_t|. A
    failed side counts as the largest magnitude there has been (amount +-1); where both are equal, or both failed, the
    amount is 0.

    log(exp(l x)/cosh(l x)) is at most l x, so that `up` exceeds 1 only where the amounts add up to more than 0 and
    `down` only where to less: it cannot speak against the sum, which a test by ranks can. (The scale grows, so that
    early pairs weigh a little more in this sum than in the mean.) Exactness is that of the coins. Where no coin chose
    and only the means are equal, a skewed difference may give it a mean above 1.
    """

    def __init__(self, grid: Iterable[float] = GRID) -> None:
        super().__init__(grid, 1)
        self._largest = 0.0

    def add(self, difference: float) -> None:
        """Take a pair's difference, arm - baseline; infinite where one side failed. Raises ValueError on a NaN."""
        if math.isnan(difference):
            raise ValueError("a difference must be a number or infinite")
        if math.isinf(difference):
            self._bet(math.copysign(1.0, difference))
            return
        self._largest = max(self._largest, abs(difference))
        self._bet(difference / self._largest if self._largest else 0.0)


def combine(values: Iterable[float]) -> float:
    """The e-value of several together, from separate coins: their product, 1 for none.

    Take each one's value now (or where it stopped), never its largest. Raises ValueError on a value below 0 or NaN.
    """
    logs = []
    for value in values:
        if not value >= 0:
            raise ValueError("an e-value is a number from 0 on")
        logs.append(math.log(value) if value else -math.inf)
    if -math.inf in logs:
        return 0.0
    return _exp(math.fsum(logs))


def finite(value: float) -> float:
    """An e-value for JSON, which has no infinity: at most the largest double, which is still an e-value."""
    return min(value, sys.float_info.max)


def e_values(verdict: str, larger: float, smaller: float) -> dict[str, float | None]:
    """The fields of a comparison that has these one-sided e-values; null where no verdict is possible."""
    known = verdict != "none"
    return {
        "evidence": finite((larger + smaller) / 2) if known else None,
        "evidence_larger": finite(larger) if known else None,
        "evidence_smaller": finite(smaller) if known else None,
    }


def _exp(log: float) -> float:
    try:
        return math.exp(log)
    except OverflowError:
        return math.inf
