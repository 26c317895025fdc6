"""Figures are pure specifications; what matters is which data they show, and that they can be drawn."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from hugewise.analysis.changes import value_of
from hugewise.model.results import Results
from hugewise.report.figures.coverage import coverage, kind_label, kind_order
from hugewise.report.figures.distribution import distribution, means
from hugewise.report.figures.effects import effects, overview
from hugewise.report.figures.tail import time_order
from hugewise.report.figures.theme import colours, points
from hugewise.report.images import render
from tests.build.results import example


@pytest.fixture(scope="module")
def results() -> Results:
    return example()


def data(spec: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = spec["data"]["values"]
    return found


def luminance(colour: str) -> float:
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_colours_stay_with_a_policy_and_stand_out_on_white_and_black(results: Results) -> None:
    whole = colours(results)
    assert len(set(whole.values())) == len(whole)
    for cell in results.cells:
        alone = colours(replace(results, cells=(cell,)))
        assert alone == {arm: whole[arm] for arm in alone}
    for colour in whole.values():
        assert 1.05 / (luminance(colour) + 0.05) >= 3
        assert (luminance(colour) + 0.05) / (luminance("#14171b") + 0.05) >= 3


def test_means_carry_their_margins(results: Results) -> None:
    cell = results.cells[0]
    spec = means(cell, colours(results), 0.95)
    for row, arm in zip(data(spec), cell.arms, strict=True):
        assert arm.mean is not None
        assert arm.margin is not None
        assert row["mean"] == pytest.approx(arm.mean)
        assert row["high"] - row["low"] == pytest.approx(2 * arm.margin)


def test_every_attempt_that_ended_is_a_point(results: Results) -> None:
    for cell in results.cells:
        found = points(results, cell)
        ended = [a for a in results.attempts if a.cell == cell.cell and a.state != "rejected"]
        assert len(found) == len(ended)
    states = {point.state for cell in results.cells for point in points(results, cell)}
    assert states == {"counted", "flagged as disturbed", "not delivered", "block not counted", "failed"}


def test_failed_attempts_stand_at_the_bad_edge(results: Results) -> None:
    cell = results.cells[1]  # higher is better: the bad edge is the smallest value
    spec = distribution(points(results, cell), cell, colours(results))
    assert spec is not None
    rows = spec["layer"][2]["data"]["values"]
    assert {row["value"] for row in rows if row["state"] == "failed"} == {min(row["value"] for row in rows)}


def test_effects_show_ratios_and_the_margin(results: Results) -> None:
    cell = results.cells[0]
    spec = effects(cell, colours(results), 0.005)
    for row, one in zip(data(spec), cell.comparisons, strict=True):
        assert (row["ratio"], row["low"], row["high"]) == (one.ratio, one.low, one.high)
        assert (row["bandlow"], row["bandhigh"]) == (0.995, 1.005)


def test_wide_effects_use_a_logarithmic_axis(results: Results) -> None:
    cell = results.cells[0]
    wide = tuple(replace(one, ratio=0.1, low=0.09, high=0.11) for one in cell.comparisons)
    spec = effects(replace(cell, comparisons=wide), colours(results), 0.005)
    assert spec is not None
    assert spec["layer"][0]["encoding"]["x"]["scale"]["type"] == "log"
    assert "svg" in render(spec)


def test_coverage_stacks_to_the_whole(results: Results) -> None:
    for cell in results.cells[:2]:
        rows = data(coverage(cell))
        for arm in cell.arms:
            mine = [row for row in rows if row["arm"] == arm.arm]
            assert mine[0]["start"] == 0
            assert max(row["end"] for row in mine) == pytest.approx(1)


def test_page_kinds_are_ordered_and_named() -> None:
    keys = ["unproven", "hugetlb:1073741824", "anon:2097152", "shmem:4096", "anon:4096", "hugetlb:2097152"]
    assert kind_order(keys) == [
        *("anon:4096", "anon:2097152", "shmem:4096", "hugetlb:2097152", "hugetlb:1073741824", "unproven")
    ]
    assert [kind_label(key) for key in ("anon:65536", "hugetlb:1073741824", "shmem:4096", "unproven")] == [
        *("64k anonymous", "1g hugetlb", "4k shared", "unproven")
    ]


def test_time_order_marks_the_first_block_and_holds_each_arm_to_its_median(results: Results) -> None:
    cell = results.cells[0]
    rows = data(time_order(points(results, cell), cell, colours(results)))
    assert sum(row["first"] for row in rows) == len(cell.arms)
    counted = sorted(row["deviation"] for row in rows if row["arm"] == "base" and row["state"] == "counted")
    assert counted[9] <= 0 <= counted[10]
    assert [row["minutes"] for row in rows] == sorted(row["minutes"] for row in rows)


def test_no_data_gives_no_figure(results: Results) -> None:
    empty = replace(results.cells[2], arms=(), comparisons=())
    bare = replace(results, cells=(empty,), attempts=())
    assert means(empty, {}, 0.95) is None
    assert distribution(points(bare, empty), empty, {}) is None
    assert effects(empty, {}, 0.005) is None
    assert coverage(empty) is None
    assert time_order(points(bare, empty), empty, {}) is None
    assert overview(bare, {}) is None


def test_the_times_of_every_attempt_count_as_metrics(results: Results) -> None:
    bare = replace(results.attempts[0], metrics={"cycles": None})
    assert value_of(bare, "wall_s") == 2.1
    assert value_of(bare, "cycles") is None
    assert value_of(bare, "unheard_of") is None
