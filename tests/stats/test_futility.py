"""Stopping for futility: the forecast of an interval, and the comparisons and screenings that it ends."""

from __future__ import annotations

import math

import msgspec
import pytest

from hugewise.model.metric import Metric
from hugewise.stats.futility import Forecast, decides, forecast
from hugewise.stats.sequential import Sequential
from tests.build.trials import CONTRAST, HIGHER, LOWER, block
from tests.stats.test_screening import drawn, fed, screening
from tests.stats.test_sequential import fed as measured
from tests.stats.test_sequential import method, noise, pairs


def test_an_interval_narrows_with_its_pairs_and_moves_by_what_is_to_come() -> None:
    after = forecast(-0.1, 0.1, 10, 30)
    move = 1.2815515655 * 0.1 / 2.5 * math.sqrt(1 - 10 / 40)
    half = 0.1 * (10 / 40) ** 0.55
    assert after == pytest.approx((move - half, half - move, half))
    assert forecast(-0.1, 0.1, 10, 0) == pytest.approx((-0.1, 0.1, 0.1))


@pytest.mark.parametrize(
    ("after", "decided"),
    [
        (Forecast(0.01, 0.05, 0.1), True),
        (Forecast(-0.05, -0.01, 0.1), True),
        (Forecast(-0.01, 0.01, 0.015), True),
        (Forecast(-0.01, 0.01, 0.03), False),
        (Forecast(-0.03, -0.0, 0.015), False),
    ],
)
def test_a_forecast_decides_beside_no_change_or_within_the_margin(after: Forecast, *, decided: bool) -> None:
    assert decides(after, 0.02) == decided


def constant(differences: list[float], *, margin: float = 0.02) -> Sequential:
    return measured(pairs(differences), method(margin=margin, planned=1000))


@pytest.mark.parametrize(
    ("mean", "sd", "more", "futile"),
    [
        (0.0, 0.05, 0, True),  # nothing is to come
        (0.0, 0.05, 10, True),
        (0.0, 0.05, 2000, False),  # equivalence comes into reach
        (-0.03, 0.05, 60, False),  # better does
        (0.03, 0.05, 60, False),  # worse does
    ],
)
def test_a_comparison_ends_where_its_time_cannot_decide(mean: float, sd: float, more: int, *, futile: bool) -> None:
    values = noise(3, 30)
    scale = sd / 0.05
    centre = sum(values) / len(values)
    made = constant([mean + scale * (one - centre) for one in values])
    assert made.decision().verdict == "undecided"
    assert made.futile(more, 0.001) == futile


def test_a_comparison_goes_on_where_a_gain_may_be_ruled_out_and_ends_when_it_is() -> None:
    values = [one - 0.01 for one in noise(4, 40, sd=0.06)]
    made = constant(values)
    low = made.effect().low  # type: ignore[union-attr]
    assert low is not None and 0.94 < low < 0.98
    assert made.futile(12, 1 - low + 0.001), "it is ruled out already"
    assert not made.futile(12, 1 - low - 0.001), "a few pairs more may do so"
    assert made.futile(12, 0.001), "no time will do so"


def test_a_comparison_goes_on_where_the_estimate_has_left_its_interval() -> None:
    """First 3% slower, then 5% faster: nothing is claimed of such an interval."""
    values = [*(0.03 + one for one in noise(5, 12, sd=0.03)), *(one - 0.05 for one in noise(25, 19, sd=0.03))]
    made = constant(values)
    found = made.effect()
    assert found is not None and found.low is not None and found.high is not None
    assert not found.low < found.ratio < found.high
    assert not made.futile(1, 0.05)


@pytest.mark.parametrize(("metric", "futile"), [(LOWER, True), (HIGHER, False)])
def test_a_gain_of_a_rate_is_an_increase(metric: Metric, *, futile: bool) -> None:
    """The interval is some -5% to +9%: a gain of 7% is ruled out of a time, and may be ruled out of a rate."""
    contrast = msgspec.structs.replace(CONTRAST, metric=metric)
    made = method(margin=0.02, planned=1000, contrast=contrast)
    values = noise(4, 40, sd=0.14)
    centre = sum(values) / len(values)
    for number, one in enumerate(values, 1):
        made.observe(block(number, {"base": 100.0, "thp": 100.0 * math.exp(0.02 + one - centre)}))
    assert made.decision().verdict == "undecided"
    assert made.futile(30, 0.07) == futile


def test_a_comparison_without_an_interval_goes_on() -> None:
    assert not constant(noise(1, 3)).futile(0, 0.05)
    assert not constant([]).futile(0, 0.05)


LEVELS = {"base": 0.0, "a": -0.2, "b": -0.2, "c": 0.0}


def test_a_screening_ends_when_its_choice_is_clear_and_the_time_cannot_make_it_sure() -> None:
    made = screening()
    blocks = drawn(LEVELS, 1, 5, sd=0.01)
    fed(made, blocks[:3])
    assert not made.futile(3), "three pairs have no standard error to go by"
    fed(made, blocks)
    assert not made.ended
    assert made.futile(1)
    assert not made.futile(200), "the time has room to be sure"
    assert made.chosen().arm == "a"
    assert made.chosen().unsure


def test_a_screening_goes_on_while_its_choice_is_not_clear() -> None:
    made = screening()
    fed(made, drawn(LEVELS, 4, 8, sd=0.2))
    assert not made.futile(3)
