"""How many hosts a question takes, held against draws."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hugewise.stats import heterogeneity
from hugewise.stats.heterogeneity import Hosts
from tests.build import known


def test_the_hosts_for_a_verdict_deliver_it() -> None:
    from scipy.special import stdtrit

    effect, tau, error, level = 0.02, 0.01, 0.005, 0.01
    hosts = known(heterogeneity.hosts_for_verdict(effect, tau, error, level))
    random = np.random.default_rng(1)
    drawn = effect + math.hypot(tau, error) * random.standard_normal((4000, hosts))
    t = drawn.mean(axis=1) / (drawn.std(axis=1, ddof=1) / math.sqrt(hosts))
    assert 0.88 < np.mean(t > stdtrit(hosts - 1, 1 - level / 2)) < 0.96
    assert known(heterogeneity.hosts_for_verdict(effect, 2 * tau, error, level)) > hosts
    assert known(heterogeneity.hosts_for_verdict(effect, tau, error, level / 10)) > hosts
    assert heterogeneity.hosts_for_verdict(0.0, tau, error, level) is None
    assert heterogeneity.hosts_for_verdict(effect, 0.0, 0.0, level) == 2


@pytest.mark.parametrize("error", [0.001, 1.0])
def test_the_hosts_for_the_spread_bound_it(error: float) -> None:
    hosts = known(heterogeneity.hosts_for_spread(1.0, error))
    assert hosts == (9 if error < 1 else 15)
    random = np.random.default_rng(2)
    ends = []
    for _ in range(200):
        made = Hosts((np.hypot(1, error) * random.standard_normal(hosts)).tolist(), [error] * hosts)
        ends.append(known(made.tau_interval())[1])
    assert np.median(ends) == pytest.approx(2.0, rel=0.12)
    assert heterogeneity.hosts_for_spread(0.01, 1.0) is None and heterogeneity.hosts_for_spread(0.0, 1.0) is None


def test_a_plan_says_all_of_it() -> None:
    need = heterogeneity.need(0.02, 0.01, 0.05, 100, 0.01, 1800)
    assert need.hours == 0.5 and need.next_host == 5
    assert need.hosts == max(known(need.verdict), known(need.spread), 5)
    hidden = heterogeneity.need(0.0, 0.01, 0.05, 100, 0.01, 1800)
    assert hidden.verdict is None and hidden.hosts is None
    for wrong in ((0.02, -1.0, 0.05, 100, 0.01, 1.0), (0.02, 0.1, 0.05, 0, 0.01, 1.0), (0.02, 0.1, 0.05, 9, 1.0, 1.0)):
        with pytest.raises(ValueError, match=r"spread|pair|level"):
            heterogeneity.need(*wrong)
