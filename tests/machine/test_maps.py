"""Which ranges of a process a policy is about: maps as they were seen of real servers, shortened."""

from __future__ import annotations

from hugewise.machine.proc import mappings, named_ranges

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


def test_shared_is_the_largest_anonymous_one_and_no_file() -> None:
    assert named_ranges(POSTGRES, "shared") == [(0x7F1C00000000, 0x7F1C64600000)]
    assert named_ranges(POSTGRES.replace("/anon_hugepage", "/dev/zero"), "shared") == [(0x7F1C00000000, 0x7F1C64600000)]
    assert named_ranges(MARIADB, "shared") == []


def test_large_joins_what_is_adjacent_and_leaves_out_the_small() -> None:
    assert named_ranges(MARIADB, "large") == [(0x7F2BA8000000, 0x7F2BB8000000)]
    assert named_ranges(POSTGRES, "large") == []


def test_all_means_the_whole_process() -> None:
    assert named_ranges(POSTGRES, "all") is None
