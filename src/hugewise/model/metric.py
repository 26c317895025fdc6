"""Named quantities with unit and direction, and which of them are counters of perf. Pure."""

from __future__ import annotations

from importlib import resources
from typing import Literal

import msgspec

NOT_IN_EMULATION = "the guest is emulated (TCG): its clock, TLB and caches are not a processor's"
"""Reason for a null metric that emulation does not yield exactly."""

NO_CGROUP = "servers are counted by their cgroup, and there is none"
"""Reason for a null metric of servers that only a cgroup of their own counts."""

Direction = Literal["lower", "higher", "neutral"]


class Metric(msgspec.Struct, frozen=True):
    """Number per attempt. `better` says which direction is good; `neutral` is never judged.

    `emulated`: a guest that is emulated yields it exactly, being a count or a size that no clock enters. Every other is
    null there.
    """

    name: str
    unit: str
    better: Direction
    description: str
    emulated: bool = False


OPERATIONS = "operations"
"""The value that says how much work a command, or a load, has done."""

WALL_US = Metric("wall_us", "us", "lower", "elapsed time for each operation, where a value is named `operations`")


Mode = Literal["all", "user", "kernel"]


class Counter(msgspec.Struct, frozen=True):
    """An event of perf that is counted of each command, by its name there (see `hugewise-probe counters`).

    metric     what it is called in attempts and reports; None: it is kept in the events of an attempt alone
    hardware   the processor's: it takes one of its counters, of which there are few (`machine.pmu`). Of
               servers, whose measured part begins when they run already, these alone are counted
    """

    event: str
    metric: Metric | None = None
    hardware: bool = False


class Sum(msgspec.Struct, frozen=True):
    """A metric that is a sum over events of the processor's own in one mode, by their roles (`machine.pmu`).

    A family counts some of `roles` and not others: those that were asked for are summed. `less` is taken away from
    `l1_misses`, where the family counts hits of the second level in that way.
    """

    metric: Metric
    mode: Mode
    roles: tuple[str, ...]
    less: tuple[str, ...] = ()


class Rate(msgspec.Struct, frozen=True):
    """A metric that is `times` one counter over another, both by their metrics' names."""

    metric: Metric
    part: str
    whole: str
    times: float = 1.0


class CounterBundle(msgspec.Struct, frozen=True):
    """Events that are of use together alone, since one is divided by another: perf's names, or roles of a family.

    needs     without one of these the rest is not worth a counter; empty: without any
    metrics   what is made of it
    """

    events: tuple[str, ...]
    metrics: tuple[str, ...]
    mode: Mode = "all"
    needs: tuple[str, ...] = ()


def label(event: str, mode: Mode, index: int = 0) -> str:
    """Return the probe's name of an event's count; `index` where a role has more than one event."""
    suffix = {"all": "", "user": ":u", "kernel": ":k"}[mode]
    return f"{event}{f'/{index}' if index else ''}{suffix}"


class _Tables(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    first: tuple[Metric, ...]
    last: tuple[Metric, ...]
    counters: tuple[Counter, ...]
    sums: tuple[Sum, ...]
    bundles: tuple[CounterBundle, ...]
    rates: tuple[Rate, ...]


_TABLES = msgspec.toml.decode(resources.files(__package__).joinpath("metrics.toml").read_bytes(), type=_Tables)
COUNTERS, SUMS, BUNDLES, RATES = _TABLES.counters, _TABLES.sums, _TABLES.bundles, _TABLES.rates

GENERIC = tuple(counter.event for counter in COUNTERS if counter.hardware)
"""Perf's own names of the processor's events."""

COMMON = (
    *_TABLES.first,
    *(counter.metric for counter in COUNTERS if counter.metric is not None),
    *(one.metric for one in SUMS),
    *(rate.metric for rate in RATES),
    *_TABLES.last,
)
"""Metrics of every attempt, in the order of reports."""
