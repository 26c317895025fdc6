"""smaps becomes mappings, whatever stands in names."""

from hugewise.machine.smaps import BackedMapping, backed_mappings

# Recorded on Linux 6.18 and shortened.
RECORDED = b"""\
55d0c0000000-55d0c0400000 rw-p 00000000 00:00 0                          [heap]
Size:               4096 kB
KernelPageSize:        4 kB
Rss:                4096 kB
Anonymous:          4096 kB
AnonHugePages:      2048 kB
ShmemPmdMapped:        0 kB
Shared_Hugetlb:        0 kB
Private_Hugetlb:       0 kB
Swap:                  8 kB
THPeligible:           1
VmFlags: rd wr mr mw me ac sd hg
7f0001000000-7f0001200000 rw-s 00000000 00:01 2054                       /memfd:x y (deleted)
Rss:                 100 kB
Anonymous:             4 kB
VmFlags: rd wr sh
7f0002000000-7f0002400000 rw-p 00000000 00:10 9                          /anon_hugepage (deleted)
KernelPageSize:     2048 kB
Rss:                   0 kB
Private_Hugetlb:    4096 kB
THPeligible:           0
VmFlags: rd wr ht
7f0003000000-7f0003001000 r--p 00000000 fe:00 7                          /tmp/a\\012Rss: 1 kB
Rss:                   4 kB
"""


def test_the_fields_of_each_mapping_are_read() -> None:
    heap, memfd, pool, file = backed_mappings(RECORDED.splitlines(keepends=True))
    assert (heap.called, heap.anonymous, heap.huge, heap.swapped) == ("[heap]", 4 << 20, 2 << 20, 8 << 10)
    assert (heap.eligible, heap.flags >= {"hg"}, heap.memory) == (True, True, 4 << 20)
    assert (memfd.is_shmem, memfd.memory, memfd.eligible) == (True, 100 << 10, None)
    assert (pool.pool, pool.page, pool.memory) == (4 << 20, 2 << 20, 4 << 20)
    assert (file.name, file.memory, file.resident) == (r"/tmp/a\012Rss: 1 kB", 0, 4096)


def test_the_room_is_that_of_whole_aligned_blocks() -> None:
    def room(start: int, end: int) -> int:
        return BackedMapping(start=start, end=end, permissions="rw-p", name="").room(1 << 21)

    m = 1 << 20
    assert room(m, 9 * m) == 6 * m
    assert room(2 * m, 4 * m) == 2 * m
    assert room(m, 3 * m) == 0
    assert room(3 * m - 1, 5 * m) == 0
