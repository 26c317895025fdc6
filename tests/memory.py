"""Memory in which the kernel finds huge pages: what tests of page sizes need, and what hours of other tests take.

A tree of files that is made and removed leaves inodes and names in slabs, which cannot be moved: compaction alone does
not bring huge pages back.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hugewise.host.local_host import LocalHost
from hugewise.host.pool import pool_folder
from hugewise.machine.proc import free_memory, meminfo
from hugewise.model.pages import PageSizes
from hugewise.quantity import format_size
from tests.requirements import need, need_now

__all__ = ["Whole", "held_pages", "huge_share"]

ENOUGH = 4 << 30
"""Bytes in free blocks of a huge page or more: more than any test maps."""
AGAIN_S = 60.0


def huge_share() -> float:
    """The share of the free memory that is in blocks of a huge page; 1 where there are none."""
    host = LocalHost()
    pmd = PageSizes.discover(host).pmd
    if pmd is None:
        return 1.0
    free = free_memory(host, os.sysconf("SC_PAGE_SIZE"), pmd)
    return free.huge / free.all


class Whole:
    """Has the kernel give up its caches and compact its memory, where little of it is in blocks of a huge page; at most
    once a minute. As an ordinary user nothing happens.
    """

    def __init__(self) -> None:
        self._tried = -AGAIN_S

    def make(self) -> None:
        """Look, and do it where there is need."""
        if os.geteuid() != 0 or time.monotonic() - self._tried < AGAIN_S:
            return
        host = LocalHost()
        known = meminfo(host)
        if huge_share() * known["MemFree"] < min(ENOUGH, 0.3 * known["MemTotal"]):
            self._tried = time.monotonic()
            host.write("/proc/sys/vm/drop_caches", "3")
            host.write("/proc/sys/vm/compact_memory", "1")


@contextmanager
def held_pages(size: int, pages: int) -> Iterator[None]:
    """So many more pages of the pool, from the check to the end of the `with`: a run that the kernel grants no others
    has these. Where they are not to be had, the calling test is skipped by name.
    """
    knob = Path(pool_folder(size)) / "nr_hugepages"
    need(knob.exists(), f"a pool of pages of {format_size(size)}")
    # Names and inodes in the kernel's caches lie where compaction cannot move them.
    Path("/proc/sys/vm/drop_caches").write_text("3")
    before = int(knob.read_text())
    try:
        knob.write_text(str(before + pages))
        need_now(int(knob.read_text()) >= before + pages, f"{pages} x {format_size(size)} of memory in one piece")
        yield
    finally:
        knob.write_text(str(before))
