"""Memory of a virtual machine that its host has to give: touched before it is measured with.

Memory that a guest never used is slow to touch the first time: a session touches as much as it needs, once.

With free page reporting the kernel tells the host every two seconds which blocks of a huge page's size are free. The
host takes them back, and has to give memory again when the guest touches such a block. Programs with huge pages take
these blocks; programs with base pages take pieces that the kernel does not report. Measured on a virtual machine of 24
GiB (Linux 6.18): 0.13 ms for each MiB in huge pages where the host had given the memory, 2.4 to 3.4 ms where it had
taken it back; 0.33 to 0.45 ms in base pages in both cases. A compiler with 120 MiB took 19% longer under `thp` than
under `base` after three seconds of rest, and 5% less where as much memory had been touched just before (10 runs each).

Source: Documentation/mm/free_page_reporting.rst and mm/page_reporting.c, Linux 6.18.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from statistics import median

from hugewise.errors import ProbeError
from hugewise.machine import probe
from hugewise.machine.proc import meminfo
from hugewise.model.host import Host, number_of, text_of
from hugewise.model.pages import REPORTING, PageSizes, reported_order
from hugewise.quantity import format_size, readable_size

_UNKNOWN = 256 << 20  # bytes to touch while nobody knows how many a cell needs
_MOST_SHARE = 0.25  # of the memory that is available
_MARGIN, _SPARE = 1.05, 16 << 20  # beyond what earlier attempts used
_SLOW = 4  # times the typical block of those that the host had given
_FEWEST = 16  # blocks, to tell slow ones from others
_AGAIN_S = 0.25  # far less than two seconds: in between, an arm may find memory that was taken back
_MOST_AGAIN = 1 << 30  # bytes that arms which take turns hardly exceed in that time
_MOST = 4 << 30
_SETTLED_AFTER = 1 << 30  # bytes of freed memory that the kernel has back in its lists after about a second
_KEPT = 10_000  # blocks whose times are kept: the newest


def prefault(largest: int, pools: Mapping[int, int], say: Callable[[str], None]) -> None:
    """Touch `largest` bytes, and the pages of the pools (by page size in bytes), once. Raises ProbeError."""
    wanted = {"anon": largest} | {f"hugetlb:{size}": size * pages for size, pages in pools.items()}
    if total := sum(wanted.values()):
        say(f"touching {round(total / (1 << 20)):,} MiB of memory once")
    for where, amount in wanted.items():
        if amount:
            _touch(amount, "--map", where)
    time.sleep(min(1.0, largest / _SETTLED_AFTER))


def _touch(size: int, *how: str) -> probe.Touched:
    touched = probe.ask("touch", "--bytes", str(size), *how)
    assert isinstance(touched, probe.Touched)
    return touched


def _room(host: Host) -> int:
    """Return the bytes that are available to this process: on the machine, and in its memory cgroup."""
    room = meminfo(host).get("MemAvailable", 0)
    for line in (text_of(host, "/proc/self/cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        first = "memory" in controllers.split(",")
        folder = f"/sys/fs/cgroup{'/memory' if first else ''}{path}".rstrip("/")
        limit, used = (
            number_of(host, f"{folder}/{name}")
            for name in (
                ("memory.limit_in_bytes", "memory.usage_in_bytes") if first else ("memory.max", "memory.current")
            )
        )
        if limit is not None and used is not None:
            room = min(room, max(0, limit - used))
    return room


def backing_of(host: Host) -> Backing | None:
    """Return a `Backing` where the host of this virtual machine takes back blocks of a huge page's size, else None."""
    pmd = PageSizes.discover(host).pmd
    return None if pmd is None or reported_order(text_of(host, REPORTING)) is None else Backing(host, pmd)


@dataclass
class Backing:
    """Touches free memory before attempts that take memory while they are timed.

    size       of a block, in bytes: a huge page of the PMD size
    peaks      bytes that the attempts of a block used at their most, by cell
    blocks     that were touched
    blocks_ns  time of each, of the newest
    """

    host: Host
    size: int
    peaks: dict[str, int] = field(default_factory=dict)
    blocks: int = 0
    blocks_ns: deque[int] = field(default_factory=lambda: deque(maxlen=_KEPT))
    _touched: float = 0.0

    def learn(self, cell: str, peak: int) -> None:
        """Remember what a block of the cell used at its most, in bytes."""
        self.peaks[cell] = max(peak, self.peaks.get(cell, 0))

    def prefault(self, cell: str, held: int = 0, most: int = _MOST) -> None:
        """Touch what the cell's blocks use, less what is `held`, at most `most` bytes."""
        known = self.peaks.get(cell)
        size = _UNKNOWN if known is None else max(0, int(known * _MARGIN) - held) + _SPARE
        size = min(size, int(_room(self.host) * _MOST_SHARE), most)
        if size > 0:
            with suppress(ProbeError):  # other programs have taken the memory meanwhile
                blocks_ns = _touch(size, "--huge").blocks_ns
                self.blocks += len(blocks_ns)
                self.blocks_ns.extend(blocks_ns)
        self._touched = time.monotonic()

    def prefault_again(self, cell: str, held: Callable[[], int]) -> None:
        """Touch memory anew where a quarter of a second has passed since it was touched; `held` as for `prefault`."""
        if time.monotonic() - self._touched >= _AGAIN_S:
            self.prefault(cell, held(), _MOST_AGAIN)

    def said(self) -> str | None:
        """Return what the host's memory cost, for a report; None where hardly anything was touched."""
        if len(self.blocks_ns) < _FEWEST:
            return None
        times = sorted(self.blocks_ns)
        quick = times[len(times) // 20]  # the host may have taken back nearly all
        slow = [each for each in times if each > _SLOW * quick]
        text = (
            "the host of this virtual machine takes back free memory, so hugewise touched memory shortly before the"
            f" arms took it, {readable_size(self.size * self.blocks)} in sum"
        )
        if not slow:
            return text
        return (
            f"{text}. {len(slow) / len(times):.0%} of the blocks of {format_size(self.size)} took"
            f" {median(slow) / 1e6:.1f} ms, as the host had to supply them first; the others took {quick / 1e6:.2f} ms."
            " A program that takes huge pages after a pause waits as long for each of these blocks"
        )
