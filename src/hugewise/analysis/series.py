"""What was recorded within attempts beside their metrics: the throughput of each second, and facts. Pure.

Only accepted attempts are looked at, as for medians: what was rejected, failed or abandoned has nothing to settle.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from hugewise.model.results import Fact, FactDifference, Steadiness
from hugewise.model.trial import Attempt
from hugewise.stats.steady import steadiness

__all__ = ["differing", "series_by_arm", "shared", "steady_arms", "throughput_unit"]


def series_by_arm(cell: str, arms: Iterable[str], attempts: Iterable[Attempt]) -> dict[str, list[tuple[float, ...]]]:
    """The series of the accepted attempts of `cell` by arm, work a second, in the order of `arms`; arms without: none.

    Attempts without a whole second have no series and are left out.
    """
    found: dict[str, list[tuple[float, ...]]] = {arm: [] for arm in arms}
    for attempt in attempts:
        if attempt.cell == cell and attempt.arm in found and attempt.state == "accepted" and attempt.series:
            found[attempt.arm].append(attempt.series)
    return {arm: several for arm, several in found.items() if several}


def steady_arms(cell: str, arms: Iterable[str], attempts: Iterable[Attempt]) -> tuple[Steadiness, ...]:
    """Whether the throughput of each arm of `cell` had settled; empty where the workload has no series."""
    return tuple(steadiness(arm, several) for arm, several in series_by_arm(cell, arms, attempts).items())


def throughput_unit(workload: str) -> str:
    """The unit of a workload's series: that of its first metric where this is a rate, else `work a second`.

    A series is the workload's own throughput, whichever metric a study judges.
    """
    from hugewise.workloads import discover  # noqa: PLC0415  (loads every workload)

    known = discover().get(workload)
    unit = known.metrics[0].unit if known is not None and known.metrics else ""
    return unit if unit.endswith("/s") else "work a second"


def shared(cell: str, attempts: Iterable[Attempt]) -> dict[str, Fact]:
    """The facts that all accepted attempts of `cell` have, with one value: the same data, versions, place."""
    told = [attempt.facts for attempt in _told(cell, attempts)]
    return {
        name: value
        for name, value in (told[0] if told else {}).items()
        if all(name in facts and facts[name] == value for facts in told)
    }


def differing(cell: str, arms: Sequence[str], attempts: Iterable[Attempt]) -> tuple[FactDifference, ...]:
    """Facts of `cell` in which arms or their attempts differ and should not: texts, and numbers that an arm fixes.

    A text (a hash, a version, a place) is no measurement: two values of it are named wherever they are. A number that
    differs from attempt to attempt of one arm is a count of what was done, and is not; one that is the same in every
    attempt of each arm (two at least), but not in all arms, belongs to the arm, and is.
    """
    told = _told(cell, attempts)
    names = dict.fromkeys(name for attempt in told for name in attempt.facts)
    found = []
    for name in names:
        by_arm = {arm: [a.facts.get(name) for a in told if a.arm == arm] for arm in arms}
        by_arm = {arm: values for arm, values in by_arm.items() if values}
        distinct = {arm: tuple(dict.fromkeys(values)) for arm, values in by_arm.items()}
        if len({value for values in distinct.values() for value in values}) > 1 and _fixed(by_arm, distinct):
            found.append(FactDifference(name=name, values=distinct))
    return tuple(found)


def _told(cell: str, attempts: Iterable[Attempt]) -> list[Attempt]:
    """Without attempts that were made before there were facts."""
    return [a for a in attempts if a.cell == cell and a.state == "accepted" and a.facts]


def _fixed(by_arm: Mapping[str, Sequence[Fact | None]], distinct: Mapping[str, Sequence[Fact | None]]) -> bool:
    if any(isinstance(value, str) for values in distinct.values() for value in values):
        return True
    return all(len(values) == 1 for values in distinct.values()) and min(map(len, by_arm.values())) > 1
