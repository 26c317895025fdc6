"""Files below /proc as the kernel writes them."""

from __future__ import annotations

from pathlib import Path

from hugewise.machine import proc
from hugewise.machine.proc import Mount, fields, kernel_text, meminfo, mounts, variables
from tests.build.hosts import FakeHost

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
        assert [(one.shared, one.size) for one in proc.mappings(text)] == [(False, 4096)]
        assert fields(f"Name:\tx{odd}THP_enabled:\t0\nState:\tS\n").keys() == {"Name", "State"}
