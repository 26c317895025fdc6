"""Which metric carries a claim, on a page of results."""

from __future__ import annotations

from msgspec.structs import replace

from hugewise.model.metric import Metric
from hugewise.model.results import Results
from hugewise.report.document import Table
from tests.build.results import comparison, plain
from tools.results.page import carried

COST = Metric("server_cpu_us", "us", "lower", "")


def judged() -> Results:
    """A cell whose rate is open and whose cost is decided."""
    results = plain()
    cell = results.cells[0]
    arm = next(one.arm for one in cell.arms if one.arm != cell.baseline)
    rate = comparison(arm, cell.metric.name, "undecided")
    cost = comparison(arm, COST.name, "better", ratio=0.834, low=0.75, high=0.93)
    return replace(results, cells=(replace(cell, comparisons=(rate,), also=(COST,), declared=(cost,)),))


def test_each_arm_is_told_with_every_metric_and_with_what_is_decided() -> None:
    (section,) = carried(judged())
    (shown,) = section.blocks
    assert isinstance(shown, Table)
    ((_, _, own, beside, carrying),) = shown.rows
    assert own.endswith("undecided")
    assert beside.startswith("server_cpu_us −16.6% (−25.0% to −7.0%): ▲ better")
    assert carrying == "server_cpu_us (better)"


def test_nothing_is_said_where_one_metric_is_judged() -> None:
    assert not list(carried(plain()))
