"""The table `[sampling]` of a study: what is read of the kernel's counters while an attempt runs, and after it."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from hugewise.study import keys
from hugewise.study.keys import Key, Kind, Place

__all__ = ["Sampling"]

OFF = "off"
_LONGEST = 3600.0


def _or_off(low: float) -> Kind:
    """Seconds from `low`, or `off`, which is 0."""

    def read(value: object, place: Place) -> Any:
        if value == OFF:
            return 0.0
        found = keys.duration(low).read(value, place)
        if found > _LONGEST:
            raise place.wrong("is out of range", value, hint=f'choose a duration of at most {_LONGEST:g} s, or "{OFF}"')
        return found

    return Kind(f'duration or "{OFF}"', read)


class Sampling(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The kernel's counters over time (docs/concepts/over-time.md)."""

    period: Annotated[
        float,
        _or_off(0.01),
        Key(
            "Time between two readings of the machine's counters while an attempt runs (page faults, huge pages by"
            " size, compaction, khugepaged, pressure, free memory by order). What the reading costs is measured in"
            " every attempt, and one in which it took more than 0.5% of the workload's CPU time is marked.",
            'period = "1s"',
        ),
    ] = 1.0
    idle: Annotated[
        float,
        _or_off(0.1),
        Key(
            "Workloads with servers: how long to wait, after the measured part, for khugepaged to have looked at all"
            " memory twice while the servers are idle; then their memory is `idle_footprint_bytes`. As root khugepaged"
            " is told to scan without pauses meanwhile.",
            'idle = "20s"',
            default="off",
        ),
    ] = 0.0
