"""Files below /proc as the kernel writes them."""

from __future__ import annotations

from hugewise.machine.proc import Mount, meminfo, mounts, variables
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
