"""What runs of parts of a study leave unmeasured, and what stands of it on the page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from hugewise.analysis.forecast import Row
from hugewise.study import load
from hugewise.study.study import Study
from tests.build.results import example
from tools.results import overview, page
from tools.results.data import PageData, PageRun, read
from tools.results.first_cells import similar_cells, unmeasured


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
    assert {one.reason for one in found} == {f"no cell of the study has a forecast ({why})"}


def test_a_forecast_of_few_pairs_is_told_with_what_they_leave_open() -> None:
    few = msgspec.structs.replace(row("thp", 100), pairs=4, sd=0.05, sd_low=0.03, sd_high=0.19)
    (found,) = [one for one in unmeasured(whole(), {"memcached": (few,)}) if one.cell == "memcached-sla"]
    assert found.spread == "5.1% (3.0% to 20.9%)"
    assert similar_cells(found) == "memcached, thp; few pairs tell its spread, 5.1% (3.0% to 20.9%)"


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
