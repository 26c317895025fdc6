"""The benchmark of the launcher: its arithmetic, and a short real run."""

from __future__ import annotations

import os

import pytest

from bench import launch
from tests.requirements import need_program


def test_quantiles_are_values_that_occurred() -> None:
    values = [5.0, 1.0, 3.0, 2.0, 4.0, 10.0, 9.0, 8.0, 7.0, 6.0]
    assert [launch.quantile(values, share) for share in (0.0, 0.1, 0.5, 1.0)] == [1, 1, 5, 10]


def test_ratios_are_to_the_floor_and_targets_are_judged() -> None:
    took = {launch.FLOOR: [60e3, 80e3], launch.BARE: [66e3, 90e3], launch.PEER: [110e3, 120e3]}
    lines = launch.compare(took)
    assert [line.to_floor for line in lines] == pytest.approx([1, 1.1, 110 / 60])
    shown = launch.show(lines)
    assert "1.10 at p10, target at most 1.2 -> met" in shown
    assert "0.60 at p10, target at most 0.7 -> met" in shown
    slow = launch.show(launch.compare(took | {launch.BARE: [90e3]}))
    assert slow.count("MISSED") == 2
    assert max(len(line) for line in shown.splitlines()) <= 80


def test_each_round_starts_with_another_launcher() -> None:
    order: list[str] = []

    def one(name: str) -> launch.Launch:
        def run(runs: int) -> list[float]:
            order.append(name)
            return [1.0] * runs

        return run

    took = launch.measure({name: one(name) for name in "abc"}, rounds=3, runs=2)
    assert "".join(order) == "abcbcacab"
    assert {name: len(ns) for name, ns in took.items()} == {"a": 6, "b": 6, "c": 6}


def test_the_cpus_are_given_back() -> None:
    before = os.sched_getaffinity(0)
    with launch.on_one_cpu() as cpu:
        assert os.sched_getaffinity(0) == {cpu}
    assert os.sched_getaffinity(0) == before


def test_it_runs_here(capsys: pytest.CaptureFixture[str]) -> None:
    need_program("cc", "gcc")
    need_program("hyperfine", "hyperfine")
    launch.main(rounds=1, runs=20)
    said = capsys.readouterr().out
    assert "p10 / floor" in said
    for name in (launch.FLOOR, launch.BARE, launch.COUNTED, launch.PEER):
        assert name in said
