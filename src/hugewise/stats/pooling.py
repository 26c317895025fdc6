"""One comparison over many hosts: hosts of a class pooled, classes weighed by what the fleet is made of. Pure.

Model (random effects): host i has an effect theta_i of its own, a draw from N(mu, tau^2), and y_i was estimated of it
with an error e_i: y_i ~ N(mu, tau^2 + e_i^2). All are log-ratios.

- tau: Paule and Mandel (1982, J. Res. Natl. Bur. Stand. 87:377), the tau^2 at which Q = sum of (y_i - mu)^2 /
  (tau^2 + e_i^2) is k - 1; its interval is Viechtbauer's Q-profile (2007, Stat. Med. 26:37), which is exact under the
  model and has this tau in its middle.
- mu: the mean at that tau, by Hartung and Knapp (2001, Stat. Med. 20:3875) and Sidik and Jonkman (2002, ibid. 21:3153),
  with Q/(k - 1) at least 1 (Roever, Knapp and Friede 2015, BMC Med. Res. Methodol. 15:99).
- The next host: a mixture of N(mu, tau_p^2 + error of mu) over Q-profile's confidence distribution of tau^2, as
  Nagashima, Noma and Furukawa (2019, Stat. Methods Med. Res. 28:1689). The usual interval, which takes the estimate of
  tau for tau itself, has the next host in 88 to 93% of fleets of 10 at a nominal 95%. Chances with a tau of 0 count a
  quarter.
- A host's estimate is corrected for the stop (`stopping`), with the error of all ends that its comparison can have, at
  the typical effect: an error by its own pairs is small where its estimate is low. Effect and errors are found in
  turns.
- A verdict needs Student's t and the signs of the hosts (sign test), so that the larger p counts: t alone is wrong in
  3.5% at a nominal 1% where effects are exponential. The claim is about the middle host, not about the mean.
- The fleet: the sum of W_s mu_s, W_s the share of class s in the fleet (post-stratification; Holt and Smith 1979, J. R.
  Stat. Soc. A 142:33), with Satterthwaite's degrees of freedom (1946, Biometrics Bull. 2:110).
- All typical effects of classes and fleet, over all comparisons, are one family (Holm), as in `family`.

Which hosts have a run is not by chance: the first that come back have too large effects, and those that are lost took
long. So nothing is claimed before a fleet has ended, and hosts without a run count as hosts without any effect.
`tools.verification.fleets` simulates all of this; docs/concepts/fleet.md has the figures.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from statistics import stdev
from typing import NamedTuple

import numpy as np

from hugewise.model.reason import NoEstimate, Reason
from hugewise.model.results import Verdict
from hugewise.stats import stopping
from hugewise.stats.family import holm
from hugewise.stats.fixed import FixedN
from hugewise.stats.method import Method, Numbers
from hugewise.stats.paired import chance_of_heads, scale
from hugewise.stats.sequential import Sequential
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
        weights = 1 / (variances[:, None] + self.errors**2)
        sums = weights.sum(axis=1)
        centres = (weights * self.estimates).sum(axis=1) / sums
        q = (weights * (self.estimates - centres[:, None]) ** 2).sum(axis=1)
        return q, centres, 1 / sums

    def _variances(self, targets: Numbers) -> Numbers:
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
    from scipy.special import chdtri  # noqa: PLC0415

    found: Numbers = chdtri(freedom, chances)
    return found


@cache
def _nodes() -> tuple[Numbers, Numbers]:
    places, weights = np.polynomial.legendre.leggauss(_NODES)
    places, weights = (places + 1) / 2, weights / 2
    return places**2 * (3 - 2 * places), weights * 6 * places * (1 - places)


_ROUNDS = 3  # until effect and errors agree to a hundredth of the error
_REACH = 5  # as `stopping`
_FREEDOM = 1e6  # where no error is there, all is known


class HostEstimate(NamedTuple):
    """Estimate of a host, in the logarithm of the ratio.

    centre   the plain estimate
    scale    the deviation of a pair's difference (`paired.scale`)
    pairs    that it is made of
    alpha, planned   of its test
    crossed  whether the test has crossed
    stops    whether the comparison ends by what it finds: it needs the correction
    copies   attempts of either side in a block
    """

    centre: float
    scale: float
    pairs: int
    alpha: float
    planned: int
    crossed: bool
    stops: bool
    copies: int = 1


def pooled(found: Sequence[HostEstimate], lost: int = 0) -> Hosts:
    """Estimates and errors of hosts of one stratum, corrected for the stop; then those of `lost` hosts that were begun
    and of which there is no run: without any effect, and with the middle error of the others.

    A second for each alpha and budget. Raises ValueError on no host, an estimate that is not finite, or pairs beyond
    the budget.
    """
    last = _last([one for one in found if one.stops])
    laws = [
        stopping.end_law(one.alpha, one.planned, min(last, one.planned), one.copies) if one.stops else None
        for one in found
    ]
    values = [
        one.centre if law is None or not one.scale else law.corrected(one.centre / one.scale) * one.scale
        for one, law in zip(found, laws, strict=True)
    ]
    centre = math.fsum(values) / len(values)
    for _ in range(_ROUNDS):
        hosts = Hosts(values, [_error(one, law, centre) for one, law in zip(found, laws, strict=True)])
        typical = hosts.typical()
        if typical is None or abs(typical.centre - centre) < 0.01 * typical.error:
            break
        centre = typical.centre
    if lost:
        error = float(np.median(hosts.errors))
        return Hosts([*hosts.estimates.tolist(), *[0.0] * lost], [*hosts.errors.tolist(), *[error] * lost])
    return hosts


def _error(one: HostEstimate, law: stopping.EndLaw | None, centre: float) -> float:
    if law is None or not one.scale:
        return one.scale / math.sqrt(one.pairs)
    return law.error(centre / one.scale) * one.scale


def _last(found: Sequence[HostEstimate]) -> int:
    if not found:
        return 1
    most = max(one.pairs for one in found)
    ended = all(one.crossed or one.pairs >= one.planned for one in found)
    return 1 << math.ceil(math.log2(_REACH * most if ended else most))


class Held(NamedTuple):
    """Claim about an effect, and its interval (log-ratios) at the level of its test.

    `p` is that of no difference, two-sided and its own, by Student's t; `p_signs` by the signs of the hosts. `fewest`:
    hosts whose signs can show a difference.
    """

    verdict: Verdict
    low: float
    high: float
    confidence: float
    p: float
    p_signs: float
    fewest: int


class OverHosts(NamedTuple):
    """A typical effect, and the estimates of its hosts."""

    effect: TypicalEffect
    estimates: Sequence[float]


def held(asked: Sequence[OverHosts], higher_is_better: Sequence[bool], alpha: float, margin: float) -> tuple[Held, ...]:
    """Return the verdicts on these effects together, at a familywise error of `alpha` for differences and as much for
    equivalence within `margin` (a ratio less 1). Raises ValueError for lengths that differ.
    """
    bound = math.log1p(margin)
    differences = [p_difference(one.effect) for one in asked]
    signs = [p_signs(one) for one in asked]
    equivalences = [max(p_equivalence(one.effect, bound), p_signs_within(one.estimates, bound)) for one in asked]
    rejected, levels = holm(list(map(max, differences, signs)), alpha)
    alike, ends = holm(equivalences, alpha)
    fewest = first_crossing(alpha / max(1, len(asked)))
    found = []
    for at, ((one, _), larger) in enumerate(zip(asked, higher_is_better, strict=True)):
        level = levels[at]
        verdict: Verdict = "undecided"
        if rejected[at]:
            verdict = "better" if (one.centre > 0) == larger else "worse"
        elif alike[at]:
            verdict, level = "equivalent", min(1.0, 2 * ends[at])
        half = _quantile(one.freedom, level / 2) * one.error
        found.append(Held(verdict, one.centre - half, one.centre + half, 1 - level, differences[at], signs[at], fewest))
    return tuple(found)


def p_signs(one: OverHosts) -> float:
    """Two-sided p of "no difference" by the signs of the hosts, in the direction of the effect. A host without any
    effect counts against it.
    """
    side = math.copysign(1.0, one.effect.centre)
    return min(1.0, 2 * chance_of_heads(sum(value * side > 0 for value in one.estimates), len(one.estimates)))


def p_signs_within(estimates: Sequence[float], bound: float) -> float:
    """Return the larger p of the two one-sided sign tests that the middle host lies within -bound and bound."""
    return max(chance_of_heads(sum(side * value < bound for value in estimates), len(estimates)) for side in (1, -1))


def p_difference(effect: TypicalEffect) -> float:
    """Two-sided p of "no difference"."""
    if effect.error == 0:
        return float(effect.centre == 0)
    return 2 * _tail(effect.freedom, abs(effect.centre) / effect.error)


def p_equivalence(effect: TypicalEffect, bound: float) -> float:
    """Return the larger p of the two one-sided tests that the log-ratio lies within -bound and bound."""
    if effect.error == 0:
        return float(abs(effect.centre) >= bound)
    return _tail(effect.freedom, (bound - abs(effect.centre)) / effect.error)


def shares(composition: Mapping[str, float], measured: Sequence[str]) -> dict[str, float]:
    """Return the share of each stratum that was measured in that part of the fleet whose strata were; they add up to 1.

    `composition` has hosts, or any measure of how much of the fleet a stratum is. Raises ValueError where it has
    nothing of the measured ones.
    """
    weights = {name: composition.get(name, 0.0) for name in measured}
    whole = math.fsum(weights.values())
    if not whole > 0 or min(weights.values()) < 0:
        raise ValueError("the composition of the fleet has none of the strata that were measured")
    return {name: weight / whole for name, weight in weights.items()}


def fleet_effect(strata: Mapping[str, TypicalEffect], weights: Mapping[str, float]) -> TypicalEffect:
    """Return the effect over a fleet that has these shares of the strata (`shares`)."""
    parts = [(weights[name], one) for name, one in strata.items()]
    variances = [(weight * one.error) ** 2 for weight, one in parts]
    total = math.fsum(variances)
    spread = math.fsum(part**2 / one.freedom for part, (_, one) in zip(variances, parts, strict=True))
    freedom = total**2 / spread if spread > 0 else _FREEDOM
    centre = math.fsum(weight * one.centre for weight, one in parts)
    return TypicalEffect(centre, math.sqrt(total), max(1, math.floor(freedom)))


def _tail(freedom: int, t: float) -> float:
    from scipy.special import stdtr  # noqa: PLC0415  (slow to load)

    return float(stdtr(freedom, -t))


def _quantile(freedom: int, tail: float) -> float:
    from scipy.special import stdtrit  # noqa: PLC0415

    return max(0.0, -float(stdtrit(freedom, tail)))


def estimate_of(method: Method, *, refused: Reason = "") -> HostEstimate | Reason:
    """Return the estimate after all that the method has seen, or why there is none.

    `refused`: why the comparison has no verdict, where it has none. That is by proofs of its pages, by starts that
    failed and by absent values, never by the estimate.
    """
    if refused:
        return refused
    if isinstance(method, Sequential):
        return _sequential(method)
    if isinstance(method, FixedN):
        ratios = [one.log_ratio for one in method.pairs.usable if one.log_ratio is not None]
        if method.pairs.failures:
            return NoEstimate("failed", len(method.pairs.usable), method.pairs.failures)
        if len(ratios) < 2:
            return NoEstimate("no spread", len(ratios))
        centre, count = math.fsum(ratios) / len(ratios), len(ratios)
        return HostEstimate(centre, stdev(ratios), count, 1.0, method.planned, crossed=False, stops=False)
    return NoEstimate("method", method=method.name)


def _sequential(method: Sequential) -> HostEstimate | Reason:
    pairs = len(method.pairs.usable)
    if not pairs:
        return NoEstimate("no pair")
    centre, deviation = method.usable.pairs.centre(), scale([*map(method.difference, method.pairs.usable)])
    if not math.isfinite(centre):
        return NoEstimate("failed", pairs, method.pairs.failures)
    if deviation is None:
        return NoEstimate("no spread", pairs)
    return HostEstimate(
        centre,
        deviation,
        min(pairs, method.planned),  # beyond are blocks that replaced others
        method.alpha,
        method.planned,
        crossed=method.usable.test.crossed_at is not None,
        stops=method.width is None,
        copies=method.contrast.copies,
    )
