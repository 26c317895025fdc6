"""What the benchmark of the demo counts as decided and as answered."""

from __future__ import annotations

import pytest

from bench import demo
from hugewise.report import json
from tests.build.results import plain


def test_decided_comparisons_and_answered_cells_are_counted() -> None:
    results = plain()
    every = [one for cell in results.cells for one in cell.judged]
    found = demo.found(json.encode(results), 12.5)
    assert found.comparisons == len(every)
    assert found.decided == sum(one.verdict in ("better", "worse", "equivalent") for one in every) > 0
    assert (found.cells, found.seconds) == (len(results.cells), 12.5)


@pytest.mark.parametrize(
    ("change", "good"),
    [
        ({}, True),
        ({"decided": 6}, False),
        ({"answered": 2}, False),
        ({"seconds": demo.LONGEST + 1}, False),
    ],
)
def test_the_target_takes_decisions_answers_and_time(change: dict[str, int], good: bool) -> None:
    found = demo.Found(7, 8, 3, 3, demo.LONGEST)._replace(**change)
    assert found.good is good
    assert ("below the target" in demo.told("quiet", found)) is not good
