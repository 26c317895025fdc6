"""The steps of a session: the time in which one process holds the host, from the lock to the restored settings.

Opening and closing are steps with names, like the runner's: whoever passes `on_step` is told of each before it happens.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from hugewise.analysis import earlier
from hugewise.attempt.ageing import Ageing
from hugewise.attempt.boarding import Boarding, HostBoarding
from hugewise.attempt.preparation import prepared
from hugewise.attempt.underway import Bench
from hugewise.errors import HugewiseError, RunError
from hugewise.files import storing
from hugewise.host import cgroup, journal, recovery
from hugewise.host.ledger import Scratched
from hugewise.host.local_host import LocalHost
from hugewise.host.local_machine import LocalMachine
from hugewise.host.lock import HostLock, boot_id
from hugewise.host.pool import Pools, Where
from hugewise.host.scratch import Scratch, discard
from hugewise.host.setting import Settings
from hugewise.machine.drift import Drift
from hugewise.machine.machine import Contained
from hugewise.machine.site import Site
from hugewise.model import coin, guest_record
from hugewise.model.host import Host
from hugewise.model.pages import page_flags_readable
from hugewise.model.policy import mechanism
from hugewise.model.scene import Staged
from hugewise.plan import memory
from hugewise.plan.plan import Cell, Plan
from hugewise.session import ageing, counting, feasibility, identity, progress, touching
from hugewise.session import guests as guest_session
from hugewise.session.clients import Reached
from hugewise.session.closing import close, gather
from hugewise.session.conductor import Conductor
from hugewise.stats.family import methods_for
from hugewise.store import dataset
from hugewise.store.folder import RunFolder
from hugewise.store.records import CellRecord, Noted, Opened, Resumed, Run
from hugewise.study.study import Study

if TYPE_CHECKING:
    from hugewise.guests.provided import Provided

__all__ = ["CLOSING", "OPENING", "Session"]


@dataclass
class Session:
    """One session of a run. `run` is what there is of it: None until a new one is recorded.

    `results` is the folder in which earlier runs are looked for; None for streams of a calibration, which are many runs
    of one study by design. `anyway`: root does not wait for an account that holds the lock of accounts. `remarks` are
    what the report must say of how the host was held.
    """

    study: Study
    folder: RunFolder
    seed: bytes
    plan: Plan
    run: Run | None
    listener: progress.Listener
    on_step: Callable[[str], None]
    guests: Provided | None = None
    host: Host = field(default_factory=LocalHost)
    closing: ExitStack = field(default_factory=ExitStack)
    journal: journal.Journal | None = None
    pools: Mapping[int, int] = field(default_factory=dict)
    contain: Callable[[str], Contained] = lambda _: Contained()
    number: int = 1
    boot_id: str = ""
    anyway: bool = False
    remarks: tuple[str, ...] = ()
    ended: bool = False
    withheld: Mapping[str, str] = field(default_factory=dict)
    scratch: dict[str, Scratch] = field(default_factory=dict)
    boarding: Boarding | None = None
    results: Path | None = None
    data: dict[str, dataset.Kept] = field(default_factory=dict)
    ageing: Ageing | None = None
    clients: Reached = field(default_factory=lambda: Reached(None))
    command: tuple[str, ...] = ()
    counters: counting.CounterPlan = field(default_factory=counting.CounterPlan)
    settings: Settings = field(init=False)

    def hold(self) -> bool:
        """Open, conduct, close: whatever happens in between, what was opened is closed.

        False when only this session is over: the run goes on in another one.
        """
        try:
            for step in OPENING:
                self.on_step(step.__name__)
                step(self)
            return self.conduct()
        except KeyboardInterrupt:
            if not (self.folder.path / "run.jsonl").exists():
                raise  # nothing was begun that could be reported or resumed
            told = f"interrupted; to go on: hugewise resume {self.folder.path}"
            self.listener(progress.Interrupted(told, str(self.folder.path)))
            return True
        finally:
            close(self.closing)

    def at_close(self, name: str, undo: Callable[[], object]) -> None:
        """Have `undo` called when the session ends; what was opened last is closed first."""

        def step() -> None:
            self.on_step(name)
            undo()

        self.closing.callback(step)

    def remove_at_close(self, name: str, remove: Callable[[], object]) -> None:
        """Likewise; what cannot be removed is left to the next root call, by the open journal."""

        def undo() -> None:
            with self.settings.closing_only_when_done():
                remove()

        self.at_close(name, undo)

    def say(self, text: str) -> None:
        """A line for the reader, now and in the report."""
        self.listener(progress.Message(text))

    @property
    def _guest_memory(self) -> int:
        """The memory of a guest in bytes; 0 where the study has none."""
        return 0 if self.study.guest is None else self.study.guest.memory

    def lock(self) -> None:
        """Nobody else measures on this host meanwhile."""
        self.at_close("compact", self.compact)
        self.boot_id = boot_id(self.host)
        held = ExitStack()
        lock = held.enter_context(HostLock(self.host, anyway=self.anyway))
        self.at_close("unlock", held.close)
        self.remarks = lock.remarks
        for remark in self.remarks:
            self.say(remark)
        if self.run is not None:  # another process may have gone on with it until now
            self.run = self.folder.read(self.run)
            self.seed = self.folder.seed(self.run)

    def compact(self) -> None:
        """Gather the attempts of a run that has ended; where there is no room for it, they stay in their folders."""
        if self.ended:
            gather(self.folder, self.say)

    def recover(self) -> None:
        """Put back what a killed run left, before anything is measured or turned."""
        for line in recovery.leftovers(self.host):
            self.say(line)

    def begin(self) -> None:
        """Open the journal (root) and remember how the knobs stand."""
        if self.host.privileged():
            self.journal = journal.Journal.begin(self.host, journal.JOURNAL, str(self.folder.path.resolve()))
            self.at_close("end_journal", self.journal.close)
        self.settings = Settings(self.host, self.journal)

    def hold_settings(self) -> None:
        """What is turned from now on is put back; opened after the folders, so that no folder can delay it."""
        self.at_close("restore", lambda: self.name_drift(self.settings.restore()))

    def name_drift(self, drifts: Iterable[Drift]) -> None:
        """What somebody else turned meanwhile, or still uses, is left to them, and named."""
        for drift in drifts:
            self.say(drift.left_alone())

    def fill_pools(self) -> None:
        """Fill the hugetlb pools once, for the largest need of any arm; leave out what the kernel did not grant."""
        self.plan, told = feasibility.fitting(self.plan, self.run, self.host)
        self.remarks += told
        for text in told:
            self.say(text)
        root, guest = self.journal is not None, self._guest_memory
        self.plan = feasibility.with_room(self.plan, self.host, guest, root)
        wanted = memory.pool_pages(self.plan, guest, privileged=root)
        granted, pools = dict[Where, int](), Pools(self.settings)
        if wanted and root:
            self.at_close("empty_pools", lambda: self.name_drift(pools.restore()))
            granted = pools.fill_nodes(wanted)
        self.pools = memory.by_size(granted)
        self.plan = memory.without_short_pools(self.plan, wanted, granted, guest, privileged=root)

    def prepare_ageing(self) -> None:
        """What ages the memory; what attempts have in swap is gone before, with their cgroups."""
        self.remove_at_close("end_ageing", lambda: None if self.ageing is None else self.ageing.close())
        self.plan, self.ageing = ageing.opened(self.plan, self.host, self.settings.note, self.folder.path.parents[1])

    def make_cgroups(self) -> None:
        """Where each attempt gets a cgroup of its own, if that can be had."""
        try:
            cgroups = cgroup.Hierarchy.open(self.settings.note)
        except HugewiseError as error:
            if self.host.privileged():
                self.say(f"no cgroups: {error.message}; processes are followed and killed one by one instead")
            return
        self.contain = cgroups.create
        self.remove_at_close("remove_cgroups", cgroups.remove)

    def _staged_here(self) -> Iterator[tuple[Cell, Staged]]:
        """The cells whose workloads are played on this host; guests have folders of their own."""
        for cell in self.plan.cells if self.guests is None else ():
            if isinstance(cell.workload, Staged):
                yield cell, cell.workload

    def make_scratch(self) -> None:
        """The private folders: of staged workloads, and of what the layout library says."""
        self.remove_at_close("remove_scratch", self.remove_scratch)
        cells = [(cell, cell.stage_account) for cell, _ in self._staged_here()]  # first: the folder is to be theirs
        cells += [(cell, cell.account) for cell in self.plan.cells if cell.has_layouts and self.guests is None]
        for cell, who in cells:
            if cell.storage in self.scratch:
                continue
            user, group = (None, None) if who is None else (who.pw_uid, who.pw_gid)
            self.scratch[cell.storage] = Scratch.open(
                Path(cell.storage), user, group, lambda path: self.settings.note(Scratched(path))
            )

    def remove_scratch(self) -> None:
        """The attempts' folders go with everything in them."""
        with ExitStack() as each:  # one that cannot go keeps no other
            for made in self.scratch.values():
                each.callback(discard, str(made.path))

    def prepare(self) -> None:
        """Make the data of the workloads, where they are not kept from before."""
        for cell, workload in self._staged_here():
            if (data := workload.data(cell.values)) is not None:
                who, results = cell.stage_account, self.folder.path.parents[1]
                where, machine = self.scratch[cell.storage].of(who), LocalMachine(self.host)
                self.data[cell.id] = prepared(workload, data, machine, results, where, who, self.contain, self.say)

    def make_guests(self) -> None:
        """What the guests of a study share on this host: sockets, a network, a folder that is served to them."""
        opened = ExitStack()
        self.remove_at_close("end_guests", opened.close)
        if self.guests is not None:
            held = guest_session.ForGuests(self.contain, opened, self.settings.note, self.seed, self.host.privileged())
            run = guest_session.OfRun(self.plan.cells, self.number, str(self.folder.path))
            self.boarding = guest_session.boarding(self.study, self.guests, held, run)

    def reach_clients(self) -> None:
        """The host that clients are on, if that is another one."""
        self.at_close("leave_clients", self.clients.close)
        self.remarks += self.clients.open(self.plan, self.say)

    def record(self) -> None:
        """The run's first record, or the proof that a resumed one is the same."""
        facts, self.counters = counting.found(self.host, self.plan.cells)
        cells = identity.cell_records(
            self.plan,
            self.study.design.first,
            lambda cell, arm, pool: guest_session.deployment(cell, arm, pool, self.guests, self.host),
        )
        versions = {**identity.versions(), **(self.guests.versions() if self.guests else {}), **self.clients.versions}
        if self.run is None:
            self._begin_run(cells, versions, facts)
            self.run = self.folder.read()
        else:
            self._take_up(self.run, cells, versions)

    def _begin_run(self, cells: tuple[CellRecord, ...], versions: Mapping[str, str], facts: Mapping[str, Any]) -> None:
        """What the run is, in its folder. Raises StorageError."""
        kept = None
        if self.guests is not None:
            with storing(f"the run's folder {self.folder.path}"):
                kept = guest_record.write(self.folder.place, self.guests.record(self.study))
        opened = Opened(
            t=time.time(),
            run=self.folder.run,
            study=self.study.name,
            digest=self.study.digest,
            seed_hash=coin.commitment(self.seed),
            mechanism=mechanism(self.host),
            boot_id=self.boot_id,
            host=facts,
            versions=versions,
            settings=dict(self.settings.initial),
            cells=cells,
            left_out=self.plan.left_out,
            pools=self.pools,
            withheld=self.withheld,
            cwd=str(Path.cwd()),
            guests=kept,
            study_json=self.folder.study_json(),
            client=self.clients.host,
            command=self.command,
        )
        if self.results is not None:
            runs, shared, unread = earlier.earlier_runs(self.study, opened, self.results)
            opened = msgspec.structs.replace(opened, earlier=runs, earlier_shared=shared, earlier_unread=unread)
        self.folder.append(opened)
        self._note(self.remarks)

    def _take_up(self, run: Run, cells: tuple[CellRecord, ...], versions: Mapping[str, str]) -> None:
        """Go on with a run that was begun before. Raises RunError where it would not be the same run."""
        if identity.compared(cells) != identity.compared(run.opened.cells):
            raise RunError(
                f"{self.folder.path}: this machine no longer offers the same policies to the same workloads",
                hint="see what changed: hugewise doctor; or start a new run of the study",
            )
        guest_session.check(self.folder.path, run.opened.versions, self.guests)
        self.folder.discard_drafts(run)
        self.number = run.sessions + 1
        settings = dict(self.settings.initial)
        self.folder.append(Resumed(t=time.time(), session=self.number, boot_id=self.boot_id, settings=settings))
        self._note((*identity.changes(run.opened, versions, settings), *self.remarks))

    def _note(self, told: Iterable[str]) -> None:
        """What the reader of the report should know of this session."""
        for text in told:
            self.folder.append(Noted(t=time.time(), text=f"session {self.number}: {text}"))

    def touch(self) -> None:
        """Touch as much memory as the largest arm will use, and the pages of the pools."""
        touching.touch(memory.bytes_to_touch(self.plan, self._guest_memory), self.pools, self.say)

    def conduct(self) -> bool:
        """Block after block; whether the run has ended."""
        assert self.run is not None
        site = Site(
            machine=LocalMachine(self.host),
            knobs=self.settings,
            contain=self.contain,
            scratch=self.scratch.__getitem__,
            source="kpageflags" if page_flags_readable() else "smaps",
            base_size=os.sysconf("SC_PAGE_SIZE"),
        )
        cwd = self.run.opened.cwd or str(Path.cwd())
        if self.boarding is None:
            feasibility.must_begin(self.plan, Path(cwd))
        bench = Bench(
            host=self.host,
            boarding=self.boarding or HostBoarding(site, cwd, self.study.design.places, clients=self.clients.site),
            study=self.study,
            settings=self.settings,
            folder=self.folder,
            session=self.number,
            boot_id=self.boot_id,
            pools=self.pools,
            ageing=self.ageing,
            on_step=self.on_step,
            counting=self.counters,
            data=self.data,
        )
        for attempt in self.run.attempts:
            bench.earlier[attempt.cell].append(attempt)
        methods = methods_for(self.study, self.plan.cells)
        conductor = Conductor(bench, self.run, self.plan.cells, methods, self.seed, self.listener)
        # Programs are looked for where the workloads run.
        with nullcontext() if self.guests is None else self.guests.within():
            self.ended = conductor.conduct() is not None
        return self.ended


OPENING: tuple[Callable[[Session], None], ...] = (
    Session.lock,
    Session.recover,
    Session.begin,
    Session.make_scratch,
    Session.hold_settings,
    Session.fill_pools,
    Session.prepare_ageing,
    Session.make_cgroups,
    Session.prepare,
    Session.make_guests,
    Session.reach_clients,
    Session.record,
    Session.touch,
)
CLOSING = (
    "leave_clients",
    "end_guests",
    "remove_cgroups",
    "end_ageing",
    "empty_pools",
    "restore",
    "remove_scratch",
    "end_journal",
    "unlock",
    "compact",
)
