"""One comparison over many hosts: hosts of a stratum pooled, strata weighed by what the fleet is made of. Pure.

A host's estimate enters corrected for the stop (`stopping`), with the error that its corrected estimate has *over all
ends*. Both matter. A sequential comparison ends while its walk is high, so that the plain estimates of 10 hosts at a
true 2% (5% deviation of a pair, alpha 1%, 200 pairs declared) average 2.4%, and the corrected ones 2.05%. But which
error? Deviation / sqrt(pairs) makes the error small where a host had to go on, that is where its estimate is low: the
corrected estimates weighed so average 1.85% with one effect on all hosts, and their 95% interval has the true one in
77% of fleets. (The plain ones weighed so average the truth, as their sum is a stopped martingale; but only where all
hosts have one effect, and their interval takes a host's error for a third smaller than it is.) So the error is taken
from the law of all ends (`stopping.end_law`), at the *typical* effect and at the host's own deviation: it knows nothing
of when the host stopped. Hosts that are equally noisy then weigh the same. As the typical effect is found with the
errors and the errors with it, both are found in turns.

A host whose time was up before the test crossed has a shorter law: the longest that any host of the stratum came to.
Methods that do not stop by the effect (a fixed number of pairs, a given width of the interval, not worse) need no
correction, and have deviation / sqrt(pairs).

Which hosts have a run is not by chance. The correction is right over all ends that there can be; a fleet that is looked
at while its hosts come back has the early ones, whose effects are too large, and of a fleet that loses hosts those are
lost that took long. At a true 2% (spread by 30% of it) the first 5 of 10 hosts read 1.4 times too large, those that a
loss of one in a hundred pairs leaves 1.3 times, and to replace the lost ones until there are 10 again hides it (1.25).
And Student's t may be looked at once: looked at as each of 12 hosts comes back, a nominal 5% ends in 18%. So nothing is
claimed over hosts before a fleet has ended, hosts that were replaced and came late have their part, and where hosts
were begun and have no run they are taken for hosts without any effect (up to one in ten of them; beyond, nothing is
claimed). What holds at every look, and whoever is lost by chance, is the product of e-values (`evidence`).

Simulated through the session's own method (`verification.fleets`; 10 hosts, deviation of a pair 5%, hosts with one
effect, or spread by up to 100% of it, at 1%, 2%, 5% and 20%; 1,000 fleets each): the typical effect averages 1.00 to
1.04 of the true one, its 95% interval has it in 93.5 to 99% of fleets, and the interval of the next host has its effect
in 94.7 to 99.4%.

The fleet. mu = sum of W_s mu_s over strata, W_s the share of stratum s in the fleet (post-stratification; Holt and
Smith 1979, J. R. Stat. Soc. A 142:33), whatever number of its hosts measured. Its error is that of a sum, with
Satterthwaite's degrees of freedom (1946, Biometrics Bull. 2:110). A machine type that is faster or slower as such moves
nothing at all, as pairs never span hosts; one on which the *effect* is another moves the fleet's effect by its share
in the fleet, not by its share in the sample.

Signs. Student's t takes effects for near normal. With exponential effects of mean 0 on 10 hosts a nominal 1% is wrong
in 3.5%. So a verdict needs the signs of the hosts too: under "half of such hosts are above, half below" their number
above is binomial, whatever the law of effects (sign test; Arbuthnot 1710). Both must hold, so the larger p counts. With
n hosts that p is at least 2^(1-n): a verdict at 99% takes 8 hosts. The claim is about the middle host. The mean over
hosts is another question: with one host in ten at +20% and the others at -2.2% the mean is 0, and a third of samples of
10 hosts have none of the former.

Errors over all. All typical effects of strata and fleet, over all comparisons, are one family: Holm for differences,
Holm on the largest of the one-sided p for equivalence, as in `family`. An interval is Student's, at the level at which
its effect was held: it excludes 1 wherever the difference is claimed.

All of this takes hosts of a stratum for a sample of hosts like them. Nothing of it has a part in the exact verdict of a
host, nor in the product of e-values (`evidence`).

What a host's method hands to its fleet: the estimate of the typical ratio, with all that pooling asks of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import stdev
from typing import NamedTuple

import numpy as np

from hugewise.model.reason import NoEstimate, Reason
from hugewise.model.results import Verdict
from hugewise.stats import stopping
from hugewise.stats.family import holm
from hugewise.stats.fixed import FixedN
from hugewise.stats.heterogeneity import Hosts, TypicalEffect
from hugewise.stats.method import Method
from hugewise.stats.paired import chance_of_heads, scale
from hugewise.stats.sequential import NotWorse, Sequential
from hugewise.stats.signflip import first_crossing

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
    """

    centre: float
    scale: float
    pairs: int
    alpha: float
    planned: int
    crossed: bool
    stops: bool


def pooled(found: Sequence[HostEstimate], lost: int = 0) -> Hosts:
    """Estimates and errors of hosts of one stratum, corrected for the stop; then those of `lost` hosts that were begun
    and of which there is no run: without any effect, and with the middle error of the others.

    A second for each alpha and budget. Raises ValueError on no host, an estimate that is not finite, or pairs beyond
    the budget.
    """
    last = _last([one for one in found if one.stops])
    laws = [stopping.end_law(one.alpha, one.planned, min(last, one.planned)) if one.stops else None for one in found]
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
    """Pairs after which a host gives up at the latest; in powers of two, so that a law serves for many strata."""
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
    """Return the chance of Student's t to be above this."""
    from scipy.special import stdtr  # noqa: PLC0415  (slow to load)

    return float(stdtr(freedom, -t))


def _quantile(freedom: int, tail: float) -> float:
    """Return the point of Student's t with so much above it."""
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
    values, pairs = method.usable.pairs, len(method.pairs.usable)
    if not pairs:
        return NoEstimate("no pair")
    centre, deviation = values.centre(), scale(values.values)
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
        stops=not isinstance(method, NotWorse) and method.width is None,
    )
