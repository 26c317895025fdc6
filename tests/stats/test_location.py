from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hugewise.stats.inversion import point
from hugewise.stats.signflip import signed

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


@settings(deadline=None, max_examples=40)
@given(VALUES, st.integers(-64, 64).map(lambda k: k / 64))
def test_it_moves_with_the_values_and_turns_with_their_signs(values: list[float], shift: float) -> None:
    found = point(values)
    assert point([value + shift for value in values]) == pytest.approx(found + shift, abs=1e-6)
    assert point([-value for value in values]) == pytest.approx(-found, abs=1e-6)


def test_of_symmetric_differences_it_is_the_middle() -> None:
    values = np.random.default_rng(3).normal(0.02, 0.05, 4000)
    assert point(values) == pytest.approx(values.mean(), abs=0.0005)
    assert point([0.25] * 9) == 0.25
    assert point([0.1, 0.3]) == pytest.approx(0.2, abs=1e-6)


def test_of_two_modes_it_is_where_the_test_stands_still_and_not_the_median() -> None:
    random = np.random.default_rng(4)
    values = np.where(random.random(4000) < 0.72, -0.01, 0.095) + random.normal(0, 0.005, 4000)
    found = point(values)
    assert np.median(values) < 0 < found
    assert abs(walk(list(values), found)) <= 31


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
    for nothing in ([], [1.0, math.nan]):
        with pytest.raises(ValueError, match="at least one"):
            point(nothing)
