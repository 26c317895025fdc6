"""The empirical survival function against the definition."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest

from hugewise.stats.classical import survival


def test_each_point_is_the_share_that_is_as_large_or_larger() -> None:
    assert survival([(3.0, 1), (1.0, 2), (2.0, 1)]) == [(1.0, 1.0), (2.0, 0.5), (3.0, 0.25)]
    assert survival([(5.0, 7)]) == [(5.0, 1.0)]
    assert survival([(5.0, 0)]) == []


def test_equal_values_are_one_point() -> None:
    assert survival([(1.0, 1), (1.0, 1), (2.0, 2)]) == [(1.0, 1.0), (2.0, 0.5)]


def test_of_many_values_the_ends_and_the_tail_are_kept_and_every_kept_share_is_exact() -> None:
    values = np.random.default_rng(7).lognormal(size=20_000).tolist()
    found = survival((value, 1) for value in values)
    ordered = np.sort(values)
    assert found[0] == (float(ordered[0]), 1.0)
    assert found[-1][0] == float(ordered[-1])
    assert found[-1][1] == pytest.approx(1 / 20_000)
    for value, share in found:
        assert share == pytest.approx(np.mean(ordered >= value))
    assert len(found) < 120
    assert all(math.log10(one / other) < 0.31 for (_, one), (_, other) in pairwise(found)), "one value at the least"


def test_counts_weigh_as_that_many_values() -> None:
    assert survival([(1.0, 999), (9.0, 1)]) == [(1.0, 1.0), (9.0, 0.001)]
