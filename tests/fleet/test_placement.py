"""The production coordinator over real files and simulated hosts, some of them killed. The large form: `make bench`."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import placement


@pytest.mark.parametrize("seed", [1, 2, pytest.param(3, marks=pytest.mark.soak)])
def test_no_run_is_lost_or_counted_twice_when_hosts_are_killed(tmp_path: Path, seed: int) -> None:
    found = placement.played(tmp_path, seed, hosts=20, spare=6, killed=6)
    assert (found.lost, found.doubled) == (0, 0)


@pytest.mark.soak  # it waits for as long as a host may be away
def test_what_is_lost_is_seen(tmp_path: Path) -> None:
    """No host stands by, and two never come back: their places are what is missing."""
    found = placement.played(tmp_path, 4, hosts=8, spare=0, killed=4, wait=20.0)
    assert (found.lost, found.doubled) == (2, 0)


def test_the_figures_are_shown() -> None:
    one = {"lost": 0, "doubled": 0, "late": 1, "decided": 0.2, "usual": 0.001, "gap": 0.3, "usual_gap": 0.05}
    told = placement.show([one | {"seconds": 2.0, "peak": 50 << 20}], 200)
    assert "a decision: 1.0 ms, at most 200.0 ms, target at most 1 s" in told
    assert "runs lost: 0, counted twice: 0, late and kept aside: 1 -> met" in told
    assert "MISSED" in placement.show([one | {"seconds": 2.0, "peak": 50 << 20, "lost": 1}], 200)
