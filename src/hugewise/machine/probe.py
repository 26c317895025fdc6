"""Find the Rust probe, tell it what to do, and read its JSON Lines. No other module knows their form.

The protocol is docs/design/probe-protocol.md, with the meaning of each field; `probe describe --examples` is decoded in
tests/machine/test_probe.py. Sizes are bytes, times of the load generator (event `load`) are nanoseconds.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from hugewise import files, reading
from hugewise.errors import ProbeError
from hugewise.files import storing
from hugewise.model.over_time import Buckets, LatencySeconds

Natural = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
"""A number of bytes, nanoseconds or things: what the store keeps. A probe may run in a guest that says anything."""


class Stored(msgspec.Struct, frozen=True):
    """A preload: keys and bytes of each instance, a hash of the stored data, and each server's own count."""

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
    """One of the slowest operations: sent (open loop: due) and answered; how many took half as long then."""

    sent_ns: Natural
    answered_ns: Natural
    latency_ns: Natural
    server: str
    operations: Natural


class Instance(msgspec.Struct, frozen=True):
    """Server's share of the timed phase; no latency where it had no operation."""

    server: str
    operations: Natural
    latency: Latency | None


class Worst(msgspec.Struct, frozen=True):
    """The instance with the highest p99."""

    server: str
    p99_ns: Natural


class Late(msgspec.Struct, frozen=True):
    """Delay of an open loop's requests against their intended times."""

    p50_ns: Natural
    p99_ns: Natural
    max_ns: Natural


class ClientThread(msgspec.Struct, frozen=True):
    """Thread: `busy` is CPU time over wall time, `wait_s` how long another one had its CPU (None: not counted)."""

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
    """Turns of one group of servers. `washed` operations, first in each turn, do not count; `turn_ns`: counted."""

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
    """Rate of a search: worst p99 and rate achieved of each probe."""

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


class Load(msgspec.Struct, frozen=True, tag_field="ev", tag="load"):
    """Results of the load generator; None where a result was not asked for."""

    protocol: Literal["redis", "memcached"]
    connections: Natural
    pipeline: Natural
    stored: Stored | None
    touched: LoadRead | None
    timed: Timed | None
    search: Search | None


# Backing of memory: its kind, the size of its folio in bytes, and the state of the mapping.
FolioState = Annotated[
    str, msgspec.Meta(pattern=r"^(?:anon|shmem|hugetlb|file):[0-9]{1,15}:(?:pmd|aligned|unaligned|partial)\Z")
]


class FoliosOfMapping(msgspec.Struct, frozen=True):
    """A mapping, as /proc/PID/maps has it, with bytes by `kind:folio size:state`.

    again    of these, what was counted before, in this process or another one of the same call
    nodes    by NUMA node; empty where the kernel does not say
    zero     reads as zero, and has no memory
    whole    in aligned blocks of the PMD size that are touched throughout, and that the PMD does not map
    """

    start: Natural
    end: Natural
    permissions: str
    offset: Natural
    device: str
    inode: Natural
    name: str
    bytes: Mapping[FolioState, Natural]
    nodes: Mapping[int, Natural]
    swapped: Natural
    zero: Natural
    whole: Natural
    again: Mapping[FolioState, Natural] = msgspec.field(default_factory=dict)


class MappedFolios(msgspec.Struct, frozen=True, tag_field="ev", tag="folios"):
    """A process."""

    pid: Natural
    mappings: list[FoliosOfMapping]
    scan_ns: Natural


def _snake(name: str) -> str:
    return name[0].lower() + "".join(f"_{c.lower()}" if c.isupper() else c for c in name[1:])


class ProbeEvent(msgspec.Struct, frozen=True, tag_field="ev", tag=_snake):
    """A line that the probe says, tagged by its kind."""


class Tlb(msgspec.Struct, frozen=True):
    """A TLB as CPUID states it: `entries` for each of `page_sizes` (bytes); `ways` 0 means fully associative."""

    level: Natural
    kind: str
    page_sizes: list[Natural]
    entries: Natural
    ways: Natural


class Cpu(ProbeEvent, frozen=True):
    """The TLBs of this processor."""

    vendor: str
    model: str
    tlbs: list[Tlb]
    reason: str | None


class Touched(ProbeEvent, frozen=True):
    """Memory was touched once. `blocks_ns`: the time of each block of the PMD size."""

    bytes: Natural
    wall_ns: Natural
    blocks_ns: list[Natural]


class Fragmented(ProbeEvent, frozen=True):
    """Free memory, the part of it in blocks that hold a huge page, and the number of blocks with a pinned page."""

    free_bytes: Natural
    huge_bytes: Natural
    pinned: Natural
    rounds: Natural
    wall_ns: Natural


class Available(ProbeEvent, frozen=True):
    """Counters by name; the value is the reason why one is not available, or None when it is.

    slots    how many events are counted at once on general counters; None without a PMU
    partial  counters that count user mode alone: their reason says why, and they have values
    """

    counters: dict[str, str | None]
    slots: Natural | None = None
    partial: frozenset[str] = frozenset()


class FaultRound(msgspec.Struct, frozen=True):
    """Memory that was touched for the first time: its page faults, and the CPU time that they took."""

    bytes: Natural
    faults: Natural
    cpu_ns: Natural


class FaultCost(ProbeEvent, frozen=True):
    """Cost of page faults: rounds with base pages, then with the largest pages that the process can get."""

    rounds: list[FaultRound]


VERSION = 1
_NAME = "hugewise-probe"

Source = Literal["kpageflags", "smaps"]  # source of page sizes
_PATIENCE_S = 600
FOREVER = 10 * 365 * 86_400.0  # for servers, which are stopped

MOST_SAID = 64 << 20
"""Bytes of what a program says on stdout, or on stderr, that are kept: the probe ends one that says more."""

MOST_EVENTS = 64 << 20
"""Bytes of a probe's own lines: of a tree that it looks at process by process, some 250,000."""


# Backing of memory: its kind and the size of its pages in bytes.
_Backing = Annotated[str, msgspec.Meta(pattern=r"^(?:[a-z-]{1,16}:[0-9]{1,15}|unproven)\Z")]


class Count(msgspec.Struct, frozen=True):
    """A counter's value, or why there is none; scaled, an estimate, where it did not run all the time (not `whole`)."""

    value: Natural | None
    reason: str | None
    enabled_ns: Natural
    running_ns: Natural

    @property
    def whole(self) -> bool:
        return self.running_ns >= self.enabled_ns


class Range(msgspec.Struct, frozen=True):
    """A half-open range of virtual addresses."""

    start: Natural
    end: Natural


class Start(ProbeEvent, frozen=True):
    """The child exists and will be executed."""

    v: Natural
    t_ns: Natural
    pid: Natural
    probe: str


class Phase(ProbeEvent, frozen=True):
    """A micro-workload's phase began: setup, timed, held."""

    t_ns: Natural
    name: str


class Result(ProbeEvent, frozen=True):
    """A micro-workload's numbers."""

    workload: str
    wall_ns: Natural
    metrics: dict[str, float]
    facts: dict[str, Natural | float | str]


class Hold(ProbeEvent, frozen=True):
    """The memory that a micro-workload names."""

    ranges: list[Range]


class Counters(ProbeEvent, frozen=True):
    """Performance counters of the whole command or of the timed region."""

    scope: Literal["command", "timed"]
    values: dict[str, Count]


class Coverage(ProbeEvent, frozen=True):
    """Pages that backed the memory of one process: bytes by `kind:page size`."""

    pid: Natural
    command: str
    named: bool
    source: str
    bytes: dict[_Backing, Natural]
    thp_disabled: bool | None
    scan_ns: Natural


class Usage(ProbeEvent, frozen=True):
    """getrusage of the tree."""

    user_s: float
    system_s: float
    peak_bytes: Natural
    minor_faults: Natural
    major_faults: Natural
    voluntary: Natural
    involuntary: Natural


class Exit(ProbeEvent, frozen=True):
    """End of the root process: time and exit status or signal."""

    t_ns: Natural
    wall_ns: Natural
    code: Natural | None
    signal: Natural | None
    timed_out: bool
    early_exits: Natural
    killed: Natural
    looked_ns: tuple[Natural, Natural] | None = (
        None  # begin and end of the scan at its exit, which `wall_ns` leaves out
    )
    exceeded: str | None = None  # the limit that it met, and was ended for
    # Counts of a followed tree: processes that went on with a copy of their parent's memory (fork without exec),
    # programs begun by others than the root, threads beside each process's first.
    forked: Natural | None = None
    executed: Natural | None = None
    threads: Natural | None = None


class MachineSeries(ProbeEvent, frozen=True, tag="series"):
    """The machine's counters over time: nanoseconds and the sampler's CPU time of each reading, and values."""

    asked_ns: Natural
    period_ns: Natural
    t_ns: list[Natural]
    cpu_ns: list[Natural]
    constant: dict[str, Natural]
    changed: dict[str, list[Natural | None]]
    absent: dict[str, str]


class Error(ProbeEvent, frozen=True):
    """Failure of a run, and whether the host or the workload is to blame."""

    fault: Literal["host", "workload"]
    before_timed: bool
    message: str


Event = (
    Start
    | Phase
    | Result
    | Hold
    | Counters
    | Coverage
    | Usage
    | Exit
    | Load
    | MachineSeries
    | Error
    | Cpu
    | Touched
    | Fragmented
    | Available
    | FaultCost
    | MappedFolios
)

_DECODER = msgspec.json.Decoder(Event)


class Barrier(msgspec.Struct, frozen=True):
    """The descriptors at which probes meet before they begin: a byte into `ready`, then the end of `go`."""

    ready: int
    go: int


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits on what a workload may take of its machine.

    stream_bytes  most bytes of its stdout, and of its stderr
    rooms         folders that it writes to: it is ended before the last of the room there is taken
    """

    stream_bytes: int | None = MOST_SAID
    rooms: tuple[str, ...] = ()


class Spec(msgspec.Struct, frozen=True, kw_only=True):
    """Instructions for `run`; see the protocol's table."""

    v: int = VERSION
    argv: tuple[str, ...]
    micro: bool = False
    env: Mapping[str, str]
    cwd: str | None = None
    stdout: str
    stderr: str
    uid: int | None = None
    gid: int | None = None
    thp_disable: str = "none"
    cgroup_procs: tuple[str, ...] = ()
    cpus: tuple[int, ...] | None = None
    timeout_s: float = FOREVER
    counters: tuple[str, ...] = ()
    scan: Literal["none", "exit", "every-exit"] = "none"
    source: Source = "smaps"
    barrier: Barrier | None = None
    announce: bool = False
    limits: Limits = Limits()
    # Left out where there are none: the probe of a guest, which may be an older one, is not asked for them.
    opens: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    stdin: str | msgspec.UnsetType = msgspec.UNSET
    sample: float | msgspec.UnsetType = msgspec.UNSET
    own_ipc: bool | msgspec.UnsetType = msgspec.UNSET
    groups: tuple[int, ...] | msgspec.UnsetType = msgspec.UNSET


class Job(msgspec.Struct, frozen=True):
    """Probe to run, and the files of this host for its specification (`told`), its lines and its stderr."""

    spec: Spec
    told: Path
    events: Path
    stderr: Path

    @classmethod
    def below(cls, folder: Path, name: str, spec: Spec) -> Job:
        return cls(spec, *(folder / f"{name}.{kind}" for kind in ("spec.json", "jsonl", "probe-stderr")))

    def tell(self, spec: Spec | None = None) -> None:
        """Write down what the probe is told: `spec` where that is not the job's own. Raises StorageError."""
        with storing(str(self.told)):
            self.told.touch(mode=0o600)  # the environment of a command can hold secrets
            self.told.write_bytes(msgspec.json.format(msgspec.json.encode(spec or self.spec), indent=1))


def has_executed(pid: int) -> bool:
    """Tell whether a child of the probe on this host has executed its program; False when the child has ended."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/exe").readlink().name != _NAME
    return False


def find() -> str:
    """Return the probe: $HUGEWISE_PROBE, beside this Python, or on PATH. Raises ProbeError; UserError where root would
    run one beside neither that another account can change.
    """
    named = os.environ.get("HUGEWISE_PROBE")
    places = [named] if named else [str(Path(sys.executable).parent / _NAME), shutil.which(_NAME)]
    for place in places:
        if place and os.access(place, os.X_OK):
            if Path(place).parent != Path(sys.executable).parent:
                files.own(Path(place), f"the probe {place}", "root runs it: unset HUGEWISE_PROBE, or set PATH")
            return place
    looked = ", ".join(place for place in places if place)
    raise ProbeError(f"hugewise-probe not found (looked at {looked})", hint="build it: make setup")


def decode(lines: Iterable[bytes]) -> Iterator[Event]:
    """Events from the probe's lines. A torn last line (no newline: the probe was killed) ends them."""
    for line in lines:
        if not line.endswith(b"\n"):
            return
        try:
            yield reading.decoded(_DECODER, line)
        except reading.UnreadableError as error:
            raise ProbeError(f"the probe said something unknown ({error})", hint="rebuild it: make setup") from None


def version() -> str:
    """Return the probe's own version, such as 0.1.0. Raises ProbeError."""
    return _answer("--version").decode(errors="replace").split()[-1]


def ask(*arguments: str) -> Event:
    """Run a subcommand of the probe such as `cpu`, and return its first event. Raises ProbeError."""
    first = next(decode(_answer(*arguments).splitlines(keepends=True)), None)
    if first is None:
        raise ProbeError(f"hugewise-probe {' '.join(arguments)} said nothing")
    return first


def ask_all(*arguments: str) -> list[Event]:
    """Return all events of a subcommand, such as `folios`. Raises ProbeError when it fails."""
    return list(decode(_answer(*arguments).splitlines(keepends=True)))


def put_away(process: subprocess.Popen[bytes]) -> None:
    """Kill a probe that goes on, whatever it does, reap it, and close what is held of its streams."""
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            with suppress(OSError):
                stream.close()


def _answer(*arguments: str) -> bytes:
    try:
        done = subprocess.run([find(), *arguments], capture_output=True, check=False, timeout=_PATIENCE_S)
    except subprocess.TimeoutExpired:
        raise ProbeError(
            f"hugewise-probe {' '.join(arguments)} has not ended within {_PATIENCE_S} s",
            hint="is the host swapping or out of memory? see: dmesg",
        ) from None
    if done.returncode != 0:
        raise ProbeError(f"hugewise-probe {' '.join(arguments)} failed: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout
