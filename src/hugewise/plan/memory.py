"""What memory a plan needs of the machine: pages of the hugetlb pools, and bytes to touch before it starts. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from hugewise.errors import HugewiseError
from hugewise.host.pool import Where
from hugewise.model.design import SEQUENTIAL
from hugewise.model.policy import laid_pool
from hugewise.model.results import LeftOut
from hugewise.model.scene import Staged
from hugewise.plan.plan import Arm, Cell, Plan
from hugewise.quantity import format_size, readable_size

# Of the free memory: the rest is for the page cache of the data, and for what the kernel keeps.
_USABLE = 0.8
_FEWEST = 2

__all__ = [
    "by_size",
    "bytes_to_touch",
    "fitting",
    "keep",
    "left",
    "pool_pages",
    "taken",
    "with_at_most",
    "without_short_pools",
]


def pool_pages(plan: Plan, guest: int = 0, *, privileged: bool = False) -> dict[Where, int]:
    """Pages to reserve, by their size in bytes and the node that they must be on: what the largest block needs.

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
    """Whether the pool of an arm is filled for it: by whatever mechanism it reaches the program, root can."""
    return privileged or arm.treatment.mechanism == "system"


def by_size(pages: Mapping[Where, int]) -> dict[int, int]:
    """Pages by their size in bytes, wherever they are."""
    found: dict[int, int] = {}
    for (size, _), count in pages.items():
        found[size] = found.get(size, 0) + count
    return found


def bytes_to_touch(plan: Plan, guest: int = 0) -> int:
    """The memory beside the pools that the largest block uses at a time, as far as the workloads know; that of guests
    as a whole.
    """
    return max(
        _at_a_time(cell, {arm.name: _beside_pools(cell, arm, guest) for arm in cell.arms}) for cell in plan.cells
    )


def _at_a_time(cell: Cell, needs: Mapping[str, int]) -> int:
    """What a block of the cell needs at a time, of what its arms need each by itself (0 where an arm is not named)."""
    if not cell.together:
        return max(needs.values())
    if cell.at_most is None:
        return sum(needs.values())
    others = sorted((need for arm, need in needs.items() if arm != cell.baseline), reverse=True)
    return needs.get(cell.baseline, 0) + sum(others[: cell.at_most - 1])


def with_at_most(plan: Plan, at_most: Mapping[str, int | None]) -> Plan:
    """The plan of a run that goes on: as many arms take part in its blocks, by cell, as when it began."""
    cells = (msgspec.structs.replace(cell, at_most=at_most.get(cell.id)) for cell in plan.cells)
    return msgspec.structs.replace(plan, cells=tuple(cells))


def fitting(plan: Plan, free: int | None) -> tuple[Plan, tuple[str, ...]]:
    """The plan whose resident blocks have no more arms than fit into `free` bytes (None: not known), and what
    there is to tell of that.

    Where there is no room for all arms at once, a block has the baseline and one other: which one is the coin's. An arm
    for which there is none even so is left out. Raises HugewiseError where nothing is left.
    """
    plan = plan if free is None else _without_crowding(plan, free)
    cells, told = [], []
    for cell in plan.cells:
        crowded = cell.kind == "resident" and len(cell.arms) > _FEWEST
        whole = {arm.name: _whole(cell, arm) + _data(cell) for arm in cell.arms} if crowded else {}
        if crowded and free is not None and _at_a_time(cell, whole) > _USABLE * free:
            needed, given = readable_size(_at_a_time(cell, whole)), readable_size(free)
            told.append(
                f"{cell.id}: {len(whole)} arms at once need {needed}, and {given} are free: a block has {cell.baseline}"
                " and one other arm, which the coin draws"
            )
            cell = msgspec.structs.replace(cell, at_most=_FEWEST)  # noqa: PLW2901
        cells.append(cell)
    return msgspec.structs.replace(plan, cells=tuple(cells)), tuple(told)


def _without_crowding(plan: Plan, free: int) -> Plan:
    """The plan without the arms of resident blocks that have no room beside their baseline. Pools are asked for, and
    seen to be too short, by themselves.
    """
    cells: list[Cell] = []
    left_out = list(plan.left_out)
    for cell in plan.cells:
        kept = []
        for arm in cell.arms:
            names = {cell.baseline, arm.name} if cell.kind == "resident" else ()
            both = {name: _beside_pools(cell, cell.arm(name), 0) + _data(cell) for name in names}
            if len(both) < _FEWEST or sum(both.values()) <= free:
                kept.append(arm)
                continue
            needed, given = readable_size(sum(both.values())), readable_size(free)
            why = (
                f"beside {cell.baseline} it needs {needed} in all, and {given} are free: in a resident design both are"
            )
            left_out.append(LeftOut(cell.id, arm.name, f"{why} there at once; {SEQUENTIAL} has one at a time"))
        keep(cells, left_out, cell, kept)
    return left(plan, cells, left_out, f"free memory; {SEQUENTIAL} has one arm at a time")


def keep(cells: list[Cell], left_out: list[LeftOut], cell: Cell, kept: Sequence[Arm]) -> None:
    """Add the cell with the arms that are kept, where these can be compared."""
    if len(kept) > 1 and any(arm.name == cell.baseline for arm in kept):
        cells.append(msgspec.structs.replace(cell, arms=tuple(kept)))
    else:
        left_out.append(LeftOut(cell.id, "*", "nothing is left to compare"))


def left(plan: Plan, cells: Sequence[Cell], left_out: Sequence[LeftOut], cure: str) -> Plan:
    """The plan with these cells alone. Raises HugewiseError, with the cure, where there is none."""
    if not cells:
        raise HugewiseError("no cell is left to run: " + "; ".join(left.reason for left in left_out), hint=cure)
    return msgspec.structs.replace(plan, cells=tuple(cells), left_out=tuple(left_out))


def taken(cell: Cell, arm: Arm, guest: int, *, privileged: bool) -> tuple[int, int]:
    """Bytes of this host that the arm takes by itself: of pools that are filled for it, and as a guest beside them."""
    pools = sum(size * pages for (size, _), pages in _pages(cell, arm, guest).items())
    return pools if _filled(arm, privileged=privileged) else 0, _beside_pools(cell, arm, guest) if guest else 0


def _whole(cell: Cell, arm: Arm) -> int:
    """Bytes that the arm uses, in pools and beside them."""
    return _beside_pools(cell, arm, 0) + sum(size * pages for (size, _), pages in _pages(cell, arm, 0).items())


def _data(cell: Cell) -> int:
    """Bytes of the data that each arm has a copy of, where these lie in memory."""
    workload = cell.workload
    if not isinstance(workload, Staged) or not Path(cell.storage).is_relative_to("/dev/shm"):  # noqa: S108
        return 0
    made = workload.data(cell.values)
    return 0 if made is None else made.bytes


def _beside_pools(cell: Cell, arm: Arm, guest: int) -> int:
    """Bytes that the arm uses but for pages of a pool of this host, which are there before it starts."""
    memory = guest or cell.workload.memory(arm.treatment, cell.given(arm))
    return max(0, memory - sum(size * pages for (size, _), pages in _pages(cell, arm, guest).items()))


def _pages(cell: Cell, arm: Arm, guest: int) -> dict[Where, int]:
    """The pages of pools of this host that the arm needs.

    A guest takes its whole memory from a pool of the host; what its workload takes from a pool is the guest's own.
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
    """The plan without the arms whose pool the kernel did not grant, and why; `privileged` as for `pool_pages`."""
    cells: list[Cell] = []
    left_out = list(plan.left_out)
    for cell in plan.cells:
        kept: list[Arm] = []
        for arm in cell.arms:
            at_once = [each for each in kept if cell.at_most is None or each.name == cell.baseline]
            beside = [_pages(cell, each, guest) for each in at_once if cell.together]
            needs = {
                where: own + sum(pages.get(where, 0) for pages in beside)
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
        keep(cells, left_out, cell, kept)
    return left(plan, cells, left_out, "free memory, or reserve huge pages at boot")
