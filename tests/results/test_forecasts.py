"""Forecasts on a page: of few pairs, of cells that no run measured, and whether forecasts came out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import stdev

import msgspec
import pytest
from scipy.stats import chi2

from hugewise.analysis.forecast import Forecast, Row
from hugewise.model.results import Results, Verdict
from hugewise.report.document import Table
from hugewise.report.reasons import in_words
from hugewise.stats import power
from hugewise.study import load
from hugewise.study.study import Study
from tests.build import known
from tests.build.restated import WALL, cell, run
from tests.build.results import example
from tools.results import overview, page
from tools.results.data import PageData, PageRun, read
from tools.results.forecasts import LEAST, RunForecast, accuracy_tables, neighbour, unmeasured, with_few_pairs
from tools.results.page import render


def spread(pairs: int, sd: float | None, low: float | None = None, high: float | None = None, arm: str = "thp") -> Row:
    def of(share: float | None) -> float | None:
        return None if share is None else math.log1p(share)

    return Row(
        cell="chase", arm=arm, baseline="base", metric="wall_s", pairs=pairs, failures=0, sessions=1,
        sd=of(sd), sd_low=of(low), sd_high=of(high),
    )  # fmt: skip


def planned(run: str, *rows: Row) -> Forecast:
    return Forecast(
        study="demo", method="sequential", runs=(run,), effect=0.01, margin=0.01, chance=0.9, alpha=0.05, level=0.01,
        comparisons=2, blocks=40, time=None, time_blocks=None, least=None, session_cost=60.0, seconds=None, rows=rows,
    )  # fmt: skip


def held(*told: RunForecast | Forecast) -> list[Table]:
    """The tables of runs, the newest first."""
    tables = list(accuracy_tables([one if isinstance(one, RunForecast) else RunForecast(one) for one in told]))
    assert all(isinstance(one, Table) for one in tables)
    return [one for one in tables if isinstance(one, Table)]


@pytest.mark.parametrize(("later", "word"), [(0.05, "yes"), (0.09, "noisier"), (0.01, "quieter")])
def test_a_spread_is_held_against_the_interval_of_the_run_before(later: float, word: str) -> None:
    (found,) = held(planned("b", spread(30, later)), planned("a", spread(9, 0.04, 0.02, 0.08)))
    (row,) = found.rows
    assert [str(cell) for cell in row][2:8] == ["wall_s", "a run", "9", "4.0% (2.0% to 8.0%)", "30", f"{later:.1%}"]
    assert str(row[-1]) == word


def test_the_run_before_is_the_newest_that_has_the_comparison() -> None:
    first = planned("0", spread(5, 1.0, 0.9, 2.0))
    runs = [planned("c", spread(30, 0.05)), planned("b"), planned("a", spread(9, 0.04, 0.02, 0.08)), first]
    (found,) = held(*runs)
    assert str(found.rows[0][4]) == "9"


def test_one_run_or_a_spread_that_is_not_known_tells_nothing() -> None:
    assert held(planned("a", spread(9, 0.04, 0.02, 0.08))) == []
    assert held(planned("b", spread(30, None)), planned("a", spread(9, 0.04, 0.02, 0.08))) == []
    assert held(planned("b", spread(30, 0.05, arm="base")), planned("a", spread(9, 0.04, 0.02, 0.08))) == []


@pytest.mark.parametrize(
    ("pairs", "verdict", "word"),
    [
        (30, "better", "decided sooner: larger effects than the margin take fewer pairs"),
        (30, "equivalent", "decided sooner"),
        (60, "equivalent", "decided with as many"),
        (90, "worse", "decided later: it took more"),
        (30, "undecided", "ended before"),
        (60, "undecided", "not decided by then"),
    ],
)
def test_pairs_and_time_that_were_forecast_stand_beside_those_that_it_took(
    pairs: int, verdict: Verdict, word: str
) -> None:
    before = msgspec.structs.replace(spread(9, 0.04, 0.02, 0.08), needed=60, seconds=10.0)
    after = msgspec.structs.replace(spread(pairs, 0.05), seconds=20.0)
    run = RunForecast(planned("b", after), {("chase", "thp", "wall_s"): verdict})
    _, taken = held(run, RunForecast(planned("a", before), pilot=True))
    time = f"{pairs // 3} min 00 s"
    assert taken.rows == (("chase", "thp", "wall_s", "a pilot", "60", "10 min 00 s", str(pairs), time, verdict, word),)


def test_a_pilot_foretells_and_is_not_accuracy_tables() -> None:
    pilot = RunForecast(planned("p", spread(20, 0.05)), pilot=True)
    run = planned("a", spread(9, 0.04, 0.02, 0.08))
    assert held(pilot, run) == []
    assert held(run, pilot)[0].rows[0][3] == "a pilot"


def test_it_stands_on_the_page() -> None:
    def page(*forecasts: Forecast) -> str:
        runs = tuple(PageRun(results=example(), forecast=one) for one in forecasts)
        return render(PageData(runs=runs), "page")["page.md"].decode()

    before, after = planned("a", spread(9, 0.04, 0.02, 0.08)), planned("b", spread(30, 0.05))
    assert "| chase | thp | wall\\_s | a run | 9 | 4.0% (2.0% to 8.0%) | 30 | 5.0% | yes |" in page(after, before)
    assert "How the forecast came out" not in page(before)


def whole() -> Study:
    return load.load(load.folder() / "lpc-2024-mthp.toml")


def row(arm: str, needed: int | None, seconds: float | None = 3.0) -> Row:
    return Row(
        cell="memcached", arm=arm, baseline="base", metric="ops_per_s", pairs=12, failures=0, sessions=1,
        needed=needed, seconds=seconds,
    )  # fmt: skip


def test_cells_that_were_measured_are_not_named() -> None:
    every = [one.cell for one in unmeasured(whole(), {})]
    assert {"memcached", "redis-sla", "integer-set-program=gcc"} <= set(every)
    assert unmeasured(whole(), dict.fromkeys(every, ())) == ()


def test_each_cell_has_the_dearest_comparison_of_the_nearest_cell_of_its_workload() -> None:
    measured = {"memcached": (row("thp", 100), row("mthp-64k", 300))}
    found = {one.cell: one for one in unmeasured(whole(), measured)}
    assert "memcached" not in found
    sla = found["memcached-sla"]
    assert (sla.neighbour, sla.arm, sla.pairs, sla.seconds) == ("memcached", "mthp-64k", 300, 900.0)
    assert (sla.other, sla.floor) == (False, False)


def test_a_cell_of_another_workload_is_the_last_that_is_asked_and_named_so() -> None:
    """Its time is the cell's own, where leads and measured parts are known of it: 2 s and 10 s of redis."""
    found = {one.cell: one for one in unmeasured(whole(), {"memcached": (row("thp", 300),)})}
    redis = found["redis"]
    assert (redis.neighbour, redis.pairs, redis.other, redis.floor) == ("memcached", 300, True, True)
    assert redis.seconds == 300 * 2 * (10.0 + 2.0)
    build = found["kernel-build"]
    assert (build.neighbour, build.seconds, build.floor) == ("memcached", 900.0, False)
    of_redis = {
        one.cell: one for one in unmeasured(whole(), {"memcached": (row("thp", 9),), "redis": (row("thp", 8),)})
    }
    assert of_redis["redis-sla"].neighbour == "redis", "its own workload is nearer"
    commands = {"memcached": (row("thp", 9),), "x264-profile=vod": (row("thp", 7),)}
    assert {one.cell: one.neighbour for one in unmeasured(whole(), commands)}["kernel-build"] == "x264-profile=vod"


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ((), "none was measured in pairs"),
        ((row("thp", None),), "memcached, thp: more than 1,000,000"),
        ((msgspec.structs.replace(row("thp", None), reason="too few"),), "memcached, thp: no forecast: too few"),
    ],
)
def test_without_any_forecast_the_reason_is_told(rows: Sequence[Row], why: str) -> None:
    found = unmeasured(whole(), {"memcached": rows})
    assert {one.neighbour for one in found} == {None}
    assert {in_words(one.reason) for one in found} == {f"no cell of the study has a forecast ({why})"}


def test_a_forecast_of_few_pairs_is_told_with_what_they_leave_open() -> None:
    few = msgspec.structs.replace(row("thp", 100), pairs=4, sd=0.05, sd_low=0.03, sd_high=0.19)
    (found,) = [one for one in unmeasured(whole(), {"memcached": (few,)}) if one.cell == "memcached-sla"]
    assert found.spread == "5.1% (3.0% to 20.9%)"
    assert neighbour(found) == "memcached, thp; few pairs tell its spread, 5.1% (3.0% to 20.9%)"


def test_a_cell_of_the_same_table_is_nearer_than_another_of_its_workload() -> None:
    told = [one.cell for one in unmeasured(whole(), {}) if one.cell.startswith("mysql-ro")]
    assert len(told) > 2
    own, other = (row("thp", 10, 1.0),), (row("thp", 99, 1.0),)
    measured = {"mysql-ro-shipped": other, told[1]: own}
    found = {one.cell: one for one in unmeasured(whole(), measured)}
    assert found[told[0]].neighbour == told[1]


def test_the_page_names_them_and_keeps_them_in_its_data(tmp_path: Path) -> None:
    data = PageData(
        runs=(PageRun(results=example()),), unmeasured=unmeasured(whole(), {"memcached": (row("thp", 300),)})
    )
    path = tmp_path / "page.parquet"
    page.write(path, data)
    assert read(path) == data
    shown = path.with_suffix(".md").read_text()
    assert "| memcached-sla | memcached, thp | 300 | 15 min 00 s |" in shown
    assert "| redis | memcached, thp, of another workload | 300 | at least 2 h 00 min |" in shown
    assert "| – |" not in shown.partition("## Not run")[2].partition("\n## ")[0]
    without = msgspec.structs.replace(data, unmeasured=())
    assert "memcached-sla" not in page.render(without, "page")["page.md"].decode()


def test_a_cell_that_the_newest_run_does_not_have_stands_as_its_own_newest_run_found_it(tmp_path: Path) -> None:
    found = example()
    first, *others = found.cells
    assert others
    newest = msgspec.structs.replace(found, run="newest", started=found.started + 60, cells=(first,))
    data = PageData(runs=(PageRun(results=newest), PageRun(results=found)))
    shown = page.render(data, "page")["page.md"].decode()
    top, _, rest = shown.partition("## Not in the newest run")
    assert f"| {first.cell} | {first.comparisons[0].arm} |" in top
    verdicts = rest.partition("\n## ")[0]
    assert f"| {others[0].cell} | {others[0].comparisons[0].arm} |" in verdicts
    assert f"| {first.cell} |" not in verdicts
    every = sum(len(cell.comparisons) for cell in found.cells)
    page.write(tmp_path / "page.parquet", data)
    overview.write(tmp_path)
    row_of = next(line for line in (tmp_path / "overview.md").read_text().splitlines() if line.startswith("| [page.md"))
    assert row_of.endswith(f"of {every} |")


def of_pairs(pairs: int, method: str = "sequential", margin: float = 0.01) -> Results:
    """A run of one cell with so many blocks, each of two attempts of 2.5 s that begin 3 s apart."""
    made = run(
        [
            cell(
                "build",
                "build",
                WALL,
                {},
                {"base": (100.0, "undecided"), "thp": (99.0, "undecided")},
                blocks=max(pairs, 2),
            )
        ]
    )
    (one,) = made.cells
    few = msgspec.structs.replace(one.comparisons[0], n=pairs, alpha=0.01)
    return msgspec.structs.replace(
        made,
        margin=margin,
        attempts=tuple(each for each in made.attempts if each.block < pairs),
        options={"method": method, "budget": {"blocks": 40, "time": None, "width": None}},
        cells=(msgspec.structs.replace(one, comparisons=(few,)),),
    )


def ratios(results: Results) -> list[float]:
    of = {(one.block, one.arm): known(one.metrics["wall_s"]) for one in results.attempts}
    return [math.log(of[block, "thp"] / of[block, "base"]) for block in sorted({block for block, _ in of})]


def row_of(found: Forecast | None) -> Row:
    (row,) = known(found).rows
    return row


@pytest.mark.parametrize("pairs", [LEAST, 5])
def test_the_spread_of_few_pairs_is_that_of_normal_ones_with_its_interval(pairs: int) -> None:
    results = of_pairs(pairs)
    row, sd, freedom = row_of(with_few_pairs(None, results)), stdev(ratios(results)), pairs - 1
    assert (row.pairs, row.cell, row.arm, row.reason) == (pairs, "build", "thp", None)
    assert row.sd == pytest.approx(sd)
    assert row.sd_low == pytest.approx(sd * math.sqrt(freedom / chi2.ppf(0.975, freedom)))
    assert row.sd_high == pytest.approx(sd * math.sqrt(freedom / chi2.ppf(0.025, freedom)))
    assert row.needed == (
        power.pairs_for_assurance(math.log(1.01) / sd, freedom, 0.01, budget=40)
        or power.pairs_for_assurance(math.log(1.01) / sd, freedom, 0.01)
    )
    assert known(row.needed_low) < known(row.needed) < known(row.needed_high)
    assert row.seconds == pytest.approx(5.5), "a block is from the first begin to the last end"


@pytest.mark.parametrize("pairs", [1, LEAST - 1])
def test_fewer_pairs_tell_no_spread_and_say_so(pairs: int) -> None:
    row = row_of(with_few_pairs(None, of_pairs(pairs)))
    assert row.needed is None
    assert (
        in_words(row.reason or "")
        == f"too few pairs to plan with ({pairs} pair{'s' if pairs > 1 else ''}; 3 are the least)"
    )


def test_what_a_forecast_has_stays_and_what_it_lacks_is_filled_in() -> None:
    results = of_pairs(4)
    own = row_of(with_few_pairs(None, results))
    alone = known(with_few_pairs(None, results))

    def planned(rows: Sequence[Row]) -> Forecast:
        return msgspec.structs.replace(alone, rows=tuple(rows))

    lacking = msgspec.structs.replace(own, needed=None, sd=None, reason="too few pairs to plan with (4 pairs; 6 ...)")
    assert with_few_pairs(planned([lacking]), results) == planned([own])
    there = msgspec.structs.replace(own, needed=7)
    assert with_few_pairs(planned([there]), results) == planned([there])


def test_a_screening_is_not_planned_and_a_fixed_number_is_by_its_own_test() -> None:
    assert with_few_pairs(None, of_pairs(4, "screening")) is None
    results = of_pairs(4, "fixed-n")
    row, sd = row_of(with_few_pairs(None, results)), stdev(ratios(results))
    assert row.needed == power.student_needed(math.log(1.01) / sd, 3, 0.01)


def test_many_pairs_are_left_to_the_forecast() -> None:
    assert with_few_pairs(None, of_pairs(6)) is None
