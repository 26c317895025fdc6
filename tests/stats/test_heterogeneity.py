"""Effects that differ between hosts, against published figures and against what was drawn."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hugewise.stats.heterogeneity import FEWEST, Hosts
from tests.build import known

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


@pytest.mark.parametrize("tau", [0.0, 0.5, 1.0, 3.0])
@pytest.mark.parametrize("fleets", [120, pytest.param(300, marks=pytest.mark.soak)])
def test_the_next_host_is_in_its_interval_as_often_as_promised(tau: float, fleets: int) -> None:
    random, held = np.random.default_rng(7), []
    for _ in range(fleets):
        errors = np.exp(random.normal(0, 0.5, 10))
        hosts = Hosts(
            (tau * random.standard_normal(10) + errors * random.standard_normal(10)).tolist(), errors.tolist()
        )
        low, high = known(hosts.next_host())
        inside = (
            float(low <= 0 <= high)
            if tau == 0
            else (math.erf(high / tau / math.sqrt(2)) - math.erf(low / tau / math.sqrt(2))) / 2
        )
        held.append(inside)
    assert np.mean(held) >= 0.93
    if tau >= 1:
        assert np.mean(held) <= 0.97


def test_chances_and_ends_say_the_same() -> None:
    hosts = bcg()
    low, high = known(hosts.next_host(0.9))
    assert known(hosts.chance_below(low)) == pytest.approx(0.05, abs=1e-6)
    assert known(hosts.chance_below(high)) == pytest.approx(0.95, abs=1e-6)
    assert known(hosts.chance_below(-9)) < 1e-4


def test_few_hosts_say_little() -> None:
    hosts = Hosts([0.1] * (FEWEST - 1), [0.05] * (FEWEST - 1))
    assert FEWEST == 5
    assert hosts.next_host() is None and hosts.chance_below(0) is None
    assert hosts.typical() is not None
    one = Hosts([0.1], [0.05])
    assert one.typical() is None and one.tau() is None and one.tau_interval() is None


def test_leaving_one_out_leaves_the_others() -> None:
    hosts = bcg()
    left = hosts.without(7)
    assert left.count == 12
    assert known(left.typical()).centre < known(hosts.typical()).centre  # the eighth has no effect


def test_what_is_no_number_is_refused() -> None:
    for estimates, errors in (([], []), ([0.1], [0.1, 0.2]), ([math.nan], [0.1]), ([0.1], [-1.0]), ([0.1], [math.inf])):
        with pytest.raises(ValueError, match="error"):
            Hosts(estimates, errors)
