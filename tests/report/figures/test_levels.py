"""Figures over the levels of factors, and histograms: which data they show, and that they can be drawn."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from hugewise.model.results import Results
from hugewise.report.document import figures
from hugewise.report.figures.distribution import histogram
from hugewise.report.figures.levels import FactorGroup, bars, groups, level, levels, lines, numeric, setting
from hugewise.report.figures.theme import arm_marks, colours, points
from hugewise.report.images import render
from hugewise.report.write import report
from tests.build.restated import OPS, cell, lpc, percona_2018, run
from tests.build.results import HOSTILE, example


@pytest.fixture(scope="module")
def results() -> Results:
    return percona_2018()


@pytest.fixture(scope="module")
def group(results: Results) -> FactorGroup:
    (only,) = groups(results.cells)
    return only


def data(spec: Any) -> list[dict[str, Any]]:
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
    assert setting("pgbench", group.cells[0], ["database_share"]) == "database_share=0.4"
    assert groups(lpc().cells) == []  # four workloads, nothing varied
    assert groups(example().cells) == []


def test_two_labels_are_not_drawn_over_each_other(results: Results) -> None:
    again = [replace(one, cell=f"again-{one.cell}") for one in results.cells]
    assert [(one.label, len(one.cells)) for one in groups([*results.cells, *again])] == [
        *(("pgbench", 9), ("again-pgbench", 9))
    ]


def test_levels_are_named_as_in_a_study() -> None:
    assert level("chase", "bytes", 65_536) == "64k"
    assert level("of nobody", "database_bytes", 1 << 30) == "1g"
    assert level("of nobody", "clients", 64) == "64"
    assert level("of nobody", "share", 0.75) == "0.75"
    assert level("of nobody", "flag", True) == "yes"
    assert level("command", "argv", ("sh", "-c", "x")) == "sh -c x"
    assert level("of nobody", "text", HOSTILE).isprintable()


@pytest.mark.parametrize("name", ["clients", "database_share"])
def test_lines_carry_every_mean_with_its_interval(results: Results, group: FactorGroup, name: str) -> None:
    spec = lines(group, name, colours(results), 0.99)
    rows = data(spec)
    known = {key: value for key, value in means_of(results).items() if key[0] != "spill"}
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


def test_points_of_a_level_stand_near_it_in_the_legends_order(results: Results, group: FactorGroup) -> None:
    rows = data(lines(group, "clients", colours(results), 0.99))
    for level_ in (4, 16, 64):
        near = [row for row in rows if 0.9 < row["level"] / level_ < 1.1 and row["panel"] == "database_share=0.4"]
        assert [row["arm"] for row in sorted(near, key=lambda row: row["level"])] == ["base", "hugetlb-2m", "thp"]


def test_panels_far_apart_have_axes_of_their_own(results: Results, group: FactorGroup) -> None:
    fits = group._replace(cells=tuple(one for one in group.cells if one.parameters["database_share"] < 1))
    shared = lines(fits, "clients", colours(results), 0.99)
    apart = lines(group, "clients", colours(results), 0.99)
    assert shared is not None and apart is not None
    scales = [[panel["layer"][0]["encoding"]["y"]["scale"] for panel in spec["concat"]] for spec in (shared, apart)]
    common, own = ([tuple(one["domain"]) for one in several] for several in scales)
    assert len(set(common)) == 1
    assert len(set(own)) == len(own) > 1


def test_bars_stand_on_zero_with_a_bar_for_each_policy_at_each_level(results: Results, group: FactorGroup) -> None:
    spec = bars(group, colours(results), 0.99)
    rows = data(spec)
    assert len(rows) == 27
    assert {(row["panel"], row["level"]) for row in rows} == {
        (f"database_share={share}", clients) for share in (0.4, 0.8, 1.5) for clients in ("4", "16", "64")
    }
    assert spec is not None
    for panel in spec["concat"]:
        scale = panel["layer"][0]["encoding"]["y"]["scale"]
        assert scale["zero"] is True
        assert scale["domain"] == [0, max(row["high"] for row in rows)]
    assert "svg" in render(spec)


def test_axes_name_metric_unit_and_direction(results: Results, group: FactorGroup) -> None:
    for spec in (lines(group, "clients", colours(results), 0.99), bars(group, colours(results), 0.99)):
        assert spec is not None
        titles = [panel["layer"][0]["encoding"]["y"]["title"] for panel in spec["concat"]]
        assert titles == [["tps, tx/s", "higher is better; mean with 99% interval"]] * len(titles)


def test_no_arm_is_told_by_its_colour_alone(results: Results) -> None:
    names = ["base", "thp", "hugetlb-2m", "mthp-64k"]
    colour, shape = arm_marks(names, colours(example()))
    assert colour["scale"]["domain"] == shape["scale"]["domain"] == names
    assert len(set(shape["scale"]["range"])) == len(names)


def test_one_level_or_no_data_gives_no_figure(results: Results, group: FactorGroup) -> None:
    assert lines(group._replace(cells=group.cells[:1]), "clients", colours(results), 0.99) is None
    assert lines(group._replace(varied=("mode",)), "mode", colours(results), 0.99) is None
    bare = tuple(replace(one, arms=()) for one in group.cells)
    assert lines(group._replace(cells=bare), "clients", colours(results), 0.99) is None
    assert bars(group._replace(cells=bare), colours(results), 0.99) is None


def test_words_make_bars_and_no_lines() -> None:
    parts = [
        cell(
            f"kv-popularity={word}", "kv", OPS, {"popularity": word}, {"base": (10.0, "none"), "thp": (11.0, "better")}
        )
        for word in ("uniform", "zipf")
    ]
    kinds = [one.key for one in figures(report(run(parts))) if one.key.startswith("across")]
    assert kinds == ["across-1-bars"]


def test_a_histogram_counts_every_attempt_and_marks_the_mean() -> None:
    results = lpc()
    one = results.cells[0]
    spec = histogram(points(results, one), one, colours(results))
    rows = data(spec)
    for arm in one.arms:
        mine = [row for row in rows if row["arm"] == arm.arm]
        assert sum(row.get("count", 0) for row in mine) == arm.n
        (line,) = [row for row in mine if "mean" in row]
        assert line["mean"] == pytest.approx(arm.mean)
        assert line["text"].endswith(f"n {arm.n}")
    assert spec is not None
    bar = spec["spec"]["layer"][0]["encoding"]
    assert (bar["y2"], bar["x2"]) == ({"datum": 0}, {"field": "to"})
    assert "svg" in render(spec)


def test_few_attempts_have_no_histogram_and_equal_ones_have_one_bin() -> None:
    results = lpc()
    one = results.cells[0]
    few = tuple(a for a in results.attempts if a.cell == one.cell and a.block < 19)
    assert histogram(points(replace(results, attempts=few), one), one, colours(results)) is None
    equal = tuple(replace(a, metrics={**a.metrics, "ops_per_s": 5.0}) for a in results.attempts)
    rows = data(histogram(points(replace(results, attempts=equal), one), one, colours(results)))
    assert [row["count"] for row in rows if "count" in row] == [24, 24, 24]


def test_the_report_holds_them(results: Results) -> None:
    keys = [one.key for one in figures(report(results))]
    assert keys[:4] == ["overview", "across-1-lines-database_share", "across-1-lines-clients", "across-1-bars"]
    assert "1-histogram" in keys
    assert len(keys) == len(set(keys))
