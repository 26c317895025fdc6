"""Listings on other machines, and of studies."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.build.hosts import FakeHost
from tests.cli.conftest import Call, tiny


def test_list_policies_says_what_a_user_lacks(call: Call, fake: FakeHost) -> None:
    fake.root = False
    _, out, _ = call("list", "policies")
    lines = {line.split()[0]: line for line in out.splitlines() if line.strip()}
    assert "process" in lines["base"]
    assert "no:" in lines["mthp-64k"]


def test_list_studies_shows_those_here_and_those_that_come_along(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "studies").mkdir()
    tiny(tmp_path / "studies")
    (tmp_path / "studies" / "broken.toml").write_text("format = 7")
    status, out, _ = call("list", "studies")
    assert status == 0
    assert "studies/tiny.toml" in out
    assert "[bold]?[/nope]" in out
    assert "cannot be read" in out
    assert "\ndemo " in out
