from __future__ import annotations

import math
import time

import pytest

from hugewise.covariates import COVARIATES, difference, measure
from hugewise.host import LocalHost


def test_each_is_measured_and_cheap() -> None:
    took = []
    for _ in range(5):
        started = time.perf_counter()
        found = measure(LocalHost())
        took.append(time.perf_counter() - started)
    assert set(found) == set(COVARIATES)
    assert 1e-5 < found["canary"] < 0.3
    assert found["load_before"] >= 0
    assert min(took) < 0.05


def test_a_difference_is_on_the_covariates_own_scale() -> None:
    assert difference("canary", {"canary": 0.002}, {"canary": 0.001}) == pytest.approx(math.log(2))
    assert difference("load_before", {"load_before": 0.0}, {"load_before": 0.5}) == -0.5
    for arm, base in (({}, {"canary": 1.0}), ({"canary": 1.0}, {"canary": 0.0}), ({"canary": math.nan}, {"canary": 1})):
        assert difference("canary", arm, base) is None
