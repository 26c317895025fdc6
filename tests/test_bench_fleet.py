"""The benchmark of a fleet's report, on fleets so small that they take seconds."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import fleet
from hugewise.fleet import pooled as summaries
from hugewise.fleet.pooled import pooled


def test_a_made_fleet_is_one_that_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "PLACE", tmp_path)
    monkeypatch.setattr(fleet, "timed", lambda what, path: fleet.Cost(1.0, 1 << 20))
    path = fleet.fleet(40, 6)
    assert fleet.summarise(path) == fleet.Cost(1.0, 1 << 20)
    monkeypatch.setattr(summaries, "summarised", None)  # all are there
    found = pooled(path)
    assert len(found.hosts) == 6 and not found.left_out
    assert {host.attempts for host in found.hosts} == {40}
    assert len({host.run for host in found.hosts}) == 6
    assert len(list((path / "summaries").iterdir())) == 6
    assert fleet.fleet(40, 6) == path  # it is made once


def test_costs_beyond_what_was_measured() -> None:
    sizes, costs = (1.0, 10.0, 100.0), (1.0, 2.0, 20.0)
    assert fleet.exponent(sizes, costs) == pytest.approx(1)
    assert fleet.beyond(sizes, costs, 10) == pytest.approx(200)
    assert fleet.straight(sizes, costs, 10) == pytest.approx(200)
    assert fleet.straight(sizes, (1.0, 2.0, 2.0), 10) == 2.0


def test_it_says_whether_the_target_is_met() -> None:
    fine = [fleet.Cost(1.0, 1 << 20), fleet.Cost(2.0, 1 << 21), fleet.Cost(3.0, 1 << 22)]
    text = fleet.show(200, fleet.SIZES, fine, fine)
    assert "target at 10,000,000: 30 s and 2 GiB -> met" in text
    assert all(len(line) <= 120 for line in text.splitlines())
    slow = [*fine[:2], fleet.Cost(31.0, 1 << 22)]
    assert "MISSED" in fleet.show(200, fleet.SIZES, slow, fine)
    assert fleet.peak() > 1 << 20
