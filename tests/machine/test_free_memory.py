"""What of the free memory can become a huge page, from the kernel's own texts."""

from __future__ import annotations

import pytest

from hugewise.machine.proc import free_memory
from hugewise.model.age import FreeMemory
from tests.build.hosts import Files
from tests.build.memory import ZONES, memory_files

PAGE, PMD = 4096, 2 << 20


def test_blocks_that_a_huge_page_fits_into_are_counted_in_bytes() -> None:
    host = Files(memory_files(normal=[8, 0, 0, 0, 0, 0, 0, 0, 0, 2, 1]))
    small = 256 + 512 + 3 * 1024  # of the zone DMA, which keeps all of it
    assert free_memory(host, PAGE, PMD) == FreeMemory((small + 8 + 2048) << 12, 2048 << 12)


def test_a_zone_that_gives_to_every_program_counts_whole() -> None:
    files = memory_files(normal=[8, 0, 0, 0, 0, 0, 0, 0, 0, 2, 1]) | {"/proc/zoneinfo": ""}
    assert free_memory(Files(files), PAGE, PMD).huge == (512 + 3 * 1024 + 2048) << 12


def test_what_was_never_in_the_lists_is_as_huge_as_one_likes() -> None:
    files = memory_files(normal=[8]) | {"/proc/meminfo": "MemFree:        1048576 kB\n"}
    assert free_memory(Files(files), PAGE, PMD) == FreeMemory(1 << 30, (1 << 30) - ((3840 + 8) << 12))


def test_other_page_sizes_have_another_order() -> None:
    files = {"/proc/buddyinfo": "Node 0, zone   Normal  1 1 1 1\n", "/proc/zoneinfo": "", "/proc/meminfo": ""}
    assert free_memory(Files(files), 64 << 10, 256 << 10) == FreeMemory(15 << 16, 12 << 16)


def test_a_kernel_that_does_not_say_it_is_an_error() -> None:
    with pytest.raises(OSError):
        free_memory(Files({"/proc/zoneinfo": ZONES}), PAGE, PMD)
