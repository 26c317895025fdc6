"""The benchmark of the statistics: its arithmetic, and a short real run."""

from __future__ import annotations

import pytest

from bench import statistics


def test_the_best_of_repeats_is_the_fastest() -> None:
    calls: list[None] = []
    assert 0 <= statistics.best(lambda: calls.append(None), 4) < 1
    assert len(calls) == 4


def test_targets_are_judged_and_ratios_are_to_scipy() -> None:
    shown = statistics.show(
        [
            statistics.Timing("quick", 0.05, 0.1, "wilcoxon", 0.5),
            statistics.Timing("slow", 0.2, 0.1, "wilcoxon", 0.1),
        ]
    )
    quick, slow = shown.splitlines()[1:]
    assert "met" in quick
    assert quick.endswith("0.10")
    assert "MISSED" in slow
    assert slow.endswith("2.00")
    assert max(len(line) for line in shown.splitlines()) <= 110


def test_what_is_measured_is_what_makes_verdicts() -> None:
    values = statistics.pairs(300)
    law = statistics.boundary(values)
    assert law.pairs == 300
    assert 0.9 * statistics.ALPHA < law.spent <= statistics.ALPHA


def test_one_more_pair_within_its_target() -> None:
    line = statistics.one_more(1000, 5)
    assert line.seconds <= line.target


def test_a_summary_reports_time_and_memory() -> None:
    said = statistics.summarise(20_000)
    assert set(said) == {"seconds", "gib", "describe"}
    assert said["gib"] > 0


def test_the_whole_runs(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "FLIPS", 99)
    monkeypatch.setattr(statistics, "SIZES", ((60, 1.0, 1.0), (120, 1.0, 1.0)))
    assert statistics.main(repeats=1, observations=20_000) == 0
    shown = capsys.readouterr().out
    assert "interval, 120 pairs" in shown
    assert "memory for all figures, 20,000" in shown
