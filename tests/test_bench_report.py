"""The benchmark of large reports: its runs are runs, and its table says what was met."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench import report
from bench.report import Cost

from hugewise.analysis.analysis import analyze


def test_its_run_is_one_that_can_be_told(tmp_path: Path) -> None:
    path = report.run(240, tmp_path)
    results = analyze(path)
    assert len(results.attempts) == 240
    assert {len(one.metrics) for one in results.attempts} == {report.METRICS}
    assert results.integrity is not None
    assert results.integrity.state == "consistent"
    assert report.run(240, tmp_path) == path  # made once


@pytest.mark.parametrize(("seconds", "word"), [(9.0, "met"), (11.0, "MISSED")])
def test_the_table_has_the_exponent_and_the_target(seconds: float, word: str) -> None:
    costs = [Cost(seconds / 4, 100 << 20, 10**6, 10**5), Cost(seconds, 400 << 20, 4 * 10**6, 10**5)]
    told = report.show((6_000, 24_000), costs)
    assert "seconds: exponent 1.00" in told
    assert told.endswith(f"-> {word}")
    assert max(map(len, told.splitlines())) <= 80
