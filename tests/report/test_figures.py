"""Figures: what they show, what their marks tell, and whiskers that leave the axis."""

import re
from typing import Any

import pytest
from msgspec.structs import replace

from hugewise.model.over_time import ArmOverTime
from hugewise.model.results import Results
from hugewise.report.document import figures
from hugewise.report.figures.distribution import distribution
from hugewise.report.figures.drift import time_order
from hugewise.report.figures.effects import overview
from hugewise.report.figures.levels import FactorGroup, groups, level, levels, lines, numeric
from hugewise.report.figures.pages import coverage, kind_label, kind_order, latencies, pages
from hugewise.report.figures.theme import MOST, Point, arm_marks, colours, points, thinned, thinning
from hugewise.report.images import inline, render
from hugewise.report.write import report
from tests.build.few_blocks import demo, two_blocks
from tests.build.restated import lpc, percona_2018
from tests.build.results import HOSTILE, example


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


def test_wide_effects_use_a_logarithmic_axis(results: Results) -> None:
    cell = results.cells[0]
    wide = tuple(replace(one, ratio=0.1, low=0.09, high=0.11) for one in cell.comparisons)
    spec = overview(replace(results, cells=(replace(cell, comparisons=wide),)), colours(results))
    assert spec is not None
    assert spec["spec"]["layer"][0]["encoding"]["x"]["scale"]["type"] == "log"
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
    assert distribution(points(bare, empty), empty, {}) is None
    assert coverage(empty) is None
    assert time_order(points(bare, empty), empty, {}) is None
    assert overview(bare, {}) is None


def titles(spec: Any) -> list[str]:
    return re.findall(r"<title>(.*?)</title>", inline(render(spec), name="f", title="figure"))


def test_an_interval_of_a_load_says_its_operations_and_its_latency() -> None:
    results = demo()
    one = ArmOverTime(
        arm="thp",
        block=1,
        number=1,
        of=1,
        length_s=3.0,
        t_s=(0.0, 1.0, 2.0, 3.0),
        memory={},
        events={"collapsed_pages": (1.0, 90.0, 1.0)},
        absent={},
        interval_s=1.0,
        operations=(1000, 2000, 1500),
        p99_us=(300.0, None, 450.0),
    )
    told = titles(latencies(replace(results.cells[0], over_time=(one,)), colours(results)))
    assert "thp: 2,000 /s, second 1 to 2" in told, told
    assert "thp: p99 450.0 µs, second 2 to 3" in told
    assert "thp: khugepaged at second 1.5, more than twice the usual" in told
    assert sum("p99" in each for each in told) == 2


def test_an_area_of_memory_says_how_much_it_is_at_most_and_at_the_end() -> None:
    results = demo()
    one = ArmOverTime(
        arm="thp",
        block=1,
        number=1,
        of=1,
        length_s=3.0,
        t_s=(0.0, 1.0, 2.0, 3.0),
        memory={"anon:4096": (1 << 20, 1 << 29, None, 1 << 20), "anon:2097152": (0, 0, 1 << 30, 1 << 30)},
        events={},
        absent={},
        interval_s=None,
    )
    told = titles(pages(replace(results.cells[0], over_time=(one, replace(one, arm="base")))))
    assert "thp: 4k anonymous memory, 512 MiB at most, 1.00 MiB at the end" in told, told
    assert "thp: 2m anonymous memory, 1.00 GiB at most, 1.00 GiB at the end" in told
    assert len(told) == 4


def drawn(count: int, odd: frozenset[int] = frozenset(), arm: str = "thp") -> list[Point]:
    """Attempts of one arm, whose values fall and rise; those in `odd` were not delivered."""
    states = ("counted", "not delivered")
    return [
        Point(arm, number, float((number * 7919) % count), float(number), states[number in odd], number == 0)
        for number in range(count)
    ]


def test_of_many_points_the_extremes_and_what_did_not_count_stand() -> None:
    few = drawn(MOST)
    assert (thinned(few), thinning(few)) == (few, "")
    points = drawn(10_000, odd=frozenset({5, 5000, 9999}))
    some = thinned(points)
    assert len(some) <= MOST
    assert some == sorted(some, key=lambda point: point.block)
    assert {5, 5000, 9999} <= {point.block for point in some}
    counted = sorted(point.value or 0.0 for point in points if point.state == "counted")
    assert {*counted[:15], *counted[-15:]} <= {point.value for point in some}
    assert f"{len(some)} of 10,000 points are drawn" in thinning(points)
    # What did not count does not crowd out the others, and each arm has its own share.
    states = [point.state for point in thinned(drawn(10_000, odd=frozenset(range(0, 10_000, 2))))]
    assert 0 < states.count("not delivered") <= MOST // 3
    assert states.count("counted") >= MOST // 2
    few = drawn(10, arm="base")
    assert [point for point in thinned([*few, *drawn(5_000)]) if point.arm == "base"] == few


def test_two_blocks_do_not_set_the_scale() -> None:
    """A whisker that leaves the scale is cut there, and an arrow says so."""
    results = two_blocks()
    effect = overview(replace(results, cells=results.cells[:1]), colours(results))
    assert effect is not None
    low, high = effect["spec"]["layer"][0]["encoding"]["x"]["scale"]["domain"]
    assert 0.3 < low < high < 4
    assert any("triangle-" in str(layer["mark"]) for layer in effect["spec"]["layer"])
    largest = max(arm.mean for one in results.cells for arm in one.arms if arm.mean is not None)
    (group,) = groups(results.cells)
    spec = lines(group, "clients", colours(results), 0.99)
    assert spec is not None
    for panel in spec.get("concat", [spec]):
        rows = panel["data"]["values"]
        assert all(0 <= one["low"] <= one["mean"] <= one["high"] <= 2 * largest for one in rows)
        assert any("triangle-" in str(layer["mark"]) for layer in panel["layer"])


@pytest.fixture(scope="module")
def of_levels() -> Results:
    return percona_2018()


@pytest.fixture(scope="module")
def group(of_levels: Results) -> FactorGroup:
    (only,) = groups(of_levels.cells)
    return only


def values_of(spec: Any) -> list[dict[str, Any]]:
    if "concat" in spec:
        return [row for panel in spec["concat"] for row in panel["data"]["values"]]
    found: list[dict[str, Any]] = spec["data"]["values"]
    return found


def means_of(results: Results) -> dict[tuple[str, str], tuple[float, float]]:
    return {
        (one.cell, arm.arm): (arm.mean, arm.margin)
        for one in results.cells
        for arm in one.arms
        if arm.mean is not None and arm.margin is not None
    }


def test_cells_that_differ_in_their_parameters_are_a_group(group: FactorGroup) -> None:
    assert (group.label, group.varied) == ("pgbench", ("database_share", "clients"))
    assert len(group.cells) == 9  # the tenth is of another of the study's workloads
    assert numeric(group, "clients")
    assert levels(group, "clients") == [4, 16, 64]
    assert groups(lpc().cells) == []  # four workloads, nothing varied
    assert groups(example().cells) == []


def test_levels_are_named_as_in_a_study() -> None:
    assert level("chase", "bytes", 65_536) == "64k"
    assert level("of nobody", "database_bytes", 1 << 30) == "1g"
    assert level("of nobody", "clients", 64) == "64"
    assert level("of nobody", "share", 0.75) == "0.75"
    assert level("of nobody", "flag", True) == "yes"
    assert level("command", "argv", ("sh", "-c", "x")) == "sh -c x"
    assert level("of nobody", "text", HOSTILE).isprintable()


@pytest.mark.parametrize("name", ["clients", "database_share"])
def test_lines_carry_every_mean_with_its_interval(of_levels: Results, group: FactorGroup, name: str) -> None:
    spec = lines(group, name, colours(of_levels), 0.99)
    rows = values_of(spec)
    known = {key: value for key, value in means_of(of_levels).items() if key[0] != "spill"}
    assert len(rows) == len(known)
    assert sorted(row["mean"] for row in rows) == pytest.approx(sorted(mean for mean, _ in known.values()))
    for row in rows:
        assert any(row["high"] - row["low"] == pytest.approx(2 * margin) for _, margin in known.values())
        assert row["low"] < row["mean"] < row["high"]
    assert spec is not None
    assert [panel["title"]["text"] for panel in spec["concat"]] == (
        [f"database_share={share}" for share in (0.4, 0.8, 1.5)]
        if name == "clients"
        else ["clients=4", "clients=16", "clients=64"]
    )
    assert "svg" in render(spec)


def test_panels_far_apart_have_axes_of_their_own(of_levels: Results, group: FactorGroup) -> None:
    fits = group._replace(cells=tuple(one for one in group.cells if one.parameters["database_share"] < 1))
    shared = lines(fits, "clients", colours(of_levels), 0.99)
    apart = lines(group, "clients", colours(of_levels), 0.99)
    assert shared is not None and apart is not None
    scales = [[panel["layer"][0]["encoding"]["y"]["scale"] for panel in spec["concat"]] for spec in (shared, apart)]
    common, own = ([tuple(one["domain"]) for one in several] for several in scales)
    assert len(set(common)) == 1
    assert len(set(own)) == len(own) > 1


def test_no_arm_is_told_by_its_colour_alone(of_levels: Results) -> None:
    names = ["base", "thp", "hugetlb-2m", "mthp-64k"]
    colour, shape = arm_marks(names, colours(example()))
    assert colour["scale"]["domain"] == shape["scale"]["domain"] == names
    assert len(set(shape["scale"]["range"])) == len(names)


def test_one_level_or_no_data_gives_no_figure(of_levels: Results, group: FactorGroup) -> None:
    assert lines(group._replace(cells=group.cells[:1]), "clients", colours(of_levels), 0.99) is None
    assert lines(group._replace(varied=("mode",)), "mode", colours(of_levels), 0.99) is None
    bare = tuple(replace(one, arms=()) for one in group.cells)
    assert lines(group._replace(cells=bare), "clients", colours(of_levels), 0.99) is None


def test_the_report_holds_them(of_levels: Results) -> None:
    keys = [one.key for one in figures(report(of_levels))]
    assert keys[:3] == ["overview", "across-1-lines-database_share", "across-1-lines-clients"]
    assert "1-distribution" in keys
    assert len(keys) == len(set(keys))
