"""How many pairs the end points in `end_points` need: the chance of their verdicts, from a pilot's values.

An effect e of an end point is an arm whose every value is 1 + e times what the pilot has, free of the pilot's own
effect (the worse way: lower values where higher is better). Chances are averaged over what the pilot leaves open, as
in `assurance`.

mean   The interval of `campaign.ratio_of_means` at n pairs excludes 1 if sum(A - B) is beyond sqrt(n b/(n - b)) of its
       standard errors, b the bound's square: asymptotically with the chance Phi(shift sqrt(n) - sqrt(n b/(n - b))). The
       deviation of A - B is the pilot's, with the degrees of freedom that its kurtosis leaves.

slow, p99   Only pairs of which one side is beyond the threshold count (`tail`). With p and q the chances of the arm's
       and the baseline's run, such a pair is a sign that is + with chance u = p(1-q)/(p(1-q) + q(1-p)). The exact test
       on them is taken for a Brownian motion in the clock of these pairs, against the boundary of all pairs
       (`power.brownian`), with the drift sqrt(2 (u ln 2u + (1-u) ln 2(1-u))) of the signed root of the likelihood
       ratio, which is nearer a normal law than the count of signs is (Barndorff-Nielsen and Cox 1994, *Inference and
       Asymptotics*, ch. 4).

       p and q come from the values of both sides together: below their upper tenth as they are, and beyond it by an
       exponential tail of their logarithm, that is, a Pareto tail (Hill 1975, Ann. Statist. 3:1163). What the pilot
       leaves open of them is the Bayesian bootstrap over pairs (Rubin 1981, Ann. Statist. 9:130), 200 draws.

Limits. The two sides of a pair count as independent in the tail; where they are slow together fewer pairs are needed.
Where the tail falls off faster than the model's (normal logarithms), a p99 needs fewer pairs than forecast. Where there
is a second mode beyond the pilot's values, the forecast is void: no pilot knows of runs that it has not seen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np

from hugewise.stats import assurance, campaign, power, spread, tail
from hugewise.stats.boundary import first_crossing
from hugewise.stats.numbers import Numbers

__all__ = ["FEWEST", "EndPower", "UnplannableError", "effect_shown", "of_values", "pairs_needed"]

FEWEST = 100
"""Fewer values, of both sides together, have too few in their upper tenth for a tail."""

_P99 = 0.99
_TAIL = 0.1  # of the values
_DRAWS = 200
_LARGEST = 10.0  # effects beyond 1,000% are not sought
Values = Sequence[float] | Numbers


class UnplannableError(Exception):
    """Why an end point cannot be planned from these values."""


class EndPower(Protocol):
    """The power of an end point at its share of the error rate."""

    @property
    def least(self) -> int:
        """The fewest pairs that can have a verdict."""

    def power(self, effect: float, pairs: int, budget: int) -> float:
        """The chance of a verdict by `pairs` of a declared `budget`, if the ratio is 1 + effect."""


def of_values(kind: str, arm: Values, baseline: Values, alpha: float, *, better: tail.Better = "lower") -> EndPower:
    """The power of the end point `kind` from a pilot's values, in the metric's unit, one of each side per pair.

    Raises UnplannableError with the reason, ValueError where no end point is called so.
    """
    over, under = np.log(np.asarray(arm, dtype=np.float64)), np.log(np.asarray(baseline, dtype=np.float64))
    if kind == "mean":
        return _mean(np.exp(over), np.exp(under), alpha)
    if kind not in ("slow", "p99"):
        raise ValueError(f"no end point is called {kind}")
    bad = 1.0 if better == "lower" else -1.0
    free = over - np.median(over - under)  # the median: the effect of the typical pair
    return _Signs(kind, alpha, _Tail.fitted(bad * free, bad * under))


def pairs_needed(end: EndPower, effect: float, declared: int, *, chance: float = 0.9) -> int | None:
    """Pairs with this chance of a verdict: of the `declared` ones where they are enough, else the fewest to declare."""
    if declared >= end.least and end.power(effect, declared, declared) >= chance:
        return power.first_enough(lambda n: end.power(effect, n, declared) >= chance, end.least, declared)
    return power.first_enough(lambda n: end.power(effect, n, n) >= chance, end.least, power.MOST)


def effect_shown(end: EndPower, pairs: int, *, chance: float = 0.9) -> float | None:
    """The effect, as ratio - 1, that so many declared pairs show with this chance, to 1%; None beyond 1,000%."""
    if pairs < end.least:
        return None
    return power.least(lambda effect: end.power(effect, pairs, pairs) >= chance, 1e-5, _LARGEST, to=1.01)


@dataclass(frozen=True)
class _Mean:
    alpha: float
    variances: tuple[float, float]  # of the sides, over the squared mean that they have in common
    covariance: float
    freedom: float

    @property
    def least(self) -> int:
        return campaign.FEWEST

    def power(self, effect: float, pairs: int, budget: int) -> float:
        del budget  # its bound holds for all numbers of pairs
        bound = campaign.bound(pairs, self.alpha)
        if pairs < campaign.FEWEST or pairs <= bound:
            return 0.0
        over, under = self.variances
        sd = math.sqrt(max(1e-300, (1 + effect) ** 2 * over + under - 2 * (1 + effect) * self.covariance))
        edge = math.sqrt(pairs * bound / (pairs - bound))
        shift = effect / sd * math.sqrt(pairs)
        return assurance.averaged(lambda factor: math.erfc((edge - shift * factor) / math.sqrt(2)) / 2, self.freedom)


def _mean(arm: Numbers, baseline: Numbers, alpha: float) -> _Mean:
    over, under = arm / arm.mean(), baseline / baseline.mean()
    both = np.cov(over, under)
    differences = (over - under).tolist()
    if len(set(differences)) < 2:
        raise UnplannableError("all pairs have the same ratio: any number of them from 100 on will do")
    return _Mean(
        alpha=alpha,
        variances=(float(both[0, 0]), float(both[1, 1])),
        covariance=float(both[0, 1]),
        freedom=spread.deviation_freedom(differences),
    )


@dataclass(frozen=True)
class _Tail:
    """How bad runs are, as logarithms: draws of their distribution, by the weights of the pilot's pairs.

    values  sorted, shape (runs,)
    upto    the share of runs up to each value, shape (draws, runs)
    start   where the tail begins, shape (draws,)
    mean    by how much runs in it exceed that on average, shape (draws,)
    """

    values: Numbers
    upto: Numbers
    start: Numbers
    mean: Numbers

    @staticmethod
    def fitted(arm: Numbers, baseline: Numbers) -> _Tail:
        """From two rows of as many values. Raises UnplannableError."""
        runs = 2 * len(arm)
        if runs < FEWEST:
            raise UnplannableError(
                f"{runs} runs are too few to tell a tail from: {FEWEST} are the least (a longer pilot)"
            )
        both = np.concatenate((arm, baseline))
        order = np.argsort(both, kind="stable")
        values = both[order]
        # Always the same draws: the same pilot gives the same plan.
        weights = np.random.default_rng(1981).dirichlet(np.ones(len(arm)), _DRAWS)
        each = np.concatenate((weights, weights), axis=1)[:, order] / 2
        upto = np.cumsum(each, axis=1)
        first = (upto < 1 - _TAIL).sum(axis=1)
        start = values[np.minimum(first, runs - 1)]
        beyond = values[None, :] > start[:, None]
        share = (each * beyond).sum(axis=1)
        excess = (each * beyond * (values[None, :] - start[:, None])).sum(axis=1)
        if not (excess > 0).all():
            raise UnplannableError("the upper tenth of the runs are alike: there is no tail to plan from")
        return _Tail(values, upto, start, excess / share)

    def beyond(self, limit: Numbers) -> Numbers:
        """The share of runs beyond a limit for each draw."""
        place = np.searchsorted(self.values, limit, "right")
        draws = np.arange(len(limit))
        below = np.where(place > 0, self.upto[draws, place - 1], 0.0)
        far = _TAIL * np.exp(-np.maximum(0.0, limit - self.start) / self.mean)
        return np.where(limit >= self.start, far, np.maximum(_TAIL, 1 - below))

    def quantile(self, share: float, effect: float) -> Numbers:
        """The limit that this share of runs is beyond, if those of the arm are worse by `effect`."""
        low = np.full_like(self.start, self.values[0])
        high = self.start + effect - self.mean * math.log(min(1.0, share / _TAIL)) + 1e-9
        for _ in range(40):
            middle = (low + high) / 2
            above = self.beyond(middle) + self.beyond(middle - effect) > 2 * share
            low, high = np.where(above, middle, low), np.where(above, high, middle)
        return high


@dataclass(frozen=True, eq=False)
class _Signs:
    kind: str
    alpha: float
    tail: _Tail

    @property
    def least(self) -> int:
        return self._start + first_crossing(self.alpha)

    @property
    def _start(self) -> int:
        return (tail.SlowRuns() if self.kind == "slow" else tail.BeyondQuantile(_P99)).start

    def power(self, effect: float, pairs: int, budget: int) -> float:
        if pairs <= self._start:
            return 0.0
        moving, drift = _signs(self, math.log1p(effect))
        return float(power.brownian(drift, pairs, self.alpha, budget, moving * self._judged(pairs) / pairs).mean())

    def _judged(self, pairs: int) -> float:
        """The pairs after the start. A quantile of few runs is exceeded more often: counted as more pairs.

        A run exceeds the quantile p of 2t earlier ones with chance (floor(2t (1-p)) + 1)/(2t + 1), which is about
        (1 - p) + (p - 1/2)/(2t): this is summed.
        """
        judged = float(pairs - self._start)
        more = (_P99 - 0.5) / (2 * (1 - _P99)) * math.log(pairs / self._start)
        return judged if self.kind == "slow" else judged + more


@lru_cache(maxsize=64)
def _signs(of: _Signs, effect: float) -> tuple[Numbers, Numbers]:
    """How often a pair has one run beyond the threshold, and the drift that it then gives the walk."""
    if of.kind == "slow":
        limit = of.tail.quantile(0.5, effect) + math.log(tail.FACTOR)
    else:
        limit = of.tail.quantile(1 - _P99, effect)
    arm, baseline = of.tail.beyond(limit - effect), of.tail.beyond(limit)
    plus, minus = arm * (1 - baseline), baseline * (1 - arm)
    moving = np.maximum(plus + minus, 1e-12)
    u = np.clip(plus / moving, 0.5, 1 - 1e-12)
    return moving, np.sqrt(2 * (u * np.log(2 * u) + (1 - u) * np.log(2 * (1 - u))))
