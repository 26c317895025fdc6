"""Figures of A/A streams, and the difference between the effects of two designs.

In an A/A stream both labels of a pair run the same thing: relabelled by fresh coins it is as many campaigns as one
likes in which any verdict is wrong.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from hugewise.model.design import Kind
from hugewise.stats import signflip
from hugewise.stats.paired import Student, correlated, dependence, deviation_interval, paired

RELABELLINGS = 2000
NOMINAL = 0.05
CAMPAIGNS, CAMPAIGN_ALPHA, MOST_VERDICTS = 100, 0.2, 32


class Stream(msgspec.Struct, frozen=True, kw_only=True):
    """Stream of A/A pairs. Differences are log-ratios (0.01 is about 1%); `seconds` is what a pair took.

    sd, sd_low, sd_high   of the pair difference, with a 95% interval: the noise floor
    correlation           within pairs, with a 95% interval
    dependence            lag-1 autocorrelation of the runs, and their statistical inefficiency
    verdict               of the exact test with the real labels at 99%: 0 none, else the sign
    """

    kind: Kind
    pairs: int
    seconds: float
    ratio: float | None
    sd: float
    sd_low: float | None
    sd_high: float | None
    correlation: float | None
    correlation_low: float | None
    correlation_high: float | None
    lag_one: float | None
    inefficiency: float | None
    verdict: int
    differences: tuple[float, ...]


class Relabelled(msgspec.Struct, frozen=True, kw_only=True):
    """Share of relabelled streams with a verdict, all wrong; `limit`: nominal and three standard errors."""

    relabellings: int
    nominal: float
    false_positives: int
    rate: float
    limit: float
    campaigns: int
    campaign_alpha: float
    campaign_verdicts: int
    most_verdicts: int

    @property
    def passed(self) -> bool:
        """True if both counts lie within their limits."""
        return self.rate <= self.limit and self.campaign_verdicts <= self.most_verdicts


class Agreement(msgspec.Struct, frozen=True, kw_only=True):
    """The effect of an arm in another design (`kind`) beside that of sequential pairs, and the 95% interval of the
    difference of both; all are log-ratios.
    """

    kind: Kind
    arm: str
    sequential: float | None
    other: float | None
    low: float | None
    high: float | None


def stream(
    kind: Kind, first: Sequence[float], second: Sequence[float], in_time: Sequence[float], seconds: float
) -> Stream:
    """Return the figures of pairs (`first` the baseline's values, all positive) and of all values in order of time."""
    differences = [math.log(b / a) for a, b in zip(first, second, strict=True)]
    tests = paired(differences)
    found = correlated([math.log(a) for a in first], [math.log(b) for b in second])
    depends = dependence(np.log(np.asarray(in_time))) if len(in_time) > 2 else None
    floor = deviation_interval(differences)
    lag = None if depends is None or not len(depends.lags) else float(depends.lags[0])
    return Stream(
        kind=kind,
        pairs=len(differences),
        seconds=seconds,
        ratio=None if tests is None else math.exp(tests.centre),
        sd=float(np.std(differences, ddof=1)) if len(differences) > 1 else 0.0,
        sd_low=None if floor is None else floor[0],
        sd_high=None if floor is None else floor[1],
        correlation=None if found is None else found[0],
        correlation_low=None if found is None else found[1],
        correlation_high=None if found is None else found[2],
        lag_one=None if lag is None or math.isnan(lag) else lag,
        inefficiency=None if depends is None else depends.inefficiency,
        verdict=signflip.verdict(differences, 0.01, max(1, len(differences))),
        differences=tuple(differences),
    )


def relabelled(differences: Sequence[float], seed: int) -> Relabelled:
    """Relabel one stream: 2,000 times at nominal 5%, and 100 campaigns at 20%, by the test that makes verdicts. Labels
    change no magnitude, so scores and boundary are taken once.
    """
    coins = np.random.default_rng(seed)
    n = len(differences)
    crossed = _crossings(differences, NOMINAL, _signs(coins, RELABELLINGS, n))
    signs = _signs(coins, CAMPAIGNS, n)
    magnitudes = np.abs(np.asarray(differences))
    verdicts = sum(signflip.verdict(row * magnitudes, CAMPAIGN_ALPHA, n) != 0 for row in signs)
    return Relabelled(
        relabellings=RELABELLINGS,
        nominal=NOMINAL,
        false_positives=crossed,
        rate=crossed / RELABELLINGS,
        limit=NOMINAL + 3 * math.sqrt(NOMINAL * (1 - NOMINAL) / RELABELLINGS),
        campaigns=CAMPAIGNS,
        campaign_alpha=CAMPAIGN_ALPHA,
        campaign_verdicts=verdicts,
        most_verdicts=MOST_VERDICTS,
    )


def _signs(coins: np.random.Generator, rows: int, n: int) -> npt.NDArray[np.int64]:
    return coins.integers(0, 2, (rows, n), dtype=np.int64) * 2 - 1


def _crossings(differences: Sequence[float], alpha: float, signs: npt.NDArray[np.int64]) -> int:
    test = signflip.SignFlip(alpha, len(differences))
    scores, limits, before = [], [], 0
    for difference in differences:
        test.add(abs(difference))
        scores.append(test.walk - before)
        limits.append(math.inf if test.boundary is None else test.boundary)
        before = test.walk
    walks = np.cumsum(signs * np.asarray(scores, dtype=np.int64), axis=1)
    return int(np.any(np.abs(walks) >= np.asarray(limits), axis=1).sum())


def agreement(arm: str, sequential: Stream, other: Stream) -> Agreement:
    """Return the difference of a design's effect and the sequential one, by Welch's t (95%)."""
    one, two = paired(sequential.differences), paired(other.differences)
    low = high = None
    if isinstance(one, Student) and isinstance(two, Student):
        low, high = _welch(one, two)
    elif one is not None and two is not None:
        low = high = two.centre - one.centre
    return Agreement(
        kind=other.kind,
        arm=arm,
        sequential=None if one is None else one.centre,
        other=None if two is None else two.centre,
        low=low,
        high=high,
    )


def _welch(one: Student, other: Student) -> tuple[float, float]:
    from scipy.special import stdtrit  # noqa: PLC0415  (slow to load)

    a, b = one.standard_error**2, other.standard_error**2
    error = math.sqrt(a + b)
    freedom = (a + b) ** 2 / (a**2 / (one.n - 1) + b**2 / (other.n - 1))
    half = float(stdtrit(freedom, 0.975)) * error
    centre = other.centre - one.centre
    return centre - half, centre + half
