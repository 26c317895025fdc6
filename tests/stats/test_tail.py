from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from ville import QuantileCS

from hugewise.stats import end_points
from hugewise.stats.end_points import SlowRuns, quantile, slow_rate
from tests.build import known
from tests.build.trials import ends

VALUES = st.lists(st.tuples(*[st.sampled_from([1.0, 1.1, 1.3, 2.0, 5.0, math.inf])] * 2), max_size=60)


def stalling(generator: np.random.Generator, n: int, arm: float, baseline: float) -> tuple[list[float], list[float]]:
    """Run times around 10 s that a side's stalls make 1.8 times as long, at its own rate."""
    shared = generator.normal(0, 0.05, n)
    sides = [
        10 * np.exp(shared + generator.normal(0, 0.03, n)) * np.where(generator.random(n) < rate, 1.8, 1)
        for rate in (arm, baseline)
    ]
    return sides[0].tolist(), sides[1].tolist()


def test_slow_by_hand() -> None:
    arm = [10.0] * 10 + [12.6, 10.0, 12.4, 13.0, math.inf, 30.0]
    baseline = [10.0] * 10 + [10.0, 12.6, 10.0, 13.0, 10.0, math.inf]
    expected = [0] * 10 + [1, -1, 0, 0, 1, 0]
    assert SlowRuns().differences(arm, baseline) == expected
    assert SlowRuns(factor=2).differences(arm, baseline)[10:] == [0, 0, 0, 0, 1, 0]
    speeds = [[1 / x for x in side] for side in (arm, baseline)]
    assert SlowRuns(better="higher").differences(*speeds) == expected
    # Most runs failing makes the usual infinite; a failure is still worse than a run.
    assert SlowRuns().differences([math.inf] * 12, [math.inf] * 11 + [1.0])[-1] == 1


@pytest.mark.parametrize("alpha", [0.2, 0.1])
def test_the_sign_is_exact_over_all_coins(alpha: float) -> None:
    """Ten pairs make the usual; the other seven are discordant, and all their swaps are enumerated."""
    fast, slow = [10.0] * 10, [10.0] * 10
    verdicts = 0
    for swaps in product((False, True), repeat=7):
        arm = fast + [20.0 if swap else 10.0 for swap in swaps]
        baseline = slow + [10.0 if swap else 20.0 for swap in swaps]
        verdicts += slow_rate(arm, baseline, alpha, budget=17).sign != 0
    assert 0 < verdicts <= alpha * 2**7


def test_slow_rate_finds_the_arm_that_stalls() -> None:
    arm, baseline = stalling(np.random.default_rng(1), 1000, 0.1, 0.02)
    found = slow_rate(arm, baseline, 0.01, budget=1000)
    assert found.sign == 1
    assert found.estimate == pytest.approx(0.08, abs=0.035)
    low, high = ends(found)
    assert 0 < low < 0.08 < high < 0.2
    assert slow_rate(baseline, arm, 0.01, budget=1000) == pytest.approx(
        (-found.estimate, -found.high, -found.low, -1)  # type: ignore[operator]
    )


@pytest.mark.parametrize(("campaigns", "most"), [(40, 6), pytest.param(100, 11, marks=pytest.mark.soak)])
def test_bounds_of_the_rate_hold_while_it_drifts(campaigns: int, most: int) -> None:
    """Stalls come in spells: the realised difference of rates is covered at every look, and the bounds are not idle.
    At 5%, and 3 standard errors above."""
    generator = np.random.default_rng(2)
    missed, widths = 0, []
    for _ in range(campaigns):
        n = 600
        spell = np.repeat(generator.random(n // 50) < 0.3, 50)
        arm_stalls, baseline_stalls = (
            generator.random((2, n)) < np.where(spell, 0.3, 0.01),
            generator.random((2, n)) < 0.02,
        )
        pick = generator.integers(0, 2, n)
        arm = np.where(arm_stalls[pick, range(n)], 20.0, 10.0)
        baseline = np.where(baseline_stalls[1 - pick, range(n)], 20.0, 10.0)
        effects = (arm_stalls.mean(axis=0) - baseline_stalls.mean(axis=0))[10:]
        for look in range(50, n + 1, 50):
            found = slow_rate(arm[:look].tolist(), baseline[:look].tolist(), 0.05, budget=n)
            low, high = ends(found)
            if not low <= effects[: look - 10].mean() <= high:
                missed += 1
                break
        widths.append(high - low)
    assert missed <= most
    assert np.median(widths) < 0.25


def test_the_bound_of_a_rate_is_the_mixtures_root() -> None:
    """Against the supermartingale written out: it reaches 2/alpha at the bound."""
    differences = [0.0, 1.0, 0.0, 0.0, -1.0, 1.0, 0.0] * 20
    bound = end_points._rate_bound(differences, 0.05)
    means = np.concatenate(([0], np.cumsum(differences)[:-1] / np.arange(1, 140)))
    variance = np.sum((np.array(differences) - means) ** 2)
    x = np.geomspace(0.49, 0.49 * 0.005, 32)
    assert np.mean(np.exp(x * bound + (np.log(1 - 2 * x) + 2 * x) / 4 * variance)) == pytest.approx(2 / 0.05)
    assert end_points._rate_bound([0.0] * 500, 0.05) <= 2 * math.log(64 / 0.05)


def test_quantile_bounds_against_villes() -> None:
    """Both are order statistics around the quantile; ours, with the binomial's own variance, are nearer in the tail."""
    values = np.random.default_rng(3).lognormal(0, 0.3, 3000)
    for probability in (0.5, 0.95, 0.99):
        small, large = end_points._ruled_out(3000, probability, 0.025)
        ordered = np.sort(values)
        theirs = QuantileCS(q=probability, alpha=0.05, intersect=False).fit(values)
        low, high = theirs.interval()
        assert low <= ordered[small] * 1.01
        assert ordered[large - 1] <= high * 1.01
        assert ordered[small] < np.quantile(values, probability) < ordered[large - 1]
        if probability == 0.5:
            assert (ordered[large - 1] - ordered[small]) / (high - low) == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("probability", [0.5, 0.9, 0.99])
def test_quantile_counts_are_ruled_out_rightly_at_each_n(probability: float) -> None:
    for n in (50, 400, 2000):
        small, large = end_points._ruled_out(n, probability, 0.025)
        assert stats.binom.cdf(small, n, probability) <= 0.025
        assert stats.binom.sf(large - 1, n, probability) <= 0.025


@pytest.mark.parametrize(("campaigns", "most"), [(30, 7), pytest.param(60, 13, marks=pytest.mark.soak)])
def test_quantile_covers_at_every_look(campaigns: int, most: int) -> None:
    """At 10%, and 3 standard errors above."""
    generator = np.random.default_rng(4)
    missed = 0
    for _ in range(campaigns):
        arm, baseline = generator.lognormal(0.05, 0.2, (1, 800))[0], generator.lognormal(0, 0.2, 800)
        for look in range(100, 801, 100):
            found = quantile(arm[:look].tolist(), baseline[:look].tolist(), 0.9, 0.1)
            low, high = found.low or 0, found.high or math.inf
            if not low <= math.exp(0.05) <= high:
                missed += 1
                break
    assert missed <= most


def test_quantile_finds_a_heavier_tail() -> None:
    generator = np.random.default_rng(5)
    arm, baseline = stalling(generator, 1500, 0.03, 0.002)
    found = quantile(arm, baseline, 0.99, 0.05, budget=1500)
    assert found.sign == 1
    assert found.estimate == pytest.approx(1.6, abs=0.25)
    assert known(found.low) > 1
    faster = quantile([1 / x for x in arm], [1 / x for x in baseline], 0.01, 0.05, better="higher", budget=1500)
    assert faster.sign == 1


@settings(max_examples=25)
@given(VALUES)
def test_quantile_never_invents_a_number(pairs: list[tuple[float, float]]) -> None:
    arm, baseline = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    found = quantile(arm, baseline, 0.9, 0.05)
    for number in found[:3]:
        assert number is None or (math.isfinite(number) and number > 0)


def test_what_cannot_be_said() -> None:
    assert slow_rate([], [], 0.05) == (None, None, None, 0)
    assert slow_rate([1.0] * 10, [1.0] * 10, 0.05) == (None, None, None, 0)
    assert quantile([], [], 0.99, 0.05) == (None, None, None, 0)
    found = quantile([1.0] * 100, [2.0] * 100, 0.99, 0.05)
    assert (found.estimate, found.low, found.high) == (0.5, None, None)
    refused: list[tuple[Callable[[], object], str]] = [
        (lambda: slow_rate([1.0, 2.0], [1.0], 0.05), "2 values of the arm, but 1"),
        (lambda: slow_rate([math.nan], [1.0], 0.05), "NaN"),
        (lambda: slow_rate([1.0], [1.0], 0.05, factor=1), "factor"),
        (lambda: quantile([1.0], [1.0], 1.0, 0.05), "probability"),
        (lambda: quantile([-1.0], [1.0], 0.5, 0.05), "negative"),
        (lambda: slow_rate([1.0], [1.0], 0), "alpha"),
    ]
    for wrong, message in refused:
        with pytest.raises(ValueError, match=message):
            wrong()
