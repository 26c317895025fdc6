"""An open-ended test of the same null as `signflip`: an e-process on signed normal scores, which multiplies.

Under fair coins E[exp(l * s_t)] = cosh(l * a_t) given the magnitude a_t (the score over 10, see `scores`) and the
past. So for each l

    M_t(l) = prod_i exp(l * s_i) / cosh(l * a_i)

is a martingale with mean 1, and so is any mean of these over l: here over a geometric grid of 16 rates between 0.02
and 3 (shifts between about 1/50 and three standard deviations), for an arm that is larger (up: +l) and one that is
smaller (down: -l), and their mean. By Ville's inequality it ever reaches 1/alpha with chance at most alpha; no budget
is declared. (Mixture martingales: Robbins 1970; symmetry: de la Pena 1999; Vovk and Wang 2022, arXiv 2208.08925.)

E-processes from separate coins multiply: over hosts, sessions, or a study that is taken up again, the product of the
values is an e-value again at any stopping time. That also holds for the products of all `up` and of all `down` values,
whose mean is the better choice where the direction is expected to be the same everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from hugewise.stats.scores import UNIT, Scores

__all__ = ["GRID", "EProcess", "combine"]

GRID: tuple[float, ...] = tuple(float(rate) for rate in np.geomspace(0.02, 3.0, 16))
"""The rates l, per standard normal score."""


class EProcess:
    """Evidence against fair coins, as pairs come. `grid`: the rates, positive; they share their weight equally."""

    def __init__(self, grid: Iterable[float] = GRID) -> None:
        rates = np.array(sorted(grid), dtype=np.float64)
        if not len(rates) or not np.isfinite(rates).all() or rates[0] <= 0:
            raise ValueError("the grid needs at least one rate, and all of them positive")
        self._scores = Scores()
        self._rates: npt.NDArray[np.float64] = rates / UNIT
        self._drift = np.zeros(len(rates))  # sum of log cosh(l * a)
        self._walk = 0
        self._log_largest = 0.0

    def add(self, difference: float) -> None:
        """Take a pair's difference, log(arm) - log(baseline). Raises ValueError on a NaN."""
        score = self._scores.add(difference)
        self._walk += score
        self._drift += np.logaddexp(self._rates * score, -self._rates * score) - math.log(2)
        self._log_largest = max(self._log_largest, self.log_value)

    @property
    def pairs(self) -> int:
        return len(self._scores)

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

    def _log_mean(self, walk: int) -> float:
        exponents = self._rates * walk - self._drift
        most = float(exponents.max())
        return most + math.log(float(np.exp(exponents - most).mean()))


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


def _exp(log: float) -> float:
    try:
        return math.exp(log)
    except OverflowError:
        return math.inf
