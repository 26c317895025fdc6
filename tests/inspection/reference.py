"""What backs a process, read the plain way: every entry of its pagemap, the flags of every page, the sums of smaps.

Slow, and made to be read: it shares nothing with the probe, and knows neither PAGEMAP_SCAN nor groups nor guesses.
"""

import os
import re
from collections import Counter
from functools import cache
from pathlib import Path

__all__ = ["folios"]

ANON, SWAPBACKED, HEAD, TAIL, HUGE, ZERO = 1 << 12, 1 << 14, 1 << 15, 1 << 16, 1 << 17, 1 << 24
BASE = os.sysconf("SC_PAGE_SIZE")
_LINE = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (\S{4}) ")


def folios(pid: int) -> Counter[str]:
    """Bytes by `kind:folio size:state`, and `swapped`, of all mappings."""
    found: Counter[str] = Counter()
    flags_file = os.open("/proc/kpageflags", os.O_RDONLY)

    @cache
    def flags(pfn: int) -> int:
        return int.from_bytes(os.pread(flags_file, 8, pfn * 8), "little")

    @cache
    def folio(pfn: int) -> tuple[int, int]:
        """Its head and pages."""
        head = pfn
        while flags(head) & TAIL:
            head -= 1
        pages = 1
        while flags(head) & HEAD and flags(head + pages) & TAIL:
            pages += 1
        return head, pages

    try:
        for start, end, shared, huge in _mappings(pid):
            pages = [(vpn, entry) for vpn, entry in _entries(pid, start, end) if entry >> 63]
            found["swapped"] += sum(BASE for _, entry in _entries(pid, start, end) if entry >> 62 == 1)
            left = dict(huge)
            for first, count, pfn in _pieces([(vpn, entry & ((1 << 55) - 1)) for vpn, entry in pages], folio):
                head, size = folio(pfn)
                if flags(pfn) & ZERO:
                    continue
                kind = _kind(flags(head), shared=shared)
                whole, aligned = count == size, (first - pfn) % size == 0
                state = "partial" if not whole else "aligned" if aligned or size == 1 else "unaligned"
                if kind == "hugetlb" or (whole and aligned and left.get(kind, 0) >= size * BASE > BASE):
                    left[kind] = left.get(kind, 0) - size * BASE
                    state = "pmd"
                found[f"{kind}:{size * BASE}:{state}"] += count * BASE
    finally:
        os.close(flags_file)
    return +found


def _mappings(pid: int) -> list[tuple[int, int, bool, dict[str, int]]]:
    """Addresses, whether shared, and bytes that the PMD maps by kind."""
    found: list[tuple[int, int, bool, dict[str, int]]] = []
    names = {"AnonHugePages": "anon", "ShmemPmdMapped": "shmem", "FilePmdMapped": "file"}
    for line in Path(f"/proc/{pid}/smaps").read_text().split("\n"):
        if head := _LINE.match(line):
            found.append((int(head[1], 16), int(head[2], 16), head[3][3] == "s", {}))
        elif (words := line.split()) and words[0].rstrip(":") in names:
            found[-1][3][names[words[0].rstrip(":")]] = int(words[1]) << 10
    return [one for one in found if one[1] < 1 << 63]


def _entries(pid: int, start: int, end: int) -> list[tuple[int, int]]:
    with Path(f"/proc/{pid}/pagemap").open("rb", buffering=0) as pagemap:
        pagemap.seek(start // BASE * 8)
        raw = pagemap.read((end - start) // BASE * 8)
    return [(start // BASE + at, int.from_bytes(raw[at * 8 : at * 8 + 8], "little")) for at in range(len(raw) // 8)]


def _pieces(pages: list[tuple[int, int]], folio: object) -> list[tuple[int, int, int]]:
    """First virtual page, pages, first physical page: of one folio each, in a row on both sides."""
    found: list[tuple[int, int, int]] = []
    for vpn, pfn in pages:
        if found:
            first, count, begin = found[-1]
            if vpn == first + count and pfn == begin + count and folio(pfn) == folio(begin):  # type: ignore[operator]
                found[-1] = (first, count + 1, begin)
                continue
        found.append((vpn, 1, pfn))
    return found


def _kind(flags: int, *, shared: bool) -> str:
    if flags & HUGE:
        return "hugetlb"
    if flags & ANON:
        return "anon"
    return "shmem" if flags & SWAPBACKED and shared else "file"
