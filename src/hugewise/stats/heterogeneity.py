"""Differences of an effect between hosts: its typical size, its spread, and the next host's effect. Pure.

Model (random effects): host i has an effect theta_i of its own, a draw from N(mu, tau^2), and y_i was estimated of it
with an error e_i (a standard deviation): y_i ~ N(mu, tau^2 + e_i^2). All are log-ratios.

tau. Paule and Mandel (1982, J. Res. Natl. Bur. Stand. 87:377): the tau at which

    Q(tau^2) = sum of (y_i - mu(tau^2))^2 / (tau^2 + e_i^2),    mu(tau^2) the mean with weights 1/(tau^2 + e_i^2),

is k - 1. Veroniki et al. (2016, Res. Synth. Methods 7:55) recommend it or REML; it is chosen since it is the middle
of the interval below, so that estimate and interval can never disagree. Its interval is Viechtbauer's Q-profile (2007,
Stat. Med. 26:37): the tau^2 at which Q is the 97.5% and the 2.5% point of chi-squared with k - 1 degrees of freedom; it
is exact under the model.

mu. The mean at that tau, with the interval of Hartung and Knapp (2001, Stat. Med. 20:3875) and Sidik and Jonkman (2002,
ibid. 21:3153): Student's t with k - 1 degrees of freedom on sqrt(Q/(k - 1) / sum of weights), where Q/(k - 1) is at
least 1 (Roever, Knapp and Friede 2015, BMC Med. Res. Methodol. 15:99): where tau is 0 it would otherwise be narrower
than the hosts' own errors allow. Simulated: see `pooling`.

The next host. The usual interval, mu -+ t(k-2) sqrt(tau^2 + se^2) (Higgins, Thompson and Spiegelhalter 2009, J. R.
Stat. Soc. A 172:137; with this se Partlett and Riley 2017, Stat. Med. 36:301), takes the estimate of tau for tau
itself. That fails for fleets: over 1,000 fleets of 10 hosts with equal errors a nominal 95% had the next host's effect
in 89.7% where tau is half of a host's error, in 87.9% where it is as large, in 93.1% at twice (with k - 1: 89.3, 87.5,
92.7%; with 20 hosts 83.7% at half). So the error of tau is taken in, as by Nagashima, Noma and Furukawa (2019, Stat.
Methods Med. Res. 28:1689): Q-profile gives a confidence distribution of tau^2, a value for every chance p,

    tau_p^2:  Q(tau_p^2) = point of chi-squared(k - 1) with p above it,    0 where even Q(0) is below,

and the next host's effect is a mixture over p of N(mu(tau_p^2), tau_p^2 + 1 / sum of weights at tau_p^2). Where tau is
far above the errors this is Student's t with k - 1 degrees of freedom times S sqrt(1 + 1/k), which is exact. Mixed so,
95.6 and 93.5% hold at half and at one error, 94.3% at twice. All chances with a tau of 0 speak for a fleet of equals,
and are too many: they stand for a tau^2 that would have to be negative, which is no evidence for exactly 0. They count
a quarter. Then it is 98.1, 95.9 and 94.7% with equal errors, and 97.7, 95.8 and 94.8% with errors that differ
(log-normal, deviation 0.8); over fleets of 5 to 40 hosts, from one error on, 94.2 to 97.7%. Where estimates are those
of runs that stopped early they have long tails, and a fleet in which no tail was drawn looks too much alike: with half
the weight in place of a quarter 92.7% would hold in the worst case of `verification.fleets`, with a quarter 94.4%.
Below 5 hosts none is given: it would be wider than anybody can use.

It is the interval of the effect that the next host *has*, not of what a short run there will estimate.

How many hosts of a stratum answer a question, before hours are spent. Pure.

A host that makes n pairs knows its effect to e = deviation / sqrt(n), and hosts differ by tau; so each host's estimate
is one draw with the deviation sqrt(tau^2 + e^2), and the typical effect is tested by Student's t over hosts and by
their signs (`pooling`). The hosts for a verdict are those of both tests at the share of the error rate that one of
`family` effects has (strata times comparisons; Bonferroni, which Holm never needs more than). More pairs on a host help
while e is the larger of the two; after that only more hosts do.

The hosts for the spread are those with which the interval of tau, by Q-profile at 95%, is expected to end at no more
than `factor` times tau: for equal errors its upper end is sqrt((k - 1)(tau^2 + e^2) / c - e^2), c the point of
chi-squared with k - 1 degrees of freedom that 2.5% lie below. Twice takes 9 hosts where tau is far above e, 15 where
they are equal, and ever more below: a spread that is small against each host's error needs longer runs, not more hosts.

tau is a guess: from a pilot on a few hosts, or a range. Where nothing is known the defaults are those of `TAUS`: page
effects of one program on hosts of one class have been seen to differ by a tenth to a half of themselves, which is a
guess to be replaced by the first fleet's own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np

from hugewise.stats import power
from hugewise.stats.method import Numbers
from hugewise.stats.signflip import first_crossing

FEWEST = 5
"""Hosts below which nothing is said of the next one."""
_NODES = 32
_HALVINGS = 60
_FINEST = 1e-9  # log-ratios are rounded to it: an error of 0 would have all of the weight
_ATOM = 0.25
_LEAST_OTHERS = 3


class TypicalEffect(NamedTuple):
    """mu and its standard error, with `freedom` degrees of freedom; log-ratios."""

    centre: float
    error: float
    freedom: int


class Hosts:
    """Hosts that are alike: `estimates` y and their standard errors `errors`, log-ratios, one of each a host.

    Raises ValueError for lengths that differ, no host, a value that is not finite, or an error below 0.
    """

    def __init__(self, estimates: Sequence[float], errors: Sequence[float]) -> None:
        self.estimates = np.array(estimates, dtype=np.float64)
        self.errors = np.maximum(np.array(errors, dtype=np.float64), _FINEST)
        if self.estimates.shape != self.errors.shape or self.estimates.ndim != 1 or not len(self.estimates):
            raise ValueError("as many errors as estimates are needed, and one of each at least")
        if not (np.isfinite(self.estimates).all() and np.isfinite(self.errors).all()) or min(errors) < 0:
            raise ValueError("estimates and errors are finite numbers, and no error is below 0")
        self.count = len(self.estimates)
        self._mixed: tuple[Numbers, Numbers, Numbers] | None = None

    def tau(self) -> float | None:
        """Return the spread of true effects over hosts (a standard deviation); None for one host."""
        return None if self.count < 2 else math.sqrt(float(self._variances(np.array([self.count - 1.0]))[0]))

    def tau_interval(self, confidence: float = 0.95) -> tuple[float, float] | None:
        """Interval of tau, by Q-profile; None for one host."""
        if self.count < 2:
            return None
        tail = (1 - confidence) / 2
        low, high = self._variances(_chi_squared(self.count - 1, np.array([tail, 1 - tail]))).tolist()
        return math.sqrt(low), math.sqrt(high)

    def typical(self) -> TypicalEffect | None:
        """Return the typical effect; None for one host."""
        tau = self.tau()
        if tau is None:
            return None
        q, centre, variance = self._at(np.array([tau**2]))
        factor = max(1.0, float(q[0]) / (self.count - 1))
        return TypicalEffect(float(centre[0]), math.sqrt(factor * float(variance[0])), self.count - 1)

    def next_host(self, confidence: float = 0.95) -> tuple[float, float] | None:
        """Return the interval that has the effect of the next host; None below `FEWEST` hosts."""
        if self.count < FEWEST:
            return None
        tail = (1 - confidence) / 2
        return self._quantile(tail), self._quantile(1 - tail)

    def chance_below(self, effect: float) -> float | None:
        """Return the chance that the next host's effect is below this one; None below `FEWEST` hosts."""
        if self.count < FEWEST:
            return None
        weights, centres, deviations = self._mixture()
        return _mixed(effect, weights, centres, deviations)

    def without(self, host: int) -> Hosts:
        """Return the others."""
        return Hosts(np.delete(self.estimates, host).tolist(), np.delete(self.errors, host).tolist())

    def outlying(self, error: float = 0.05) -> list[int]:
        """Return the places of hosts whose estimate does not fit the others: beyond what the others foretell of it, at
        this error over all of them (deleted residuals with Bonferroni's bound; Viechtbauer and Cheung 2010, Res. Synth.
        Methods 1:112). Empty below four hosts.
        """
        from scipy.special import stdtrit  # noqa: PLC0415  (slow to load)

        if self.count < _LEAST_OTHERS + 1:
            return []
        most = float(stdtrit(self.count - 2, 1 - error / (2 * self.count)))
        found = []
        for place in range(self.count):
            others = self.without(place)
            typical, tau = others.typical(), others.tau()
            assert typical is not None and tau is not None
            deviation = math.sqrt(tau**2 + typical.error**2 + float(self.errors[place]) ** 2)
            if abs(float(self.estimates[place]) - typical.centre) > most * deviation:
                found.append(place)
        return found

    def _at(self, variances: Numbers) -> tuple[Numbers, Numbers, Numbers]:
        """Q, the mean and its variance at each of these tau^2."""
        weights = 1 / (variances[:, None] + self.errors**2)
        sums = weights.sum(axis=1)
        centres = (weights * self.estimates).sum(axis=1) / sums
        q = (weights * (self.estimates - centres[:, None]) ** 2).sum(axis=1)
        return q, centres, 1 / sums

    def _variances(self, targets: Numbers) -> Numbers:
        """The tau^2 at which Q is each of these targets; 0 where it never is so large. Q falls as tau^2 rises."""
        low = np.zeros(len(targets))
        # Q(tau^2) <= sum of squares / tau^2.
        squares = float(np.sum((self.estimates - self.estimates.mean()) ** 2))
        high = np.maximum(squares / targets, _FINEST**2)
        never = self._at(low)[0] <= targets
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            above = self._at(middle)[0] > targets
            low, high = np.where(above, middle, low), np.where(above, high, middle)
        return np.where(never, 0.0, high)

    def _mixture(self) -> tuple[Numbers, Numbers, Numbers]:
        """Weights, means and deviations of the normal laws that the next host's effect is a mixture of."""
        if self._mixed is None:
            chances, weights = _nodes()
            variances = self._variances(_chi_squared(self.count - 1, 1 - chances))
            _, centres, own = self._at(variances)
            weights = np.where(variances > 0, weights, _ATOM * weights)
            self._mixed = weights / weights.sum(), centres, np.sqrt(variances + own)
        return self._mixed

    def _quantile(self, chance: float) -> float:
        weights, centres, deviations = self._mixture()
        low, high = float(np.min(centres - 40 * deviations)), float(np.max(centres + 40 * deviations))
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            if _mixed(middle, weights, centres, deviations) < chance:
                low = middle
            else:
                high = middle
        return (low + high) / 2


def _mixed(effect: float, weights: Numbers, centres: Numbers, deviations: Numbers) -> float:
    from scipy.special import ndtr  # noqa: PLC0415  (slow to load)

    return float(weights @ ndtr((effect - centres) / deviations))


def _chi_squared(freedom: int, chances: Numbers) -> Numbers:
    """Return the points of chi-squared with so much above them."""
    from scipy.special import chdtri  # noqa: PLC0415

    found: Numbers = chdtri(freedom, chances)
    return found


@cache
def _nodes() -> tuple[Numbers, Numbers]:
    """Chances and weights of a Gauss rule that is dense at both ends, where the widest and the narrowest laws are."""
    places, weights = np.polynomial.legendre.leggauss(_NODES)
    places, weights = (places + 1) / 2, weights / 2
    return places**2 * (3 - 2 * places), weights * 6 * places * (1 - places)


TAUS = (0.1, 0.5)
"""The spread over hosts as a share of the effect, where none is known: from, to."""
MOST = 10_000
"""More hosts than this are not forecast."""
_MOST_SPREAD = 1000
_TAIL = 0.025


class HostNeed(NamedTuple):
    """Hosts that a stratum needs for an `effect` (log-ratio) that differs between its hosts by `tau`.

    verdict   hosts with which the typical effect is shown with the chance that was asked for; None beyond `MOST`
    spread    hosts for an interval of tau that ends at twice tau at most; None where tau is too small for it
    next_host hosts from which the next one is spoken of
    hours     host-hours of one host
    """

    effect: float
    tau: float
    verdict: int | None
    spread: int | None
    next_host: int
    hours: float

    @property
    def hosts(self) -> int | None:
        """Hosts that suffice for all of these."""
        known = [self.verdict, self.next_host, *([] if self.spread is None else [self.spread])]
        return None if self.verdict is None else max(one for one in known if one is not None)


def need(  # noqa: PLR0917
    effect: float, tau: float, deviation: float, pairs: int, level: float, seconds: float, chance: float = 0.9
) -> HostNeed:
    """Return the need of a stratum where each host makes `pairs` pairs in `seconds` (of a whole run).

    `deviation` is that of a pair's log-ratio (`paired.scale` of a pilot), `level` the share of the error rate. Raises
    ValueError on values out of range.
    """
    if pairs < 1 or not deviation >= 0:
        raise ValueError("a host makes a pair at least, and a deviation is not below 0")
    error = deviation / math.sqrt(pairs)
    return HostNeed(
        effect,
        tau,
        hosts_for_verdict(effect, tau, error, level, chance=chance),
        hosts_for_spread(tau, error),
        FEWEST,
        seconds / 3600,
    )


def hosts_for_verdict(effect: float, tau: float, error: float, level: float, *, chance: float = 0.9) -> int | None:
    """Return hosts with which Student's t and the sign test, at the two-sided `level`, each show the typical effect
    with this chance.

    None beyond `MOST`, and for an effect of 0. Raises ValueError on a spread or an error below 0, and a level or a
    chance outside (0, 1).
    """
    _check(tau, error)
    if not (0 < level < 1 and 0 < chance < 1):
        raise ValueError("level and chance lie within 0 and 1")
    spread = math.hypot(tau, error)
    if effect == 0:
        return None
    fewest = first_crossing(level)
    if spread == 0:
        return fewest
    shift = abs(effect) / spread

    def enough(hosts: int) -> bool:
        return min(power.student_power(shift, hosts, level), _signs_power(shift, hosts, level)) >= chance

    return power.first_enough(enough, fewest, MOST)


def _signs_power(shift: float, hosts: int, level: float) -> float:
    """Return the chance that the sign test finds this shift (in standard deviations) in its direction."""
    from scipy.special import bdtrc, bdtrik, ndtr  # noqa: PLC0415  (slow to load)

    most_by_chance = math.ceil(float(bdtrik(1 - level / 2, hosts, 0.5)))
    return float(bdtrc(most_by_chance, hosts, float(ndtr(shift))))


def hosts_for_spread(tau: float, error: float, factor: float = 2.0) -> int | None:
    """Return hosts with which the interval of tau is expected to end at `factor` times tau at most.

    None beyond 1,000: the spread is too small against each host's error. Raises ValueError on a spread or an error
    below 0, or a factor of 1 or less.
    """
    from scipy.special import chdtri  # noqa: PLC0415  (slow to load)

    _check(tau, error)
    if not factor > 1:
        raise ValueError("the factor is above 1")
    if tau == 0:
        return None
    most = (factor**2 * tau**2 + error**2) / (tau**2 + error**2)
    return power.first_enough(lambda n: (n - 1) / float(chdtri(n - 1, 1 - _TAIL)) <= most, 3, _MOST_SPREAD)


def _check(tau: float, error: float) -> None:
    if not (tau >= 0 and error >= 0):
        raise ValueError(f"a spread and an error are 0 or more, not {tau} and {error}")
