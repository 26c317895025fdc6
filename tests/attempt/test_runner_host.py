"""The runner's steps on this host, which boards as guests do; nothing is turned."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hugewise.attempt.context import HostBoarding
from hugewise.errors import StorageError
from hugewise.host.local_machine import LocalMachine
from hugewise.machine import probe
from hugewise.machine.machine import Contained, Site
from tests.attempt.test_runner_guests import Heard, Knobs, attempted, bench, both, cell


def here(folder: Path) -> HostBoarding:
    """This host, whose page settings are as they should be; commands run in `folder`."""

    def scratch(place: str) -> Any:
        pytest.fail(f"no folder {place} is asked for")

    site = Site(LocalMachine(), Knobs(), lambda _: Contained(), scratch, "smaps", os.sysconf("SC_PAGE_SIZE"))
    return HostBoarding(site, str(folder))


def test_this_host_is_boarded_like_a_guest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OF_THE_CALLER", "yes")
    where = Path("/tmp")
    made = bench(tmp_path, boarding=here(where))
    says = Heard(argv=("/bin/sh", "-c", "echo $OF_THE_CALLER $(pwd)"))
    attempt = attempted(made, cell(says))
    assert (attempt.state, attempt.reason, attempt.guest) == ("accepted", None, {})
    (draft,) = (made.folder.path / "attempts").glob("b*")
    assert (draft / "stdout").read_text() == f"yes {where}\n"
    assert attempt.metrics["words"] == 2.0
    assert (attempt.wall_s or 0) > 0 and (attempt.overhead_s or 0) > 0 and (attempt.metrics["page_faults"] or 0) > 0
    assert not any(name.startswith("allocations") for name in attempt.metrics)  # others allocate here too


def test_a_probe_without_room_for_its_lines_ends_the_run_and_not_the_arm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it did not say is nobody's fault but the disk's, so that no attempt is lost to an arm."""
    start = LocalMachine.start

    def to_a_full_disk(self: LocalMachine, job: probe.Job, inherited: tuple[int, ...] = ()) -> Any:
        job.events.symlink_to("/dev/full")
        return start(self, job, inherited)

    monkeypatch.setattr(LocalMachine, "start", to_a_full_disk)
    with pytest.raises(StorageError, match="cannot write .*: no room is left for what the probe says"):
        attempted(bench(tmp_path, boarding=here(tmp_path)), cell(Heard(argv=("true",))))


def test_launchers_of_this_host_meet_before_they_begin(tmp_path: Path) -> None:
    made = bench(tmp_path, boarding=here(tmp_path))
    assert [(attempt.arm, attempt.state) for attempt in both(made)] == [("base", "accepted"), ("thp", "accepted")]
    specs = [msgspec.json.decode(path.read_bytes()) for path in made.folder.path.glob("attempts/b*/spec.json")]
    assert [spec["barrier"] is not None for spec in specs] == [True, True]
