"""What cannot be read is given up: pipes that nobody writes to, and a process whose map of memory is held for ever."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from hugewise.attempt import under_test
from hugewise.audit import running as audited
from hugewise.audit.root import Root
from hugewise.errors import ProbeError, UserError
from hugewise.host.local_host import LocalHost
from hugewise.inspection import look
from hugewise.inspection import neighbours as beside
from hugewise.inspection.verify import verify
from hugewise.machine import probe
from hugewise.machine.proc import Patience, StuckError, patient_text
from tests.build.stuck import stuck


def test_what_can_be_read_is_read_whole(tmp_path: Path) -> None:
    lines = [f"line {number}\n".encode() * (number % 7) for number in range(200_000)]
    (tmp_path / "file").write_bytes(b"".join(lines) + b"without an end")
    expected = (tmp_path / "file").read_bytes().splitlines(keepends=True)
    assert list(Patience().lines(tmp_path / "file")) == expected
    assert next(iter(Patience().lines(Path("/proc/self/smaps")))).count(b"-") >= 1
    (tmp_path / "empty").touch()
    assert list(Patience().lines(tmp_path / "empty")) == []


def test_what_goes_wrong_is_told_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        list(Patience().lines(tmp_path / "none"))
    with pytest.raises(ZeroDivisionError):
        Patience().of(lambda: 1 / 0)
    assert Patience().of(lambda: "found") == "found"


def test_who_waits_gives_up_and_waits_less_for_the_next(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "smaps")
    waiting = Patience(1.5)
    began = time.monotonic()
    with pytest.raises(StuckError, match=r"it could not be read within 1.5 s"):
        list(waiting.lines(tmp_path / "smaps"))
    first = time.monotonic() - began
    with pytest.raises(StuckError, match=r"it could not be read within 1 s"):
        waiting.of((tmp_path / "smaps").read_bytes)
    assert 1.4 < first < 10 and waiting.seconds == 1.0


def test_a_file_that_dries_up_is_given_up(tmp_path: Path) -> None:
    """The time is for all of it: pieces that come one by one do not begin it anew."""
    os.mkfifo(tmp_path / "smaps")
    writer = os.open(tmp_path / "smaps", os.O_RDWR)
    os.write(writer, b"a line\n")
    try:
        with pytest.raises(StuckError):
            list(Patience(0.3).lines(tmp_path / "smaps"))
    finally:
        os.close(writer)


def test_neighbours_that_cannot_be_read_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beside, "_PATIENCE_S", 0.2)
    for pid in (5, 6):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "status").write_text("Name:\tstuck\nVmRSS:\t  40000 kB\nTHP_enabled:\t1\n")
        os.mkfifo(tmp_path / str(pid) / "smaps")
    found = beside.neighbours(2 << 20, tmp_path)
    assert (found.processes, found.unread) == (0, 2)


# -- a process that is really stuck


def test_a_stuck_process_is_told_by_verify_and_keeps_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(look, "PATIENCE_S", 0.5)
    with stuck() as pid:
        with pytest.raises(UserError, match=r"could not be read within 0.5 s: its map of memory is held") as raised:
            verify(str(pid), LocalHost())
        assert "sudo" not in (raised.value.hint or "") and "end who holds it" in (raised.value.hint or "")


def test_a_stuck_process_has_no_footprint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(under_test, "PATIENCE_S", 0.5)
    with stuck() as pid:
        assert under_test.resident_bytes(LocalHost(), [os.getpid(), pid]) is None
        with pytest.raises(StuckError):
            patient_text(LocalHost(), f"/proc/{pid}/cmdline", Patience(0.2))
    assert under_test.resident_bytes(LocalHost(), [os.getpid()])


def test_a_stuck_process_is_a_neighbour_that_is_not_looked_into(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(beside, "_PATIENCE_S", 0.3)
    with stuck() as pid:
        (tmp_path / str(pid)).symlink_to(f"/proc/{pid}")
        assert beside.neighbours(2 << 20, tmp_path).unread == 1


def test_a_stuck_process_does_not_keep_an_audit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audited, "_PATIENCE_S", 0.3)
    with stuck():
        root = Root()
        assert audited.processes(root)
        assert any("could not be read within 0.3 s" in line for line in root.unread())


def test_the_probe_gives_a_stuck_process_up() -> None:
    with stuck() as pid, pytest.raises(ProbeError, match=r"could not be read within 1 s: its map of memory is held"):
        probe.ask("scan", "--pid", str(pid), "--source", "smaps", "--patience", "1")
