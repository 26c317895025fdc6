"""What a few pairs say of how many more a verdict takes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import stdev

import msgspec
import pytest
from scipy.stats import chi2

from hugewise.analysis.budget import LEAST, completed
from hugewise.analysis.forecast import Forecast, Row
from hugewise.model.results import Results
from hugewise.stats import power
from tests.build import known
from tests.build.restated import WALL, cell, run


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
    row, sd, freedom = row_of(completed(None, results)), stdev(ratios(results)), pairs - 1
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
    row = row_of(completed(None, of_pairs(pairs)))
    assert row.needed is None
    assert row.reason == f"too few pairs to plan with ({pairs} pair{'s' if pairs > 1 else ''}; 3 are the least)"


def test_what_a_forecast_has_stays_and_what_it_lacks_is_filled_in() -> None:
    results = of_pairs(4)
    own = row_of(completed(None, results))
    alone = known(completed(None, results))

    def planned(rows: Sequence[Row]) -> Forecast:
        return msgspec.structs.replace(alone, rows=tuple(rows))

    lacking = msgspec.structs.replace(own, needed=None, sd=None, reason="too few pairs to plan with (4 pairs; 6 ...)")
    assert completed(planned([lacking]), results) == planned([own])
    there = msgspec.structs.replace(own, needed=7)
    assert completed(planned([there]), results) == planned([there])


def test_a_screening_is_not_planned_and_a_fixed_number_is_by_its_own_test() -> None:
    assert completed(None, of_pairs(4, "screening")) is None
    results = of_pairs(4, "fixed-n")
    row, sd = row_of(completed(None, results)), stdev(ratios(results))
    assert row.needed == power.student_needed(math.log(1.01) / sd, 3, 0.01)


def test_many_pairs_are_left_to_the_forecast() -> None:
    assert completed(None, of_pairs(6)) is None
