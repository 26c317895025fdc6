"""Files below /proc as the kernel writes them: mounts, maps, free memory, and those that cannot be read."""

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
from hugewise.inspection.verify import verify
from hugewise.machine import probe, proc
from hugewise.machine.proc import (
    Mount,
    Patience,
    StuckError,
    fields,
    free_memory,
    kernel_text,
    mappings,
    meminfo,
    mounts,
    named_ranges,
    patient_text,
    variables,
)
from hugewise.model.pages import FreeMemory
from tests.build.hosts import FakeHost, Files
from tests.build.memory import ZONES, memory_files
from tests.build.stuck import stuck

INFO = "MemTotal:       24684092 kB\nHugePages_Total:       3\nHugepagesize:       2048 kB\nDirectMap4k:   12 kB"
MOUNTS = (
    "25 30 0:23 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
    "31 25 0:30 /part /mnt/with\\040blank rw - cgroup none rw,memory,pids"
)


def test_memory_in_bytes_by_name() -> None:
    host = FakeHost()
    host.fixed |= {"/proc/meminfo": INFO, "/node": "Node 0 MemTotal:  4 kB\nNode 0 MemFree:  1 kB"}
    assert meminfo(host) == {"MemTotal": 24684092 << 10, "Hugepagesize": 2 << 20, "DirectMap4k": 12 << 10}
    assert meminfo(host, "/node") == {"MemTotal": 4096, "MemFree": 1024}
    assert meminfo(host, "/none") == {}


def test_what_is_mounted() -> None:
    assert list(mounts(MOUNTS)) == [
        Mount("/sys/fs/cgroup", "/", "cgroup2", "rw,nsdelegate"),
        Mount("/mnt/with blank", "/part", "cgroup", "rw,memory,pids"),
    ]


def test_tunables_that_glibc_cut_in_place_are_one_variable_again() -> None:
    raw = b"A=1\0GLIBC_TUNABLES=glibc.malloc.arena_max=1\0glibc.malloc.hugetlb=2\0B=x=y\0title\0\0"
    assert list(variables(raw)) == [
        ("A", "1"),
        ("GLIBC_TUNABLES", "glibc.malloc.arena_max=1:glibc.malloc.hugetlb=2"),
        ("B", "x=y"),
        ("title", ""),
    ]
    assert list(variables(b"")) == []


ODD = "\v\f\r\x1c\x85\u2028"
"""Characters that end a line for Python, and that a name may have: the kernel escapes the line feed alone."""


def test_names_of_others_end_no_line(tmp_path: Path) -> None:
    """A user mounts by FUSE, makes control groups and maps files: no name of theirs is a line, a field or an error."""
    for odd in ODD:
        (tmp_path / "f").write_bytes(f"25 30 0:23 / /home/x{odd}y rw - fuse.z z rw\n{MOUNTS}".encode() + b"\xff\n")
        found = list(mounts(kernel_text(tmp_path / "f")))
        assert [one.point for one in found] == [f"/home/x{odd}y", "/sys/fs/cgroup", "/mnt/with blank"]
        text = f"7f0000000000-7f0000001000 r--p 00000000 08:01 5    /tmp/x{odd}0-1000 rw-s 0 00:01 7 /SYSV0 (deleted)\n"
        assert [(mapping.shared, mapping.size) for mapping in proc.mappings(text)] == [(False, 4096)]
        assert fields(f"Name:\tx{odd}THP_enabled:\t0\nState:\tS\n").keys() == {"Name", "State"}


POSTGRES = """\
55d0c0e2b000-55d0c0ef1000 r--p 00000000 fe:00 2361 /usr/lib/postgresql/15/bin/postgres
55d0c21f5000-55d0c2290000 rw-p 00000000 00:00 0 [heap]
7f1c00000000-7f1c64600000 rw-s 00000000 00:0f 118093 /anon_hugepage (deleted)
7f1c6d5a0000-7f1c6d5a8000 rw-s 00000000 00:17 3 /dev/shm/PostgreSQL.2773442910
7f1c6e3a0000-7f1c6e3a1000 rw-s 00000000 00:01 7 /SYSV00023a5c (deleted)
7ffc2a5c9000-7ffc2a5ea000 rw-p 00000000 00:00 0 [stack]
"""
MARIADB = """\
7f2ba8000000-7f2bb0000000 rw-p 00000000 00:00 0
7f2bb0000000-7f2bb4000000 rw-p 00000000 00:0f 1029 /anon_hugepage (deleted)
7f2bb4000000-7f2bb4021000 rw-p 00000000 00:00 0
7f2bb4021000-7f2bb8000000 ---p 00000000 00:00 0
7f2bc0000000-7f2bc0100000 rw-p 00000000 00:00 0
7f2bd0000000-7f2bd4000000 r--p 00000000 fe:00 9 /usr/lib/locale/locale-archive
"""


def test_a_line_is_read_whole() -> None:
    found = list(mappings(POSTGRES))
    assert len(found) == 6
    assert found[2].shared
    assert found[2].size == 0x64600000
    assert found[2].name == "/anon_hugepage (deleted)"


def test_shared_is_the_largest_anonymous_range_large_joins_neighbours_and_all_is_the_process() -> None:
    assert named_ranges(POSTGRES, "shared") == [(0x7F1C00000000, 0x7F1C64600000)]
    assert named_ranges(POSTGRES.replace("/anon_hugepage", "/dev/zero"), "shared") == [(0x7F1C00000000, 0x7F1C64600000)]
    of_a_file = POSTGRES.replace("/anon_hugepage (deleted)", "/srv/pages")
    assert named_ranges(of_a_file, "shared") == [(0x7F1C6E3A0000, 0x7F1C6E3A1000)], "no file"
    assert named_ranges(MARIADB, "shared") == []
    assert named_ranges(MARIADB, "large") == [(0x7F2BA8000000, 0x7F2BB8000000)], "without the small"
    assert named_ranges(POSTGRES, "large") == []
    assert named_ranges(POSTGRES, "all") is None


PAGE, PMD = 4096, 2 << 20


def test_blocks_that_a_huge_page_fits_into_are_counted_in_bytes() -> None:
    files = memory_files(normal=[8, 0, 0, 0, 0, 0, 0, 0, 0, 2, 1])
    small = 256 + 512 + 3 * 1024  # of the zone DMA, which keeps all of it
    assert free_memory(Files(files), PAGE, PMD) == FreeMemory((small + 8 + 2048) << 12, 2048 << 12)
    # A zone that gives to every program counts whole.
    assert free_memory(Files(files | {"/proc/zoneinfo": ""}), PAGE, PMD).huge == (512 + 3 * 1024 + 2048) << 12
    # What was never in the lists is as huge as one likes.
    files = memory_files(normal=[8]) | {"/proc/meminfo": "MemFree:        1048576 kB\n"}
    assert free_memory(Files(files), PAGE, PMD) == FreeMemory(1 << 30, (1 << 30) - ((3840 + 8) << 12))
    # Other page sizes have another order.
    files = {"/proc/buddyinfo": "Node 0, zone   Normal  1 1 1 1\n", "/proc/zoneinfo": "", "/proc/meminfo": ""}
    assert free_memory(Files(files), 64 << 10, 256 << 10) == FreeMemory(15 << 16, 12 << 16)
    with pytest.raises(OSError):
        free_memory(Files({"/proc/zoneinfo": ZONES}), PAGE, PMD)


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
    assert first > 1.4 and waiting.seconds == 1.0


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


# -- a process that is really stuck


def test_a_stuck_process_is_told_by_verify_and_keeps_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(look, "PATIENCE_S", 0.5)
    with stuck() as pid:
        with pytest.raises(UserError, match=r"could not be read within 0.5 s: its map of memory is held") as raised:
            verify(str(pid), LocalHost(), "thp")
        assert "sudo" not in (raised.value.hint or "") and "end who holds it" in (raised.value.hint or "")


def test_a_stuck_process_has_no_footprint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(under_test, "PATIENCE_S", 0.5)
    with stuck() as pid:
        assert under_test.resident_bytes(LocalHost(), [os.getpid(), pid]) is None
        with pytest.raises(StuckError):
            patient_text(LocalHost(), f"/proc/{pid}/cmdline", Patience(0.2))
    monkeypatch.setattr(under_test, "PATIENCE_S", 60.0)
    assert under_test.resident_bytes(LocalHost(), [os.getpid()])


def test_a_stuck_process_does_not_keep_an_audit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audited, "_PATIENCE_S", 0.3)
    with stuck():
        root = Root()
        assert audited.processes(root)
        assert any("could not be read within 0.3 s" in line for line in root.unread())


def test_the_probe_gives_a_stuck_process_up() -> None:
    with stuck() as pid, pytest.raises(ProbeError, match=r"could not be read within 1 s: its map of memory is held"):
        probe.ask("scan", "--pid", str(pid), "--source", "smaps", "--patience", "1")
