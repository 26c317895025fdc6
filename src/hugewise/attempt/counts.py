"""What an attempt's counters say, as metrics. Pure.

A counter that shared its place with others ran for a part of the time, and its value is scaled from that: it is no
measurement of the rest, so that its metric is null, with the share and the estimate as its reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from hugewise.machine.probe import Count
from hugewise.model.metric import COUNTERS, SUMS, Sum, label

__all__ = ["values"]

_MOST_EVENTS = 8  # of one role


def values(
    counts: Mapping[str, Count], elsewhere: Mapping[str, str] | None = None
) -> tuple[dict[str, float | None], dict[str, str]]:
    """The metrics that are counters, and the reasons of those without a value.

    `elsewhere`: by label why an event was not asked for in this attempt. What only some processors count by mode is
    left out where nobody asked for it.
    """
    elsewhere = {} if elsewhere is None else elsewhere
    metrics: dict[str, float | None] = {}
    absent: dict[str, str] = {}
    for counter in COUNTERS:
        if counter.metric is not None:
            _take(metrics, absent, counter.metric.name, _whole(counter.event, counts, elsewhere))
    for one in SUMS:
        found = _sum(one, counts, elsewhere)
        if found is not None or one.mode == "all":
            _take(metrics, absent, one.metric.name, f"{one.roles[0]} was not counted" if found is None else found)
    return metrics, absent


def _take(metrics: dict[str, float | None], absent: dict[str, str], name: str, found: float | str) -> None:
    metrics[name] = None if isinstance(found, str) else found
    if isinstance(found, str):
        absent[name] = found


def _whole(name: str, counts: Mapping[str, Count], elsewhere: Mapping[str, str]) -> float | str:
    """A count of all of the time, or why there is none."""
    count = counts.get(name)
    if count is None:
        return elsewhere.get(name, f"{name} was not counted")
    if count.value is None:
        return count.reason or f"{name} was not counted"
    if not count.whole:
        share = count.running_ns / count.enabled_ns
        return f"it ran {share:.0%} of the time, as it shared a counter: {count.value:,} is an estimate, and not judged"
    return count.value


def _sum(one: Sum, counts: Mapping[str, Count], elsewhere: Mapping[str, str]) -> float | str | None:
    """The sum of what was asked for of its roles; None where nothing was, here or in other blocks."""
    total, found = 0.0, False
    for name in _labels(one.roles, one, {**elsewhere, **counts}):
        value = _whole(name, counts, elsewhere)
        if isinstance(value, str):
            return value
        total, found = total + value, True
        if name.startswith("l1_misses"):
            for less in _labels(one.less, one, {**elsewhere, **counts}):
                taken = _whole(less, counts, elsewhere)
                if isinstance(taken, str):
                    return taken
                total -= taken
    if not found:
        return None
    return total if total >= 0 else "more misses of the second level than of the first were counted"


def _labels(roles: tuple[str, ...], one: Sum, known: Mapping[str, object]) -> Iterator[str]:
    """The labels of the roles that anybody asked for."""
    for role in roles:
        for index in range(_MOST_EVENTS):
            if (name := label(role, one.mode, index)) in known:
                yield name
