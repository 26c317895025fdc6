"""What of the free memory can become a huge page at once, as the kernel's lists of free blocks say it. Pure.

A zone whose free pages all lie below what it keeps back from programs serves none of them, however large its blocks are
(the first 16 MiB of x86-64). Where the kernel counts more free memory than its lists hold, the rest was never given to
them (kernels that prepare memory when it is first needed): that comes in blocks of any size.

Sources: proc(5) for buddyinfo and zoneinfo; __zone_watermark_ok() in mm/page_alloc.c of the Linux kernel.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from hugewise.machine.proc import meminfo
from hugewise.model.age import FreeMemory
from hugewise.model.host import Host, text_of

__all__ = ["free_memory", "largest_block"]

_LISTS = re.compile(r"^Node (\d{1,6}), zone +(\w{1,32})((?: +\d{1,15}){1,32}) *$", re.MULTILINE | re.ASCII)
_ZONE = re.compile(r"^Node (\d{1,6}), zone +(\w{1,32})$", re.MULTILINE | re.ASCII)
_LEAST = re.compile(r"^ +min +(\d{1,15})$", re.MULTILINE | re.ASCII)
_RESERVE = re.compile(r"^ +protection: \(([\d, ]{0,400})\)$", re.MULTILINE | re.ASCII)
_UNLISTED = 0.02  # of the free memory: what lies between two readings is no more


def free_memory(host: Host, base: int, pmd: int) -> FreeMemory:
    """Of `host`, whose base and PMD pages have these sizes in bytes. Raises OSError where it does not say it."""
    kept = dict(_kept(host.read("/proc/zoneinfo")))
    order = (pmd // base).bit_length() - 1
    everything = huge = 0
    for node, zone, counts in _LISTS.findall(host.read("/proc/buddyinfo")):
        blocks = [int(count) * (base << size) for size, count in enumerate(counts.split())]
        everything += sum(blocks)
        if sum(blocks) > base * kept.get((node, zone), 0):
            huge += sum(blocks[order:])
    unlisted = meminfo(host).get("MemFree", 0) - everything
    if unlisted > _UNLISTED * max(everything, pmd):
        return FreeMemory(everything + unlisted, huge + unlisted)
    return FreeMemory(everything, huge)


def largest_block(host: Host, base: int) -> int:
    """Bytes of the largest block in the kernel's lists, where a base page has `base`; 0 where it does not say."""
    lists = _LISTS.findall(text_of(host, "/proc/buddyinfo") or "")
    return max((base << (len(counts.split()) - 1) for _, _, counts in lists), default=0)


def _kept(zoneinfo: str) -> Iterator[tuple[tuple[str, str], int]]:
    """Pages that each zone of each node keeps from programs: its lowest watermark, and its reserve against them."""
    zones = list(_ZONE.finditer(zoneinfo))
    names = list(dict.fromkeys(found[2] for found in zones))
    movable = names.index("Movable") if "Movable" in names else len(names) - 1
    ends = [*(found.start() for found in zones[1:]), len(zoneinfo)]
    for found, end in zip(zones, ends, strict=False):
        part = zoneinfo[found.end() : end]
        least, reserve = _LEAST.search(part), _RESERVE.search(part)
        each = [int(pages) for pages in reserve[1].split(",")] if reserve and reserve[1] else []
        yield (found[1], found[2]), (int(least[1]) if least else 0) + (each[movable] if movable < len(each) else 0)
