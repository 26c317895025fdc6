"""Figures of a sample and intervals, against scipy and against samples of which they are known."""

from __future__ import annotations

import math
import random
from statistics import stdev

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from hugewise.model.policy import Deployment
from hugewise.model.results import ArmSummary
from hugewise.model.trial import Block
from hugewise.report.reasons import in_words
from hugewise.stats.changepoint import FEWEST_SECONDS, change_within, settled, steadiness
from hugewise.stats.classical import (
    SUMMARY_QUANTILES,
    describe,
    figures,
    margin_of_error,
    missing_chances,
    normality,
    qq,
    summarise,
)
from hugewise.stats.inversion import point
from hugewise.stats.paired import SampleMean, autocorrelation, correlated, dependence, deviation_interval, scale, welch
from hugewise.stats.signflip import signed
from tests.build import known
from tests.build.trials import LOWER, attempt, block, delivery

RNG = np.random.default_rng(20210427)


def test_figures_are_scipys_and_numpys() -> None:
    values = RNG.lognormal(0, 0.5, 3000)
    found = figures(values, 0.99)
    told = stats.describe(values)
    assert found.n == told.nobs
    assert found.mean == pytest.approx(told.mean, rel=1e-12)
    assert found.sd == pytest.approx(math.sqrt(told.variance), rel=1e-12)
    assert (found.min, found.max) == told.minmax
    assert found.skewness == pytest.approx(told.skewness, rel=1e-9)
    assert found.kurtosis == pytest.approx(told.kurtosis, rel=1e-9)
    assert found.median == pytest.approx(float(np.median(values)), rel=1e-12)
    assert found.robust_sd == pytest.approx(stats.median_abs_deviation(values, scale=1 / 1.4826), rel=1e-9)
    assert found.quantiles["0.999"] == pytest.approx(float(np.quantile(values, 0.999)), rel=1e-12)
    low, high = stats.t.interval(0.99, 2999, told.mean, math.sqrt(told.variance / 3000))
    assert found.margin == pytest.approx((high - low) / 2, rel=1e-9)
    assert found.spread == pytest.approx(values.max() / values.min())


def test_the_published_margins_of_error_come_out() -> None:
    """147.08 with sd 14.53 from 24,000 builds: 0.36 s at 99.99% (the article), and its two other benchmarks."""
    assert margin_of_error(14.53, 24_000, 0.9999) == pytest.approx(0.365, abs=0.005)
    assert margin_of_error(4.38, 5_000, 0.9999) == pytest.approx(0.24, abs=0.005)
    assert margin_of_error(1.58, 37_000, 0.9999) == pytest.approx(0.03, abs=0.005)


def test_outliers_with_and_without() -> None:
    values = np.concatenate([RNG.normal(100, 10, 5000), [400.0, 500.0]])
    three, six = figures(values, 0.99).beyond
    kept = values[np.abs(values - values.mean()) <= 3 * values.std(ddof=1)]
    assert three.count == len(values) - len(kept)
    assert (six.below, six.above) == (0, 2)
    assert three.mean == pytest.approx(kept.mean()) and three.sd == pytest.approx(kept.std(ddof=1))
    squares = (values - values.mean()) ** 2
    assert six.variance_share == pytest.approx(squares[-2:].sum() / squares.sum())
    assert six.largest_share == pytest.approx(squares[-1] / squares.sum())
    assert three.expected == pytest.approx(5002 * 2 * stats.norm.sf(3))


def test_the_histogram_holds_every_value_once() -> None:
    for values in (RNG.normal(size=10), RNG.standard_cauchy(5000), np.repeat([1.0, 2.0], 50), np.array([3.0])):
        found = figures(values)
        assert found.counts.sum() == len(values)
        assert len(found.edges) == len(found.counts) + 1
        assert found.edges[0] <= values.min() and found.edges[-1] >= values.max()


def test_drift_and_modes_are_seen() -> None:
    noise = RNG.normal(0, 1, 5000)
    still, drifting = figures(noise), figures(noise + np.linspace(0, 6, 5000))
    assert still.slow_share is not None and still.slow_share < 0.02
    assert drifting.slow_share == pytest.approx(0.75, abs=0.05)  # 3 of 4 parts: variance of the slope is 36/12
    assert figures(noise, ordered_in_time=False).slow_share is None
    assert still.modes == 1
    assert figures(np.concatenate([noise, noise + 8])).modes == 2


@pytest.mark.parametrize("values", [[5.0], [5.0, 5.0, 5.0], [0.0] * 40, [1.0, 2.0], [1e60, 1e60, 2e60], [-1.0, 3.0]])
def test_small_and_constant_samples(values: list[float]) -> None:
    found = figures(np.array(values))
    assert found.n == len(values) and found.min <= found.median <= found.max
    if len(set(values)) == 1:
        assert found.beyond == () and found.normality is None and found.skewness is None


def test_an_empty_or_infinite_sample_is_refused() -> None:
    for values in ([], [1.0, math.inf], [math.nan]):
        with pytest.raises(ValueError, match="at least one value"):
            figures(np.array(values, dtype=np.float64))


NORMALITY_RNG = np.random.default_rng(11)


def anderson(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> tuple[float, float]:
    found = known(normality(np.sort(values), float(values.mean()), float(values.std(ddof=1)), 1.0))
    return found.anderson, found.anderson_p


def test_statistics_are_scipys() -> None:
    values = NORMALITY_RNG.gamma(9.0, size=400)
    found = known(normality(np.sort(values), float(values.mean()), float(values.std(ddof=1)), 1.0))
    told = stats.shapiro(values)
    assert (found.shapiro, found.shapiro_p) == pytest.approx((told.statistic, told.pvalue), rel=1e-6)
    z = np.sort((values - values.mean()) / values.std(ddof=1))
    rank = np.arange(1, 401)
    plain = -400 - float(np.sum((2 * rank - 1) * (stats.norm.logcdf(z) + stats.norm.logsf(z[::-1])))) / 400
    assert found.anderson == pytest.approx(plain * (1 + 0.75 / 400 + 2.25 / 400**2), rel=1e-9)


def test_normal_samples_are_rejected_as_often_as_the_level_says() -> None:
    p_values = [anderson(NORMALITY_RNG.normal(5, 2, 50))[1] for _ in range(400)]
    assert 0.02 <= np.mean(np.array(p_values) < 0.05) <= 0.09
    assert 0.4 <= np.mean(np.array(p_values) < 0.5) <= 0.6


def test_exponential_samples_are_rejected() -> None:
    assert anderson(NORMALITY_RNG.exponential(size=200))[1] < 1e-6
    assert anderson(NORMALITY_RNG.exponential(size=50_000))[1] == 1e-10


def test_a_qq_plot_keeps_the_ends_and_is_straight_for_normal_values() -> None:
    ordered = np.sort(NORMALITY_RNG.normal(100, 5, 50_000))
    found = qq(ordered)
    assert len(found.observed) <= 440
    assert found.observed[:20].tolist() == ordered[:20].tolist()
    assert found.observed[-20:].tolist() == ordered[-20:].tolist()
    assert found.correlation > 0.9995
    assert found.correlation == pytest.approx(stats.probplot(ordered, fit=True)[1][2], abs=1e-6)
    slope = np.polyfit(found.theoretical, found.observed, 1)[0]
    assert slope == pytest.approx(5, rel=0.05)


def test_where_nothing_can_be_said() -> None:
    assert normality(np.arange(7.0), 3.0, 2.0, 1.0) is None
    assert normality(np.ones(50), 1.0, 0.0, 1.0) is None


def test_skewed_samples_miss_as_the_expansion_says() -> None:
    n, level = 400, 0.95
    samples = NORMALITY_RNG.exponential(size=(20_000, n))
    t = (samples.mean(axis=1) - 1) / (samples.std(axis=1, ddof=1) / math.sqrt(n))
    limit = stats.t.ppf(0.975, n - 1)
    below, above = missing_chances(2.0, n, level)
    assert below == pytest.approx(float(np.mean(t < -limit)), abs=0.004)
    assert above == pytest.approx(float(np.mean(t > limit)), abs=0.004)
    assert missing_chances(0.0, n, level) == pytest.approx((0.025, 0.025))


def test_the_interval_of_the_deviation_covers_it() -> None:
    random = np.random.default_rng(1)
    held = 0
    for _ in range(400):
        found = known(deviation_interval(list(random.normal(0, 2, 20))))
        held += found[0] <= 2 <= found[1]
    assert held >= 368  # 92%; nominal 95%


def test_the_interval_is_that_of_bonetts_formula() -> None:
    values = np.array([15.83, 16.01, 16.24, 16.42, 15.33, 15.44, 16.88, 16.31])
    n, z = len(values), 1.959964
    s2 = np.var(values, ddof=1)
    trimmed = np.mean(np.sort(values)[2:-2])  # 1/(2 sqrt(n-4)) of 8 from each end
    kurtosis = n * np.sum((values - trimmed) ** 4) / np.sum((values - np.mean(values)) ** 2) ** 2
    c = n / (n - z)
    se = c * np.sqrt((kurtosis - (n - 3) / n) / (n - 1))
    expected = np.sqrt(np.exp(np.log(c * s2) - z * se)), np.sqrt(np.exp(np.log(c * s2) + z * se))
    assert deviation_interval(list(values)) == pytest.approx(expected, rel=1e-5)


def test_the_scale_is_the_deviation_of_normal_differences() -> None:
    random = np.random.default_rng(2)
    for n, room in ((12, 0.06), (200, 0.03)):
        assert np.mean([scale(list(random.normal(1, 3, n))) or 0.0 for _ in range(200)]) == pytest.approx(3, rel=room)


def test_outliers_and_failures_hardly_change_the_scale() -> None:
    values = list(np.random.default_rng(3).normal(0, 1, 60))
    plain = known(scale(values))
    for outlier in (50.0, math.inf):
        spoiled = scale([*values, outlier])
        assert spoiled == pytest.approx(plain, rel=0.15)
    assert stdev([*values, 50.0]) > 5 * plain
    assert scale([math.inf] * 4 + [0.1, 0.2, 0.3]) is None


def test_correlation() -> None:
    random = np.random.default_rng(5)
    held = 0
    for _ in range(300):
        first = random.normal(0, 1, 30)
        found = known(correlated(list(first), list(0.8 * first + 0.6 * random.normal(0, 1, 30))))
        held += found[1] <= 0.8 <= found[2]
    assert held >= 276
    assert correlated([1.0] * 8, [1.0, 2.0] * 4) is None


def test_too_few_say_nothing() -> None:
    five = [0.1, 0.2, 0.3, 0.4, 0.5]
    assert deviation_interval(five) is None and scale(five) is None and correlated(five, five) is None
    assert deviation_interval([0.2] * 6) == (0.0, 0.0)
    assert scale([0.2] * 6) == pytest.approx(0.0, abs=1e-12)


VALUES = st.lists(st.integers(-256, 512).map(lambda k: k / 256), min_size=1, max_size=25)


def walk(values: list[float], theta: float) -> int:
    return int(signed([value - theta for value in values]).sum())


@settings(deadline=None, max_examples=40)
@given(VALUES)
def test_the_walk_turns_round_at_the_point(values: list[float]) -> None:
    """Just below the stretch of zeros whose middle the point is, the walk is up; just above, it is down."""
    found, fine = point(values), 1e-6
    if walk(values, found) != 0:  # it jumps over zero there
        assert walk(values, found - fine) > 0 > walk(values, found + fine)
    assert walk(values, found - fine) >= 0 >= walk(values, found + fine)


def test_weights_are_those_of_the_test() -> None:
    random = np.random.default_rng(5)
    values, weights = random.normal(0.03, 0.01, 300), random.normal(1, 0.05, 300)
    found = point(values, weights)
    assert abs(int(signed(values - found * weights).sum())) <= 31
    assert found == pytest.approx(0.03, abs=0.003)


def test_failures_on_one_side_take_the_point_along() -> None:
    assert point([math.inf] * 9 + [0.1] * 2) == math.inf
    assert point([-math.inf] * 9 + [0.1] * 2) == -math.inf
    assert point([math.inf, -math.inf]) == 0.0
    assert math.isfinite(point([math.inf, 0.1, 0.2, 0.3, 0.4, 0.5]))


def test_no_differences_and_no_numbers_are_refused() -> None:
    for nothing, why in (([], "at least one"), ([1.0, math.nan], "one row of numbers")):
        with pytest.raises(ValueError, match=why):
            point(nothing)


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=40))
def test_numbers_are_numpys_and_scipys(values: list[float]) -> None:
    found = describe(values, 0.99)
    assert found.n == len(values)
    assert found.mean == pytest.approx(np.mean(values), rel=1e-9, abs=1e-6)
    assert found.sd == pytest.approx(np.std(values, ddof=1), rel=1e-9, abs=1e-6)
    assert (found.min, found.max) == (min(values), max(values))
    assert found.median == pytest.approx(np.median(values), rel=1e-9, abs=1e-6)
    for p in SUMMARY_QUANTILES:
        assert found.quantiles[str(p)] == pytest.approx(np.quantile(values, p), rel=1e-9, abs=1e-6)
    assert found.margin == pytest.approx(
        stats.t.ppf(0.995, len(values) - 1) * np.std(values, ddof=1) / math.sqrt(len(values)), rel=1e-9, abs=1e-6
    )


def test_too_few_values() -> None:
    nothing, one = describe([], 0.99), describe([3.0], 0.99)
    assert (nothing.n, nothing.mean, nothing.quantiles, nothing.margin) == (0, None, {}, None)
    assert (one.n, one.mean, one.sd, one.median, one.margin) == (1, 3.0, None, 3.0, None)
    assert one.quantiles["0.95"] == 3.0


def summary(blocks: list[Block]) -> ArmSummary:
    return summarise(
        blocks,
        "thp",
        LOWER,
        0.95,
        policy="thp",
        mechanism="system",
        treatment="enabled=always",
        deployment=Deployment(note="note"),
    )


def test_an_arm_over_its_complete_blocks() -> None:
    mixed = {"anon:4096": 1, "anon:2097152": 3}
    found = summary(
        [
            block(2, attempt("thp", 20.0, peak_bytes=300 << 20), attempt("base", 1.0)),
            block(
                1,
                attempt("thp", 10.0, delivery=delivery(coverage=mixed), pool_bytes=7),
                attempt("thp", 99.0, state="rejected"),
            ),
            block(3, attempt("thp", None, state="failed", delivered=None)),
            block(4, attempt("thp", 30.0, delivered=False, peak_bytes=None)),
            block(5, attempt("thp", 40.0, delivery=delivery(None, coverage={}))),
            block(6, attempt("thp", None)),
            block(7, attempt("thp", 1e9), state="incomplete"),
            block(8, attempt("thp", 1e9, state="abandoned")),
        ]
    )
    assert (found.n, found.failed, found.undelivered, found.unproven) == (4, 1, 1, 1)
    assert (found.mean, found.median, found.first, found.min, found.max) == (25.0, 25.0, 10.0, 10.0, 40.0)
    assert found.coverage == {"anon:2097152": pytest.approx(3.75 / 4), "anon:4096": pytest.approx(0.25 / 4)}
    assert found.delivered_share == pytest.approx((1 + 1 + 0.25 + 1) / 4)
    assert (found.proof, found.peak_bytes, found.pool_bytes) == ("ranges (kpageflags)", 300 << 20, 7)
    assert (found.treatment, found.deployment) == (
        "enabled=always",
        Deployment(note="note"),
    )


def test_an_arm_that_never_ran() -> None:
    found = summary([])
    assert (found.n, found.mean, found.first, found.coverage, found.proof, found.peak_bytes) == (
        0,
        None,
        None,
        {},
        "",
        None,
    )


WELCH_RNG = np.random.default_rng(3)


def sample(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> SampleMean:
    return SampleMean(float(values.mean()), float(values.std(ddof=1)), float(len(values)))


def test_for_small_differences_it_is_scipys_test_of_means() -> None:
    first, second = WELCH_RNG.normal(100, 1.0, 30), WELCH_RNG.normal(100.4, 2.0, 50)
    found = known(welch(sample(first), sample(second), 0.95))
    assert found.ratio == pytest.approx(first.mean() / second.mean())
    assert found.p == pytest.approx(stats.ttest_ind(first, second, equal_var=False).pvalue, rel=0.05)
    assert found.low < found.ratio < found.high


def test_the_interval_covers_as_often_as_it_says() -> None:
    covered = 0
    for _ in range(600):
        found = known(welch(sample(WELCH_RNG.gamma(25, 1.1, 20)), sample(WELCH_RNG.gamma(25, 1.0, 40)), 0.9))
        covered += found.low <= 1.1 <= found.high
    assert 0.86 <= covered / 600 <= 0.94


def test_what_has_no_ratio_has_none() -> None:
    one = SampleMean(1.0, 0.1, 10.0)
    assert welch(SampleMean(-1.0, 0.1, 10.0), one, 0.95) is None
    assert welch(SampleMean(1.0, 0.1, 1.0), one, 0.95) is None
    assert welch(SampleMean(1.0, 0.0, 5.0), SampleMean(2.0, 0.0, 5.0), 0.95) is None


def test_a_slope_is_the_last_third_over_the_first() -> None:
    assert change_within([100, 100, 100, 95, 90, 90, 86, 86, 86]) == pytest.approx(-0.14)
    assert change_within([50, 60, 70]) == pytest.approx(0.4)
    # Eleven seconds: three at each end, and five that are not looked at.
    assert change_within([10, 10, 10, 0, 99, 0, 99, 0, 20, 20, 20]) == pytest.approx(1.0)


def test_a_stall_of_a_second_is_no_drift() -> None:
    series = [100.0] * 9
    series[7] = 0.0
    assert change_within(series) == 0


def test_work_that_begins_late_is_an_infinite_rise_and_none_at_all_is_unknown() -> None:
    assert change_within([0, 0, 5, 5, 5, 5]) == math.inf
    assert change_within([0, 0, 5, 5, 0, 0]) is None
    assert change_within([5, 5, 5, 5, 0, 0]) == -1


@pytest.mark.parametrize("series", [[], [1.0, 2.0], [1.0, math.nan, 2.0], [1.0, math.inf, 2.0], [1.0, -1.0, 1.0]])
def test_what_is_no_series_is_refused(series: list[float]) -> None:
    with pytest.raises(ValueError, match="at least 3 finite values"):
        change_within(series)


def test_the_limit_is_ten_percent_on_both_sides() -> None:
    assert settled(110 / 100 - 1)  # 0.10000000000000009
    assert settled(-0.1)
    assert not settled(0.101)
    assert not settled(-0.101)


def test_an_arm_is_judged_by_the_median_of_its_attempts() -> None:
    falling, level = [100.0] * 3 + [80.0] * 3, [100.0] * 6
    assert steadiness("base", [falling, falling, level]).change == pytest.approx(-0.2)
    assert steadiness("base", [falling, falling, level]).settled is False
    one = steadiness("base", [falling, level, level])
    assert (one.arm, one.n, one.change, one.settled) == ("base", 3, 0, True)


def test_what_cannot_be_told_is_null_with_its_reason() -> None:
    short = steadiness("base", [[1.0] * (FEWEST_SECONDS - 1), [9.0, 1.0]])
    assert (short.n, short.change, short.settled) == (0, None, None)
    assert in_words(short.reason) == "5 whole seconds at most: 6 are needed"
    idle = steadiness("base", [[0.0] * 6])
    assert (idle.n, idle.change, idle.settled) == (1, None, None)
    assert "no work was done" in in_words(idle.reason)
    late = steadiness("base", [[0.0] * 3 + [5.0] * 3])
    assert (late.n, late.change, late.settled) == (1, None, False)


def test_short_attempts_have_no_say_beside_longer_ones() -> None:
    told = steadiness("base", [[100.0] * 6, [100.0, 1.0]])
    assert (told.n, told.change) == (1, 0)


def test_noise_around_a_level_is_settled_and_a_warm_up_is_not() -> None:
    noise = random.Random(4)  # noqa: S311  (not a secret)
    level = [[1000 * noise.gauss(1, 0.05) for _ in range(30)] for _ in range(8)]
    warming = [[each * (1 - 0.5 * math.exp(-second / 8)) for second, each in enumerate(one)] for one in level]
    assert steadiness("base", level).settled is True
    change = known(steadiness("base", warming).change)
    # Half of the work is missing at first; the medians of the thirds are at about seconds 4.5 and 24.5.
    assert change == pytest.approx((1 - 0.5 * math.exp(-24.5 / 8)) / (1 - 0.5 * math.exp(-4.5 / 8)) - 1, abs=0.04)
    assert steadiness("base", warming).settled is False


SERIES_RNG = np.random.default_rng(5)


def ar(phi: float, n: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    from scipy.signal import lfilter

    return np.asarray(lfilter([1.0], [1.0, -phi], SERIES_RNG.standard_normal(n + 500))[500:], dtype=np.float64)


@pytest.mark.parametrize("phi", [0.0, 0.3, 0.8, 0.95])
def test_an_autoregression_is_worth_what_it_must(phi: float) -> None:
    told = known(dependence(ar(phi, 40_000)))
    assert told.complete
    assert told.inefficiency == pytest.approx((1 + phi) / (1 - phi), rel=0.25)
    assert told.lags[0] == pytest.approx(phi, abs=0.03)
    assert told.effective == pytest.approx(40_000 / told.inefficiency)


def test_the_fast_way_is_the_plain_one() -> None:
    values = ar(0.5, 150_000)
    fast = autocorrelation(values, 60)  # large enough to go piece by piece
    centred = values - values.mean()
    plain = [float(np.dot(centred[: len(values) - lag], centred[lag:])) for lag in range(61)]
    assert fast == pytest.approx(np.array(plain) / plain[0], abs=1e-10)


def test_negative_correlation_is_never_counted_as_gain() -> None:
    told = known(dependence(np.tile([1.0, -1.0], 500) + SERIES_RNG.normal(0, 0.1, 1000)))
    assert told.inefficiency == 1.0


def test_few_or_equal_values_say_nothing() -> None:
    assert dependence(np.arange(9.0)) is None
    assert dependence(np.ones(100)) is None
