"""What all attempts of a cell must have in common where nothing is there to hold it against: the first one says it.

A build in a guest has no reference beside it. Its attempts start from the same sources with the same compiler, whatever
pages they have: what they make must be the same, and an attempt that made something else has failed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from hugewise.plan import Cell
from hugewise.trial import Attempt

__all__ = ["disagreement", "held"]


def held(attempt: Attempt, names: Sequence[str], cell: Cell, earlier: Iterable[Attempt]) -> Attempt:
    """`attempt`, failed where one of the facts `names` is not that of the first of `earlier` that counts for it. Pure.

    What counts are accepted attempts of the same cell whose arm gives the workload the same parameters.
    """
    if not names or attempt.state != "accepted":
        return attempt
    given = cell.given(cell.arm(attempt.arm))
    alike = {arm.name for arm in cell.arms if cell.given(arm) == given}
    counting = [a for a in earlier if a.cell == cell.id and a.arm in alike and a.state == "accepted"]
    why = disagreement(attempt, names, counting)
    if why is None:
        return attempt
    return msgspec.structs.replace(
        attempt, state="failed", reason=why, metrics={}, absent={}, wall_s=None, cpu_s=None, series=()
    )


def disagreement(attempt: Attempt, names: Sequence[str], earlier: Sequence[Attempt]) -> str | None:
    """In what fact `attempt` is not as the first of `earlier` that has it; None where there is no such fact. Pure."""
    for name in names:
        first = next((each for each in earlier if name in each.facts), None)
        if first is not None and attempt.facts.get(name) != first.facts[name]:
            return (
                f"{name} is {attempt.facts.get(name)}, and in block {first.block} ({first.arm}) it was"
                f" {first.facts[name]}: it must be the same in all attempts"
            )
    return None
