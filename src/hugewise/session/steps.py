"""Steps of a session: the time in which one process holds the host, from the lock to the restored settings.

Opening and closing are named steps, like the runner's; `on_step` is called before each. Before the first attempt, the
processor's counters and the cost of a page fault are read, and the memory that the session will use is touched once.
Closing restores everything that was opened, even if Ctrl-C is pressed meanwhile.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from hugewise import processes
from hugewise.analysis import earlier
from hugewise.attempt.ageing import Ageing, floor_of
from hugewise.attempt.context import Boarding, HostBoarding, RunContext
from hugewise.attempt.service import prepared
from hugewise.errors import HugewiseError, ProbeError, RunError, SettingError
from hugewise.files import storing
from hugewise.host import cgroup, journal
from hugewise.host.backing import Backing, backing_of, prefault
from hugewise.host.knob import Settings
from hugewise.host.ledger import JournalRecord, Scratched
from hugewise.host.local_host import LocalHost
from hugewise.host.local_machine import LocalMachine
from hugewise.host.lock import HostLock, boot_id
from hugewise.host.memory_state import SwapFile
from hugewise.host.pool import Pools, Where
from hugewise.host.scratch import Scratch, discard
from hugewise.machine import fingerprint, pmu, probe
from hugewise.machine.machine import Contained, Drift, Site
from hugewise.machine.pmu import CounterPlan, requests, schedule, without_steps
from hugewise.machine.proc import meminfo
from hugewise.model import guest, trial
from hugewise.model.cause import FaultPrice
from hugewise.model.design import SEQUENTIAL, Slicing, Visited, interleaved
from hugewise.model.host import Host
from hugewise.model.pages import MemoryAge, PageSizes, fragmented, page_flags_readable, pressed
from hugewise.model.policy import mechanism
from hugewise.model.procedure import Staged
from hugewise.model.results import LeftOut
from hugewise.model.workload import Direct
from hugewise.plan import memory
from hugewise.plan.cells import TakesTurns
from hugewise.plan.plan import Cell, Plan
from hugewise.quantity import readable_size
from hugewise.session import feasibility, identity, progress, suitability
from hugewise.session import guests as guest_session
from hugewise.session.clients import Reached
from hugewise.session.conductor import Conductor
from hugewise.stats.family import methods_for
from hugewise.stats.power import declared
from hugewise.store import dataset
from hugewise.store.folder import RunFolder
from hugewise.store.records import CellRecord, Noted, Opened, Resumed, Run
from hugewise.study.study import Study

if TYPE_CHECKING:
    from hugewise.guests.resources import GuestResources


def open_ageing(
    plan: Plan, host: Host, note: Callable[[JournalRecord], None], results: Path
) -> tuple[Plan, Ageing | None]:
    """Return the plan without the cells whose memory cannot be had, and what ages it; None where no cell wants that.

    The swap file is made in `results`; `note` (the journal) hears of it before. Raises HugewiseError where nothing is
    left to run.
    """
    plan = _without(plan, fragmented, _too_full(plan, host))
    if all(cell.memory_age == "fresh" for cell in plan.cells):
        return plan, None
    made = None
    if size := memory.swap_bytes(plan.cells):
        try:
            made = SwapFile.make(results, size, note)
        except SettingError as error:
            plan = _without(plan, pressed, error.message)
    pmd = PageSizes.discover(host).pmd or 0
    ready = Ageing(host, note, os.sysconf("SC_PAGE_SIZE"), pmd, swap=made)
    if any(fragmented(cell.memory_age) for cell in plan.cells):
        needed = max(memory.need(cell) for cell in plan.cells)
        ready.least = min(ready.free().huge // 2, 2 * needed) if needed else ready.free().huge // 4
    return plan, ready


def _too_full(plan: Plan, host: Host) -> str | None:
    """Return why the free memory cannot be fragmented now, or None."""
    left, floor = meminfo(host).get("MemAvailable", 0), floor_of(host)
    used = [memory.need(cell) for cell in plan.cells if fragmented(cell.memory_age)]
    if not used or left >= floor + max(used):
        return None
    return (
        f"{readable_size(left)} of memory are available; fragmenting it leaves {readable_size(floor)} to others, and"
        f" its arms use {readable_size(max(used))}: end other programs"
    )


def _without(plan: Plan, such: Callable[[MemoryAge], bool], why: str | None) -> Plan:
    """Return the plan without such cells, where there is a reason. Raises HugewiseError where none is left."""
    gone = [cell for cell in plan.cells if why is not None and such(cell.memory_age)]
    if not gone:
        return plan
    cells = tuple(cell for cell in plan.cells if cell not in gone)
    if not cells:
        raise HugewiseError(f"no cell is left to run: {why}", hint="see: hugewise doctor STUDY")
    left_out = (*plan.left_out, *(LeftOut(cell.id, "*", why or "") for cell in gone))
    return msgspec.structs.replace(plan, cells=cells, left_out=left_out)


def close(closing: ExitStack) -> None:
    """Close everything, also when another Ctrl-C comes just before the signals are blocked: it is raised afterwards.

    A step that fails keeps no other from being done. What failed is raised as one error, which tells all of it.
    """
    before = sys.exception()  # an exit stack forgets it
    interrupt: KeyboardInterrupt | None = None
    while True:
        try:
            with _uninterrupted():
                closing.close()
            break
        except KeyboardInterrupt as error:
            interrupt = error  # a closed step is off the stack
        except HugewiseError as error:
            _tell_all(error, before)
            raise
    if interrupt is not None:
        raise interrupt


def _tell_all(error: HugewiseError, before: BaseException | None) -> None:
    """Add the earlier errors to the message of the last error, in order."""
    found, causes = [], set()
    for first in (error, before):
        each = first
        while each is not None:
            if isinstance(each, HugewiseError) and each not in causes and each.message not in found:
                found.append(each.message)
            causes.add(each.__cause__)
            each = each.__context__
    error.message = "\n  ".join(reversed(found))
    error.args = (error.message,)


@contextmanager
def _uninterrupted() -> Iterator[None]:
    # a second Ctrl-C must not break off the restoring
    asking = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    signal.pthread_sigmask(signal.SIG_BLOCK, asking)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, asking)


# Outside a guest no nested page table is walked, and a retirement that never waits for the TLB is no fault of an event.
_MAY_BE_0 = ("nested_walk_cycles", "load_stall_cycles", "load_walk_stall_cycles")


def counted_events(host: Host, cells: Iterable[Cell]) -> tuple[dict[str, Any], CounterPlan]:
    """Return the host's facts as a run keeps them, and the events of its processor that attempts count.

    What a cell is judged by is made of events that are counted in every block. What was found stands in the facts, as
    `pmu` and `fault_costs`.
    """
    facts = fingerprint.fingerprint(host)
    plan, pmu = _planned(facts["cpu"], {metric.name for cell in cells for metric in (cell.metric, *cell.also)})
    return {**facts, "pmu": pmu, "fault_costs": _fault_costs()}, plan


def _planned(cpu: Mapping[str, Any], judged: Collection[str]) -> tuple[CounterPlan, dict[str, Any]]:
    """Return the counter plan, and how it was found, for the run's record."""
    family = pmu.of(cpu)
    told: dict[str, Any] = {
        "processor": pmu.processor(cpu),
        "family": None if family is None else family.name,
        "source": None if family is None else family.source,
    }
    try:
        here = probe.ask("counters")
        if not isinstance(here, probe.Available) or here.slots is None:
            why = here.counters.get("cycles") if isinstance(here, probe.Available) else None
            return CounterPlan(left_out=without_steps(family)), {**told, "slots": None, "why": why}
        asked = requests(family)
        silent = [label for label in asked if label.partition(":")[0] in _MAY_BE_0]
        words = [word for one in asked.values() for word in ("--try", one)]
        tried = probe.ask("counters", *words, *(word for label in silent for word in ("--silent", label)))
    except ProbeError as error:
        return CounterPlan(left_out=without_steps(family)), {**told, "slots": None, "why": error.message}
    assert isinstance(tried, probe.Available)
    given = tried.partial
    refused = {label: why for label in asked if (why := tried.counters.get(label)) is not None and label not in given}
    plan = schedule(family, here.slots, refused, judged)
    facts = {"slots": here.slots, "why": None, "sets": [list(each) for each in plan.sets], "left_out": plan.left_out}
    return plan, {**told, **facts}


def _fault_costs() -> list[Any]:
    """Measure the cost of page faults by page size (`model.cause.FaultPrice`); empty where the probe cannot."""
    try:
        said = probe.ask("fault-cost")
    except ProbeError:
        return []
    if not isinstance(said, probe.FaultCost):
        return []
    rounds = [(one.bytes, one.faults, one.cpu_ns) for one in said.rounds]
    return [msgspec.to_builtins(cost) for cost in FaultPrice.of(rounds)]


@dataclass
class Session:
    """One session of a run. `run` is what there is of it: None until a new one is recorded.

    `results` is the folder in which earlier runs are looked for; None where none are: for streams of a calibration,
    which are many runs of one study by design, and their continuation. `host_lock` holds the host, for this session or
    for more. `remarks` are what the report must say of how the host was held.
    """

    study: Study
    folder: RunFolder
    seed: bytes
    plan: Plan
    run: Run | None
    listener: progress.Listener
    on_step: Callable[[str], None]
    host_lock: HostLock
    guests: GuestResources | None = None
    host: Host = field(default_factory=LocalHost)
    closing: ExitStack = field(default_factory=ExitStack)
    journal: journal.Journal | None = None
    pools: Mapping[int, int] = field(default_factory=dict)
    contain: Callable[[str], Contained] = lambda _: Contained()
    number: int = 1
    boot_id: str = ""
    remarks: tuple[str, ...] = ()
    ended: bool = False
    scratch: dict[str, Scratch] = field(default_factory=dict)
    boarding: Boarding | None = None
    results: Path | None = None
    data: dict[str, dataset.Kept] = field(default_factory=dict)
    ageing: Ageing | None = None
    backing: Backing | None = None
    clients: Reached = field(default_factory=lambda: Reached(None))
    command: tuple[str, ...] = ()
    declared: int | None = None
    peaks: dict[str, int] = field(default_factory=dict)
    counters: CounterPlan = field(default_factory=CounterPlan)
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
        """Print a line for the reader, now and in the report."""
        self.listener(progress.Message(text))

    @property
    def kept_below(self) -> Path:
        """Folder of the data that are kept, and of a swap file: that of results. A run that was moved has its own."""
        return self.folder.results(self.study.name) or self.folder.path.resolve()

    @property
    def _guest_memory(self) -> int:
        return 0 if self.study.guest is None else self.study.guest.memory

    def lock(self) -> None:
        """Nobody else measures on this host meanwhile."""
        self.at_close("compact", self.compact)
        self.boot_id = boot_id(self.host)
        held = ExitStack()
        held.enter_context(self.host_lock)
        self.at_close("unlock", held.close)
        self.remarks = self.host_lock.remarks
        for remark in self.remarks:
            self.say(remark)
        if self.run is not None:  # another process may have gone on with it until now
            self.run = self.folder.read(self.run)
            self.seed = self.folder.seed(self.run)

    def compact(self) -> None:
        """Gather the attempts of a run that has ended; where there is no room for it, they stay in their folders."""
        if self.ended:
            try:
                self.folder.compact()
            except HugewiseError as error:
                self.say(f"the attempts stay in their folders: {error}")

    def recover(self) -> None:
        """Put back what a killed run left, before anything is measured or turned."""
        for line in journal.close(self.host):
            self.say(line)

    def begin(self) -> None:
        """Open the journal (root) and remember how the knobs stand."""
        if self.host.privileged():
            self.journal = journal.Journal.begin(self.host, journal.JOURNAL, str(self.folder.path.resolve()))
            self.at_close("end_journal", self.journal.close)
        self.settings = Settings(self.host, self.journal)
        self.backing = backing_of(self.host)

    def hold_settings(self) -> None:
        """Have settings restored at the end; opened after the folders, so that no folder can delay the restore."""
        self.at_close("restore", lambda: self.name_drift(self.settings.restore()))

    def name_drift(self, drifts: Iterable[Drift]) -> None:
        """Report settings that another process changed meanwhile or still uses; they are left alone."""
        for drift in drifts:
            self.say(drift.left_alone())

    def choose_designs(self) -> None:
        """Choose designs where the study leaves them open: cells that cannot take turns run one arm after the other."""
        taking = {cell.id: TakesTurns(cell.kind) for cell in self.plan.cells if interleaved(cell.kind)}
        if self.run is not None or self.study.design.kind != "auto" or not taking:
            return
        feasibility.must_begin(self.plan, Path.cwd())
        uncontained = cgroup.unavailable()
        for cell in self.plan.cells:
            if cell.id not in taking:
                continue
            found = self._suitability(cell, uncontained, len(taking))
            self.peaks[cell.id] = found.peak
            if self.backing is not None and found.peak:
                together = cell.copies * len(cell.arms) if found.refused is None else 1
                self.backing.learn(cell.id, found.peak * together)
            self._declare(cell, found)
            if found.refused is not None:
                del taking[cell.id]
                self.remarks += (f"{cell.id}: the arms are measured one after the other: {found.refused}",)
                self.say(self.remarks[-1])
                continue
            if found.one_thread:
                taking[cell.id] = TakesTurns(cell.kind, "cpu_s")
            if found.by_clock is not None:
                why = f"{found.by_clock} gives memory back by the clock, which goes on while an arm is frozen"
                self.remarks += (f"{cell.id}: {why}: compare in sequence, too ({SEQUENTIAL})",)
                self.say(self.remarks[-1])
        self.plan = feasibility.make_plan(self.study, guests=self.guests, in_turns=taking)

    def _declare(self, cell: Cell, found: suitability.Suitability) -> None:
        """Declare a test whose number of blocks was not given for twice the pairs that fit into its time."""
        time_of_run = self.study.budget.time
        if self.study.blocks_open and time_of_run is not None and found.seconds:
            self.declared = declared(int(time_of_run / (found.seconds * len(cell.arms))))

    def _suitability(self, cell: Cell, uncontained: HugewiseError | None, cells: int) -> suitability.Suitability:
        """Return whether a cell, of so many `cells`, can take turns. `uncontained`: why there are no cgroups."""
        if isinstance(cell.workload, Visited) and cell.workload.visited(cell.values):
            return suitability.Suitability()
        if uncontained is not None:  # then an ordinary user's commands are stopped by signals
            if not isinstance(cell.workload, Direct) or self.host.privileged():
                return suitability.Suitability(uncontained.message)
            if not processes.lists_children():
                why = "to stop a command by SIGSTOP its kernel must list processes (CONFIG_PROC_CHILDREN)"
                return suitability.Suitability(f"{uncontained.message}; {why}")
        if not isinstance(cell.workload, Direct):
            return suitability.Suitability()
        draft = self.folder.draft(f"suitability-{cell.id}")
        slicing = Slicing(len(cell.arms), self.study.design.slice, self.study.design.wash_out)
        time_of_run = self.study.budget.time
        longest = cell.timeout if time_of_run is None else min(cell.timeout, time_of_run / 2 / cells)
        try:
            machine = LocalMachine(self.host)
            return suitability.suitability(cell, machine, draft, slicing, cwd=str(Path.cwd()), longest=longest)
        finally:
            discard(str(draft))

    def fill_pools(self) -> None:
        """Fill the hugetlb pools once, for the largest need of any arm; leave out what the kernel did not grant."""
        self.plan, told = feasibility.fitting(self.plan, self.run, self.host, self.peaks)
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
        """Open the ageing of memory. Attempts' cgroups, with their pages in swap, are removed before it closes."""
        self.remove_at_close("end_ageing", lambda: None if self.ageing is None else self.ageing.close())
        self.plan, self.ageing = open_ageing(self.plan, self.host, self.settings.note, self.kept_below)

    def make_cgroups(self) -> None:
        """Make the cgroups of attempts, where possible."""
        try:
            cgroups = cgroup.Hierarchy.open(self.settings.note)
        except HugewiseError as error:
            if self.host.privileged():
                self.say(f"no cgroups: {error.message}; processes are followed and killed one by one instead")
            elif processes.lists_children():
                # It turns no knob, so that its processes may begin before they are first stopped.
                self.contain = lambda _: cgroup.Tree()
            return
        self.contain = cgroups.create
        self.remove_at_close("remove_cgroups", cgroups.remove)

    def _staged_here(self) -> Iterator[tuple[Cell, Staged]]:
        """Yield the cells whose workloads run on this host; guests have folders of their own."""
        for cell in self.plan.cells if self.guests is None else ():
            if isinstance(cell.workload, Staged):
                yield cell, cell.workload

    def make_scratch(self) -> None:
        """Make the private folders: of staged workloads, and of the layout library's reports."""
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
        """Remove the attempts' folders with everything in them."""
        with ExitStack() as each:  # one that cannot go keeps no other
            for made in self.scratch.values():
                each.callback(discard, str(made.path))

    def prepare(self) -> None:
        """Make the data of the workloads, where they are not kept from before."""
        for cell, workload in self._staged_here():
            if (data := workload.data(cell.values)) is not None:
                who, machine = cell.stage_account, LocalMachine(self.host)
                where, kept = self.scratch[cell.storage].of(who), self.kept_below
                self.data[cell.id] = prepared(workload, data, machine, kept, where, who, self.contain, self.say)

    def make_guests(self) -> None:
        """Make this host's parts that a study's guests share: sockets, a network, a folder that is served to them."""
        opened = ExitStack()
        self.remove_at_close("end_guests", opened.close)
        if self.guests is not None:
            from hugewise.guests.machines import GuestPerAttempt  # noqa: PLC0415  (knows QEMU)

            self.boarding = GuestPerAttempt.open(
                self.study, self.guests, self.contain, opened, self.settings.note,
                seed=self.seed, privileged=self.host.privileged(),
            )  # fmt: skip

    def reach_clients(self) -> None:
        """Connect to the host of the clients, if they are apart."""
        self.at_close("leave_clients", self.clients.close)
        self.remarks += self.clients.open(self.plan, self.say)

    def record(self) -> None:
        """Write the run's first record, or check that a resumed run is the same."""
        facts, self.counters = counted_events(self.host, self.plan.cells)
        cells = identity.cell_records(
            self.plan,
            self.study.design.first,
            lambda cell, arm, pool: guest_session.deployment(cell, arm, pool, self.guests, self.host),
        )
        versions = {**identity.versions(), **(self.guests.versions() if self.guests else {}), **self.clients.versions}
        if self.run is None:
            self._begin_run(cells, versions, facts)
            self.run = self.folder.read()
            if self.declared is not None:
                self.study = self.study.declared(self.declared)
        else:
            self._take_up(self.run, cells, versions)

    def _begin_run(self, cells: tuple[CellRecord, ...], versions: Mapping[str, str], facts: Mapping[str, Any]) -> None:
        kept = None
        if self.guests is not None:
            with storing(f"the run's folder {self.folder.path}"):
                kept = guest.write(self.folder.place, self.guests.record(self.study))
        opened = Opened(
            t=time.time(),
            run=self.folder.run,
            study=self.study.name,
            digest=self.study.digest,
            seed_hash=trial.commitment(self.seed),
            mechanism=mechanism(self.host),
            boot_id=self.boot_id,
            host=facts,
            versions=versions,
            settings=dict(self.settings.initial),
            cells=cells,
            left_out=self.plan.left_out,
            pools=self.pools,
            cwd=str(Path.cwd()),
            guests=kept,
            study_json=self.folder.study_json(),
            client=self.clients.host,
            command=self.command,
            coins=True,
            blocks=self.declared,
        )
        self.folder.append(msgspec.structs.replace(opened, **self._earlier(opened)))
        self._note(self.remarks)

    def _take_up(self, run: Run, cells: tuple[CellRecord, ...], versions: Mapping[str, str]) -> None:
        """Continue a run that was begun before. Raises RunError where it would not be the same run."""
        if identity.compared(cells) != identity.compared(run.opened.cells):
            raise RunError(
                f"{self.folder.path}: this machine no longer offers the same policies to the same workloads",
                hint="see what changed: hugewise doctor; or start a new run of the study",
            )
        guest_session.check(self.folder.path, run.opened.versions, self.guests)
        self.folder.discard_drafts(run)
        self.number = run.sessions + 1
        settings = dict(self.settings.initial)
        resumed = Resumed(t=time.time(), session=self.number, boot_id=self.boot_id, settings=settings)
        self.folder.append(msgspec.structs.replace(resumed, **self._earlier(run.opened)))
        self._note((*identity.changes(run.opened, versions, settings), *self.remarks))

    def _earlier(self, opened: Opened) -> dict[str, Any]:
        """Other runs of the question, as they are now: while a run was interrupted others may have been made."""
        if self.results is None:
            return {}
        runs, shared, unread = earlier.earlier_runs(self.study, opened, self.results)
        return {"earlier": runs, "earlier_shared": shared, "earlier_unread": unread}

    def _note(self, told: Iterable[str]) -> None:
        for text in told:
            self.folder.append(Noted(t=time.time(), text=f"session {self.number}: {text}"))

    def touch(self) -> None:
        """Touch as much memory as the largest arm will use, and the pages of the pools."""
        prefault(memory.bytes_to_touch(self.plan, self._guest_memory), self.pools, self.say)

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
        bench = RunContext(
            host=self.host,
            boarding=self.boarding or HostBoarding(site, cwd, self.study.design.places, clients=self.clients.site),
            study=self.study,
            settings=self.settings,
            folder=self.folder,
            session=self.number,
            boot_id=self.boot_id,
            pools=self.pools,
            ageing=self.ageing,
            backing=self.backing,
            on_step=self.on_step,
            counting=self.counters,
            data=self.data,
        )
        for attempt in self.run.attempts:
            bench.earlier[attempt.cell].append(attempt)
        methods = methods_for(self.study, self.plan.cells, coins=self.run.opened.coins)
        if self.study.budget.time is not None:
            self.host_lock.expect_end(self.study.budget.time - self.run.active_seconds)
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
    Session.choose_designs,
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
