"""Which QEMU guests have: one that is named, the usual one, or the one of RHEL."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hugewise.errors import UserError
from hugewise.guests import hypervisor
from hugewise.model.guest import HARDWARE, Architecture

HERE: Architecture = next(arch for arch, hardware in HARDWARE.items() if hardware == os.uname().machine)
OTHER: Architecture = next(arch for arch in HARDWARE if arch != HERE)
RHEL = "/usr/libexec/qemu-kvm"


def alone(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host where this is the one QEMU."""
    monkeypatch.setattr("shutil.which", lambda _: None)
    monkeypatch.setattr(os, "access", lambda each, _: each == path)


def test_a_qemu_by_its_path_is_taken_before_all_others(tmp_path: Path) -> None:
    own = tmp_path / "qemu"
    own.write_text("#!/bin/sh\n")
    own.chmod(0o755)
    assert hypervisor.find_qemu("x86-64", str(own)) == str(own)
    assert hypervisor.missing("arm64", str(own)) is None
    own.chmod(0o644)
    lacking = hypervisor.missing("arm64", str(own))
    assert lacking is not None
    assert (lacking.reason, lacking.package) == (f"{own}: no such program for guests of arm64", None)
    with pytest.raises(UserError, match=f"{own}: no such program") as raised:
        hypervisor.find_qemu("x86-64", str(own))
    assert raised.value.hint == "name QEMU's program, or remove qemu from [guest]"


@pytest.mark.parametrize("path", [RHEL, "/usr/bin/qemu-kvm"])
def test_rhels_qemu_is_taken_where_the_usual_one_is_not_there(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is for guests of the host's own architecture."""
    alone(path, monkeypatch)
    assert hypervisor.find_qemu(HERE) == path
    assert hypervisor.missing(HERE) is None
    assert hypervisor.missing(OTHER) is not None
    with pytest.raises(UserError, match=f"for guests of {OTHER}"):
        hypervisor.find_qemu(OTHER)


def test_the_usual_qemu_goes_before_rhels(monkeypatch: pytest.MonkeyPatch) -> None:
    alone(RHEL, monkeypatch)
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    assert hypervisor.find_qemu("x86-64") == "/usr/bin/qemu-system-x86_64"
