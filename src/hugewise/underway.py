"""Attempts under way: what all of a run share, and what the runner's steps hand on to each other."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hugewise import cgroup, dataset, noise, probe
from hugewise.host import Host
from hugewise.performance import Performance
from hugewise.plan import Arm, Cell
from hugewise.runlog import RunFolder
from hugewise.scratch import Scratch
from hugewise.setting import Drift, Settings
from hugewise.study import Study
from hugewise.trial import Attempt, Trial
from hugewise.workload import Launch

__all__ = ["Bench", "Disturbed", "Group", "Work"]


class Disturbed(Exception):  # noqa: N818  (an outcome of a block, not an error)
    """Somebody else turned a knob that this run depends on: the block is closed, nothing is overwritten in silence."""

    def __init__(self, drift: list[Drift]) -> None:
        self.drift = drift
        super().__init__("; ".join(str(each) for each in drift))


@dataclass(frozen=True)
class Bench:
    """What all attempts of a run share."""

    host: Host
    study: Study
    settings: Settings
    folder: RunFolder
    session: int
    boot_id: str
    source: str  # kpageflags or smaps
    base_size: int
    pools: Mapping[int, int]  # pages that this session reserved, by page size in bytes
    cgroups: cgroup.Hierarchy | None
    on_step: Callable[[str], None] = lambda _: None
    cwd: str = field(default_factory=os.getcwd)  # where commands run: the same in all sessions of a run
    data: Mapping[str, dataset.Kept] = field(default_factory=dict)  # the data of each cell that has some
    scratch: Mapping[str, Scratch] = field(default_factory=dict)  # where attempts are played, by cell


@dataclass
class Work:
    """One arm's attempt under way: what the steps hand on to each other."""

    arm: Arm
    trial: Trial
    number: int
    draft: Path
    launch: Launch | None = None  # known when the attempt is supplied
    play: Performance | None = None  # of a staged workload
    leaf: cgroup.Leaf | None = None  # of the system under test
    client: cgroup.Leaf | None = None
    events: list[probe.Event] = field(default_factory=list)
    twin: list[probe.Event] | None = None
    cgroup_faults: int | None = None
    cgroup_peak: int | None = None

    @property
    def command(self) -> Launch:
        """The timed command."""
        assert self.launch is not None
        return self.launch

    @property
    def is_client(self) -> bool:
        """Whether the timed command is a client of the servers that are the system under test."""
        return self.play is not None and self.play.served


@dataclass
class Group:
    """The attempts that run at once, in the order of their trials: one, but for designs that lay out several."""

    bench: Bench
    cell: Cell
    works: list[Work]
    shared: bool  # all in one process, which the first work stands for
    started: float = 0.0
    ended: float = 0.0
    clock: float = 0.0
    covariates: Mapping[str, float] = field(default_factory=dict)
    before: noise.Snapshot | None = None
    after: noise.Snapshot | None = None
    knobs: Mapping[str, str] = field(default_factory=dict)
    drift: list[Drift] = field(default_factory=list)
    stored: list[Attempt] = field(default_factory=list)

    @property
    def launched(self) -> list[Work]:
        """Those with a process of their own."""
        return self.works[:1] if self.shared else self.works
