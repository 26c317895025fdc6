"""The median of thirds on series whose drift is known."""

from __future__ import annotations

import math
import random

import pytest

from hugewise.stats.changepoint import FEWEST_SECONDS, change_within, settled, steadiness
from tests.build import known


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
    assert short.reason == "5 whole seconds at most: 6 are needed"
    idle = steadiness("base", [[0.0] * 6])
    assert (idle.n, idle.change, idle.settled) == (1, None, None)
    assert "no work was done" in idle.reason
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
