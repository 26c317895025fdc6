"""Find the Rust probe, tell it what to do, and read its JSON Lines. No other module knows their form.

The protocol is docs/design/probe-protocol.md; `probe describe --examples` is decoded in tests/machine/test_probe.py.
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
from hugewise.machine.folios import MappedFolios
from hugewise.machine.load_generator import Load, Natural
from hugewise.machine.probe_answers import (
    Available,
    Cpu,
    FaultCost,
    FaultRound,
    Fragmented,
    Launches,
    ProbeEvent,
    Tlb,
    Touched,
)

__all__ = [
    "FOREVER",
    "MOST_EVENTS",
    "MOST_SAID",
    "Available",
    "Barrier",
    "Count",
    "Counters",
    "Coverage",
    "Cpu",
    "Error",
    "Event",
    "Exit",
    "FaultCost",
    "FaultRound",
    "Fragmented",
    "Hold",
    "Job",
    "Launches",
    "Limits",
    "Load",
    "MachineSeries",
    "MappedFolios",
    "Phase",
    "Result",
    "Source",
    "Spec",
    "Start",
    "Tlb",
    "Touched",
    "Usage",
    "ask",
    "ask_all",
    "decode",
    "find",
    "put_away",
    "version",
]

VERSION = 1

Source = Literal["kpageflags", "smaps"]  # how page sizes are looked up
_PATIENCE_S = 600
FOREVER = 10 * 365 * 86_400.0  # of servers, which are stopped

MOST_SAID = 64 << 20
"""Bytes of what a program says on stdout, or on stderr, that are kept: the probe ends one that says more."""

MOST_EVENTS = 64 << 20
"""Bytes of a probe's own lines: of a tree that it looks at process by process, some 250,000."""


# What backs memory: its kind and the size of its pages in bytes.
_Backing = Annotated[str, msgspec.Meta(pattern=r"^(?:[a-z-]{1,16}:[0-9]{1,15}|unproven)$")]


class Count(msgspec.Struct, frozen=True):
    """A counter's value, or the reason why there is none. Where it ran for less than it was enabled (not `whole`) the
    probe has scaled it: an estimate, by which nothing is judged.
    """

    value: Natural | None
    reason: str | None
    enabled_ns: Natural
    running_ns: Natural

    @property
    def whole(self) -> bool:
        """Whether it ran all the time."""
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
    """The memory that a micro-workload names; with `more`, that of another layout in the same process follows."""

    ranges: list[Range]
    more: bool = False


class Counters(ProbeEvent, frozen=True):
    """Performance counters of the whole command or of the timed region."""

    scope: Literal["command", "timed"]
    values: dict[str, Count]


class Coverage(ProbeEvent, frozen=True):
    """What backed the memory of one process: bytes by `kind:page size`."""

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
    """How and when the root process ended."""

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
    # Of a tree that was followed: processes that went on with a copy of their parent's memory (fork without exec),
    # programs that others than the root began, threads beside each process's first.
    forked: Natural | None = None
    executed: Natural | None = None
    threads: Natural | None = None


class MachineSeries(ProbeEvent, frozen=True, tag="series"):
    """The machine's counters over time (`hugewise.model.sampled`): CLOCK_MONOTONIC nanoseconds of each reading, the CPU
    time of the sampler until then, values that never changed, and a value for each reading of what did.
    """

    asked_ns: Natural
    period_ns: Natural
    t_ns: list[Natural]
    cpu_ns: list[Natural]
    constant: dict[str, Natural]
    changed: dict[str, list[Natural | None]]
    absent: dict[str, str]


class Error(ProbeEvent, frozen=True):
    """What went wrong, and who is to blame."""

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
    | Launches
    | MappedFolios
)

_DECODER = msgspec.json.Decoder(Event)


class Barrier(msgspec.Struct, frozen=True):
    """The descriptors at which probes meet before they begin: a byte into `ready`, then the end of `go`."""

    ready: int
    go: int


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What a workload may take of the machine that it runs on.

    stream_bytes  most bytes of its stdout, and of its stderr
    rooms         folders that it writes to: it is ended before the last of the room there is taken
    """

    stream_bytes: int | None = MOST_SAID
    rooms: tuple[str, ...] = ()


class Spec(msgspec.Struct, frozen=True, kw_only=True):
    """What `run` is told; see the protocol's table."""

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
    """One probe to run: what it is told, and the files for that (`told`), for its lines and for its stderr.

    All files are on this host: also `spec.stdout` and `spec.stderr`, wherever the program runs.
    """

    spec: Spec
    told: Path
    events: Path
    stderr: Path

    @classmethod
    def below(cls, folder: Path, name: str, spec: Spec) -> Job:
        """With its files in `folder`, all of which begin with `name`."""
        return cls(spec, *(folder / f"{name}.{kind}" for kind in ("spec.json", "jsonl", "probe-stderr")))

    def tell(self, spec: Spec | None = None) -> None:
        """Write down what the probe is told: `spec` where that is not the job's own. Raises StorageError."""
        with storing(str(self.told)):
            self.told.touch(mode=0o600)  # the environment of a command can hold secrets
            self.told.write_bytes(msgspec.json.format(msgspec.json.encode(spec or self.spec), indent=1))


def find() -> str:
    """Path of the probe: $HUGEWISE_PROBE, beside this Python, or on PATH. Raises ProbeError.

    The one beside this Python is as good as this program itself. Root runs another one only where no other account can
    change it, whatever the environment says that `su` keeps: else UserError.
    """
    named = os.environ.get("HUGEWISE_PROBE")
    places = [named] if named else [str(Path(sys.executable).parent / "hugewise-probe"), shutil.which("hugewise-probe")]
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
    """The probe's own version, such as 0.1.0. Raises ProbeError."""
    return _answer("--version").decode(errors="replace").split()[-1]


def ask(*arguments: str) -> Event:
    """The first event of a short subcommand, such as `cpu` or `counters`. Raises ProbeError when it fails."""
    first = next(decode(_answer(*arguments).splitlines(keepends=True)), None)
    if first is None:
        raise ProbeError(f"hugewise-probe {' '.join(arguments)} said nothing")
    return first


def ask_all(*arguments: str) -> list[Event]:
    """All events of a subcommand, such as `folios`. Raises ProbeError when it fails."""
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
    """What a short subcommand prints."""
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
