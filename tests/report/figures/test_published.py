"""Published beside measured on one axis: which quantities are drawn, at which values, and what their marks say."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from hugewise.report.document import figures
from hugewise.report.figures.published import held, published
from hugewise.report.figures.theme import colours
from hugewise.report.images import inline, render
from hugewise.report.sections import beside
from hugewise.report.write import report
from tests.build import known
from tests.build.restated import EVERY, lkml, lpc, percona_2018, redhat


def rows(make: Any) -> list[dict[str, Any]]:
    results = make()
    spec = published(known(results.beside), colours(results))
    assert spec is not None
    found: list[dict[str, Any]] = spec["data"]["values"]
    return found


def test_each_quantity_that_was_published_and_measured_has_both_values() -> None:
    results = lpc()
    points = held(known(results.beside))
    assert {point.quantity for point in points} >= {"ops_per_s", "p99_latency"}
    found = rows(lpc)
    assert len(found) == 2 * len(points)
    for point, theirs, ours in zip(points, found[::2], found[1::2], strict=True):
        measured = known(point.measured)
        assert theirs["ratio"] == pytest.approx(1 + known(point.percent) / 100)
        assert (theirs["published"], ours["published"]) == (True, False)
        assert ours["ratio"] == measured.ratio
        assert ours["text"] == point.agreement
        assert theirs["name"] == ours["name"] == f"{point.quantity}: {point.policy}"
        if measured.verdict != "not judged":
            assert (ours["low"], ours["high"]) == (measured.low, measured.high)
        else:
            assert ours["low"] == ours["high"] == measured.ratio


def test_what_was_not_judged_has_another_mark() -> None:
    kinds = {(row["name"], row["kind"]) for row in rows(lpc) if not row["published"]}
    assert ("ops_per_s: thp", "measured, with its interval") in kinds
    assert ("p99_latency: thp", "measured, of medians: not judged") in kinds


@pytest.mark.parametrize("make", [lpc, redhat])
def test_the_page_has_it_and_its_marks_say_the_values(make: Any) -> None:
    (figure,) = (each for each in figures(report(make())) if each.key == "published")
    drawn = inline(render(figure.spec), name="figure-published", title=figure.text)
    assert "as published (" in drawn
    for point in held(known(make().beside)):
        assert f"<title>{known(point.measured).arm}: {known(point.measured).metric} " in drawn


def test_what_only_one_side_has_is_not_drawn() -> None:
    """Findings in words have no figures, and no policy here stands for the kernels of 2009."""
    for make in (percona_2018, lkml):
        results = make()
        assert held(known(results.beside)) == []
        assert published(known(results.beside), colours(results)) is None
    found = known(lpc().beside)
    (point, *_) = held(found)
    for other in (replace(point, percent=None), replace(point, measured=None), replace(point, percent=-100.0)):
        assert held(replace(found, points=(other,))) == []
    failed = replace(point, measured=replace(known(point.measured), ratio=0.0))
    assert held(replace(found, points=(failed,))) == []


@pytest.mark.parametrize("make", EVERY.values(), ids=EVERY)
def test_a_result_page_that_draws_nothing_has_no_place_for_it(make: Any) -> None:
    (section,) = beside.beside(make().beside)
    assert not [block for block in section.blocks if type(block).__name__ == "Figure"]
