"""What cells of aged memory need: bytes of memory and of swap, time, in words for the reader."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from hugewise.machine.proc import meminfo
from hugewise.model import age, coin
from hugewise.model.age import AGES
from hugewise.model.host import Host, text_of
from hugewise.model.pages import THP
from hugewise.plan.plan import Cell
from hugewise.quantity import readable_size

__all__ = ["costs", "due", "need", "swap_bytes"]

_BLOCK_S = 0.005  # to take a block of 2 MiB, split it and give it back: 2 to 10 ms were measured
_LARGER = 1.25
_IN_A_ROW = 4  # blocks


def need(cell: Cell) -> int:
    """The most bytes that an arm of the cell uses beside pools, as far as its workload knows; at most its limit."""
    known = max(cell.workload.memory(arm.treatment, cell.given(arm)) for arm in cell.arms)
    return known if cell.memory is None else min(known or cell.memory, cell.memory)


def swap_bytes(cells: Iterable[Cell]) -> int:
    """The size of the swap file for these cells: what they are known to need, or as much as their limit; 0 for none."""
    wanted = [
        max(cell.memory or 0, *(cell.workload.memory(arm.treatment, cell.given(arm)) for arm in cell.arms))
        for cell in cells
        if age.pressed(cell.memory_age)
    ]
    return int(_LARGER * max(wanted, default=0)) >> 20 << 20


def due(cells: Sequence[Cell], closed: Mapping[str, int]) -> Cell:
    """Which of these open cells the next block belongs to, where so many blocks are closed by cell: `coin.next_cell`,
    but that cells whose memory has aged have some blocks in a row. It takes long to bring it from one age to another.
    """
    if all(cell.memory_age == "fresh" for cell in cells):
        chosen = coin.next_cell([cell.id for cell in cells], closed)
        return next(cell for cell in cells if cell.id == chosen)
    known = [(closed.get(cell.id, 0), AGES.index(cell.memory_age), cell) for cell in cells]
    return min(known, key=lambda each: (each[0] // _IN_A_ROW, each[1], each[0]))[2]


def costs(cells: Iterable[Cell], host: Host) -> tuple[str, ...]:
    """What a run does for cells of aged memory, and how long it takes, in words."""
    cells = tuple(cells)
    told = []
    if several := [cell.id for cell in cells if age.fragmented(cell.memory_age)]:
        known = meminfo(host)
        pmd = int(text_of(host, f"{THP}/hpage_pmd_size") or 0) or 2 << 20
        free = known.get("MemAvailable", 0)
        seconds = free / pmd * _BLOCK_S * (pmd / (2 << 20))
        again = ", and again after blocks of fresh memory" if len(several) < len(cells) else ""
        told.append(
            f"the free memory is fragmented for {', '.join(several)}: about {seconds:.0f} s the first time{again} (in a"
            " virtual machine whose memory was never used up to five times that), below a second before each other"
            f" attempt; {readable_size(known.get('MemTotal', 0) // 4)} of available memory stay for others"
        )
    if size := swap_bytes(cells):
        told.append(f"a swap file of {readable_size(size)} is made beside the results, and removed at the end")
    return tuple(told)
