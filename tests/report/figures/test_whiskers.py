"""Whiskers on a scale that the estimates set."""

from __future__ import annotations

from typing import Any

import pytest

from hugewise.report.figures.distribution import means
from hugewise.report.figures.effects import effects
from hugewise.report.figures.levels import bars, groups, lines
from hugewise.report.figures.theme import arrows, colours, fit, span
from tests.build.few_blocks import two_blocks


def row(mean: float, margin: float) -> dict[str, Any]:
    return {"mean": mean, "low": mean - margin, "high": mean + margin}


def test_whiskers_of_usual_length_are_shown_whole() -> None:
    rows = [row(100, 2), row(90, 3)]
    assert fit(rows) == [87, 102]
    assert rows == [{**row(100, 2), "under": False, "over": False}, {**row(90, 3), "under": False, "over": False}]


def test_what_is_far_longer_is_cut_and_told() -> None:
    rows = [row(100, 2), row(80, 4000)]
    assert fit(rows) == [55, 125]  # a quarter of the largest mean beyond the means
    assert rows[1] == {"mean": 80, "low": 55, "high": 125, "under": True, "over": True}
    assert not rows[0]["under"] and not rows[0]["over"]


def test_nothing_is_shown_below_zero_of_what_cannot_be() -> None:
    assert fit([row(10, 40), row(90, 200)]) == [0, 170]
    assert fit([row(-10, 40), row(90, 20)]) == [-50, 110]
    assert fit([row(50, 1), row(90, 2)], zero=True) == [0, 92]
    assert fit([row(-50, 1), row(-90, 2)], zero=True) == [-92, 0]


@pytest.mark.parametrize("value", [0.0, 7.0])
def test_one_value_still_has_a_scale(value: float) -> None:
    low, high = fit([row(value, 0)])
    assert low < value < high


def test_a_span_has_every_estimate() -> None:
    assert span([1, 9], [-100, 100], 2) == (-7, 17)
    assert span([1, 9], [], 2) == (1, 9)


def test_arrows_are_drawn_where_a_row_leaves_and_nowhere_else() -> None:
    rows = [row(100, 2), row(80, 4000)]
    fit(rows)
    assert [layer["mark"]["shape"] for layer in arrows(rows, "x", {}, {})] == ["triangle-left", "triangle-right"]
    assert [layer["mark"]["shape"] for layer in arrows(rows, "y", {}, {})] == ["triangle-down", "triangle-up"]
    assert arrows([{**rows[0]}], "x", {}, {}) == []


def test_two_blocks_do_not_set_the_scale() -> None:
    results = two_blocks()
    palette, cell = colours(results), results.cells[0]
    largest = max(arm.mean for one in results.cells for arm in one.arms if arm.mean is not None)
    (group,) = groups(results.cells)
    figures = [means(cell, palette, 0.99), lines(group, "clients", palette, 0.99), bars(group, palette, 0.99)]
    for spec in figures:
        assert spec is not None
        for panel in spec.get("concat", [spec]):
            rows = panel["data"]["values"]
            assert all(0 <= one["low"] <= one["mean"] <= one["high"] <= 2 * largest for one in rows)
            assert any("triangle-" in str(layer["mark"]) for layer in panel["layer"])
    effect = effects(cell, palette, 0.005)
    assert effect is not None
    low, high = effect["layer"][0]["encoding"]["x"]["scale"]["domain"]
    assert 0.3 < low < high < 4
