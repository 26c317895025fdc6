from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hugewise.stats.pseudomedian import point

# Multiples of 1/256: their means are exact.
GRID = st.integers(-256, 512).map(lambda k: k / 256)


def means(values: list[float]) -> list[float]:
    return sorted((x + y) / 2 for i, x in enumerate(values) for y in values[i:] if not math.isnan(x + y))


@settings(deadline=None)
@given(st.lists(GRID | st.sampled_from([math.inf, -math.inf]), min_size=1, max_size=25))
def test_the_point_is_the_median_of_all_pairwise_means(values: list[float]) -> None:
    every = means(values)
    middle = every[(len(every) - 1) // 2], every[len(every) // 2]
    assume(not math.isnan(sum(middle)))
    assert point(values) == (middle[0] if middle[0] == middle[1] else sum(middle) / 2)


@pytest.mark.parametrize("ties", [False, True])
def test_the_point_of_many_is_exact(ties: bool) -> None:
    values = np.random.default_rng(8).standard_cauchy(2600)
    values = np.round(values) if ties else values
    upper = np.triu_indices(len(values))
    assert point(values) == pytest.approx(float(np.median(values[upper[0]] / 2 + values[upper[1]] / 2)), abs=1e-14)


def test_failures_on_one_side_take_the_point_along() -> None:
    assert point([math.inf] * 9 + [0.1] * 2) == math.inf
    assert point([-math.inf] * 9 + [0.1] * 2) == -math.inf
    assert point([math.inf, -math.inf, 0.3]) == 0.3
    assert point([math.inf, 0.1, 0.2, 0.3, 0.4, 0.5]) == pytest.approx(0.35)  # the 11th of 21, the last 6 infinite


def test_no_differences_and_no_numbers_are_refused() -> None:
    for nothing in ([], [1.0, math.nan]):
        with pytest.raises(ValueError, match="at least one"):
            point(nothing)
