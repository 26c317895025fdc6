"""What all attempts of a cell must have in common where nothing is there to hold it against: the first one says it.

A build in a guest has no reference beside it. Its attempts start from the same sources with the same compiler, whatever
pages they have: what they make must be the same, and an attempt that made something else has failed.

The first attempt is one coin's choice. Where an arm makes another thing again and again, nothing says which of the two
is right: then no attempt of the cell holds any more, so that no arm is judged by who happened to be first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from hugewise.model.trial import Attempt
from hugewise.plan.plan import Cell

__all__ = ["disagreement", "disputed", "held", "telling"]


def held(attempt: Attempt, names: Sequence[str], cell: Cell, earlier: Iterable[Attempt]) -> Attempt:
    """`attempt`, failed where one of the facts `names` is not that of the first of `earlier` that counts for it. Pure.

    What counts are accepted attempts of the same cell whose arm gives the workload the same parameters.
    """
    if not names or attempt.state != "accepted":
        return attempt
    given = cell.given(cell.arm(attempt.arm))
    alike = {arm.name for arm in cell.arms if cell.given(arm) == given}
    known = [a for a in earlier if a.cell == cell.id and a.arm in alike]
    why = disagreement(attempt, names, [a for a in known if a.state == "accepted"]) or disputed(names, known)
    if why is None:
        return attempt
    return msgspec.structs.replace(
        attempt, state="failed", reason=why, metrics={}, absent={}, wall_s=None, cpu_s=None, series=()
    )


def telling(attempts: Iterable[Attempt], names: Sequence[str]) -> list[Attempt]:
    """Those of a cell's `attempts` that say all that `held` asks of them, however many there are. Pure.

    An arm that made the same thing again has said nothing new, nor has one that failed with the same thing twice.
    """
    times: Counter[tuple[object, ...]] = Counter()
    found = []
    for attempt in attempts:
        made = (attempt.arm, attempt.state, *(attempt.facts.get(name) for name in names))
        times[made] += 1
        if times[made] <= {"accepted": 1, "failed": 2}.get(attempt.state, 0):
            found.append(attempt)
    return found


def disputed(names: Sequence[str], earlier: Sequence[Attempt]) -> str | None:
    """Why nothing can be held against the cell's first attempt any more: an arm made the same other thing twice."""
    for name in names:
        made = [a for a in earlier if name in a.facts]
        first = next((a for a in made if a.state == "accepted"), None)
        if first is None:
            continue
        right = {a.arm for a in made if a.state == "accepted" and a.facts[name] == first.facts[name]}
        wrong = Counter((a.arm, a.facts[name]) for a in made if a.state == "failed" and a.arm not in right)
        for (arm, value), times in wrong.items():
            if times > 1 and value != first.facts[name]:
                return f"{name} is {value} under {arm} and {first.facts[name]} under {first.arm}: either may be right"
    return None


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
