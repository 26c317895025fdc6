"""Attempts under way: what all of a run share, and what the runner's steps hand on to each other."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from mmap import mmap
from pathlib import Path

from hugewise.attempt.ageing import Ageing
from hugewise.attempt.boarding import Backed, Boarded, Boarding
from hugewise.attempt.laying import LayoutLine
from hugewise.attempt.play import Play
from hugewise.host.setting import Settings
from hugewise.machine import noise, probe
from hugewise.machine.drift import Drift
from hugewise.machine.machine import Contained
from hugewise.machine.pmu.schedule import ASSUMED_SLOTS, CounterPlan, schedule
from hugewise.machine.site import Site
from hugewise.model.design import Slicing
from hugewise.model.host import Host
from hugewise.model.metric import GENERIC
from hugewise.model.trial import Attempt, Trial
from hugewise.model.workload import Launch
from hugewise.plan.plan import Arm, Cell
from hugewise.store import dataset
from hugewise.store.folder import RunFolder
from hugewise.study.study import Study

__all__ = ["Bench", "Disturbed", "Group", "Work", "turn_knobs"]


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
class Bench:
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
    # Attempts of the run by cell, as they were stored: what the next ones are held against (`same.telling`).
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
class Work:
    """One arm's attempt under way: what the steps hand on to each other.

    `before` and `after` are of the machine that it runs on; `broken` is why that machine was gone before the end;
    `let_down`: by its emulator.
    """

    arm: Arm
    trial: Trial
    number: int
    draft: Path
    aboard: Boarded | None = None  # there when it has boarded
    backed: Backed = field(default_factory=Backed)
    broken: str | None = None
    let_down: bool = False
    before: noise.Snapshot | None = None
    after: noise.Snapshot | None = None
    knobs: Mapping[str, str] = field(default_factory=dict)
    launch: Launch | None = None  # known when the attempt is supplied
    play: Play = field(default_factory=Play)
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
    def boarded(self) -> Boarded:
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
        self.play.close()  # also of a guest: it may have servers on this host
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

    bench: Bench
    cell: Cell
    works: list[Work]
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
    turn: Work | None = None  # whose part of a step is being done, where it is one attempt's alone

    def each(self) -> Iterator[Work]:
        """The attempts one by one, so that whose turn it is when a step fails is known."""
        for work in self.works:
            self.turn = work
            yield work
        self.turn = None

    @property
    def sites(self) -> list[tuple[Site, Work]]:
        """Each machine once, with the first of those that run on it."""
        found: dict[int, tuple[Site, Work]] = {}
        for work in self.works:
            found.setdefault(id(work.site), (work.site, work))
        return list(found.values())

    def alone(self, work: Work) -> bool:
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
    def launched(self) -> list[Work]:
        """Those with a process of their own."""
        return self.works[:1] if self.shared else self.works
