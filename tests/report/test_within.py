"""What was recorded within attempts: remarks and figures."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from hugewise.model.results import FactDifference, Results, Steadiness
from hugewise.report.document import Line, Note
from hugewise.report.figures.over_time import seconds, within
from hugewise.report.figures.theme import colours
from hugewise.report.images import render
from hugewise.report.sections.over_time import common, remarks
from hugewise.report.write import report
from tests.build.results import HOSTILE, example, plain
from tests.report.told import blocks


@pytest.fixture
def results() -> Results:
    return plain()


def test_what_all_attempts_share_is_one_line(results: Results) -> None:
    facts = {
        "data_sha256": "1791566411b72023" * 4,
        "data_bytes": 404_079_760,
        "storage": "/dev/shm (tmpfs)",
        "scale": 12,
        "keys": 6_200_000,
        "moved_mib": 2048.5,
        "grid": "x" * 200,
    }
    line = common(replace(results.cells[0], facts=facts))
    assert line == (
        "The same in every attempt: data SHA-256 1791566411b7…, data bytes 385 MiB, storage /dev/shm (tmpfs), "
        f"scale 12, keys 6,200,000, moved MiB 2,048.5, grid {'x' * 79}…."
    )
    assert common(results.cells[0]) == ""


def test_an_arm_that_had_not_settled_is_a_remark(results: Results) -> None:
    cell = replace(
        results.cells[0],
        steadiness=(
            Steadiness(arm="base", n=8, change=-0.14, settled=False),
            Steadiness(arm="thp", n=8, change=0.02, settled=True),
            Steadiness(arm="mthp-64k", n=1, change=2.5, settled=False),
            Steadiness(arm="hugetlb-2m", n=2, change=None, settled=False, reason="no work was done in its first third"),
            Steadiness(arm="hugetlb-1g", n=0, change=None, reason="2 whole seconds at most: 6 are needed"),
        ),
    )
    assert list(remarks(cell)) == [
        "Throughput of base fell by 14% within the measured part (last third of its seconds against the first; median "
        "of 8 attempts): it had not settled.",
        "Throughput of mthp-64k rose by 250% within the measured part (last third of its seconds against the first; "
        "median of 1 attempt): it had not settled.",
        "Throughput of hugetlb-2m rose from nothing within the measured part (median of 2 attempts): it had not "
        "settled.",
    ]


def test_facts_that_differ_are_named_with_their_arms(results: Results) -> None:
    differing = (
        FactDifference(name="data_sha256", values={"base": ("ab" * 32,), "thp": ("cd" * 32,)}),
        FactDifference(name="storage", values={"base": ("a", "b", "c", "d", None), "thp": (None,)}),
        FactDifference(name="database_bytes", values={"base": (1_073_741_824,), "thp": (1_073_741_825,)}),
    )
    assert list(remarks(replace(results.cells[0], differing=differing))) == [
        "Data SHA-256 differs between arms, which should have it in common: base abababababab…, thp cdcdcdcdcdcd….",
        "Storage differs between attempts, which should have it in common: base a and b and c and 2 more, thp none.",
        "Database bytes differs between arms, which should have it in common: base 1,073,741,824, thp 1,073,741,825.",
    ]


def test_the_reports_have_them(results: Results) -> None:
    cell = replace(
        results.cells[0],
        facts={"storage": HOSTILE, "<b>": 1},
        steadiness=(Steadiness(arm=HOSTILE, n=3, change=-0.2, settled=False),),
    )
    whole = replace(results, cells=(cell, *results.cells[1:]))
    assert common(cell) in [one.text for one in blocks(report(whole), Line)]
    notes = [one.text for one in blocks(report(whole), Note)]
    assert notes[1:] == list(remarks(cell)), "behind who was compared with whom"


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
