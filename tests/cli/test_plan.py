"""What would run, without running it."""

from __future__ import annotations

from pathlib import Path

import pytest

from hugewise.session import feasibility
from tests.build.hosts import FakeHost
from tests.cli.conftest import Call, tiny


def test_dry_runs_differ_without_a_seed(call: Call, fake: FakeHost, tmp_path: Path) -> None:
    assert call("run", tiny(tmp_path), "--dry-run") != call("run", tiny(tmp_path), "--dry-run")


def test_a_dry_run_of_what_cannot_run_says_why(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = FakeHost(thp=False, capacity={})
    monkeypatch.setattr(feasibility, "LocalHost", lambda: host)
    status, out, _ = call("run", tiny(tmp_path), "--dry-run")
    assert status == 0
    assert "left out: thp: the kernel has no transparent huge pages" in out
    assert "left out: chase: only base is left to run" in out
    assert out.endswith("nothing of it can run here\n")


def test_what_cannot_run_is_said_before_pairs_are_asked_for(call: Call, tmp_path: Path) -> None:
    """A pilot of it could not be had either."""
    study = tmp_path / "s.toml"
    study.write_text(
        'format = 1\nname = "s"\npolicies = ["as-is", { name = "b", from = "as-is", environment = { A = "1" } }]\n'
        '[[workload]]\nname = "spin"\n[design]\nkind = "resident"\n'
    )
    status, _, said = call("plan", study)
    assert status == 2
    assert "nothing of s can run here: spin: spin is no workload whose arms can be resident together" in said
