"""The benchmark of a run that grows: its arithmetic, and a short real run."""

from __future__ import annotations

from pathlib import Path

from bench import growth
from hugewise.store.folder import RunFolder


def test_ratios_are_of_the_same_round() -> None:
    shown = growth.show(growth.Costs([1.0, 2.0, 1.0], [1.1, 2.1, 1.05]))
    assert "1.000 at 100 attempts, 1.100 at 20,000" in shown
    assert "many / few: 1.05 (quartiles 1.05 to 1.10), target at most 1.1 -> met" in shown
    assert "MISSED" in growth.show(growth.Costs([1.0, 1.0], [1.2, 1.2]))
    assert max(len(line) for line in shown.splitlines()) <= 80


def test_both_runs_grow_by_the_same_blocks(tmp_path: Path) -> None:
    told: list[str] = []
    costs = growth.measure(tmp_path, 4, 12, 2, told.append)
    assert len(told) == 2
    assert all(len(cost) == 2 and min(cost) > 0 for cost in costs)
    runs = [RunFolder(next((tmp_path / str(attempts) / "growth").iterdir())).read() for attempts in (4, 12)]
    few, many = (len(run.blocks) for run in runs)
    assert many - few == 4
    assert few == 2 + 1 + 3 * growth.BLOCKS
    assert [attempt.arm for attempt in runs[0].attempts[:2]] == ["base", "thp"]
