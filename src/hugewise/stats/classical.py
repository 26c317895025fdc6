"""The classical figures of a sample, because readers compare: location, spread, shape, outliers, margins of error.

All from one sorted copy and one pass over the moments, for up to tens of millions of values (10 million: about 5 s and
three times their size in memory). The margin of error is the half-width of Student's t interval of the mean; it takes
the values as independent, which `Figures.dependence` holds against their order in time. Skewness and excess kurtosis
are the moment estimates g1 and g2 (Joanes and Gill 1998, The Statistician 47:183). Quantiles are linear in the order
statistics (type 7 of Hyndman and Fan 1996, Am. Stat. 50:361). An arm's figures are of its accepted attempts in complete
blocks; they ignore the pairing and carry no verdict.

Normality: Q-Q data, Anderson-Darling, Shapiro-Wilk. Large samples reject it for departures that no mean would feel;
small ones accept what would. So the tests come with the size of the departure (the correlation of the Q-Q plot), and
with what it does to the interval of the mean: the chance that each of its two ends misses, by the Edgeworth expansion
of the t statistic (Hall 1987, Ann. Probab. 15:920-931; for skewness g, P(T <= x) = F(x) + g (2x^2 + 1) f(x) /
(6 sqrt n)).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import fmean, median, stdev

import msgspec
import numpy as np

from hugewise.model.metric import Metric
from hugewise.model.policy import Deployment, Mechanism
from hugewise.model.results import ArmSummary
from hugewise.model.trial import Attempt, Block
from hugewise.stats.method import Integers, Numbers
from hugewise.stats.paired import Dependence, dependence

_SHAPIRO_MOST = 5000  # Royston's p value is fitted up to here


class QQ(msgspec.Struct, frozen=True):
    """Points of a normal Q-Q plot: standard normal quantiles against values; the ends are all there."""

    theoretical: Numbers
    observed: Numbers
    correlation: float


class Normality(msgspec.Struct, frozen=True):
    """Tests of normality, mean and variance estimated.

    anderson, anderson_p   A*^2 (corrected for n) and its p value (D'Agostino and Stephens 1986, Goodness-of-Fit
                           Techniques, table 4.9), over all n values; p is never below 1e-10
    shapiro, shapiro_p     W and its p value (Royston 1995, AS R94), over `shapiro_n` evenly spaced order statistics
    correlation            of the Q-Q plot, over all n values (1: a straight line)
    """

    n: int
    anderson: float
    anderson_p: float
    shapiro: float
    shapiro_p: float
    shapiro_n: int
    correlation: float


def qq(ordered: Numbers, points: int = 400) -> QQ:
    """Return the Q-Q plot of sorted values, shape (n,), n >= 3: at most about `points` of them, denser at the ends.

    Plotting positions (i - 3/8) / (n + 1/4) (Blom 1958).
    """
    from scipy.special import ndtri  # noqa: PLC0415  (slow to load)

    n = len(ordered)
    if n <= points:
        chosen = np.arange(n)
    else:
        reach = float(ndtri((n - 0.375) / (n + 0.25)))
        from scipy.special import ndtr  # noqa: PLC0415

        at = np.rint(ndtr(np.linspace(-reach, reach, points - 40)) * (n + 0.25) - 0.625).astype(np.int64)
        chosen = np.unique(np.clip(np.concatenate([np.arange(20), at, np.arange(n - 20, n)]), 0, n - 1))
    theoretical = ndtri((chosen + 0.625) / (n + 0.25))
    return QQ(theoretical, ordered[chosen], correlation(ordered))


def correlation(ordered: Numbers) -> float:
    """Return the correlation of the normal Q-Q plot of sorted values (Filliben 1975, Technometrics 17:111); NaN where
    they are constant.
    """
    from scipy.special import ndtri  # noqa: PLC0415  (slow to load)

    n, step = len(ordered), 1 << 20
    mirrored = ordered[::-1]
    cross = squares = 0.0
    for start in range(0, n // 2, step):  # normal quantiles are antisymmetric
        end = min(start + step, n // 2)
        expected = ndtri((np.arange(start, end) + 0.625) / (n + 0.25))
        cross += float(np.dot(expected, ordered[start:end] - mirrored[start:end]))
        squares += 2 * float(np.dot(expected, expected))
    mean = float(ordered.mean())
    spread = sum(float(np.sum((ordered[start : start + step] - mean) ** 2)) for start in range(0, n, step))
    return cross / math.sqrt(squares * spread) if spread > 0 and squares > 0 else math.nan


def normality(ordered: Numbers, mean: float, sd: float, straight: float) -> Normality | None:
    """The tests for sorted values, shape (n,), `straight` their `correlation`; None below 8 values, or if all equal."""
    n = len(ordered)
    if n < 8 or not sd > 0 or ordered[0] == ordered[-1]:
        return None
    from scipy.stats import shapiro  # noqa: PLC0415  (slow to load)

    statistic = _anderson(ordered, mean, sd) * (1 + 0.75 / n + 2.25 / n**2)
    few = ordered if n <= _SHAPIRO_MOST else ordered[np.linspace(0, n - 1, _SHAPIRO_MOST).round().astype(np.int64)]
    # Shifted and scaled: W does not change, and its sums keep their digits.
    test = shapiro((few - mean) / sd)
    return Normality(
        n,
        statistic,
        _anderson_p(statistic),
        float(test.statistic),
        float(test.pvalue),
        len(few),
        straight,
    )


def _anderson(ordered: Numbers, mean: float, sd: float) -> float:
    from scipy.special import log_ndtr  # noqa: PLC0415  (slow to load)

    n, step = len(ordered), 1 << 20
    total = 0.0
    for start in range(0, n, step):
        z = (ordered[start : start + step] - mean) / sd
        rank = np.arange(start + 1, start + len(z) + 1, dtype=np.float64)
        total += float(np.dot(2 * rank - 1, log_ndtr(z)) + np.dot(2 * (n - rank) + 1, log_ndtr(-z)))
    return -n - total / n


def _anderson_p(a: float) -> float:
    if a >= 0.6:
        exponent = 1.2937 - 5.709 * a + 0.0186 * a * a if a < 13 else -math.inf
        return max(1e-10, math.exp(exponent))
    if a >= 0.34:
        return math.exp(0.9177 - 4.279 * a - 1.38 * a * a)
    if a >= 0.2:
        return 1 - math.exp(-8.318 + 42.796 * a - 59.938 * a * a)
    return 1 - math.exp(-13.436 + 101.14 * a - 223.73 * a * a)


def missing_chances(skewness: float, n: float, confidence: float) -> tuple[float, float]:
    """Chances that a t interval at `confidence` lies (wholly below, wholly above) the true mean, for this skewness.

    Nominal is (1 - confidence)/2 each; a first-order expansion, meant for n * (1 - confidence) not far below 1.
    """
    from scipy.special import ndtr, ndtri  # noqa: PLC0415  (slow to load)

    nominal = (1 - confidence) / 2
    z = -float(ndtri(nominal))
    density = math.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    shift = skewness * (2 * z * z + 1) * density / (6 * math.sqrt(n))
    nominal = float(ndtr(-z))
    # P(T <= -z) moves up with positive skewness: the interval then lies below the mean more often.
    return min(max(nominal + shift, 0.0), 1.0), min(max(nominal - shift, 0.0), 1.0)


CONFIDENCES = (0.95, 0.99, 0.999, 0.9999)
PROBABILITIES = (0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999)
_STEP = 1 << 20


class Outliers(msgspec.Struct, frozen=True, kw_only=True):
    """Values further than `k` standard deviations from the mean.

    expected             how many a normal sample of this size would have
    variance_share       their share of the sum of squared deviations
    largest_share        that of the single value furthest from the mean
    mean, sd, margin     of the other values; the margin at the confidence asked for
    correlation          of the other values' normal Q-Q plot, for k = 3; None where they are all the same
    """

    k: int
    below: int
    above: int
    expected: float
    variance_share: float
    largest_share: float
    mean: float
    sd: float
    margin: float | None
    correlation: float | None

    @property
    def count(self) -> int:
        return self.below + self.above


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """A sample in figures, in its own unit; None where it is too small.

    margins     confidence as text -> margin of error of the mean, values taken as independent
    misses      chances that the interval at `confidence` lies wholly below, wholly above the true mean, as far as the
                skewness moves them (nominal: half of 1 - confidence each)
    spread      max/min, None unless all values are positive
    robust_sd   1.4826 times the median absolute deviation: the sd of the bulk, if that is normal
    slow_share  share of the variance that lies between 20 to 50 windows of adjacent values, beyond what independent
                values would show: drift; None where the order is not known
    modes       peaks of the density, by a kernel estimate
    edges, counts  the histogram: counts[i] values within edges[i] and edges[i+1]
    """

    n: int
    confidence: float
    mean: float
    sd: float | None
    min: float
    max: float
    median: float
    robust_sd: float
    spread: float | None
    skewness: float | None
    kurtosis: float | None
    quantiles: dict[str, float]
    margins: dict[str, float]
    misses: tuple[float, float] | None
    beyond: tuple[Outliers, ...]
    normality: Normality | None
    dependence: Dependence | None
    slow_share: float | None
    modes: int | None
    edges: Numbers
    counts: Integers
    qq: QQ | None

    @property
    def margin(self) -> float | None:
        """The margin of error at the confidence asked for."""
        return self.margins.get(str(self.confidence))


def figures(values: Numbers, confidence: float = 0.95, *, ordered_in_time: bool = True) -> Figures:
    """Return all figures of finite `values`, shape (n,), n >= 1; `ordered_in_time`: whether they are in their order in
    time.

    Raises ValueError on an empty or non-finite sample.
    """
    n = len(values)
    ordered = np.sort(values)
    if n == 0 or not (np.isfinite(ordered[0]) and np.isfinite(ordered[-1])):
        raise ValueError("figures need at least one value, and finite ones only")
    mean = float(ordered.mean())
    squares, skewness, kurtosis = _moments(ordered, mean)
    sd = math.sqrt(squares / (n - 1)) if n > 1 else None
    median = float(np.quantile(ordered, 0.5)) if n < 3 else float((ordered[(n - 1) // 2] + ordered[n // 2]) / 2)
    robust = 1.4826 * _median_deviation(ordered, median)
    edges, counts = _histogram(ordered)
    varied = sd is not None and sd > 0 and ordered[0] < ordered[-1]
    plot = qq(ordered) if varied and n >= 3 else None
    return Figures(
        n=n,
        confidence=confidence,
        mean=mean,
        sd=sd,
        min=float(ordered[0]),
        max=float(ordered[-1]),
        median=median,
        robust_sd=robust,
        spread=float(ordered[-1] / ordered[0]) if ordered[0] > 0 else None,
        skewness=skewness if varied else None,
        kurtosis=kurtosis if varied else None,
        quantiles={str(p): quantile(ordered, p) for p in PROBABILITIES},
        margins={}
        if sd is None
        else {str(c): margin_of_error(sd, n, c) for c in sorted({*CONFIDENCES, confidence}) if n > 1},
        misses=missing_chances(skewness, n, confidence) if varied and n >= 30 else None,
        beyond=tuple(_beyond(ordered, mean, squares, k, confidence) for k in (3, 6)) if varied and sd else (),
        normality=normality(ordered, mean, sd, plot.correlation) if plot is not None and sd else None,
        dependence=dependence(values) if ordered_in_time else None,
        slow_share=_slow_share(values) if ordered_in_time and varied else None,
        modes=_modes(ordered, robust) if varied and n >= 50 else None,
        edges=edges,
        counts=counts,
        qq=plot,
    )


def margin_of_error(sd: float, n: float, confidence: float) -> float:
    """Half-width of the t interval of a mean of `n` (above 1, need not be whole) independent values, in `sd`'s unit."""
    from scipy.special import stdtrit  # noqa: PLC0415  (slow to load)

    return -float(stdtrit(n - 1, (1 - confidence) / 2)) * sd / math.sqrt(n)


def _moments(ordered: Numbers, mean: float) -> tuple[float, float, float]:
    n = len(ordered)
    sums = np.zeros(3)
    for start in range(0, n, _STEP):
        c = ordered[start : start + _STEP] - mean
        square = c * c
        sums += square.sum(), np.dot(square, c), np.dot(square, square)
    variance = sums[0] / n
    if not variance > 0:
        return 0.0, math.nan, math.nan
    return float(sums[0]), float(sums[1] / n / variance**1.5), float(sums[2] / n / variance**2 - 3)


def quantile(ordered: Numbers | Sequence[float], probability: float) -> float:
    """Linear in the order statistics (type 7)."""
    place = probability * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return float(ordered[below] + (place - below) * (ordered[above] - ordered[below]))


def _median_deviation(ordered: Numbers, median: float) -> float:
    n = len(ordered)
    ranks = {(n + 1) // 2, n // 2 + 1}
    return sum(_deviation(ordered, median, rank) for rank in ranks) / len(ranks)


def _deviation(ordered: Numbers, median: float, rank: int) -> float:
    low, high = 0.0, float(max(median - ordered[0], ordered[-1] - median))
    for _ in range(1100):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        within = np.searchsorted(ordered, median + middle, "right") - np.searchsorted(ordered, median - middle, "left")
        low, high = (low, middle) if within >= rank else (middle, high)
    return high


def _beyond(ordered: Numbers, mean: float, squares: float, k: int, confidence: float) -> Outliers:
    sd = math.sqrt(squares / (len(ordered) - 1))
    low = int(np.searchsorted(ordered, mean - k * sd, "left"))
    high = int(np.searchsorted(ordered, mean + k * sd, "right"))
    ends = np.concatenate([ordered[:low], ordered[high:]]) - mean
    kept = ordered[low:high]
    rest_sd = float(kept.std(ddof=1)) if len(kept) > 1 else 0.0
    return Outliers(
        k=k,
        below=low,
        above=len(ordered) - high,
        expected=len(ordered) * math.erfc(k / math.sqrt(2)),
        variance_share=float(np.dot(ends, ends)) / squares,
        largest_share=max(mean - ordered[0], ordered[-1] - mean) ** 2 / squares,
        mean=float(kept.mean()) if len(kept) else mean,
        sd=rest_sd,
        margin=margin_of_error(rest_sd, len(kept), confidence) if len(kept) > 1 else None,
        correlation=correlation(kept) if k == 3 and len(kept) > 2 and kept[0] < kept[-1] else None,
    )


def _slow_share(values: Numbers) -> float | None:
    n = len(values)
    if n < 100:
        return None
    windows = min(50, max(20, n // 50))
    size = n // windows
    cut = values[: windows * size].reshape(windows, size)
    within = float(cut.var(axis=1, ddof=1).mean())
    between = float(cut.mean(axis=1).var(ddof=1)) - within / size
    return max(0.0, between) / (max(0.0, between) + within) if within > 0 else None


def _histogram(ordered: Numbers) -> tuple[Numbers, Integers]:
    low, high = float(ordered[0]), float(ordered[-1])
    n = len(ordered)
    if low == high:
        half = abs(low) * 0.005 or 0.5
        return np.array([low - half, low + half]), np.array([n], dtype=np.int64)
    width = 2 * (quantile(ordered, 0.75) - quantile(ordered, 0.25)) / n ** (1 / 3)
    inner = quantile(ordered, 0.995) - quantile(ordered, 0.005)
    width = min(max(width, inner / 60 if inner > 0 else (high - low) / 60), (high - low) / 10)
    bins = min(math.ceil((high - low) / width), 1000)
    edges = np.linspace(low, high, bins + 1)
    places = np.searchsorted(ordered, edges[1:-1], "right")
    return edges, np.diff(np.concatenate([[0], places, [n]])).astype(np.int64)


def _modes(ordered: Numbers, robust: float) -> int | None:
    n = len(ordered)
    low, high = quantile(ordered, 0.001), quantile(ordered, 0.999)
    quartiles = quantile(ordered, 0.75) - quantile(ordered, 0.25)
    scale = quartiles / 1.34 if quartiles > 0 else robust
    if not (high > low and scale > 0):
        return None
    bandwidth = 0.9 * scale * n**-0.2
    points = 1024
    step = (high - low + 8 * bandwidth) / points
    bandwidth = max(bandwidth, step)  # values on few places: peaks would be their grid's
    grid = low - 4 * bandwidth + step * np.arange(points + 1)
    counts = np.diff(np.searchsorted(ordered, grid))
    reach = min(points, math.ceil(4 * bandwidth / step))
    kernel = np.exp(-0.5 * (np.arange(-reach, reach + 1) * step / bandwidth) ** 2)
    return _peaks(np.convolve(counts, kernel, "same"))


def _peaks(density: Sequence[float] | Numbers) -> int:
    found, valley, peak = 0, 0.0, 0.0
    highest = float(np.max(density))
    rising = True
    for value in density:
        height = float(value)
        if rising:
            peak = max(peak, height)
            if height < 0.8 * peak and peak > 0.05 * highest:
                found, rising, valley = found + 1, False, height
        else:
            valley = min(valley, height)
            if height > valley / 0.8 and height > 0.05 * highest:
                rising, peak = True, height
    return found + (rising and peak > 0.05 * highest and found == 0)


SUMMARY_QUANTILES = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95)


class Description(msgspec.Struct, frozen=True, kw_only=True):
    """A sample in numbers, in the metric's unit; None where it is too small."""

    n: int
    mean: float | None = None
    sd: float | None = None
    min: float | None = None
    max: float | None = None
    median: float | None = None
    quantiles: dict[str, float] = {}
    margin: float | None = None


def describe(values: Sequence[float], confidence: float) -> Description:
    """Describe finite `values`; the margin of error is at `confidence`."""
    n = len(values)
    if n == 0:
        return Description(n=0)
    ordered = sorted(values)
    sd = stdev(ordered) if n > 1 else None
    return Description(
        n=n,
        mean=fmean(ordered),
        sd=sd,
        min=ordered[0],
        max=ordered[-1],
        median=median(ordered),
        quantiles={str(p): quantile(ordered, p) for p in SUMMARY_QUANTILES},
        margin=None if sd is None else margin_of_error(sd, n, confidence),
    )


def summarise(
    blocks: Iterable[Block],
    arm: str,
    metric: Metric,
    confidence: float,
    *,
    policy: str,
    mechanism: Mechanism,
    treatment: str,
    deployment: Deployment | None,
) -> ArmSummary:
    """Return the summary of `arm` over the complete ones of its cell's `blocks`, in the order of their numbers."""
    attempts = [
        attempt
        for block in sorted(blocks, key=lambda block: block.number)
        if block.state == "complete"
        for attempt in block.attempts
        if attempt.arm == arm and attempt.state in ("accepted", "failed")
    ]
    accepted = [attempt for attempt in attempts if attempt.state == "accepted"]
    values = [value for attempt in accepted if (value := _finite(attempt, metric)) is not None]
    shares = [attempt.delivery.share for attempt in accepted if attempt.delivery.share is not None]
    return ArmSummary(
        **msgspec.structs.asdict(describe(values, confidence)),
        arm=arm,
        policy=policy,
        mechanism=mechanism,
        failed=len(attempts) - len(accepted),
        undelivered=sum(attempt.delivery.delivered is False for attempt in attempts),
        unproven=sum(attempt.delivery.delivered is None for attempt in accepted),
        first=values[0] if values else None,
        coverage=_coverage(accepted),
        delivered_share=fmean(shares) if shares else None,
        proof=", ".join(sorted({f"{a.delivery.proof} ({a.delivery.source})" for a in accepted})),
        peak_bytes=max((a.peak_bytes for a in accepted if a.peak_bytes is not None), default=None),
        pool_bytes=max((a.pool_bytes for a in attempts), default=0),
        treatment=treatment,
        deployment=deployment,
    )


def _finite(attempt: Attempt, metric: Metric) -> float | None:
    value = attempt.metrics.get(metric.name)
    return value if value is not None and math.isfinite(value) else None


def _coverage(attempts: Sequence[Attempt]) -> dict[str, float]:
    scanned = [(a.delivery.coverage, sum(a.delivery.coverage.values())) for a in attempts]
    shares = [{kind: size / total for kind, size in coverage.items()} for coverage, total in scanned if total > 0]
    kinds = sorted({kind for share in shares for kind in share})
    return {kind: fmean(share.get(kind, 0.0) for share in shares) for kind in kinds}
