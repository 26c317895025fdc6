"""Variance reduction by a covariate that the treatment cannot move, in a way that keeps the sign-flip test exact.

A covariate is a number for each attempt that was fixed before the attempt ran (a canary just before it, the
temperature, free memory), or is otherwise out of the treatment's reach. With D_t the log-ratio of pair t and C_t the
covariate's difference, arm minus baseline, the test is made on

    D_t - b_(t-1) C_t,    b_(t-1) = sum of D C / sum of C^2 over the earlier pairs

(a control variate, Lavenberg and Welch 1981, Manage. Sci. 27:322; in experiments Deng, Xu, Kohavi and Walker 2013,
WSDM). Swapping the labels of a pair flips D_t and C_t together, so D_t C_t, and with it every b, stays as it was: the
adjusted difference flips its sign and nothing else, as the test demands. That the earlier pairs alone make b keeps
the choice of b from feeding on the pair it is used for.

What it must not be is a *mediator*: what the treatment moves (page faults, context switches of a longer run) takes a
part of the effect with it, or makes one up: the test then always ends in a verdict on a treatment without effect.
`falsification` tests for it exactly; not to be refuted is no proof, so name only what cannot be moved.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, variance

from hugewise.model.reason import CovariateTest
from hugewise.stats.inversion import point
from hugewise.stats.signflip import run, verdict

FALSIFICATION_ALPHA = 0.01
"""Error rate of the check whether the covariate differs by arm, for each comparison over its declared budget. It is no
part of the study's error rate: a covariate refused by mistake takes a verdict away, and never makes one."""

_FIRST, _CUT = 10, 2.5  # see Controlled


class ControlVariate:
    """Adjusts differences as pairs come, in constant time and space."""

    def __init__(self) -> None:
        self._products = 0.0
        self._squares = 0.0

    @property
    def coefficient(self) -> float:
        """b after the pairs so far: log-ratio per unit of the covariate; 0 before any."""
        return self._products / self._squares if self._squares > 0 else 0.0

    def add(self, difference: float, covariate_difference: float | None) -> float:
        """Return the adjusted difference of a new pair, in log-ratio. Raises ValueError on a NaN or infinite covariate.

        A pair with a failure (an infinite difference), or whose covariate is missing on a side, is left as it is and
        tells nothing about b.
        """
        if math.isnan(difference):
            raise ValueError("a difference is NaN: a pair without a measurement is no pair")
        if covariate_difference is None or math.isinf(difference):
            return difference
        if not math.isfinite(covariate_difference):
            raise ValueError("a covariate must be a finite number, or None where it is missing")
        result = difference - self.coefficient * covariate_difference
        self._products += difference * covariate_difference
        self._squares += covariate_difference**2
        return result


class Controlled:
    """Pairs with the covariate taken out, for the test of every log-ratio theta at once: it is on value - theta weight.

    As b is linear in theta, D - theta - b(theta) C = (D - b_D C) - theta (1 - b_1 C), with b_1 the coefficient of the
    constant 1: `values` and `weights`, one a pair. Without a covariate they are D and 1. A test and the interval that
    inverts it can therefore be made of the very same numbers.

    Two precautions keep early and outlying pairs from being thrown about by a poor b; both look at sizes and counts
    only, which no swap of labels changes. The first 10 pairs with a covariate stay as they are, and C is cut off at
    2.5 times the root mean square of the earlier ones.
    """

    def __init__(self) -> None:
        self.values: list[float] = []
        self.weights: list[float] = []
        self._difference, self._unit = ControlVariate(), ControlVariate()
        self._pairs, self._squares = 0, 0.0
        self._centre: tuple[int, float] | None = None  # of so many pairs

    def add(self, difference: float, covariate_difference: float | None) -> tuple[float, float]:
        """Value and weight of a new pair. Raises ValueError like `ControlVariate.add`."""
        moved = None if math.isinf(difference) else covariate_difference
        if moved is not None and self._pairs >= _FIRST:
            limit = _CUT * math.sqrt(self._squares / self._pairs)
            moved = max(-limit, min(limit, moved))
        value, weight = self._difference.add(difference, moved), self._unit.add(1.0, moved)
        if self._pairs < _FIRST:
            value, weight = difference, 1.0
        if moved is not None:
            self._pairs += 1
            self._squares += moved**2
        self.values.append(value)
        self.weights.append(weight)
        return value, weight

    @property
    def coefficient(self) -> float:
        """b after the pairs so far, as `ControlVariate.coefficient`."""
        return self._difference.coefficient

    def centre(self) -> float:
        """Return the typical log-ratio (`inversion.point`) of values and weights. Raises ValueError without pairs.

        Found once for the same pairs: verdict, estimate and correction all ask for it.
        """
        if self._centre is None or self._centre[0] != len(self.values):
            self._centre = len(self.values), point(self.values, self.weights)
        return self._centre[1]

    def sign(self, theta: float, alpha: float, budget: int | None) -> int:
        """Return which way the test of this log-ratio has crossed, 0 where it has not."""
        return verdict((v - theta * w for v, w in zip(self.values, self.weights, strict=True)), alpha, budget)


def variance_ratio(differences: Sequence[float], adjusted_differences: Sequence[float]) -> float | None:
    """Variance of the adjusted differences over that of the plain ones: what the covariate bought, in pairs.

    0.5 means half the pairs for the same precision; above 1 the covariate costs. Pairs with a failure are left out;
    None where fewer than two remain or the plain ones do not vary.
    """
    pairs = [
        (plain, after)
        for plain, after in zip(differences, adjusted_differences, strict=True)
        if math.isfinite(plain) and math.isfinite(after)
    ]
    if len(pairs) < 2:
        return None
    before = variance(plain for plain, _ in pairs)
    return variance(after for _, after in pairs) / before if before > 0 else None


def falsification(covariate_differences: Sequence[float], alpha: float, *, budget: int | None = None) -> CovariateTest:
    """Test whether the treatment moves the covariate, which then may not be used.

    The sequential sign-flip test on the covariate's own differences (arm minus baseline): a covariate out of the
    treatment's reach is refused with probability at most `alpha`, however often one looks. Raises ValueError on a NaN
    or an alpha outside (0, 1).
    """
    test, pairs = run(covariate_differences, alpha, budget), len(covariate_differences)
    if test.sign:
        return CovariateTest(alpha, pairs, None, "larger" if test.sign > 0 else "smaller", test.crossed_at)
    return CovariateTest(alpha, pairs, fmean(covariate_differences) if pairs else None)
