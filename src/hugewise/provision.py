"""What memory a plan needs of the machine: pages of the hugetlb pools, and bytes to touch before it starts. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import msgspec

from hugewise.errors import HugewiseError
from hugewise.plan import Arm, Cell, Plan
from hugewise.quantity import format_size
from hugewise.results import LeftOut

__all__ = ["bytes_to_touch", "pool_pages", "without_short_pools"]


def pool_pages(plan: Plan, *, together: bool) -> dict[int, int]:
    """Pages to reserve by page size in bytes: what the largest block needs at a time.

    `together`: the arms of a block run at once, so that their needs add up.
    """
    wanted: dict[int, int] = {}
    for cell in plan.cells:
        needs: defaultdict[int, list[int]] = defaultdict(list)
        for arm in cell.arms:
            if (need := _pages(cell, arm)) and arm.treatment.mechanism == "system":
                needs[arm.treatment.target.size].append(need)
        for size, pages in needs.items():
            wanted[size] = max(wanted.get(size, 0), _at_a_time(pages, together=together))
    return wanted


def bytes_to_touch(plan: Plan, *, together: bool) -> int:
    """The memory that the largest block uses at a time, as far as the workloads know."""
    return max(
        _at_a_time([cell.workload.memory(arm.treatment, cell.given(arm)) for arm in cell.arms], together=together)
        for cell in plan.cells
    )


def _at_a_time(needs: Sequence[int], *, together: bool) -> int:
    return sum(needs) if together else max(needs)


def _pages(cell: Cell, arm: Arm) -> int:
    """Pages of a pool that the arm needs."""
    return -(-cell.workload.pool(arm.treatment, cell.given(arm)) // arm.treatment.target.size)


def without_short_pools(plan: Plan, wanted: Mapping[int, int], granted: Mapping[int, int], *, together: bool) -> Plan:
    """The plan without the arms whose pool the kernel did not grant, and why."""
    cells: list[Cell] = []
    left_out = list(plan.left_out)
    for cell in plan.cells:
        kept: list[Arm] = []
        for arm in cell.arms:
            size = arm.treatment.target.size
            beside = [_pages(cell, each) for each in kept if together and each.treatment.target.size == size]
            need = sum(beside) + _pages(cell, arm)
            if size in wanted and need > granted.get(size, 0) and arm.treatment.mechanism == "system":
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
