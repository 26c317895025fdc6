"""The figure of the seconds: medians and quartiles over attempts, only where there are series."""

from __future__ import annotations

from msgspec.structs import replace

from hugewise.model.results import Results
from hugewise.report.figures.over_time import seconds, within
from hugewise.report.figures.theme import colours
from hugewise.report.images import render
from tests.build.results import example


def with_series(length: int = 8) -> Results:
    """The first cell of the example with a series in each of its attempts: 100, 101, ... plus the block's number."""
    results = example()
    cell = results.cells[0]
    attempts = tuple(
        replace(a, series=tuple(100.0 + second + a.block for second in range(length))) if a.cell == cell.cell else a
        for a in results.attempts
    )
    return replace(results, attempts=attempts)


def test_median_and_quartiles_of_each_second() -> None:
    found = seconds([[1.0, 10.0], [2.0, 20.0], [3.0, 30.0], [4.0, 40.0], [5.0, 50.0]])
    assert [(one.second, one.low, one.median, one.high) for one in found] == [(1, 2, 3, 4), (2, 20, 30, 40)]


def test_one_attempt_has_no_band() -> None:
    assert [(one.low, one.median, one.high) for one in seconds([[7.0, 8.0]])] == [(7, 7, 7), (8, 8, 8)]


def test_seconds_that_less_than_half_of_the_attempts_reached_are_left_out() -> None:
    assert len(seconds([[1.0] * 4, [1.0] * 5])) == 5
    assert len(seconds([[1.0] * 4, [1.0] * 4, [1.0] * 5])) == 4


def test_several_seconds_are_taken_together_by_their_mean() -> None:
    found = seconds([[1.0, 3.0, 5.0, 7.0, 100.0]], step=2)
    assert [(one.second, one.median) for one in found] == [(1.5, 2.0), (3.5, 6.0)]


def test_each_arm_has_a_strip_with_its_seconds() -> None:
    results = with_series()
    cell = results.cells[0]
    spec = within(results, cell, colours(results))
    assert spec is not None
    rows = spec["data"]["values"]
    assert [row["second"] for row in rows if row["arm"] == "base"] == list(range(1, 9))
    assert {row["arm"] for row in rows} == {arm.arm for arm in cell.arms}
    first = next(row for row in rows if row["arm"] == "base")
    assert first["median"] == 100 + 9.5  # blocks 0 to 19
    assert first["low"] < first["median"] < first["high"]
    assert spec["facet"]["row"]["title"] == "throughput, work a second"  # chase is judged by a time
    low, high = spec["spec"]["layer"][0]["encoding"]["y"]["scale"]["domain"]
    middle = 113.0  # of the medians 109.5 to 116.5
    assert low <= 0.9 * middle
    assert high >= 1.1 * middle
    assert "svg" in render(spec)


def test_long_series_are_drawn_by_a_few_hundred_points() -> None:
    results = with_series(1000)
    spec = within(results, results.cells[0], colours(results))
    assert spec is not None
    mine = [row for row in spec["data"]["values"] if row["arm"] == "base"]
    assert len(mine) == 200
    assert "means of 5 seconds" in spec["spec"]["encoding"]["x"]["title"][0]
    assert spec["spec"]["encoding"]["x"]["axis"]["values"] == list(range(100, 901, 100))


def test_without_two_seconds_there_is_no_figure() -> None:
    bare, short = example(), with_series(1)
    assert within(bare, bare.cells[0], colours(bare)) is None
    assert within(short, short.cells[0], colours(short)) is None
