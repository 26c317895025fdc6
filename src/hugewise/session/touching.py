"""The memory that a session is going to use is touched once, before anything is measured."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from hugewise.machine import probe

__all__ = ["touch"]

# A GiB of freed memory needs about a second until the kernel has it back in its lists.
_SETTLED_AFTER = 1 << 30


def touch(largest: int, pools: Mapping[int, int], say: Callable[[str], None]) -> None:
    """Touch `largest` bytes, and the pages of the pools (by page size in bytes): fresh memory of a guest is slow to
    touch the first time. Raises ProbeError.
    """
    wanted = {"anon": largest} | {f"hugetlb:{size}": size * pages for size, pages in pools.items()}
    if total := sum(wanted.values()):
        say(f"touching {round(total / (1 << 20)):,} MiB of memory once")
    for where, amount in wanted.items():
        if amount:
            probe.ask("touch", "--bytes", str(amount), "--map", where)
    time.sleep(min(1.0, largest / _SETTLED_AFTER))
