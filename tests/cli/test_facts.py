"""facts: what a journal says about runs under way and killed ones, and that this machine can be looked at."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from hugewise.cli.doctor import PROGRAMS, gather, leftover
from hugewise.host.ledger import JournalClosed, JournalOpened
from hugewise.host.local_host import LocalHost
from tests.build import known


def journal(path: Path, *records: object) -> Path:
    path.write_bytes(b"".join(msgspec.json.encode(record) + b"\n" for record in records))
    return path


def test_a_journal_left_by_a_killed_run_is_cured_by_restore(tmp_path: Path) -> None:
    host, path = LocalHost(), tmp_path / "journal.jsonl"
    assert leftover(host, path) is None
    dead = JournalOpened("boot", 2**22 + 1, 1, "/results/r1")
    found = leftover(host, journal(path, dead))
    assert found == ("a run was killed and left settings turned: /results/r1", "sudo hugewise restore")
    assert leftover(host, journal(path, dead, JournalClosed("put back"))) is None
    path.write_bytes(msgspec.json.encode(dead) + b"\n{torn")
    assert leftover(host, path) == found
    path.write_bytes(b"rubbish\n")
    said = known(leftover(host, path))
    assert "not a journal" in said[0]


def test_a_run_under_way_is_not_called_killed(tmp_path: Path) -> None:
    host = LocalHost()
    started = int(host.read(f"/proc/{os.getpid()}/stat").rpartition(")")[2].split()[19])
    mine = JournalOpened("boot", os.getpid(), started, "/results/r2")
    found = known(leftover(host, journal(tmp_path / "j", mine)))
    assert found[0].startswith(f"a run is under way (pid {os.getpid()})")


def test_this_machine_can_be_looked_at() -> None:
    found = gather(LocalHost())
    assert found.programs.keys() == PROGRAMS.keys()
    assert found.after.monotonic_s > found.before.monotonic_s
