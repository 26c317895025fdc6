"""State of this host's memory that a cell asks for, restored before each of its attempts.

A process fragments the memory and lives as long as cells ask for that. Before every attempt the state is checked and
repaired; an attempt does not begin in another state. When a cell asks for fresh memory again, the process is ended, and
memory is compacted, as allocations of other programs lie scattered.

Swap exists only while attempts of a cell with pressure need it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from hugewise.errors import MachineError
from hugewise.host import memory_state
from hugewise.host.ledger import JournalRecord
from hugewise.host.memory_state import Fragmenter, SwapFile, compact
from hugewise.machine.proc import free_memory, meminfo
from hugewise.model import pages
from hugewise.model.host import Host
from hugewise.model.pages import FreeMemory, MemoryAge
from hugewise.quantity import readable_size

_TRIES = 3
_SLAB = "2"  # written to drop_caches: inodes and names, which cannot be moved; data of files stay
_DROP = "/proc/sys/vm/drop_caches"
_FLOOR = 0.25


def floor_of(host: Host) -> int:
    """Return bytes of available memory that fragmenting leaves to others at any time: a quarter of the machine's."""
    return int(_FLOOR * meminfo(host).get("MemTotal", 0))


@dataclass
class Ageing:
    """Ageing of this host's memory. `note` is the journal's; `base` and `pmd` are sizes of pages in bytes.

    least  bytes in blocks that a huge page fits into, of memory that counts as fresh again after it was fragmented;
           as found when the session began, and no more than its cells need
    """

    host: Host
    note: Callable[[JournalRecord], None]
    base: int
    pmd: int
    least: int = 0
    swap: SwapFile | None = None
    _fragmenter: Fragmenter | None = field(default=None, init=False)

    def free(self) -> FreeMemory:
        """Return the free memory now."""
        return free_memory(self.host, self.base, self.pmd)

    def holds(self, wanted: MemoryAge) -> bool:
        """Return whether the memory is in that state already, so that little has to be done."""
        return pages.fragmented(wanted) == (self._fragmenter is not None and self._fragmenter.lives)

    def lost(self, wanted: MemoryAge) -> str | None:
        """Return what the state has lost (the kernel kills the fragmenter first where memory is short), or None."""
        if pages.fragmented(wanted) and not self.holds(wanted):
            return "the process that kept the memory in pieces was ended meanwhile"
        if pages.pressed(wanted) and self.swap is not None and not self.swap.in_use:
            return "its swap file was taken out of use meanwhile"
        return None

    def bring(self, wanted: MemoryAge, need: int) -> Mapping[str, int | float]:
        """Bring the memory into that state, for a cell whose arms use `need` bytes (0: nobody knows); what it is then:
        bytes that are `free`, those of them in blocks that a huge page fits into (`free_huge`), `pinned` pages, and the
        `seconds` that it took. Raises MachineError where it cannot be had, ProbeError, SettingError.
        """
        begun = time.monotonic()
        if self.swap is not None:
            self.swap.on() if pages.pressed(wanted) else self.swap.off()
        pinned = self._fragment(need) if pages.fragmented(wanted) else self._freshen()
        free = self.free()
        most = pages.allowed(free.all, need)
        if pages.fragmented(wanted) and free.huge > most:
            raise MachineError(
                f"the memory is not in pieces: {readable_size(free.huge)} of the {readable_size(free.all)} free are"
                f" in blocks of {readable_size(self.pmd)} or more, {readable_size(most)} may be",
                hint="other programs give memory back: end them, or have a workload that needs more",
            )
        if not pages.fragmented(wanted) and free.huge < min(self.least, need or self.least):
            raise MachineError(
                f"the memory is still in pieces after it was fragmented: {readable_size(free.huge)} are in blocks of"
                f" {readable_size(self.pmd)} or more, {readable_size(self.least)} were when the session began",
                hint="other programs hold memory that cannot be moved: a reboot cures it",
            )
        return {
            "free": free.all,
            "free_huge": free.huge,
            "pinned": pinned,
            "seconds": round(time.monotonic() - begun, 3),
        }

    def close(self) -> None:
        """Release memory and swap. Raises SettingError."""
        try:
            self._freshen()
        finally:
            if self.swap is not None:
                self.swap.close()

    def _fragment(self, need: int) -> int:
        """Fragment the memory and return the number of pinned pages."""
        if self._fragmenter is None or not self._fragmenter.lives:
            self._end()
            memory_state.drain(self.host, self.note)
            self._fragmenter = Fragmenter(self.host, floor_of(self.host), self.note)
        # Half of the allowed memory: other programs return memory until the attempt begins.
        return self._fragmenter.hold(pages.allowed(self.free().all, need) // 2).pinned

    def _freshen(self) -> int:
        if self._fragmenter is None:
            return 0
        self._end()
        for tried in range(_TRIES):
            memory_state.drain(self.host, self.note)
            if tried:
                with suppress(OSError):
                    self.host.write(_DROP, _SLAB)
            compact(self.host)
            if self.free().huge >= self.least:
                break
        return 0

    def _end(self) -> None:
        if self._fragmenter is not None:
            self._fragmenter.close()
            self._fragmenter = None
