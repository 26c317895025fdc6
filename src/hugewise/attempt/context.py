"""Attempts under way: the context of a run, and the state that the runner's steps pass on.

The layout library appends a line to a file for each process that loads it (docs/concepts/layouts.md). The file is in
the attempt's private folder and belongs to the account. The program may write anything to it: nonsense counts as no
report.
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
from time import monotonic
from typing import Protocol

import msgspec

from hugewise import reading
from hugewise.attempt.ageing import Ageing
from hugewise.attempt.driver import AttemptDriver
from hugewise.beneath import DirFd
from hugewise.errors import StorageError
from hugewise.host.backing import Backing
from hugewise.host.knob import Settings
from hugewise.host.scratch import fresh
from hugewise.machine import noise, probe
from hugewise.machine.loader import REPORT
from hugewise.machine.machine import ClientSite, Contained, Drift, Site
from hugewise.machine.pmu import ASSUMED_SLOTS, CounterPlan, schedule
from hugewise.machine.probe import Natural
from hugewise.model.design import Slicing, TurnSettings, faults_while_timed, interleaved
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
    """Pages that backed a guest's memory, for the record; `problem`: why they are not those that the arm promises."""

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
        """Environment of a user's command there."""
        ...

    def look(self, here: noise.Snapshot) -> noise.Snapshot | None:
        """Return the counters of the machine (`here`: this host's); None where it must not be read."""
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
        """Return the machine for one attempt, ready. Raises MachineError with the last console lines."""
        ...


@dataclass
class HostBoarding:
    """Boarding of this host, for all attempts of a session.

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
        """Return this host, with the host of its clients where they are apart."""
        if not cell.apart:
            return self
        assert self.clients is not None, "a run whose clients are apart has reached their host"
        return replace(self, far=self.clients())

    def look(self, here: noise.Snapshot) -> noise.Snapshot:
        return here

    def instructions(self, events: Sequence[probe.Event]) -> None:
        pass

    def leave(self) -> Backed:
        return Backed()

    def close(self) -> None:
        pass


_NAME = "report"
_MOST = 8 << 20  # bytes: some 40,000 processes


class LayoutLine(msgspec.Struct, frozen=True, kw_only=True):
    """Result of the layout in one process. `why` is null where the whole layout was applied.

    heap_bytes   that are laid out, 0 where none are
    short_bytes  that were to be of a pool, and are base pages
    ranges       whose pages were chosen; `refused`: for which the kernel did not
    foreign      the heap is not glibc's: pieces that such an allocator maps are cut from a region of the layout
    """

    pid: Natural
    layout: str
    heap_bytes: Natural
    heap_from: Natural
    short_bytes: Natural
    ranges: Natural = 0
    refused: Natural = 0
    foreign: bool = False
    why: str | None = None


_LINE = msgspec.json.Decoder(LayoutLine)


def reporting(below: Path, order: int, account: pwd.struct_passwd | None) -> tuple[Path, Mapping[str, str]]:
    """Return a folder of the account's for the attempt's layout report, and the variable that names it."""
    user, group = (None, None) if account is None else (account.pw_uid, account.pw_gid)

    def fill(made: DirFd) -> None:
        made.put(_NAME, b"", 0o600, user, group)

    folder = below / f"layout-{order}"
    fresh(folder, user, group, fill)
    return folder, {REPORT: str(folder / _NAME)}


def reported(folder: Path) -> list[LayoutLine]:
    """Return the lines of the report that make sense; none where there is no such file any more."""
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
    """Return the number of processes that reported, and the sums of their reports, for the attempt's record."""
    found: dict[str, int | str] = {"processes": len(lines)}
    for name in ("heap_bytes", "short_bytes", "ranges", "refused"):
        found[name] = sum(getattr(line, name) for line in lines)
    if why := next((line.why for line in lines if line.why), None):
        found["why"] = why[:200]
    return found


def undelivered(lines: Sequence[LayoutLine], treatment: Treatment) -> str | None:
    """Return why the layout was not applied in full (of a process the last program counts), or None."""
    if not lines:
        return "the layout library said nothing: the program did not load it"
    lines = list({line.pid: line for line in lines}.values())
    unlaid = [line for line in lines if not line.heap_bytes]
    if len(unlaid) == len(lines):
        if unlaid[0].foreign and "hugetlb" not in treatment.layout:
            return None
        return f"no heap was laid out: {unlaid[0].why or 'the library does not say why'}"
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
    """Context that all attempts of a run share. `host` is this host, wherever attempts run."""

    host: Host
    boarding: Boarding
    study: Study
    settings: Settings
    folder: RunFolder
    session: int
    boot_id: str
    pools: Mapping[int, int]  # pages that this session reserved, by page size in bytes
    on_step: Callable[[str], None] = lambda _: None
    ageing: Ageing | None = None  # where a cell of the run asks for aged memory
    backing: Backing | None = None  # where the host of this virtual machine takes back free memory
    counting: CounterPlan = field(default_factory=CounterPlan)  # events that an attempt on this host counts
    data: Mapping[str, dataset.Kept] = field(default_factory=dict)  # the data of each cell that has some
    # Stored attempts of the run by cell: later ones are compared with them (`runner`).
    earlier: defaultdict[str, list[Attempt]] = field(default_factory=lambda: defaultdict(list))

    def events(self, block: int, *, guest: bool) -> tuple[str, ...]:
        """Return the processor's events to be counted in the attempts of a block, as the probe takes them.

        Where there is no PMU each is asked for by itself, so that each has its reason. What a guest's processor has
        nobody asks before it is booted: perf's own names take turns there, so many as any processor can count.
        """
        if guest:
            return schedule(None, ASSUMED_SLOTS).groups(block)
        return self.counting.groups(block) or GENERIC


@dataclass
class AttemptState:
    """Arm's attempt under way: what the steps hand on to each other.

    `before` and `after` are of the machine that it runs on; `broken` is why that machine was gone before the end;
    `let_down`: by its emulator.
    """

    arm: Arm
    trial: Trial
    number: int
    draft: Path
    aboard: AcquiredMachine | None = None  # set when it has boarded
    backed: Backed = field(default_factory=Backed)
    broken: str | None = None
    let_down: bool = False
    before: noise.Snapshot | None = None
    after: noise.Snapshot | None = None
    knobs: Mapping[str, str] = field(default_factory=dict)
    launch: Launch | None = None  # known when the attempt is supplied
    driver: AttemptDriver = field(default_factory=AttemptDriver)
    leaf: Contained = field(default_factory=Contained)  # the system under test's
    client: Contained = field(default_factory=Contained)
    events: list[probe.Event] = field(default_factory=list)
    twin: list[probe.Event] | None = None
    report: Path | None = None  # folder of the layout library's reports, where it is loaded
    held: mmap | None = None  # pages reserved for other arms, kept from this one
    laid: Sequence[LayoutLine] | None = None  # the library's reports
    scanned_frozen: bool = False  # its processes were scanned between their turns
    cgroup_faults: int | None = None
    cgroup_peak: int | None = None

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
        return self.boarded.site

    def clear(self) -> None:
        """Whatever happened: nothing of the attempt lives on."""
        if self.aboard is not None:  # programs in a guest end with it
            self.aboard.close()
        self.driver.close()  # also for a guest: it may have servers on this host
        if self.held is not None:
            self.held.close()
        for leaf in (self.leaf, self.client):
            leaf.kill()
            leaf.remove()

    @property
    def change(self) -> noise.Difference | None:
        """Changes on the attempt's machine during the attempt; None where the machine was not observed."""
        return None if self.before is None or self.after is None else noise.difference(self.before, self.after)


@dataclass(frozen=True)
class Alternation:
    """The page settings of commands that take turns: those of one arm hold while that arm works.

    arms     names, in the order of `settings`
    turn_to  turns the knobs to those of the arm of that number, and returns the drift (`Settings.alternation`)
    """

    arms: Sequence[str]
    settings: TurnSettings
    turn_to: Callable[[int], list[Drift]]

    def turn(self, arm: str) -> None:
        """Turn the knobs to those of the arm of that name. Raises Disturbed, SettingError."""
        if drift := self.turn_to(self.arms.index(arm)):
            raise Disturbed(drift)


@dataclass
class Group:
    """The attempts that run at once, in the order of their trials: one, but for designs that lay out several."""

    bench: RunContext
    cell: Cell
    works: list[AttemptState]
    turns: str = ""  # order of turns, if any: a digit a turn, repeated until the end
    started: float = 0.0
    ended: float = 0.0
    clock: float = field(default_factory=monotonic)  # when the first step began
    aged: Mapping[str, int | float] = field(default_factory=dict)
    before: noise.Snapshot | None = None
    after: noise.Snapshot | None = None
    drift: list[Drift] = field(default_factory=list)
    background: Mapping[str, float] = field(default_factory=dict)  # CPU seconds of kernel threads during turns
    stored: list[Attempt] = field(default_factory=list)
    alternation: Alternation | None = None  # of the knobs, where commands take turns
    turn: AttemptState | None = None  # attempt whose part of a step is under way, if it is one attempt's alone

    def each(self) -> Iterator[AttemptState]:
        """Yield the attempts one by one, so that whose turn it is when a step fails is known."""
        for work in self.works:
            self.turn = work
            yield work
        self.turn = None

    @property
    def sites(self) -> list[tuple[Site, AttemptState]]:
        """Return each machine once, with the first of those that run on it."""
        found: dict[int, tuple[Site, AttemptState]] = {}
        for work in self.works:
            found.setdefault(id(work.site), (work.site, work))
        return list(found.values())

    def alone(self, work: AttemptState) -> bool:
        """Return whether the attempt has its machine to itself: counters and folders cannot tell attempts apart."""
        return len(self.works) == 1 or work.boarded.own

    @property
    def interleaved(self) -> bool:
        """True if all attempts have processes at once and take turns."""
        return bool(self.turns) and interleaved(self.cell.kind)

    @property
    def faults_in_turns(self) -> bool:
        """True where the arms take turns and take their memory during their turns."""
        return self.interleaved and faults_while_timed(self.cell.workload, self.cell.values)

    @property
    def backing(self) -> Backing | None:
        """Have the host give memory before the attempts; None where that is not wanted."""
        found, cell = self.bench.backing, self.cell
        if found is None or cell.memory_age != "fresh" or not faults_while_timed(cell.workload, cell.values):
            return None
        return None if any(work.boarded.own for work in self.works) else found

    @property
    def timeout(self) -> float:
        """Seconds that a timed command has: of arms that take turns each has the others' too, and wash-outs. Between
        turns memory is scanned and touched, so that arms which take memory have twice as much; the time of their own
        turns is judged afterwards.
        """
        slicing = self.slicing
        if slicing is None:
            return self.cell.timeout
        return self.cell.timeout * slicing.arms / (1 - slicing.wash_out) * (2 if self.faults_in_turns else 1)

    @property
    def slicing(self) -> Slicing | None:
        """Turn lengths of interleaved attempts, else None."""
        rules = self.bench.study.design
        return Slicing(len(self.works), rules.slice, rules.wash_out) if self.interleaved else None
