"""What of a plan this host has room for beside what runs on it already: asked before any pool is filled. Pure but for
the files that are read through `Host`.

A kernel that is asked for pages of a pool frees whatever it can for them. So it is not asked for more than what is free
less a margin: a host whose memory was taken for a measurement swaps, or kills what it was there for.
"""

from __future__ import annotations

import msgspec

from hugewise.host.virtual_machines import not_taken_yet
from hugewise.machine.proc import meminfo
from hugewise.model.host import Host
from hugewise.model.results import LeftOut
from hugewise.plan import memory
from hugewise.plan.plan import Arm, Cell, Plan
from hugewise.plan.venue import margin
from hugewise.quantity import readable_size

__all__ = ["HostRoom", "of_host", "within"]


class HostRoom(msgspec.Struct, frozen=True):
    """Bytes of a host: `free` as MemAvailable says, `total`, and what virtual machines of others may `yet` take."""

    free: int
    total: int
    yet: int = 0

    @property
    def usable(self) -> int:
        """What a run may take of it."""
        return max(0, self.free - self.yet - margin(self.total))

    def __str__(self) -> str:
        others = f", running virtual machines may still take {readable_size(self.yet)}" if self.yet else ""
        kept = readable_size(margin(self.total))
        return f"{readable_size(self.free)} of this host are free{others}, and {kept} are left to it in any case"


def of_host(host: Host) -> HostRoom | None:
    """What this host has now; None where it does not say."""
    known = meminfo(host)
    if "MemAvailable" not in known or "MemTotal" not in known:
        return None
    return HostRoom(known["MemAvailable"], known["MemTotal"], not_taken_yet(host))


def within(plan: Plan, room: HostRoom | None, guest: int = 0, *, privileged: bool = False) -> Plan:
    """The plan without the arms that there is no room for, those that need most first. `guest`, `privileged`: as for
    `memory.pool_pages`; None: what is free is not known. Raises HugewiseError where nothing is left.
    """
    if room is None:
        return plan
    while (needed := _needed(plan, guest, privileged=privileged)) > room.usable:
        taken = [
            (*memory.taken(cell, arm, guest, privileged=privileged), arm.name != cell.baseline, cell, arm)
            for cell in plan.cells
            for arm in cell.arms
        ]
        # What is in pools stays there from the first attempt to the last; of equal ones a baseline goes last.
        *most, _, cell, arm = max(taken, key=lambda each: each[:3])
        if not any(most):
            return plan
        plan = _without(plan, cell, arm, f"needs {readable_size(needed)} of this host at a time; {room}")
    return plan


def _needed(plan: Plan, guest: int, *, privileged: bool) -> int:
    """Bytes of all pools, which are there together, and of the largest block beside them."""
    pools = memory.pool_pages(plan, guest, privileged=privileged)
    beside = memory.bytes_to_touch(plan, guest) if guest and plan.cells else 0
    return sum(size * pages for (size, _), pages in pools.items()) + beside


def _without(plan: Plan, of: Cell, gone: Arm, why: str) -> Plan:
    cells: list[Cell] = []
    left_out = [*plan.left_out, LeftOut(of.id, gone.name, why)]
    for cell in plan.cells:
        if cell.id != of.id:
            cells.append(cell)
        else:
            memory.keep(cells, left_out, cell, [arm for arm in cell.arms if arm.name != gone.name])
    return memory.left(plan, cells, left_out, "end what uses this host's memory, or ask for less of it")
