"""Whose results root believes: kept data, calibrations, seeds and records decide what it runs and says."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

import hugewise
from hugewise.errors import UserError
from hugewise.session.calibrate import calibrate
from tests.requirements import need_root

STUDY = """
format = 1
name = "trusted"
policies = ["as-is", { name = "again", from = "as-is" }]
[[workload]]
name = "spin"
"""


@pytest.fixture
def foreign(reached: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of another account's."""
    need_root()
    monkeypatch.delenv("SUDO_UID", raising=False)
    (reached / "home").mkdir()
    os.chown(reached / "home", pwd.getpwnam("nobody").pw_uid, -1)
    return reached / "home"


def test_root_keeps_no_results_where_another_account_can_change_them(foreign: Path, tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(STUDY)
    study = hugewise.load(tmp_path / "s.toml")
    with pytest.raises(UserError, match=f"{foreign} belongs to the account") as raised:
        hugewise.run(study, results=foreign / "results")
    assert "--results" in str(raised.value.hint)
    with pytest.raises(UserError, match=f"{foreign} belongs to the account"):
        hugewise.resume(foreign / "results" / "a-run")
    with pytest.raises(UserError, match=f"{foreign} belongs to the account"):
        calibrate(None, foreign / "results", pairs=12)
    assert list(foreign.iterdir()) == []
