"""The unit of systemd that `doctor` offers: systemd takes it, and root is made to start nothing of another account."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hugewise.cli import unit
from tests.build.hosts import Files
from tests.cli.conftest import Call
from tests.requirements import need_program, need_root


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of programs with a hugewise in it, which nobody but root can change (/tmp is sticky)."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "hugewise").write_text("#!/bin/sh\n")
    (programs / "hugewise").chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(programs / "python"))
    return programs


def test_systemd_takes_the_unit(call: Call, installed: Path, tmp_path: Path) -> None:
    need_root()
    analyze = need_program("systemd-analyze", "systemd")
    status, out, err = call("doctor", "--unit")
    assert (status, err) == (0, "")
    assert f"ExecStart={installed}/hugewise restore\n" in out
    path = tmp_path / "hugewise-restore.service"
    for text, good in ((out, True), (out.replace(str(installed), "/nowhere"), False)):
        path.write_text(text)
        done = subprocess.run([analyze, "verify", "--man=no", str(path)], capture_output=True, text=True, check=False)
        assert ((done.returncode, done.stdout + done.stderr) == (0, "")) == good, done.stderr


@pytest.mark.parametrize("fault", ["owner", "mode", "folder"])
def test_a_program_that_another_account_can_change_is_refused(installed: Path, call: Call, fault: str) -> None:
    need_root()
    program = installed / "hugewise"
    match fault:
        case "owner":
            os.chown(program, 65534, 65534)
        case "mode":
            program.chmod(0o775)
        case "folder":
            installed.chmod(0o777)
    status, out, err = call("doctor", "--unit")
    assert (status, out) == (2, "")
    assert f"{installed if fault == 'folder' else program} can be changed by others than root" in err


def test_doctor_offers_it_where_systemd_runs() -> None:
    assert unit.check(Files({}, root=True)) is None
    booted = {"/run/systemd/system/x": ""}
    offered = unit.check(Files(booted, root=True))
    assert offered is not None
    assert (offered.state, offered.cure) == ("limited", unit.INSTALL)
    there = unit.check(Files(booted | {unit.PATH: "[Unit]"}, root=True))
    assert there is not None
    assert there.state == "ok"
