"""Memory that has aged, within a session: what cells want of it is there, or they are left out with the reason."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import msgspec

from hugewise.attempt.ageing import Ageing, floor_of
from hugewise.errors import HugewiseError, SettingError
from hugewise.host.ledger import JournalRecord
from hugewise.host.swap import SwapFile
from hugewise.machine.proc import meminfo
from hugewise.model import age
from hugewise.model.host import Host
from hugewise.model.pages import PageSizes
from hugewise.model.results import LeftOut
from hugewise.plan import ageing
from hugewise.plan.plan import Plan
from hugewise.quantity import readable_size

__all__ = ["opened"]


def opened(plan: Plan, host: Host, note: Callable[[JournalRecord], None], results: Path) -> tuple[Plan, Ageing | None]:
    """The plan without the cells whose memory cannot be had, and what ages it; None where no cell wants that.

    The swap file is made in `results`; `note` (the journal) hears of it before. Raises HugewiseError where nothing is
    left to run.
    """
    plan = _without(plan, age.fragmented, _too_full(plan, host))
    if all(cell.memory_age == "fresh" for cell in plan.cells):
        return plan, None
    made = None
    if size := ageing.swap_bytes(plan.cells):
        try:
            made = SwapFile.make(results, size, note)
        except SettingError as error:
            plan = _without(plan, age.pressed, error.message)
    pmd = PageSizes.discover(host).pmd or 0
    ready = Ageing(host, note, os.sysconf("SC_PAGE_SIZE"), pmd, swap=made)
    if any(age.fragmented(cell.memory_age) for cell in plan.cells):
        needed = max(ageing.need(cell) for cell in plan.cells)
        ready.least = min(ready.free().huge // 2, 2 * needed) if needed else ready.free().huge // 4
    return plan, ready


def _too_full(plan: Plan, host: Host) -> str | None:
    """Why the free memory cannot be fragmented now, or None."""
    left, floor = meminfo(host).get("MemAvailable", 0), floor_of(host)
    used = [ageing.need(cell) for cell in plan.cells if age.fragmented(cell.memory_age)]
    if not used or left >= floor + max(used):
        return None
    return (
        f"{readable_size(left)} of memory are available; fragmenting it leaves {readable_size(floor)} to others, and"
        f" its arms use {readable_size(max(used))}: end other programs"
    )


def _without(plan: Plan, such: Callable[[age.MemoryAge], bool], why: str | None) -> Plan:
    """The plan without such cells, where there is a reason. Raises HugewiseError where none is left."""
    gone = [cell for cell in plan.cells if why is not None and such(cell.memory_age)]
    if not gone:
        return plan
    cells = tuple(cell for cell in plan.cells if cell not in gone)
    if not cells:
        raise HugewiseError(f"no cell is left to run: {why}", hint="see: hugewise doctor STUDY")
    left_out = (*plan.left_out, *(LeftOut(cell.id, "*", why or "") for cell in gone))
    return msgspec.structs.replace(plan, cells=cells, left_out=left_out)
