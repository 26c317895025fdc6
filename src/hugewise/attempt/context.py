"""Attempts under way: what all of a run share, and what the runner's steps hand on to each other.

Boarding: an attempt is given the machine that it runs on. This host boards as guests do.

What the layout library did for an attempt: a file to which it appends a line for each process that loads it.

The file is in the attempt's private folder and the account's own, as the library demands; it is read below a descriptor
when the command has ended. The program has the file's name in its environment and may write anything to it: what makes
no sense is no report. docs/concepts/layouts.md says what stands in it.
"""

from __future__ import annotations

import os
import pwd
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from mmap import mmap
from pathlib import Path
from typing import Protocol

import msgspec

from hugewise import reading
from hugewise.attempt.ageing import Ageing
from hugewise.attempt.driver import AttemptDriver
from hugewise.beneath import DirFd
from hugewise.errors import StorageError
from hugewise.host.knob import Settings
from hugewise.host.scratch import fresh
from hugewise.machine import noise, probe
from hugewise.machine.loader import REPORT
from hugewise.machine.machine import Contained, Drift
from hugewise.machine.pmu.families import ASSUMED_SLOTS, CounterPlan, schedule
from hugewise.machine.probe import Natural
from hugewise.machine.serving import ClientSite, Site
from hugewise.model.design import Slicing
from hugewise.model.host import Host
from hugewise.model.metric import GENERIC
from hugewise.model.policy import Treatment
from hugewise.model.trial import Attempt, Trial
from hugewise.model.workload import Launch
from hugewise.plan.arms import Arm
from hugewise.plan.plan import Cell
from hugewise.quantity import format_size
from hugewise.reading import UnreadableError
from hugewise.store import dataset
from hugewise.store.folder import RunFolder
from hugewise.study.study import Study
from hugewise.study.tables import Slots


class Backed(msgspec.Struct, frozen=True):
    """What backed a guest's memory: facts for the record, and why it is not what the arm promises (None: it is)."""

    facts: Mapping[str, str | int | float] = {}
    problem: str | None = None


class AcquiredMachine(Protocol):
    """The machine of an attempt, until it is left.

    site         where the attempt runs
    own          it is the attempt's alone: what its kernel counts is the attempt's
    meets        launchers there can wait for others of this host
    cwd          where that runs unless it says so: the same in all sessions of a run
    places       CPUs of each slot of the design, of which the attempt has its trial's; none where it has all
    far          the host of their own that its clients are on; None: they are on the site
    """

    own: bool
    meets: bool
    site: Site
    cwd: str
    places: Slots

    @property
    def far(self) -> ClientSite | None:
        """See above."""
        ...

    @property
    def environment(self) -> Mapping[str, str]:
        """What a user's command finds there."""
        ...

    def look(self, here: noise.Snapshot) -> noise.Snapshot | None:
        """The machine's counters, where those of this host are `here`; None of one that must not be looked at."""
        ...

    def flush(self) -> None:
        """Have written what is still to be, before its page cache is dropped."""
        ...

    def instructions(self, events: Sequence[probe.Event]) -> int | None:
        """Instructions of the timed region, where its clock goes by them."""
        ...

    def leave(self) -> Backed:
        """Give it up, and see that it is gone; what was found of its memory meanwhile."""
        ...

    def close(self) -> None:
        """End it at once, whatever happened."""
        ...


class Boarding(Protocol):
    """Has a machine for each attempt."""

    def board(self, cell: Cell, arm: Arm, trial: Trial, number: int, outputs: Path) -> AcquiredMachine:
        """The machine for one attempt, ready. Raises MachineError with the last console lines."""
        ...


@dataclass
class HostBoarding:
    """This host, for all attempts of a session: it is there already, and stays.

    clients  reaches the host of clients, anew where it was lost; raises MachineError
    """

    site: Site
    cwd: str
    places: Slots = ()
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)
    clients: Callable[[], ClientSite] | None = None
    far: ClientSite | None = None
    own = False
    meets = True

    def board(self, cell: Cell, arm: Arm, trial: Trial, number: int, outputs: Path) -> HostBoarding:
        """It is boarded by everybody, with the host of its clients where that is another one."""
        if not cell.apart:
            return self
        assert self.clients is not None, "a run whose clients are apart has reached their host"
        return replace(self, far=self.clients())

    def look(self, here: noise.Snapshot) -> noise.Snapshot:
        """It was looked at already."""
        return here

    def flush(self) -> None:
        """Pages that are not written yet cannot be dropped."""
        os.sync()

    def instructions(self, events: Sequence[probe.Event]) -> None:
        """Its clock is a clock."""

    def leave(self) -> Backed:
        """It stays."""
        return Backed()

    def close(self) -> None:
        """It stays."""


_NAME = "report"
_MOST = 8 << 20  # bytes: some 40,000 processes
_CUT = (  # the heap is not glibc's; pieces that such an allocator maps are cut from a region of the layout
    "malloc is not glibc's",
    "malloc does not take its memory from the heap",
)


class LayoutLine(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the layout in one process. `why` is null where all of it was had.

    heap_bytes   that are laid out, 0 where none are
    short_bytes  that were to be of a pool, and are base pages
    ranges       whose pages were chosen; `refused`: for which the kernel did not
    """

    pid: Natural
    layout: str
    heap_bytes: Natural
    heap_from: Natural
    short_bytes: Natural
    ranges: Natural = 0
    refused: Natural = 0
    why: str | None = None


_LINE = msgspec.json.Decoder(LayoutLine)


def reporting(below: Path, order: int, account: pwd.struct_passwd | None) -> tuple[Path, Mapping[str, str]]:
    """A folder of the account's (None: the caller's) for the report of the attempt that has this `order` in its block,
    and the variable that names the file. Raises StorageError.
    """
    user, group = (None, None) if account is None else (account.pw_uid, account.pw_gid)

    def fill(made: DirFd) -> None:
        made.put(_NAME, b"", 0o600, user, group)

    folder = below / f"layout-{order}"
    fresh(folder, user, group, fill)
    return folder, {REPORT: str(folder / _NAME)}


def reported(folder: Path) -> list[LayoutLine]:
    """The lines of the report that make sense; none where there is no such file any more."""
    found = bytearray()
    with suppress(OSError, StorageError), DirFd.open(folder) as held, held.file(_NAME) as file:
        while len(found) < _MOST and (piece := file.read(_MOST - len(found))):
            found += piece
    lines = []
    for line in found.splitlines():
        with suppress(UnreadableError):
            lines.append(reading.decoded(_LINE, bytes(line)))
    return lines


def summary(lines: Sequence[LayoutLine]) -> dict[str, int | str]:
    """For the attempt's record: how many processes said something, and the sums of what they said."""
    found: dict[str, int | str] = {"processes": len(lines)}
    for name in ("heap_bytes", "short_bytes", "ranges", "refused"):
        found[name] = sum(getattr(line, name) for line in lines)
    if why := next((line.why for line in lines if line.why), None):
        found["why"] = why[:200]
    return found


def undelivered(lines: Sequence[LayoutLine], treatment: Treatment) -> str | None:
    """Why the layout of `treatment` was not had, or None where the library had it as it was to be.

    Of a process that became another program the last one counts.
    """
    if not lines:
        return "the layout library said nothing: the program did not load it"
    lines = list({line.pid: line for line in lines}.values())
    unlaid = [line for line in lines if not line.heap_bytes]
    if len(unlaid) == len(lines):
        why = unlaid[0].why or "the library does not say why"
        return None if why.startswith(_CUT) and "hugetlb" not in treatment.layout else f"no heap was laid out: {why}"
    short = [line for line in lines if line.heap_bytes and line.short_bytes]
    if short:
        size = format_size(sum(line.short_bytes for line in short))
        return f"the pool was short: {size} are base pages, {_of(short, lines)}"
    refused = [line for line in lines if line.refused]
    return None if not refused else f"the kernel refused the advice, {_of(refused, lines)}"


def _of(some: Sequence[LayoutLine], lines: Sequence[LayoutLine]) -> str:
    return f"in {len(some)} of {len(lines)} processes"


class Disturbed(Exception):  # noqa: N818  (an outcome of a block, not an error)
    """Somebody else turned a knob that this run depends on: the block is closed, nothing is overwritten in silence."""

    def __init__(self, drift: list[Drift]) -> None:
        self.drift = drift
        super().__init__("; ".join(str(each) for each in drift))


def turn_knobs(site: Site, knobs: Mapping[str, str]) -> None:
    """Have these knobs hold on a machine, over how it was found. Raises Disturbed, SettingError."""
    if drift := site.knobs.apply(knobs):
        raise Disturbed(drift)


@dataclass(frozen=True)
class RunContext:
    """What all attempts of a run share. `host` is this one, wherever they run."""

    host: Host
    boarding: Boarding
    study: Study
    settings: Settings
    folder: RunFolder
    session: int
    boot_id: str
    pools: Mapping[int, int]  # pages that this session reserved, by page size in bytes
    on_step: Callable[[str], None] = lambda _: None
    ageing: Ageing | None = None  # where a cell of the run wants memory that has aged
    counting: CounterPlan = field(
        default_factory=CounterPlan
    )  # which of the processor's events an attempt on this host counts
    data: Mapping[str, dataset.Kept] = field(default_factory=dict)  # the data of each cell that has some
    # Attempts of the run by cell, as they were stored: what the next ones are held against (`runner`).
    earlier: defaultdict[str, list[Attempt]] = field(default_factory=lambda: defaultdict(list))

    def events(self, block: int, *, guest: bool) -> tuple[str, ...]:
        """The processor's events to be counted in the attempts of a block, as the probe takes them.

        Where there is no PMU each is asked for by itself, so that each has its reason. What a guest's processor has
        nobody asks before it is booted: perf's own names take turns there, so many as any processor can count.
        """
        if guest:
            return schedule(None, ASSUMED_SLOTS).groups(block)
        return self.counting.groups(block) or GENERIC


@dataclass
class AttemptState:
    """One arm's attempt under way: what the steps hand on to each other.

    `before` and `after` are of the machine that it runs on; `broken` is why that machine was gone before the end;
    `let_down`: by its emulator.
    """

    arm: Arm
    trial: Trial
    number: int
    draft: Path
    aboard: AcquiredMachine | None = None  # there when it has boarded
    backed: Backed = field(default_factory=Backed)
    broken: str | None = None
    let_down: bool = False
    before: noise.Snapshot | None = None
    after: noise.Snapshot | None = None
    knobs: Mapping[str, str] = field(default_factory=dict)
    launch: Launch | None = None  # known when the attempt is supplied
    driver: AttemptDriver = field(default_factory=AttemptDriver)
    leaf: Contained = field(default_factory=Contained)  # of the system under test
    client: Contained = field(default_factory=Contained)
    events: list[probe.Event] = field(default_factory=list)
    twin: list[probe.Event] | None = None
    report: Path | None = None  # the folder of what the layout library says, where it is loaded
    held: mmap | None = None  # what is reserved for other arms, kept from this one
    laid: Sequence[LayoutLine] | None = None  # what it said
    cgroup_faults: int | None = None
    cgroup_peak: int | None = None
    idle_bytes: int | None = None  # of its servers, when khugepaged was done with them
    idle_why: str = "it was not looked at"

    @property
    def boarded(self) -> AcquiredMachine:
        """The machine that it has boarded."""
        assert self.aboard is not None
        return self.aboard

    @property
    def command(self) -> Launch:
        """The timed command."""
        assert self.launch is not None
        return self.launch

    @property
    def site(self) -> Site:
        """Where it runs."""
        return self.boarded.site

    def clear(self) -> None:
        """Whatever happened: nothing of the attempt lives on."""
        if self.aboard is not None:  # what runs in a guest goes with it
            self.aboard.close()
        self.driver.close()  # also of a guest: it may have servers on this host
        if self.held is not None:
            self.held.close()
        for leaf in (self.leaf, self.client):
            leaf.kill()
            leaf.remove()

    @property
    def change(self) -> noise.Difference | None:
        """What happened on its machine meanwhile; None where it was not looked at."""
        return None if self.before is None or self.after is None else noise.difference(self.before, self.after)


@dataclass
class Group:
    """The attempts that run at once, in the order of their trials: one, but for designs that lay out several."""

    bench: RunContext
    cell: Cell
    works: list[AttemptState]
    rounds: Iterator[str] | None = None  # in which order they take turns, where they do
    started: float = 0.0
    ended: float = 0.0
    clock: float = 0.0
    covariates: Mapping[str, float] = field(default_factory=dict)
    aged: Mapping[str, int | float] = field(default_factory=dict)
    before: noise.Snapshot | None = None
    after: noise.Snapshot | None = None
    drift: list[Drift] = field(default_factory=list)
    stored: list[Attempt] = field(default_factory=list)
    turn: AttemptState | None = None  # whose part of a step is being done, where it is one attempt's alone

    def each(self) -> Iterator[AttemptState]:
        """The attempts one by one, so that whose turn it is when a step fails is known."""
        for work in self.works:
            self.turn = work
            yield work
        self.turn = None

    @property
    def sites(self) -> list[tuple[Site, AttemptState]]:
        """Each machine once, with the first of those that run on it."""
        found: dict[int, tuple[Site, AttemptState]] = {}
        for work in self.works:
            found.setdefault(id(work.site), (work.site, work))
        return list(found.values())

    def alone(self, work: AttemptState) -> bool:
        """Whether its machine is its own meanwhile: counters and folders of one cannot tell attempts apart."""
        return len(self.works) == 1 or work.boarded.own

    @property
    def shared(self) -> bool:
        """Whether all are in one process, which the first work stands for."""
        return self.rounds is not None and self.cell.kind == "crossover"

    @property
    def resident(self) -> bool:
        """Whether each has processes of its own that are all there, while one attempt at a time works."""
        return self.rounds is not None and self.cell.kind == "resident"

    @property
    def timeout(self) -> float:
        """Seconds that a timed command has: of arms that take turns each has the others' too, and wash-outs."""
        slicing = self.slicing
        return self.cell.timeout if slicing is None else self.cell.timeout * slicing.arms / (1 - slicing.wash_out)

    @property
    def slicing(self) -> Slicing | None:
        """How those take turns that are all there."""
        rules = self.bench.study.design
        return Slicing(len(self.works), rules.slice, rules.wash_out) if self.resident else None

    @property
    def launched(self) -> list[AttemptState]:
        """Those with a process of their own."""
        return self.works[:1] if self.shared else self.works
