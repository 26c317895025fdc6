"""Where a worker has what is its own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from hugewise.fleet.certificates import Identity
from hugewise.fleet.dask.worker import WorkerSettings, own_place

TOLD = WorkerSettings(
    identity=Identity(certificate="", key="", callers="", called=""),
    seal="",
    fleet="f",
    host="alpha",
    scheduler="tls://127.0.0.1:1",
    address="127.0.0.1",
    installation="/opt/hugewise",
    spool="/srv/spool",
)


@pytest.mark.parametrize(("root", "uid", "spool"), [(False, 1000, True), (True, 0, True), (True, 1000, False)])
def test_it_makes_no_spool_of_root_s_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, root: bool, uid: int, spool: bool
) -> None:
    """With `root = true` orders go through sudo: root would refuse a spool that this account has made."""
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    monkeypatch.setenv("HOME", str(tmp_path))
    wanted = Path("/srv/spool") if spool else tmp_path / ".local/state/hugewise/fleet"
    assert own_place(replace(TOLD, root=root)) == wanted
