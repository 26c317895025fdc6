"""What the load generator says: the body of the probe's event `load`. Times are nanoseconds.

Each structure mirrors one of probe/src/protocol/load.rs; docs/design/probe-protocol.md explains the fields.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from hugewise.model.sampled import Buckets, LatencySeconds

__all__ = [
    "Client",
    "ClientStall",
    "ClientThread",
    "Instance",
    "Late",
    "Latency",
    "Load",
    "LoadPoint",
    "LoadRead",
    "LoadStep",
    "LoadTurns",
    "Natural",
    "Search",
    "Stored",
    "Timed",
    "Tuning",
    "Worst",
]


Natural = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
"""A number of bytes, nanoseconds or things: what the store keeps. A probe may run in a guest that says anything."""


class Stored(msgspec.Struct, frozen=True):
    """A preload: keys and bytes of each instance, a hash of what was stored, and what each server says it holds."""

    keys: Natural
    bytes: Natural
    hash: str
    counts: list[Natural]
    wall_ns: Natural


class LoadRead(msgspec.Struct, frozen=True):
    """Every key of each instance was read once and compared."""

    keys: Natural
    wall_ns: Natural


class Latency(msgspec.Struct, frozen=True):
    """Quantiles of an HDR histogram with three significant digits."""

    count: Natural
    mean_ns: float
    p50_ns: Natural
    p90_ns: Natural
    p99_ns: Natural
    p999_ns: Natural
    max_ns: Natural


class ClientStall(msgspec.Struct, frozen=True):
    """One of the slowest operations: when it was sent (in an open loop: was to be sent) and answered, and how many took
    at least half as long in the same seconds.
    """

    sent_ns: Natural
    answered_ns: Natural
    latency_ns: Natural
    server: str
    operations: Natural


class Instance(msgspec.Struct, frozen=True):
    """One server's share of the timed phase; no latency where it had no operation."""

    server: str
    operations: Natural
    latency: Latency | None


class Worst(msgspec.Struct, frozen=True):
    """The instance with the highest p99."""

    server: str
    p99_ns: Natural


class Late(msgspec.Struct, frozen=True):
    """How much later than intended the requests of an open loop were sent."""

    p50_ns: Natural
    p99_ns: Natural
    max_ns: Natural


class ClientThread(msgspec.Struct, frozen=True):
    """One thread: `busy` is CPU time over wall time, `wait_s` how long another one had its CPU (None: not counted)."""

    cpu: Natural | None
    user_s: float
    system_s: float
    wait_s: float | None
    busy: float


class Client(msgspec.Struct, frozen=True):
    """CPU time of the load generator in the timed phase; `busy` is that of the busiest thread."""

    user_s: float
    system_s: float
    busy: float
    saturated: bool
    threads: list[ClientThread]


class LoadTurns(msgspec.Struct, frozen=True):
    """The turns of one of several groups of servers, all of `slice_operations`; `operations` are those of all of them.

    `washed` of them, the first part of each turn, are not counted. `wall_ns` is the time of all, `turn_ns` the counted
    time of each turn.
    """

    count: Natural
    slice_operations: Natural
    washed: Natural
    operations: Natural
    wall_ns: Natural
    turn_ns: list[Natural]


class Timed(msgspec.Struct, frozen=True):
    """The timed phase of the load generator; see the protocol's table.

    Where there are `turns`, everything else is of the counted parts of one group's turns.
    """

    wall_ns: Natural
    operations: Natural
    sets: Natural
    gets: Natural
    hits: Natural
    misses: Natural
    lost: Natural
    unsent: Natural
    bytes_sent: Natural
    bytes_received: Natural
    asked_rate: float | None
    achieved_rate: float
    rate_met: bool | None
    late: Late | None
    per_operation: bool
    latency: Latency | None
    instances: list[Instance]
    worst: Worst | None
    per_second: list[Natural]
    client: Client
    sequence: str | None
    turns: LoadTurns | None = None
    start_ns: Natural = 0  # CLOCK_MONOTONIC of the client's host; 0 by probes that did not tell
    buckets: Buckets | None = None
    seconds: LatencySeconds | None = None
    stalls: tuple[ClientStall, ...] = ()


class LoadStep(msgspec.Struct, frozen=True):
    """One rate of a search: worst p99 and rate achieved of each probe."""

    rate: float
    p99_ns: list[Natural]
    achieved: list[float]
    passed: bool


class Search(msgspec.Struct, frozen=True):
    """The highest rate within the limit lies between `rate` (None: none passed) and `failed` (None: none failed)."""

    limit_ns: Natural
    capacity: float
    rate: float | None
    failed: float | None
    steps: list[LoadStep]


class LoadPoint(msgspec.Struct, frozen=True):
    """Throughput of the closed loop at one point of the grid."""

    connections: Natural
    pipeline: Natural
    rate: float
    p99_ns: Natural
    busy: float


class Tuning(msgspec.Struct, frozen=True):
    """The grid, and the point with the fewest requests under way within 2% of the best throughput."""

    connections: Natural
    pipeline: Natural
    points: list[LoadPoint]


class Load(msgspec.Struct, frozen=True, tag_field="ev", tag="load"):
    """What the load generator found; what was not asked for is None."""

    protocol: Literal["redis", "memcached"]
    connections: Natural
    pipeline: Natural
    stored: Stored | None
    touched: LoadRead | None
    timed: Timed | None
    search: Search | None
    tuning: Tuning | None
