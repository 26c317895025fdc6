"""What a pilot or a run forecast beside what the next run found."""

from __future__ import annotations

import math

import msgspec
import pytest

from hugewise.analysis.forecast import Forecast, Row
from hugewise.model.results import Verdict
from hugewise.report.document import Table
from tests.build.results import example
from tools.results.data import PageData, PageRun
from tools.results.page import Foretelling, foretold, render


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


def held(*told: Foretelling | Forecast) -> list[Table]:
    """The tables of runs, the newest first."""
    tables = list(foretold([one if isinstance(one, Foretelling) else Foretelling(one) for one in told]))
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
    run = Foretelling(planned("b", after), {("chase", "thp", "wall_s"): verdict})
    _, taken = held(run, Foretelling(planned("a", before), pilot=True))
    time = f"{pairs // 3} min 00 s"
    assert taken.rows == (("chase", "thp", "wall_s", "a pilot", "60", "10 min 00 s", str(pairs), time, verdict, word),)


def test_a_pilot_foretells_and_is_not_foretold() -> None:
    pilot = Foretelling(planned("p", spread(20, 0.05)), pilot=True)
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
