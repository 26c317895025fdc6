"""What memory a plan needs of the machine: pages of the hugetlb pools, and bytes to touch before it starts. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import msgspec

from hugewise.errors import HugewiseError
from hugewise.guests.qemu import HUGETLB_BYTES
from hugewise.plan import Arm, Cell, Plan
from hugewise.quantity import format_size
from hugewise.results import LeftOut

__all__ = ["bytes_to_touch", "pool_pages", "without_short_pools"]


def pool_pages(plan: Plan, guest: int = 0) -> dict[int, int]:
    """Pages to reserve by page size in bytes: what the largest block needs at a time.

    Where the arms of a block run at once, their needs add up. `guest`: the memory of a guest in bytes, of a study whose
    arms run in guests.
    """
    wanted: dict[int, int] = {}
    for cell in plan.cells:
        needs: defaultdict[int, list[int]] = defaultdict(list)
        for arm in cell.arms:
            size, need = _pages(cell, arm, guest)
            if need and arm.treatment.mechanism == "system":
                needs[size].append(need)
        for size, pages in needs.items():
            wanted[size] = max(wanted.get(size, 0), _at_a_time(pages, together=cell.together))
    return wanted


def bytes_to_touch(plan: Plan, guest: int = 0) -> int:
    """The memory that the largest block uses at a time, as far as the workloads know; that of guests as a whole."""
    return max(
        _at_a_time(
            [guest or cell.workload.memory(arm.treatment, cell.given(arm)) for arm in cell.arms],
            together=cell.together,
        )
        for cell in plan.cells
    )


def _at_a_time(needs: Sequence[int], *, together: bool) -> int:
    return sum(needs) if together else max(needs)


def _pages(cell: Cell, arm: Arm, guest: int) -> tuple[int, int]:
    """The pages of a pool of this host that the arm needs: their size, and how many.

    A guest takes its whole memory from a pool of the host; what its workload takes from a pool is the guest's own.
    """
    if arm.backing is not None:
        size = HUGETLB_BYTES.get(arm.backing.pages)
        return (size, -(-guest // size)) if size else (0, 0)
    size = arm.treatment.target.size
    return size, -(-cell.workload.pool(arm.treatment, cell.given(arm)) // size) if size else 0


def without_short_pools(plan: Plan, wanted: Mapping[int, int], granted: Mapping[int, int], guest: int = 0) -> Plan:
    """The plan without the arms whose pool the kernel did not grant, and why."""
    cells: list[Cell] = []
    left_out = list(plan.left_out)
    for cell in plan.cells:
        kept: list[Arm] = []
        for arm in cell.arms:
            size, own = _pages(cell, arm, guest)
            beside = [_pages(cell, each, guest) for each in kept if cell.together]
            need = own + sum(pages for other, pages in beside if other == size)
            if own and size in wanted and need > granted.get(size, 0) and arm.treatment.mechanism == "system":
                reason = f"needs {need} pages of {format_size(size)}; the kernel granted {granted.get(size, 0)}"
                left_out.append(LeftOut(cell.id, arm.name, reason))
            else:
                kept.append(arm)
        if len(kept) > 1 and any(arm.name == cell.baseline for arm in kept):
            cells.append(msgspec.structs.replace(cell, arms=tuple(kept)))
        else:
            left_out.append(LeftOut(cell.id, "*", "nothing is left to compare"))
    if not cells:
        raise HugewiseError(
            "no cell is left to run: " + "; ".join(left.reason for left in left_out),
            hint="free memory, or reserve huge pages at boot",
        )
    return Plan(tuple(cells), tuple(left_out))
