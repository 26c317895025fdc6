"""The benchmark of the load generator: its arithmetic, and a short real run."""

from __future__ import annotations

import os
import shutil

import pytest

from bench import load
from tests.requirements import need, need_program


def test_the_ratio_is_the_median_of_the_rounds_and_is_judged() -> None:
    mine = [load.Cost(0.1, 0.2), load.Cost(0.1, 0.3), load.Cost(0.2, 0.2)]
    theirs = [load.Cost(0.2, 0.4), load.Cost(0.2, 0.6), load.Cost(0.2, 0.3)]
    shown = load.show({load.OURS: mine, "redis-benchmark": theirs})
    assert f"{load.OURS} / redis-benchmark: 0.50, target at most 0.9 -> met" in shown
    assert "memtier" not in shown
    worse = load.show({load.OURS: theirs, "memtier_benchmark": mine})
    assert worse.count("MISSED") == 1
    assert max(len(line) for line in shown.splitlines()) <= 80


def test_a_missing_peer_is_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    need_program("redis-server", "redis-server")
    need(len(os.sched_getaffinity(0)) > 1, "two CPUs")
    found = shutil.which
    monkeypatch.setattr(shutil, "which", lambda name: None if "bench" in name else found(name))
    assert load.main(rounds=1, operations=20_000) == 1
    said = capsys.readouterr().out
    assert "redis-benchmark (apt install redis-tools)" in said
    assert "memtier_benchmark is not on PATH" in said


def test_a_short_run_shows_every_client(capsys: pytest.CaptureFixture[str]) -> None:
    need_program("redis-server", "redis-server")
    need_program("redis-benchmark", "redis-tools")
    need(len(os.sched_getaffinity(0)) > 1, "two CPUs")
    assert load.main(rounds=1, operations=20_000) == 0
    said = capsys.readouterr().out
    assert f"{load.OURS} / redis-benchmark:" in said
