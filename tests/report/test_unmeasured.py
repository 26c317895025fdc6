"""What a run of a part of a study leaves unmeasured, and what stands of it on the page."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from hugewise.analysis.forecast import Forecast, Row
from hugewise.report import result_page
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


def planned(*rows: Row) -> Forecast:
    return Forecast(
        study="lpc-2024-mthp", method="sequential", runs=("r",), effect=0.01, margin=0.01, chance=0.9, alpha=0.05,
        level=0.01, comparisons=2, blocks=40, time=None, time_blocks=None, least=None, session_cost=60.0, seconds=None,
        rows=rows,
    )  # fmt: skip


def test_a_whole_run_leaves_nothing() -> None:
    assert unmeasured(whole(), whole(), None) == ()


def test_each_cell_has_the_dearest_comparison_of_the_nearest_cell_of_its_workload() -> None:
    part = load.part(whole(), ["memcached"])
    found = {one.cell: one for one in unmeasured(whole(), part, planned(row("thp", 100), row("mthp-64k", 300)))}
    assert "memcached" not in found
    sla = found["memcached-sla"]
    assert (sla.neighbour, sla.arm, sla.pairs, sla.seconds) == ("memcached", "mthp-64k", 300, 900.0)
    redis = found["redis"]
    assert (redis.neighbour, redis.pairs, redis.seconds) == (None, None, None)


@pytest.mark.parametrize("rows", [(), (row("thp", None),), (row("thp", 5, None),)])
def test_a_neighbour_without_a_forecast_tells_nothing(rows: tuple[Row, ...]) -> None:
    part = load.part(whole(), ["memcached"])
    assert {one.neighbour for one in unmeasured(whole(), part, planned(*rows))} == {None}


def test_the_page_names_them_and_keeps_them_in_its_data(tmp_path: Path) -> None:
    part = load.part(whole(), ["memcached"])
    plan = planned(row("thp", 300))
    data = PageData(
        runs=(PageRun(results=example()),), forecast=plan, unmeasured=unmeasured(whole(), part, plan)
    )
    path = tmp_path / "page.parquet"
    result_page.write(path, data)
    assert result_page.read(path) == data
    shown = path.with_suffix(".md").read_text()
    assert "| memcached-sla | memcached, thp | 300 | 15 min 00 s |" in shown
    assert "| redis | no cell of its workload was measured | – | – |" in shown
    without = msgspec.structs.replace(data, unmeasured=())
    assert "memcached-sla" not in result_page.render(without, "page")["page.md"].decode()
