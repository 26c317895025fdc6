"""The campaign average: what the arm did on average over the pairs that were run, from the coin alone.

Model (randomisation-based; Neyman 1923, for pairs Imai 2008, Stat. Med. 27:4857). Pair t has two slots (first and
second in time, or two CPUs). Had arm a run in slot s, its log measurement would have been y_t(s, a): four fixed
numbers, of which the coin z_t = +-1 lets us see two. They may drift, be correlated, have tails, and depend on all
earlier coins; they may not depend on this pair's coin. (In a block of more arms: given the places of the others.) With
d_t(+) and d_t(-) the differences that the two faces show,

    D_t = tau_t + z_t g_t,    tau_t = (d_t(+) + d_t(-)) / 2,    g_t = (d_t(+) - d_t(-)) / 2,

tau_t is the effect averaged over the two slots (with what the first run of a pair does to the second, if anything),
and g_t is half the difference of the faces, mostly "slot 1 against slot 2". Given the past, tau_t and g_t are fixed and
z_t is a fair coin: this is the only randomness that is used. The estimand after n pairs is the realised average
of tau_1..tau_n. It moves with n: *intervals of different n are about different averages and must not be intersected*.

Bound. sum(D_t - tau_t) is a martingale with conditionally symmetric steps of size |g_t|, so for each x
exp(x sum(z g) - x^2/2 sum(g^2)) is a supermartingale (de la Pena 1999, Ann. Probab. 27:537; Howard, Ramdas, McAuliffe
and Sekhon 2020, Probab. Surv. 17:257). Mixed over x ~ N(0, 1/r) and with Ville's inequality, with
probability 1 - alpha for all n at once (Robbins 1970, Ann. Math. Stat. 41:1397; Howard et al. 2021, Ann. Statist.
49:1055):

    (sum z g)^2 <= (V + r) (log((V + r)/r) + 2 log(1/alpha)),    V = sum g_t^2.

V cannot be seen. sum (D_t - theta)^2 at theta = the average of the tau_t has expectation V + sum (tau_t - theta)^2: it
is used in place of V, and errs to the wide side when effects vary (the conservative variance of Ham, Bojinov, Lindon
and Tingley, arXiv 2210.08639; see also Lindon and Kallus, arXiv 2603.25971). r is set to that variance per pair times
k (Waudby-Smith, Arbour, Sinha, Kennedy and Ramdas 2024, Ann. Statist. 52:2613). Solved for theta, with S = sum of
squares around the mean:

    mean +- sqrt(S b / (n (n - b))),    b = (1 + k/n) (log(1 + n/k) + 2 log(1/alpha)).

The n - b in place of n - 1 is what the unknown theta in the variance costs. With it, noise that belongs to the slots
may have any tails: an effect that is the same in every pair was missed, at nominal 5%, by 2% (normal noise), 0.6%
(stalls) and 0.4% (Cauchy); at nominal 0.01%, by at most 0.001% (2,000 campaigns of 1,000 and 100,000 of 400 pairs).

What is asymptotic: S per pair in place of V per pair (also in r). Below n0 = 100 pairs there is no interval. It fails
where the *effect* has rare large values, that is, where one arm brings its own stalls: until some have been seen, no
method can know of them. Simulated (stalls of mean size 0.5 in log in 1% of one arm's runs, other noise 0.03 to 0.06):
missed by 3 to 11% at nominal 5%, and by 0.04 to 2% at nominal 0.01%, almost always by an interval that makes that arm
look too good. So an average is called equivalent only where it stays within the margin though as many runs as may
not have been seen take twice as long (`unseen`, `Campaign.bounded`). The rate of slow runs (`end_points`), whose
bounds are exact, is the end point to hold beside it.
Differences that are nearly all equal (counts) likewise need more pairs than 100; where all are equal, S = 0 and the
interval is the value itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from hugewise.model.reason import Failures, FewForAverage, Reason
from hugewise.stats import sessions

FEWEST = 100  # pairs below which no asymptotic interval is given
_NARROWEST = 500  # the number of pairs at which the bound is tightest


class Campaign:
    """The interval after each pair, in constant time and space.

    `alpha` is two-sided and holds over all n together. Raises ValueError for an alpha outside (0, 1) or a NaN.
    """

    def __init__(self, alpha: float, *, n0: int = FEWEST) -> None:
        _check(alpha)
        self.alpha = alpha
        self.n0 = n0
        self.n = 0
        self.mean = 0.0
        self._squares = 0.0  # around the mean
        self._failed = 0

    def add(self, difference: float) -> None:
        """Take in the log-ratio of one pair: log(arm) - log(baseline); infinite where one side failed."""
        if math.isnan(difference):
            raise ValueError("a difference is NaN: a pair without a measurement is no pair")
        if math.isinf(difference):
            self._failed += 1
            return
        self.n += 1
        step = difference - self.mean
        self.mean += step / self.n
        self._squares += step * (difference - self.mean)  # Welford 1962, Technometrics 4:419

    def interval(self) -> tuple[float, float] | None:
        """Bounds of the average log-ratio over the pairs so far; None where `reason` says why."""
        if self.reason():
            return None
        height = bound(self.n, self.alpha)
        half = math.sqrt(max(0.0, self._squares) * height / (self.n * (self.n - height)))
        return self.mean - half, self.mean + half

    def within(self, most: float) -> bool:
        """Return whether the average log-ratio is known to lie between -most and most. Otherwise arms are not called
        the same, even if their typical pair is.

        From n0 pairs by the interval; before, by the sequential t interval (`sessions`), for pairs that are near
        normal. False where an attempt failed.
        """
        if self._failed or self.n < 2:
            return False
        ends = self.interval()
        if ends is None:
            width = sessions.half_width(self.n, self.alpha)
            if math.isinf(width):
                return False
            half = width * math.sqrt(max(0.0, self._squares) / (self.n - 1))
            ends = self.mean - half, self.mean + half
        return -most < ends[0] and ends[1] < most

    def bounded(self, most: float) -> bool:
        """Return whether the average lies between -most and most with the tail counted in: runs of a kind that has not
        been seen, as many as may have been missed (`unseen`), each twice as long. False without an interval.
        """
        return self.interval() is not None and self.within(most - unseen(self.n, self.alpha))

    def reason(self) -> Reason | None:
        """Return why there is no interval, or None when there is one."""
        if self._failed:
            return Failures(self._failed, "average")
        if self.n < self.n0:
            return FewForAverage(self.n, self.n0)
        return FewForAverage(self.n) if self.n <= bound(self.n, self.alpha) else None


def unseen(pairs: int, alpha: float) -> float:
    """Return the share of runs that n pairs do not exclude: a kind of run (a stall) that is as frequent is in none of
    them with a chance of alpha. 32% of 12 pairs at 1%, 5% of 90.

    A larger share stays unseen with a smaller chance, and one that n pairs have excluded stays so: the bound holds at
    all n together.
    """
    return 1 - math.exp(math.log(alpha) / pairs)


def interval(differences: Iterable[float], alpha: float, *, n0: int = FEWEST) -> tuple[float, float] | None:
    """Bounds of the average log-ratio over these pairs, valid at all n together with error `alpha`; None below `n0`."""
    campaign = Campaign(alpha, n0=n0)
    for difference in differences:
        campaign.add(difference)
    return campaign.interval()


def ratio_of_means(
    arm_values: Sequence[float], baseline_values: Sequence[float], alpha: float
) -> tuple[float, float, float] | None:
    """Ratio of arithmetic means (cost per job, arm/baseline): estimate, low and high; None below `FEWEST` pairs.

    The values are in the metric's unit, one of each per pair, in the order of the pairs. The estimand after n pairs is
    R = sum a_t / sum b_t, where a_t and b_t are what arm and baseline would have cost on average over pair t's slots.
    For this R the linearised differences A_t - R B_t have coin averages that sum to 0, so the bound above holds for
    them, with sum (A_t - R B_t)^2 as the conservative variance. All R that satisfy it are an interval (Fieller 1954,
    J. R. Stat. Soc. B 16:175), found as the roots of a quadratic; to first order this is the delta method.

    Limits: asymptotic as the campaign average is; R must settle (its movement within the campaign, times the noise of
    the baseline, must be small against the noise of A - R B: a second-order term); one outlier moves a mean as much as
    it is large, so the interval is wide where costs have heavy tails. None too when a side failed (an infinite cost
    has no mean), or when the baseline's mean is not clearly above 0.

    Raises ValueError for lengths that differ, a negative value, a NaN, or an alpha outside (0, 1).
    """
    _check(alpha)
    if len(arm_values) != len(baseline_values):
        raise ValueError(f"{len(arm_values)} values of the arm, but {len(baseline_values)} of the baseline")
    if any(not value >= 0 for values in (arm_values, baseline_values) for value in values):
        raise ValueError("a cost is negative or NaN: a ratio of means is for costs of 0 or more")
    n = len(arm_values)
    arm, baseline = math.fsum(arm_values), math.fsum(baseline_values)
    if n < FEWEST or not math.isfinite(arm + baseline) or baseline <= 0:
        return None
    estimate, height = arm / baseline, bound(n, alpha)
    # With R = estimate + delta: (delta sum B)^2 <= height sum (E - delta B)^2, E = A - estimate B, sum E = 0.
    residuals = [a - estimate * b for a, b in zip(arm_values, baseline_values, strict=True)]
    lead = baseline**2 - height * math.fsum(b * b for b in baseline_values)
    middle = height * math.fsum(e * b for e, b in zip(residuals, baseline_values, strict=True))
    rest = height * math.fsum(e * e for e in residuals)
    if lead <= 0:
        return None
    root = math.sqrt(middle**2 + lead * rest)
    return estimate, max(0.0, estimate + (-middle - root) / lead), estimate + (-middle + root) / lead


def bound(n: int, alpha: float) -> float:
    """Return the square of the time-uniform normal boundary after n steps of unit variance, divided by n."""
    log = -2 * math.log(alpha)
    scale = _NARROWEST / (log + math.log1p(log))
    return (1 + scale / n) * (math.log1p(n / scale) + log)


def _check(alpha: float) -> None:
    if not 0 < alpha < 1:
        raise ValueError(f"alpha must be between 0 and 1, not {alpha}")
