"""`hugewise doctor --unit`, and how the service that `--unit` names is started."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hugewise.audit import systemd
from hugewise.audit.root import Root
from hugewise.cli import unit
from hugewise.cli.unit import of_host
from hugewise.errors import UserError
from tests.build.hosts import Files
from tests.cli.conftest import Call
from tests.requirements import need, need_program, need_root


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


def test_a_service_of_this_host_is_found_by_its_name() -> None:
    names = [name for name in systemd.service_files(Root()) if "@" not in name]
    need(bool(names), "services of systemd")
    found = next(one for name in names if (one := of_host(name.removesuffix(".service"))) is not None and one.starts)
    assert found.name in names
    place, text = found.starts[0]
    path, _, line = place.rpartition(":")
    assert text.split()[0] in Root().read(path).split("\n")[int(line) - 1]


def test_a_service_that_is_not_there_is_none() -> None:
    assert of_host("nobody-has-this") is None
    with pytest.raises(UserError, match="not the name of a unit"):
        of_host("../x")
