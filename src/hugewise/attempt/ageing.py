"""The memory of this host, brought into the state that a cell wants, before each of its attempts.

Fragmented memory is made by a process that lives as long as cells want it; it is looked at, and mended, before every
attempt, and an attempt is not begun in another state. When a cell wants fresh memory again, that process is ended, and
what other programs have allocated meanwhile, which lies scattered, is moved together.

Swap is there while attempts of a cell with pressure want it, and for nobody else.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from hugewise.errors import MachineError
from hugewise.host import page_state
from hugewise.host.ledger import JournalRecord
from hugewise.host.page_state import Fragmenter, SwapFile, compact
from hugewise.machine.proc import free_memory, meminfo
from hugewise.model import age
from hugewise.model.age import FreeMemory, MemoryAge
from hugewise.model.host import Host
from hugewise.quantity import readable_size

_TRIES = 3
_SLAB = "2"  # to drop_caches: inodes and names, which cannot be moved; data of files stay
_DROP = "/proc/sys/vm/drop_caches"
_FLOOR = 0.25


def floor_of(host: Host) -> int:
    """Bytes of available memory that fragmenting leaves to others at any time: a quarter of the machine's."""
    return int(_FLOOR * meminfo(host).get("MemTotal", 0))


@dataclass
class Ageing:
    """What is done to this host's memory. `note` is the journal's; `base` and `pmd` are sizes of pages in bytes.

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
        """The free memory now."""
        return free_memory(self.host, self.base, self.pmd)

    def holds(self, wanted: MemoryAge) -> bool:
        """Whether little has to be done for that state."""
        return age.fragmented(wanted) == (self._fragmenter is not None and self._fragmenter.lives)

    def lost(self, wanted: MemoryAge) -> str | None:
        """What of that state is there no more: the kernel ends the fragmenter first where memory is short."""
        if age.fragmented(wanted) and not self.holds(wanted):
            return "the process that kept the memory in pieces was ended meanwhile"
        if age.pressed(wanted) and self.swap is not None and not self.swap.in_use:
            return "its swap file was taken out of use meanwhile"
        return None

    def bring(self, wanted: MemoryAge, need: int) -> Mapping[str, int | float]:
        """Bring the memory into that state, for a cell whose arms use `need` bytes (0: nobody knows); what it is then:
        bytes that are `free`, those of them in blocks that a huge page fits into (`free_huge`), `pinned` pages, and the
        `seconds` that it took. Raises MachineError where it cannot be had, ProbeError, SettingError.
        """
        begun = time.monotonic()
        if self.swap is not None:
            self.swap.on() if age.pressed(wanted) else self.swap.off()
        pinned = self._fragment(need) if age.fragmented(wanted) else self._freshen()
        free = self.free()
        if age.fragmented(wanted) and free.huge > age.allowed(free.all, need):
            raise MachineError(
                f"the memory is not in pieces: {readable_size(free.huge)} of the {readable_size(free.all)} free are"
                f" in blocks of {readable_size(self.pmd)} or more, {readable_size(age.allowed(free.all, need))} may be",
                hint="other programs give memory back: end them, or have a workload that needs more",
            )
        if not age.fragmented(wanted) and free.huge < min(self.least, need or self.least):
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
        """Nothing is held any more. Raises SettingError."""
        try:
            self._freshen()
        finally:
            if self.swap is not None:
                self.swap.close()

    def _fragment(self, need: int) -> int:
        """Pages that are pinned then."""
        if self._fragmenter is None or not self._fragmenter.lives:
            self._end()
            page_state.drain(self.host, self.note)
            self._fragmenter = Fragmenter(self.host, floor_of(self.host), self.note)
        # Half of what is allowed: others give memory back until the attempt begins.
        return self._fragmenter.hold(age.allowed(self.free().all, need) // 2).pinned

    def _freshen(self) -> int:
        if self._fragmenter is None:
            return 0
        self._end()
        for tried in range(_TRIES):
            page_state.drain(self.host, self.note)
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
