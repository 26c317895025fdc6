"""Effects over hosts: pooled, weighed by strata, and how much they differ between hosts."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import chi2, norm

from hugewise.stats import pooling, stopping
from hugewise.stats.pooling import FEWEST, HostEstimate, Hosts, OverHosts, TypicalEffect
from tests.build import known


def estimate(centre: float, *, scale: float = 0.05, pairs: int = 60, **changes: object) -> HostEstimate:
    made = HostEstimate(centre, scale, pairs, 0.01, 200, crossed=True, stops=True)
    return made._replace(**changes)  # type: ignore[arg-type]


def test_estimates_are_corrected_as_a_host_corrects_its_own() -> None:
    hosts = pooling.pooled([estimate(0.03), estimate(-0.04)])
    for found, centre in zip(hosts.estimates, (0.03, -0.04), strict=True):
        assert found == pytest.approx(known(stopping.corrected(centre, 0.05, 60, 0.01, 200)), rel=0.03)


def test_hosts_that_are_equally_noisy_weigh_the_same_whenever_they_stopped() -> None:
    hosts = pooling.pooled([estimate(0.05, pairs=20), estimate(0.02, pairs=120), estimate(0.03, pairs=60)])
    assert len(set(hosts.errors.tolist())) == 1
    noisy = pooling.pooled([estimate(0.03), estimate(0.03, scale=0.1), estimate(0.03)])
    assert noisy.errors[1] > noisy.errors[0] == noisy.errors[2]


def test_what_does_not_stop_by_its_effect_is_not_corrected() -> None:
    hosts = pooling.pooled([estimate(0.05, stops=False, pairs=25), estimate(0.05, stops=False, pairs=100)])
    assert hosts.estimates.tolist() == [0.05, 0.05]
    assert hosts.errors.tolist() == pytest.approx([0.01, 0.005])


def test_counts_that_do_not_vary_have_no_error_to_speak_of() -> None:
    hosts = pooling.pooled([estimate(-2.0, scale=0.0), estimate(-2.0, scale=0.0), estimate(-2.0, scale=0.0)])
    assert hosts.tau() == 0 and known(hosts.typical()).centre == pytest.approx(-2.0)


def test_time_that_was_up_shortens_the_law() -> None:
    ended = [estimate(0.01, pairs=30, crossed=False), estimate(0.04, pairs=20), estimate(0.02, pairs=30, crossed=False)]
    short = pooling.pooled(ended)
    whole = pooling.pooled([one._replace(pairs=200 if not one.crossed else 20) for one in ended])
    assert short.errors[0] > whole.errors[0]


def test_the_fleet_is_weighed_by_what_it_is_made_of() -> None:
    strata = {"a": TypicalEffect(0.10, 0.01, 4), "b": TypicalEffect(0.20, 0.02, 9)}
    shares = pooling.shares({"a": 30, "b": 10, "c": 60}, ["a", "b"])
    assert shares == {"a": 0.75, "b": 0.25}
    found = pooling.fleet_effect(strata, shares)
    assert found.centre == pytest.approx(0.125)
    assert found.error == pytest.approx(math.hypot(0.0075, 0.005))
    one, other = 0.0075**2, 0.005**2  # Satterthwaite
    assert found.freedom == math.floor((one + other) ** 2 / (one**2 / 4 + other**2 / 9))
    with pytest.raises(ValueError, match="none of the strata"):
        pooling.shares({"c": 1}, ["a"])


def test_verdicts_and_intervals_agree_over_a_family() -> None:
    effects = [
        OverHosts(TypicalEffect(0.10, 0.01, 9), [0.1] * 10),
        OverHosts(TypicalEffect(0.03, 0.012, 9), [0.03] * 10),  # by itself at 5%, not among four
        OverHosts(TypicalEffect(0.0, 0.0005, 9), [-0.001, 0.001] * 5),
        OverHosts(TypicalEffect(-0.2, 0.02, 5), [-0.2] * 8),
    ]
    found = pooling.held(effects, [False, False, True, True], 0.05, 0.01)
    assert [one.verdict for one in found] == ["worse", "undecided", "equivalent", "worse"]
    assert pooling.held(effects[1:2], [True], 0.05, 0.01)[0].verdict == "better"
    for (effect, _), one in zip(effects, found, strict=True):
        assert (one.low > 0 or one.high < 0) == (one.verdict in ("better", "worse"))
        assert one.low < effect.centre < one.high
    assert -math.log1p(0.01) < found[2].low and found[2].high < math.log1p(0.01)


def over(estimates: list[float]) -> OverHosts:
    return OverHosts(known(Hosts(estimates, [0.001] * len(estimates)).typical()), estimates)


def test_a_verdict_needs_the_signs_of_the_hosts() -> None:
    few, enough = over([0.10, 0.11, 0.12, 0.10, 0.11, 0.12, 0.11]), over([0.10, 0.11] * 4)
    (one,) = pooling.held([few], [True], 0.01, 0.02)
    assert one.p < 1e-6 and one.p_signs == pytest.approx(2**-6) and one.fewest == 8
    assert one.verdict == "undecided"
    assert pooling.held([enough], [True], 0.01, 0.02)[0].verdict == "better"
    # a host without an effect counts against it, and signs against the mean are no sign of it
    assert pooling.p_signs(OverHosts(enough.effect, [*enough.estimates, 0.0])) == pytest.approx(2 * 10 / 2**9)
    assert pooling.p_signs(OverHosts(TypicalEffect(0.1, 0.01, 9), [-0.01] * 9 + [1.09])) == 1
    # no difference above the margin, of all but some hosts
    alike = [0.001, -0.001] * 6
    assert pooling.held([over(alike)], [True], 0.01, 0.02)[0].verdict == "equivalent"
    steep = OverHosts(TypicalEffect(0.0, 0.001, 11), [0.03, -0.03] * 6)
    assert pooling.held([steep], [True], 0.01, 0.02)[0].verdict == "undecided"


def test_hosts_that_do_not_fit_the_others_are_found() -> None:
    random = np.random.default_rng(6)
    alike = np.linspace(0.015, 0.025, 10).tolist()
    assert Hosts(alike, [0.002] * 10).outlying() == []
    assert Hosts([*alike, 0.2], [0.002] * 11).outlying() == [10]
    assert Hosts([0.0, 0.0, 5.0], [0.002] * 3).outlying() == []
    found = sum(bool(Hosts((0.01 * random.standard_normal(8)).tolist(), [0.001] * 8).outlying()) for _ in range(200))
    assert found <= 20  # 5% of fleets


def test_the_law_of_ends_is_that_of_the_correction() -> None:
    law = stopping.end_law(0.01, 200, 200)
    for centre in (0.3, 0.5, 0.8, -0.4, 3.0):
        assert law.corrected(centre) == pytest.approx(known(stopping.corrected(centre, 1.0, 40, 0.01, 200)), rel=0.03)
    assert law.corrected(0.0) == 0.0
    assert law.error(0.4) == pytest.approx(law.error(-0.4))
    # Nothing stops early without an effect: the error is that of all pairs.
    assert law.error(0.0) == pytest.approx(1 / math.sqrt(200), rel=0.15)
    with pytest.raises(ValueError, match="last"):
        stopping.end_law(0.01, 200, 201)


# Colditz et al. 1994 (BCG vaccine, 13 trials): log risk ratios and their variances, as metafor's dat.bcg has them.
BCG = (
    (-0.8893, 0.3256), (-1.5854, 0.1946), (-1.3481, 0.4154), (-1.4416, 0.0200), (-0.2175, 0.0512), (-0.7861, 0.0069),
    (-1.6209, 0.2230), (0.0120, 0.0040), (-0.4694, 0.0564), (-1.3713, 0.0730), (-0.3394, 0.0124), (0.4459, 0.5325),
    (-0.0173, 0.0714),
)  # fmt: skip


def bcg() -> Hosts:
    return Hosts([one for one, _ in BCG], [math.sqrt(variance) for _, variance in BCG])


def test_published_trials_give_the_published_figures() -> None:
    hosts = bcg()
    low, high = known(hosts.tau_interval())
    # metafor: rma(yi, vi, method = "PM") has 0.3180; confint() of the same trials 0.1197 to 1.1115 (Q-profile).
    assert known(hosts.tau()) ** 2 == pytest.approx(0.3180, abs=2e-4)
    assert low**2 == pytest.approx(0.1197, abs=2e-4)
    assert high**2 == pytest.approx(1.1115, abs=1e-3)
    typical = known(hosts.typical())
    assert typical.centre == pytest.approx(-0.7150, abs=5e-4)
    assert typical.freedom == 12


def test_equal_errors_are_a_t_interval_of_the_next_draw_where_hosts_differ_much() -> None:
    random = np.random.default_rng(1)
    estimates = 5 * random.standard_normal(8)
    hosts = Hosts(estimates.tolist(), [1e-4] * 8)
    low, high = known(hosts.next_host())
    half = 2.3646243 * float(estimates.std(ddof=1)) * math.sqrt(1 + 1 / 8)  # t with 7 degrees of freedom
    assert low == pytest.approx(float(estimates.mean()) - half, rel=2e-3)
    assert high == pytest.approx(float(estimates.mean()) + half, rel=2e-3)
    typical = known(hosts.typical())
    assert typical.error == pytest.approx(float(estimates.std(ddof=1)) / math.sqrt(8), rel=1e-3)


def test_hosts_that_agree_better_than_their_errors_allow_have_no_spread_and_no_narrower_mean() -> None:
    hosts = Hosts([0.1, 0.1001, 0.0999, 0.1, 0.1], [0.05] * 5)
    assert hosts.tau() == 0
    assert known(hosts.tau_interval())[0] == 0
    assert known(hosts.typical()).error == pytest.approx(0.05 / math.sqrt(5))


def test_chances_and_ends_say_the_same() -> None:
    hosts = bcg()
    low, high = known(hosts.next_host(0.9))
    assert known(hosts.chance_below(low)) == pytest.approx(0.05, abs=1e-6)
    assert known(hosts.chance_below(high)) == pytest.approx(0.95, abs=1e-6)
    assert known(hosts.chance_below(-9)) < 1e-4


def test_a_spread_of_zero_counts_a_quarter() -> None:
    """With equal errors the spread at which Q is q has a closed form: tau^2 = squares / q - error^2, or 0."""
    estimates, error = np.array([0.0, 0.01, 0.02, -0.005, 0.025]), 0.013
    squares = float(((estimates - estimates.mean()) ** 2).sum())
    variances = np.maximum(0.0, squares / chi2.isf((np.arange(100_000) + 0.5) / 100_000, 4) - error**2)
    assert 0.3 < np.mean(variances == 0) < 0.7
    chances = norm.cdf((0.02 - estimates.mean()) / np.sqrt(variances + (variances + error**2) / 5))
    expected = np.average(chances, weights=np.where(variances > 0, 1.0, 0.25))
    assert Hosts(estimates.tolist(), [error] * 5).chance_below(0.02) == pytest.approx(expected, abs=2e-3)


def test_few_hosts_say_little() -> None:
    hosts = Hosts([0.1] * (FEWEST - 1), [0.05] * (FEWEST - 1))
    assert FEWEST == 5
    assert hosts.next_host() is None and hosts.chance_below(0) is None
    assert hosts.typical() is not None
    one = Hosts([0.1], [0.05])
    assert one.typical() is None and one.tau() is None and one.tau_interval() is None


def test_leaving_one_out_leaves_the_others() -> None:
    left = Hosts([0.1, 0.2, 0.3], [0.01, 0.02, 0.03]).without(1)
    assert (left.estimates.tolist(), left.errors.tolist()) == ([0.1, 0.3], [0.01, 0.03])


def test_what_is_no_number_is_refused() -> None:
    for estimates, errors in (([], []), ([0.1], [0.1, 0.2]), ([math.nan], [0.1]), ([0.1], [-1.0]), ([0.1], [math.inf])):
        with pytest.raises(ValueError, match="error"):
            Hosts(estimates, errors)
