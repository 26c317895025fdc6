"""The benchmark of large reports: its runs are runs, and its table says what was met."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from bench import report
from bench.report import Cost
from hugewise.analysis.analysis import analyze
from tests.requirements import need_program


def test_its_run_is_one_that_can_be_told(tmp_path: Path) -> None:
    path = report.run(240, tmp_path)
    results = analyze(path)
    assert len(results.attempts) == 240
    assert {len(one.metrics) for one in results.attempts} == {report.METRICS}
    assert results.integrity is not None
    assert results.integrity.state == "consistent"
    # All blocks are judged: 10 of each cell.
    assert {one.n for cell in results.cells for one in cell.comparisons} == {10}
    assert report.run(240, tmp_path) == path  # made once


def test_the_table_has_what_was_seen_and_the_targets() -> None:
    costs = [Cost(2.5, 100 << 20, 10**6, 10**5, 0.25), Cost(9.0, 400 << 20, 4 * 10**6, 10**5, 0.5)]
    told = report.show((6_000, 24_000), costs)
    assert "at 24,000 within 10 s: 9.0 s -> met" in told
    assert "at 24,000 within 512 MiB: 400 MiB -> met" in told
    assert "at 24,000 a page of at most 15 MB: 4.00 MB -> met" in told
    assert "at 24,000 it opens within 2 s: 0.50 s -> met" in told
    assert "seconds grow as n^1.1 at most over all sizes: 0.92 -> met" in told
    assert "MISSED" not in told
    assert max(map(len, told.splitlines())) <= 80


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"seconds": 10.1}, "at 24,000 within 10 s: 10.1 s -> MISSED"),
        ({"peak": 513 << 20}, "at 24,000 within 512 MiB: 513 MiB -> MISSED"),
        ({"page": 15_100_000}, "at 24,000 a page of at most 15 MB: 15.10 MB -> MISSED"),
        ({"opens": 2.1}, "at 24,000 it opens within 2 s: 2.10 s -> MISSED"),
        ({"opens": None}, "at 24,000 it opens within 2 s: there is no Chromium (apt install chromium) -> not measured"),
    ],
)
def test_what_is_missed_or_not_measured_is_told_and_is_the_exit_status(
    change: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    costs = [Cost(9.0, 400 << 20, 10**6, 10**5, 0.5), Cost(9.0, 400 << 20, 10**6, 10**5, 0.5)]
    monkeypatch.setattr(report, "measure", lambda sizes: costs)
    assert report.main((6_000, 24_000)) == 0
    costs[1] = costs[1]._replace(**change)
    assert report.main((6_000, 24_000)) == 1
    assert words in capsys.readouterr().out.splitlines()


def test_growth_is_fitted_over_all_sizes_and_held_between_the_last_two() -> None:
    sizes = (1_000, 10_000, 100_000)
    assert report.fitted(sizes, [1.0, 10.0, 100.0]) == pytest.approx(1.0)
    assert report.fitted(sizes, [1.0, 1.0, 100.0]) == pytest.approx(1.0)
    growing = [Cost(seconds, 1, 1, 1, 0.1) for seconds in (1.0, 1.0, 50.0)]
    missed = [one.words for one in report.targets(sizes, growing) if not one.met]
    assert missed == ["seconds: n^1.2 at most over the last two"]
    square = [Cost(seconds, 1, 1, 1, 0.1) for seconds in (1.0, 100.0, 1000.0)]
    missed = [one.words for one in report.targets(sizes, square) if not one.met]
    assert missed == ["seconds grow as n^1.1 at most over all sizes"]


def test_a_page_is_opened_in_a_browser(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text("<!DOCTYPE html><p>text", encoding="utf-8")
    need_program("chromium", "chromium")
    took = report.opened(page)
    assert took is not None
    assert took > 0


def test_the_memory_of_what_a_process_starts_counts_too() -> None:
    before = report.proportional()
    program = "import sys; held = bytes(range(256)) * (64 << 12); print(len(held), flush=True); sys.stdin.read()"
    command = [sys.executable, "-S", "-c", program]
    with report.watched(0.01) as seen, subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as one:
        assert one.stdout is not None and one.stdin is not None
        assert int(one.stdout.readline()) == 64 << 20
        while max(seen) - before < 64 << 20:
            time.sleep(0.01)
        one.stdin.close()


def test_what_two_processes_share_counts_once() -> None:
    """A fork has all pages of its parent, and none of its own before it writes."""
    held = bytes(range(256)) * (64 << 12)
    before, resident = report.proportional(), report.resident()
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        os.close(write)
        os.read(read, 1)
        os._exit(0)
    try:
        assert report.resident() > resident + len(held)
        assert report.proportional() < before + len(held) / 2
    finally:
        os.close(write)
        os.waitpid(child, 0)
        os.close(read)
