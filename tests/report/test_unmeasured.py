"""What runs of parts of a study leave unmeasured, and what stands of it on the page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from hugewise.analysis.forecast import Row
from hugewise.report import result_overview, result_page
from hugewise.report.result_page import PageData, PageRun
from hugewise.report.unmeasured import unmeasured
from hugewise.study import load, shipped
from hugewise.study.study import Study
from tests.build.results import example


def whole() -> Study:
    return load.load(shipped.folder() / "lpc-2024-mthp.toml")


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
    redis = found["redis"]
    assert (redis.neighbour, redis.pairs, redis.seconds) == (None, None, None)


@pytest.mark.parametrize("rows", [(), (row("thp", None),), (row("thp", 5, None),)])
def test_a_neighbour_without_a_forecast_tells_nothing(rows: Sequence[Row]) -> None:
    assert {one.neighbour for one in unmeasured(whole(), {"memcached": rows})} == {None}


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
    result_page.write(path, data)
    assert result_page.read(path) == data
    shown = path.with_suffix(".md").read_text()
    assert "| memcached-sla | memcached, thp | 300 | 15 min 00 s |" in shown
    assert "| redis | no cell of its workload has a forecast | – | – |" in shown
    without = msgspec.structs.replace(data, unmeasured=())
    assert "memcached-sla" not in result_page.render(without, "page")["page.md"].decode()


def test_a_cell_that_the_newest_run_does_not_have_stands_as_its_own_newest_run_found_it(tmp_path: Path) -> None:
    found = example()
    first, *others = found.cells
    assert others
    newest = msgspec.structs.replace(found, run="newest", started=found.started + 60, cells=(first,))
    data = PageData(runs=(PageRun(results=newest), PageRun(results=found)))
    shown = result_page.render(data, "page")["page.md"].decode()
    top, _, rest = shown.partition("## Not in the newest run")
    assert f"| {first.cell} | {first.comparisons[0].arm} |" in top
    verdicts = rest.partition("\n## ")[0]
    assert f"| {others[0].cell} | {others[0].comparisons[0].arm} |" in verdicts
    assert f"| {first.cell} |" not in verdicts
    every = sum(len(cell.comparisons) for cell in found.cells)
    result_page.write(tmp_path / "page.parquet", data)
    result_overview.write(tmp_path)
    row_of = next(line for line in (tmp_path / "overview.md").read_text().splitlines() if line.startswith("| [page.md"))
    assert row_of.endswith(f"of {every} |")
