"""Memory that a plan needs of the machine: pages of the hugetlb pools, and bytes to touch before it starts.

The kernel frees whatever it can for pages of a pool that are asked for. So no more is asked for than the free memory
less a margin: otherwise the host would swap, or kill what it is there for. Pure but for the files read through `Host`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import msgspec

from hugewise.errors import HugewiseError
from hugewise.host.pool import Where, not_taken_yet
from hugewise.machine.proc import meminfo
from hugewise.model import trial
from hugewise.model.design import MOST_IN_TURNS, SEQUENTIAL, interleaved
from hugewise.model.host import Host, text_of
from hugewise.model.pages import AGES, THP, fragmented, pressed
from hugewise.model.policy import laid_pool
from hugewise.model.procedure import Staged
from hugewise.model.results import LeftOut
from hugewise.plan.arms import Arm, margin
from hugewise.plan.plan import Cell, Plan
from hugewise.quantity import format_size, readable_size

# Share of the free memory: the rest is for the page cache of the data, and for the kernel.
USABLE = 0.8
_FEWEST = 2


def pool_pages(plan: Plan, guest: int = 0, *, privileged: bool = False) -> dict[Where, int]:
    """Return pages to reserve, by their size in bytes and the node that they must be on: what the largest block needs.

    Where the arms of a block run at once, their needs add up. `guest`: the memory of a guest in bytes, of a study whose
    arms run in guests. Of arms whose mechanism is the process, `privileged` callers alone can fill the pool: all
    others take what is free in it.
    """
    wanted: dict[Where, int] = {}
    for cell in plan.cells:
        needs: defaultdict[Where, dict[str, int]] = defaultdict(dict)
        for arm in cell.arms:
            for where, need in _pages(cell, arm, guest).items():
                if _filled(arm, privileged=privileged):
                    needs[where][arm.name] = need
        for where, pages in needs.items():
            wanted[where] = max(wanted.get(where, 0), _at_a_time(cell, pages))
    return wanted


def _filled(arm: Arm, *, privileged: bool) -> bool:
    # root can fill a pool, whatever the mechanism of the arm
    return privileged or arm.treatment.mechanism == "system"


def by_size(pages: Mapping[Where, int]) -> dict[int, int]:
    """Return pages by their size in bytes, wherever they are."""
    found: dict[int, int] = {}
    for (size, _), count in pages.items():
        found[size] = found.get(size, 0) + count
    return found


def bytes_to_touch(plan: Plan, guest: int = 0) -> int:
    """Return the memory beside pools that the largest block uses at a time; that of guests as a whole."""
    return max(
        _at_a_time(cell, {arm.name: _beside_pools(cell, arm, guest) for arm in cell.arms}) for cell in plan.cells
    )


def _at_a_time(cell: Cell, needs: Mapping[str, int]) -> int:
    """Return what a block of the cell needs at a time, from the needs of its arms (0 where an arm is not named)."""
    if not cell.together:
        return max(needs.values())
    if cell.at_most is None:
        return cell.copies * sum(needs.values())
    others = sorted((need for arm, need in needs.items() if arm != cell.baseline), reverse=True)
    return needs.get(cell.baseline, 0) + sum(others[: cell.at_most - 1])


def as_begun(plan: Plan, began: Mapping[str, tuple[int | None, int]]) -> Plan:
    """Return the plan of a run that goes on: as many arms (`at_most`) and copies take part in its blocks, by cell, as
    when it began.
    """
    found = ((cell, *began.get(cell.id, (None, 1))) for cell in plan.cells)
    going_on = (msgspec.structs.replace(cell, at_most=at_most, copies=copies) for cell, at_most, copies in found)
    return msgspec.structs.replace(plan, cells=tuple(going_on))


def fitting(
    plan: Plan, free: int | None, peaks: Mapping[str, int] = MappingProxyType({})
) -> tuple[Plan, tuple[str, ...]]:
    """Return the plan whose interleaved blocks have no more arms than fit into `free` bytes (None: not known), and what
    there is to tell of that. `peaks`: bytes that an attempt of a cell was seen to have, of commands.

    Where there is no room for two copies of each arm at once, a block has one of each; where there is none for all
    arms, it has the baseline and one other: which one is the coin's. An arm for which there is none even so is left
    out. Raises HugewiseError where nothing is left.
    """
    plan = plan if free is None else _without_crowding(plan, free)
    cells, told = [], []
    for cell in plan.cells:
        if (why := _no_copies(cell, free, peaks.get(cell.id, 0))) is not None:
            told.append(f"{cell.id}: a block has one copy of each arm, and no control: {why}")
            cell = msgspec.structs.replace(cell, copies=1)  # noqa: PLW2901
        crowded = interleaved(cell.kind) and len(cell.arms) > _FEWEST
        whole = {arm.name: _whole(cell, arm) + _data(cell) for arm in cell.arms} if crowded else {}
        if crowded and free is not None and _at_a_time(cell, whole) > USABLE * free:
            needed, given = readable_size(_at_a_time(cell, whole)), readable_size(free)
            told.append(
                f"{cell.id}: {len(whole)} arms at once need {needed}, and {given} are free: a block has {cell.baseline}"
                " and one other arm, which the coin draws"
            )
            cell = msgspec.structs.replace(cell, at_most=_FEWEST)  # noqa: PLW2901
        cells.append(cell)
    return msgspec.structs.replace(plan, cells=tuple(cells)), tuple(told)


def _no_copies(cell: Cell, free: int | None, peak: int) -> str | None:
    """Return why a block cannot have two copies of each arm, as planned; None where it can, or one is planned."""
    if cell.copies == 1 or not interleaved(cell.kind):
        return None
    if cell.copies * len(cell.arms) > MOST_IN_TURNS:
        return f"{MOST_IN_TURNS} processes take turns at most"
    needed = cell.copies * sum(max(peak, _whole(cell, arm)) + _data(cell) for arm in cell.arms)
    if free is not None and needed > USABLE * free:
        return f"two of each need {readable_size(needed)}, and {readable_size(free)} are free"
    return None


def _without_crowding(plan: Plan, free: int) -> Plan:
    """Return the plan without arms of interleaved blocks that have no room beside their baseline. Pools are checked
    when they are filled.
    """
    cells: list[Cell] = []
    left_out = list(plan.left_out)
    for cell in plan.cells:
        kept = []
        for arm in cell.arms:
            names = {cell.baseline, arm.name} if interleaved(cell.kind) else ()
            both = {name: _beside_pools(cell, cell.arm(name), 0) + _data(cell) for name in names}
            if len(both) < _FEWEST or sum(both.values()) <= free:
                kept.append(arm)
                continue
            needed, given = readable_size(sum(both.values())), readable_size(free)
            why = f"beside {cell.baseline} it needs {needed} in all, and {given} are free: in the interleaved design"
            left_out.append(LeftOut(cell.id, arm.name, f"{why} both are there at once; {SEQUENTIAL} has one at a time"))
        add_cell(cells, left_out, cell, kept)
    return plan_of_cells(plan, cells, left_out, f"free memory; {SEQUENTIAL} has one arm at a time")


def add_cell(cells: list[Cell], left_out: list[LeftOut], cell: Cell, kept: Sequence[Arm]) -> None:
    """Add the cell with the arms that are kept, where these can be compared."""
    if len(kept) > 1 and any(arm.name == cell.baseline for arm in kept):
        cells.append(msgspec.structs.replace(cell, arms=tuple(kept)))
    else:
        left_out.append(LeftOut(cell.id, "*", "nothing is left to compare"))


def plan_of_cells(plan: Plan, cells: Sequence[Cell], left_out: Sequence[LeftOut], cure: str) -> Plan:
    """Return the plan with these cells alone. Raises HugewiseError, with the cure, where there is none."""
    if not cells:
        raise HugewiseError("no cell is left to run: " + "; ".join(left.reason for left in left_out), hint=cure)
    return msgspec.structs.replace(plan, cells=tuple(cells), left_out=tuple(left_out))


def bytes_taken(cell: Cell, arm: Arm, guest: int, *, privileged: bool) -> tuple[int, int]:
    """Return bytes of this host that the arm takes by itself: pools filled for it, and as a guest beside them."""
    pools = sum(size * pages for (size, _), pages in _pages(cell, arm, guest).items())
    return pools if _filled(arm, privileged=privileged) else 0, _beside_pools(cell, arm, guest) if guest else 0


def _whole(cell: Cell, arm: Arm) -> int:
    """Return the bytes that the arm uses, in pools and beside them."""
    return _beside_pools(cell, arm, 0) + sum(size * pages for (size, _), pages in _pages(cell, arm, 0).items())


def _data(cell: Cell) -> int:
    """Return the bytes of the data that each arm has a copy of, where the data lie in memory."""
    workload = cell.workload
    if not isinstance(workload, Staged) or not Path(cell.storage).is_relative_to("/dev/shm"):  # noqa: S108
        return 0
    made = workload.data(cell.values)
    return 0 if made is None else made.bytes


def _beside_pools(cell: Cell, arm: Arm, guest: int) -> int:
    """Return the bytes that the arm uses besides pages of a pool of this host, which are there before it starts."""
    memory = guest or cell.workload.memory(arm.treatment, cell.given(arm))
    return max(0, memory - sum(size * pages for (size, _), pages in _pages(cell, arm, guest).items()))


def _pages(cell: Cell, arm: Arm, guest: int) -> dict[Where, int]:
    """Return the pages of this host's pools that the arm needs. A guest takes its whole memory from a pool of the host;
    what its workload takes from a pool is the guest's own.
    """
    if arm.backing is not None:
        return dict(arm.backing.pool(guest))
    if arm.treatment.surplus:
        return {}
    size = laid_pool(arm.treatment.layout)[0] or arm.treatment.target.size
    pages = -(-cell.workload.pool(arm.treatment, cell.given(arm)) // size) if size else 0
    return {(size, None): pages} if pages else {}


def without_short_pools(
    plan: Plan, wanted: Mapping[Where, int], granted: Mapping[Where, int], guest: int = 0, *, privileged: bool = False
) -> Plan:
    """Return the plan without the arms whose pool the kernel did not grant; `privileged` as for `pool_pages`."""
    cells: list[Cell] = []
    left_out = list(plan.left_out)
    for cell in plan.cells:
        kept: list[Arm] = []
        for arm in cell.arms:
            at_once = [each for each in kept if cell.at_most is None or each.name == cell.baseline]
            beside = [_pages(cell, each, guest) for each in at_once if cell.together]
            copies = cell.copies if cell.together else 1
            needs = {
                where: copies * (own + sum(pages.get(where, 0) for pages in beside))
                for where, own in _pages(cell, arm, guest).items()
                if where in wanted and _filled(arm, privileged=privileged)
            }
            short = [
                f"needs {need} pages of {format_size(size)}{'' if node is None else f' on node {node}'};"
                f" the kernel granted {granted.get((size, node), 0)}"
                for (size, node), need in needs.items()
                if need > granted.get((size, node), 0)
            ]
            if short:
                left_out.append(LeftOut(cell.id, arm.name, "; ".join(short)))
            else:
                kept.append(arm)
        add_cell(cells, left_out, cell, kept)
    return plan_of_cells(plan, cells, left_out, "free memory, or reserve huge pages at boot")


class HostRoom(msgspec.Struct, frozen=True):
    """Bytes of a host: `free` as MemAvailable says, `total`, and what virtual machines of others may `yet` take."""

    free: int
    total: int
    yet: int = 0

    @property
    def usable(self) -> int:
        """Bytes that a run may take."""
        return max(0, self.free - self.yet - margin(self.total))

    def __str__(self) -> str:
        others = f", running virtual machines may still take {readable_size(self.yet)}" if self.yet else ""
        kept = readable_size(margin(self.total))
        return f"{readable_size(self.free)} of this host are free{others}, and {kept} are left to it in any case"


def of_host(host: Host) -> HostRoom | None:
    """Return this host's room now; None where the kernel does not tell."""
    known = meminfo(host)
    if "MemAvailable" not in known or "MemTotal" not in known:
        return None
    return HostRoom(known["MemAvailable"], known["MemTotal"], not_taken_yet(host))


def within(plan: Plan, room: HostRoom | None, guest: int = 0, *, privileged: bool = False) -> Plan:
    """Return the plan without the arms that there is no room for, those that need most first. `guest`, `privileged`: as
    for `memory.pool_pages`; None: what is free is not known. Raises HugewiseError where nothing is left.
    """
    if room is None:
        return plan
    while (needed := _needed(plan, guest, privileged=privileged)) > room.usable:
        taken = [
            (*bytes_taken(cell, arm, guest, privileged=privileged), arm.name != cell.baseline, cell, arm)
            for cell in plan.cells
            for arm in cell.arms
        ]
        # Pools stay filled from the first attempt to the last; among equals a baseline goes last.
        *most, _, cell, arm = max(taken, key=lambda each: each[:3])
        if not any(most):
            return plan
        plan = _without(plan, cell, arm, f"needs {readable_size(needed)} of this host at a time; {room}")
    return plan


def _needed(plan: Plan, guest: int, *, privileged: bool) -> int:
    """Return the bytes of all pools, which are there together, and of the largest block beside them."""
    pools = pool_pages(plan, guest, privileged=privileged)
    beside = bytes_to_touch(plan, guest) if guest and plan.cells else 0
    return sum(size * pages for (size, _), pages in pools.items()) + beside


def _without(plan: Plan, of: Cell, gone: Arm, why: str) -> Plan:
    cells: list[Cell] = []
    left_out = [*plan.left_out, LeftOut(of.id, gone.name, why)]
    for cell in plan.cells:
        if cell.id != of.id:
            cells.append(cell)
        else:
            add_cell(cells, left_out, cell, [arm for arm in cell.arms if arm.name != gone.name])
    return plan_of_cells(plan, cells, left_out, "end what uses this host's memory, or ask for less of it")


_BLOCK_S = 0.005  # to take a block of 2 MiB, split it and give it back: 2 to 10 ms were measured
_LARGER = 1.25
_IN_A_ROW = 4  # blocks


def need(cell: Cell) -> int:
    """Return the most bytes that an arm of the cell uses beside pools, as its workload knows; at most its limit."""
    known = max(cell.workload.memory(arm.treatment, cell.given(arm)) for arm in cell.arms)
    return known if cell.memory is None else min(known or cell.memory, cell.memory)


def swap_bytes(cells: Iterable[Cell]) -> int:
    """Return the size of the swap file for these cells: their known need, or as much as their limit; 0 for none."""
    wanted = [
        max(cell.memory or 0, *(cell.workload.memory(arm.treatment, cell.given(arm)) for arm in cell.arms))
        for cell in cells
        if pressed(cell.memory_age)
    ]
    return int(_LARGER * max(wanted, default=0)) >> 20 << 20


def due(cells: Sequence[Cell], closed: Mapping[str, int]) -> Cell:
    """Return the open cell that the next block belongs to, given the number of closed blocks by cell.

    As `trial.next_cell`, but cells whose memory has aged have some blocks in a row, as it takes long to bring
    memory from one age to another.
    """
    if all(cell.memory_age == "fresh" for cell in cells):
        chosen = trial.next_cell([cell.id for cell in cells], closed)
        return next(cell for cell in cells if cell.id == chosen)
    known = [(closed.get(cell.id, 0), AGES.index(cell.memory_age), cell) for cell in cells]
    return min(known, key=lambda each: (each[0] // _IN_A_ROW, each[1], each[0]))[2]


def costs(cells: Iterable[Cell], host: Host) -> tuple[str, ...]:
    """Return what a run does for cells of aged memory, and how long it takes, in words."""
    cells = tuple(cells)
    told = []
    if several := [cell.id for cell in cells if fragmented(cell.memory_age)]:
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
