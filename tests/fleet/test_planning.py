"""What a plan says of hosts, before anything is measured."""

from __future__ import annotations

import math
import re

import numpy as np

from hugewise.fleet.conduct import ERROR, needed
from hugewise.stats.heterogeneity import TAUS
from tests.analysis.test_forecast import the_study


def test_the_hosts_that_it_says_show_the_effect() -> None:
    from scipy.special import stdtrit

    study = the_study(budget={"blocks": 60, "time": "30m"})
    first, second = needed(study, 2, 3)
    low, high, least, most = re.findall(r"[\d.]+(?= to|\sof its hosts| host-hours)", first.partition(", if")[0])[:4]
    assert (float(least), float(most)) == (int(low) / 2, int(high) / 2)
    assert "at 99%" in first and "10% to 50% of the effect" in first
    assert "from 5 hosts on" in second
    random = np.random.default_rng(1)
    for tau, hosts in zip(TAUS, (int(low), int(high)), strict=True):
        drawn = 1 + math.hypot(tau, ERROR) * random.standard_normal((3000, hosts))
        t = drawn.mean(axis=1) / (drawn.std(axis=1, ddof=1) / math.sqrt(hosts))
        assert 0.87 < np.mean(t > stdtrit(hosts - 1, 1 - 0.01 / 6 / 2)) < 0.98


def test_without_a_budget_of_time_there_are_no_hours() -> None:
    assert "host-hours" not in next(needed(the_study(), 1, 1))


def test_more_comparisons_take_more_hosts() -> None:
    few, many = (int(re.findall(r"takes (\d+)", next(needed(the_study(), 1, count)))[0]) for count in (1, 50))
    assert many > few
