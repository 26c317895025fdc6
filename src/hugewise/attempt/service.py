"""Attempt of a staged workload, from laying out the data to reading the outputs.

A driver never raises for a failure of its procedure: `problem` says whether it came before the measured part (then the
attempt is tried again) or in it (then it failed). Data are made once, by running their recipe, and kept.
"""

from __future__ import annotations

import pwd
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import msgspec

from hugewise.attempt import outcome
from hugewise.attempt.driver import AttemptDriver, Surroundings
from hugewise.attempt.outcome import Problem
from hugewise.attempt.procedure import ProcedureError, ProcedureRunner, RemoteClient
from hugewise.errors import HugewiseError, ProbeError
from hugewise.files import storing
from hugewise.host.local_machine import Counting, LocalMachine
from hugewise.host.scratch import Scratch, file_system, fresh, need_room
from hugewise.machine import noise, probe
from hugewise.machine.machine import ClientSite, Contained, Folders, Machine, Running, Site, roles
from hugewise.model.design import FixedWork, Slicing, Visited
from hugewise.model.pages import pressed
from hugewise.model.procedure import Data, Part, Parted, Places, Procedure, Reading, RoleUse, Staged, Write, counted
from hugewise.model.workload import ParameterValue
from hugewise.plan.arms import Arm
from hugewise.plan.plan import Cell
from hugewise.reading import UnreadableError
from hugewise.store import dataset


@dataclass(frozen=True)
class MarkedMoment:
    """Counters of both roles and of the machine at one end of the measured part.

    t        UTC epoch seconds by the clients' clock
    carried  bytes that the network to clients elsewhere has carried; None where there is none, or it does not say
    """

    t: float
    host: noise.Snapshot
    sut: RoleUse
    client: RoleUse
    carried: int | None


@dataclass
class MarkedEnds:
    """The ends marked so far, two at most: a further mark replaces the second."""

    seen: list[MarkedMoment] = field(default_factory=list)

    def mark(self, site: Site, sut: RoleUse, client: Callable[[], RoleUse], far: ClientSite | None) -> None:
        """Mark the begin or the end of the measured part. Raises MachineError where clients elsewhere are gone."""
        t = time.time() if far is None else far.clock()
        used = client() if far is None else far.contain.used()
        carried = None if far is None else far.carried()
        self.seen.append(MarkedMoment(t, noise.snapshot(site.host), sut, used, carried))

    def begin_anew(self) -> None:
        self.seen.clear()

    @property
    def begun(self) -> bool:
        """True if the measured part has begun."""
        return bool(self.seen)

    @property
    def whole(self) -> bool:
        """True if the measured part is over."""
        return len(self.seen) >= 2

    @property
    def first(self) -> bool:
        """True if the measured part has begun and is not over."""
        return len(self.seen) == 1

    @property
    def ends(self) -> tuple[float, float]:
        """Begin and end; it is over."""
        return self.seen[0].t, self.seen[-1].t

    @property
    def host(self) -> tuple[noise.Snapshot, noise.Snapshot]:
        """The machine's counters at both ends; it is over."""
        return self.seen[0].host, self.seen[-1].host

    def use(self, role: Literal["sut", "client"]) -> RoleUse:
        """Return what a role used in the measured part."""
        if not self.whole:
            return RoleUse()
        first, last = self.seen[0], self.seen[-1]
        return last.sut.since(first.sut) if role == "sut" else last.client.since(first.client)

    @property
    def carried(self) -> int | None:
        """Bytes that the network carried in it; None where it does not say."""
        if not self.whole or self.seen[0].carried is None or self.seen[-1].carried is None:
            return None
        return self.seen[-1].carried - self.seen[0].carried


@dataclass
class WorkloadOutputs:
    """Outputs of an attempt: `hugewise.model.procedure.Outputs`."""

    procedure_runner: ProcedureRunner
    begin: float
    end: float
    sut: RoleUse
    client: RoleUse
    parts: tuple[Part, ...]

    def stdout(self, step: str = "timed") -> str:
        """Return a step's standard output."""
        # A micro-workload's output is in the probe's JSON Lines.
        return self._said(f"{step}.stdout", *(("stdout", "events.jsonl") if step == "timed" else ()))

    def stderr(self, step: str = "timed") -> str:
        """Return a step's standard error."""
        return self._said(f"{step}.stderr", *(("stderr",) if step == "timed" else ()))

    def _said(self, *names: str) -> str:
        return next(filter(None, (outcome.printed(self.procedure_runner.outputs / name) for name in names)), "")

    def files(self, pattern: re.Pattern[str]) -> Iterator[bytes]:
        """Regular files by name: of the run folder, or of the clients' own where they are elsewhere."""
        far = self.procedure_runner.far
        if far is not None:
            return far.machine.files(far.folder, pattern)
        return self.procedure_runner.machine.files(self.procedure_runner.places.run, pattern)


# Beyond this share of its resident pages, faults in the measured part say that the system under test was not warm yet.
# Some hundred are of a server's own life (a worker that starts, a buffer) whatever its size.
_WARM, _FEW = 0.01, 500


@dataclass(kw_only=True)
class ServiceDriver(AttemptDriver):
    """A staged workload's attempt.

    Its data are `kept` below the results; a machine that has no copy of them makes them first.
    """

    site: Site
    cell: Cell
    arm: Arm
    outputs: Path
    scratch: Folders
    sut: Contained
    client: Contained
    kept: dataset.Kept | None = None
    turns: Slicing | None = None  # turns with other arms, if any
    cwd: str | None = None  # folder of the user's own commands
    events: tuple[str, ...] = ()  # processor events counted for the servers
    far: ClientSite | None = None  # site of the clients, if on a host of their own
    problem: Problem | None = None
    reading: Reading = field(default_factory=Reading)
    filled: list[probe.Coverage] | None = None
    coverage: list[probe.Coverage] = field(default_factory=list)
    parts: tuple[Part, ...] = ()  # parts that count, if not the whole measured part
    footprint: int | None = None
    peaks: list[int] = field(default_factory=list)
    begun: Mapping[str, int] = field(default_factory=dict)
    marks: list[str] = field(default_factory=list)
    counted: probe.Counters | str = "the measured part was not completed"  # the servers', or why there are none
    _unheld: bool = False
    _counting: Counting | None = None
    _runner: ProcedureRunner | None = None
    _procedure: Procedure | None = None
    _client: RemoteClient | None = None
    _moments: MarkedEnds = field(default_factory=MarkedEnds)

    def surroundings(self, added: Mapping[str, str]) -> Surroundings:
        places = self.procedure_runner.places
        return Surroundings(
            self.procedure_runner.environment(added), places.run, places.client if self.served else places.sut
        )

    def afar(self, spec: probe.Spec, machine: Machine, added: Mapping[str, str]) -> tuple[probe.Spec, Machine]:
        return (spec, machine) if self._client is None else (self._client.spec(spec, added), self._client.machine)

    @property
    def workload(self) -> Staged:
        """The cell's workload."""
        assert isinstance(self.cell.workload, Staged)
        return self.cell.workload

    @property
    def procedure(self) -> Procedure:
        """Procedure of the attempt; known once it is supplied."""
        assert self._procedure is not None
        return self._procedure

    @property
    def procedure_runner(self) -> ProcedureRunner:
        """Runner of the procedure; there once it is supplied."""
        assert self._runner is not None
        return self._runner

    def __post_init__(self) -> None:
        workload, given = self.workload, self.cell.given(self.arm)
        self.visited = self.turns is not None and isinstance(workload, Visited) and workload.visited(given)
        self.fixed = isinstance(workload, FixedWork)

    def supply(self) -> None:
        """Lay out the data, decide on the procedure, and run what comes before the servers."""
        machine = self.site.machine
        if self.kept is not None and isinstance(self.scratch, Scratch):
            data = dataset.lay_out(self.kept, self.scratch)
        else:
            data = self.scratch.folder("data")
        sut, client = roles(self.workload.clients, self.cell.cpus, self.cell.client_cpus, machine.cpus())
        places = Places(
            data=str(data),
            run=str(self.scratch.folder("run")),
            ports=machine.ports(self.workload.ports),
            peer=msgspec.structs.replace(self.site.peer, ports=LocalMachine().ports(self.workload.ports)),
            sut=sut,
            client=client,
            cwd=self.cwd,
        )
        given = self.cell.given(self.arm)
        if self.far is not None and isinstance(self.workload, Parted):
            self._client = RemoteClient.begin(self.far, client)
            self.elsewhere = True
            places = self._client.places(places, self.workload.far_ports(given, places))
        if self.kept is None and (made := self.workload.data(given)) is not None:
            self._try(lambda: self._make(made, places), "rejected")
        places, self._procedure = self._set(given, places)
        self.served = any(server.where == "machine" for server in self._procedure.servers)
        self.gate = self._procedure.gate
        self._runner = ProcedureRunner(
            machine,
            self.outputs,
            places,
            self.cell.stage_account,
            self.sut,
            self.client,
            self.arm.treatment,
            self.site.source,
            far=self._client,
        )
        self._try(self._before, "rejected")

    def _set(self, given: Mapping[str, ParameterValue], places: Places) -> tuple[Places, Procedure]:
        """Return the procedure; where others have turns meanwhile, one whose client outlasts them."""
        if self.turns is None or self.visited:
            return places, self.workload.procedure(self.arm.treatment, given, places)
        procedure = self.workload.procedure(self.arm.treatment, given, msgspec.structs.replace(places, idle=1.0))
        if (window := procedure.window) is None:  # its client ends after its work, whichever arms have had turns
            return places, procedure
        places = msgspec.structs.replace(places, idle=self.turns.idle(window.lead, window.length))
        return places, self.workload.procedure(self.arm.treatment, given, places)

    def _make(self, data: Data, places: Places) -> None:
        anywhere = Contained()
        procedure_runner = ProcedureRunner(
            self.site.machine, self.outputs, places, self.cell.stage_account, anywhere, anywhere, None, self.site.source
        )
        for path in data.inputs:
            self.site.machine.put("/", path.lstrip("/"), Path(path).read_bytes(), None, None)
        try:
            procedure_runner.run_all(data.recipe(places))
        finally:
            procedure_runner.end()

    def _before(self) -> None:
        for act in self.procedure.before:
            if isinstance(act, Write):
                self.procedure_runner.write(act)
            else:
                self.procedure_runner.do(act)

    def serve(self) -> None:
        """Start the servers and warm them."""

        def serving() -> None:
            if self.cell.memory is not None:
                # A memory cgroup counts shared memory but no pages of a pool: an arm with a pool would have more left
                # for its page cache than the others.
                pool = self.workload.pool(self.arm.treatment, self.cell.given(self.arm))
                self.sut.limit_memory(max(1 << 20, self.cell.memory - pool), swapping=pressed(self.cell.memory_age))
            for server in self.procedure.servers:
                self.procedure_runner.start(server)
            for step in self.procedure.warm:
                self.procedure_runner.do(step)
            if self.visited and isinstance(self.workload, Visited):
                for step in self.workload.fill(self.cell.given(self.arm), self.procedure_runner.places):
                    self.procedure_runner.do(step)
            self.procedure_runner.check()

        self._try(serving, "rejected")
        if self.served and self.problem is None:
            if self.site.machine.counters:
                self._count(self._open_counters)
            else:
                self.counted = "the counters of a guest's servers are not read"

    def timing(self, *, held: bool) -> Callable[[Sequence[Running]], None]:
        """Return the action while the timed command runs. `held`: a client with a gate waits there to be let go.

        One that cannot be held stores its keys within the measured part, and memory is whole only at its end.
        """
        self._unheld = self.procedure.gate and not held
        if self.procedure.window is None and (self._unheld or not self.procedure.gate):
            self.mark()
        look = (lambda: None) if self._unheld else self.look
        return self.procedure_runner.attend(
            self.procedure.window, self.mark, look, self.procedure.beside, self.procedure.enough
        )

    def begin_work(self) -> None:
        """Let the clients begin their quota of work; they have warmed up."""
        if self.procedure.window is not None and self.procedure.window.quota is not None:
            self.procedure_runner.write(self.procedure.window.quota.begin)

    def has_done(self) -> bool:
        """Return whether the clients had a quota of work and have done it. Raises ProcedureError."""
        quota = None if self.procedure.window is None else self.procedure.window.quota
        return quota is not None and self.procedure_runner.has_done(quota)

    def let_end(self) -> None:
        """Let the client end; its turns are over, and its memory was scanned."""
        self.procedure_runner.let_end(self.procedure.enough)

    def mark(self) -> None:
        """Mark the begin or the end of the measured part."""
        if self._moments.begun and self._counting is not None:
            self._count(self._counting.end)
        sut = self.procedure_runner.tested.used() if self.fixed and self.served else self.sut.used()
        self._moments.mark(self.site, sut, self.client.used, self.far)
        if self._moments.first and self._counting is not None:
            self._count(self._counting.begin)
        if self._moments.whole:
            self.around = self._moments.host
            whole = self.visited or self.fixed or not (self.served or self.procedure.window is not None)
            self.seconds = None if whole else counted(self._parts)

    def _open_counters(self) -> None:
        faults = () if self.sut.used().faults is not None else ("page-faults",)
        self._counting = Counting(self.procedure_runner.tested.processes(), (*faults, *self.events))

    def _count(self, act: Callable[[], None]) -> None:
        # counters explain the result: an attempt without them records why, and goes on
        try:
            act()
        except ProbeError as error:
            self.counted = error.message
            self._stop_counting()

    def _stop_counting(self) -> None:
        counting, self._counting = self._counting, None
        if counting is not None:
            counting.close()

    def timed(self, *, failed: bool = False) -> None:
        """Note the end of the timed command; if it `failed`, the reason may be that a server is about to end."""
        if self.procedure.window is None and not self._moments.whole:  # else its turns were over before
            self.mark()
        if self._counting is not None and self._moments.whole:
            self._count(self._take_counts)
        self._try(self.procedure_runner.check_again if failed else self.procedure_runner.check, "failed")

    def _take_counts(self) -> None:
        assert self._counting is not None
        self.counted = self._counting.counts()
        with storing(str(self.outputs)):
            (self.outputs / "counting.jsonl").write_bytes(self._counting.said)
        self._stop_counting()

    def look(self) -> None:
        """See what backs the servers' memory, while they hold it."""
        if not self.served or self.coverage or self.problem is not None:
            return
        try:
            self.coverage = (
                self.procedure_runner.scan()
            )  # the proof first: walking every process's page tables takes longer
        except ProbeError as error:
            self.marks.append(f"no proof of its pages: {error.message}")
        self.footprint, self.begun = self.procedure_runner.tested.footprint(), self.procedure_runner.tested.begotten()
        if self.fixed:
            self.peaks = self.procedure_runner.tested.peaks()

    def look_first(self, *, in_turns: bool = False) -> None:
        """See what backs the servers' filled memory before turns. Raises ProcedureError for a gone server."""
        if not self.served or self.problem is not None:
            return
        self.filled = []
        try:
            self.filled = self.procedure_runner.scan()
        except ProbeError as error:
            self.marks.append(f"no proof of its pages before its turns: {error.message}")
        except ProcedureError as error:
            if in_turns:
                raise
            self.problem = Problem("rejected", error.message)

    def begin_anew(self) -> None:
        """Begin the measured part once more, after it was broken off for another attempt's sake."""
        self._moments.begin_anew()
        if self._counting is not None:
            self._stop_counting()
            self.counted = "the counters were stopped when the client began anew, as another arm's server had ended"

    def conclude(self) -> None:
        """Look at the memory if that is still to be done, run what comes after, and read the outputs."""
        self._try(self.look, "failed")
        self._try(lambda: [self.procedure_runner.do(step) for step in self.procedure.after], "failed")
        if self.problem is not None or not self._moments.whole:
            return
        try:
            self.reading = outcome.read(self.workload, self._outputs(), self.cell.given(self.arm))
        except UnreadableError as error:
            self.problem = Problem("failed", error.reason)
            return
        if self.reading.problem is not None:
            self.problem = Problem("failed", self.reading.problem)
        self.marks += [mark for mark in self.reading.marks if self._told(mark)]
        if self._client is not None:
            self.marks += self._client.marks(self._moments.carried, counted(self._parts))
        faults, resident = self.use("sut").faults, self.footprint
        warmed = self.served and not self._unheld and not self.fixed
        share = faults / (resident / self.site.base_size) if warmed and faults is not None and resident else 0.0
        if share >= _WARM and faults is not None and faults > _FEW:
            self.marks.append(f"{faults:,} page faults in the measured part: {share:.1%} of the resident pages")

    def dismiss(self) -> None:
        """Stop the servers, see that they are gone, and remove the folders."""
        if self._runner is not None:
            try:
                self._runner.stop()
            except ProcedureError as error:
                self.marks.append(error.message)
        self.scratch.clear()
        if self.far is not None:
            self.far.scratch.clear()

    def close(self) -> None:
        """End all processes and clear the folders."""
        self._stop_counting()
        if self._runner is not None:
            self._runner.end()
        with suppress(OSError):
            self.scratch.clear()

    # -- results

    def use(self, role: Literal["sut", "client"]) -> RoleUse:
        """Return what a role used in the measured part."""
        return self._moments.use(role)

    @property
    def measured(self) -> tuple[float, float] | None:
        """Begin and end of the measured part, by the clients' clock; None when it was not completed."""
        return self._moments.ends if self._moments.whole else None

    @property
    def _parts(self) -> tuple[Part, ...]:
        return self.parts or (Part(*self._moments.ends),)

    def facts(self) -> Mapping[str, str | int | float]:
        """Return facts about the attempt: its work, its data, and where the data lay."""
        found = {name: fact for name, fact in self.reading.facts.items() if self._told(name)}
        if self.kept is not None:
            found |= {"data_sha256": self.kept.digest, "data_bytes": self.kept.bytes}
        if self._client is not None and self._moments.whole:
            found |= self._client.facts(self._moments.carried, counted(self._parts))
        if isinstance(self.scratch, Scratch):
            found["storage"] = f"{self.scratch.path.parent} ({file_system(self.scratch.path)})"
        return found

    def _told(self, name: str) -> bool:
        # on an emulated machine nothing that depends on time means anything
        return not self.site.machine.emulated or name not in self.reading.of_time

    def _outputs(self) -> WorkloadOutputs:
        return WorkloadOutputs(
            self.procedure_runner, *self._moments.ends, self.use("sut"), self.use("client"), self._parts
        )

    def _try(self, act: Callable[[], object], state: Literal["rejected", "failed"]) -> None:
        """Call `act` unless something failed before; keep a failure."""
        if self.problem is not None:
            return
        try:
            act()
        except ProcedureError as error:
            self.problem = Problem(state, error.message)
            if self._runner is None:
                return
            try:
                self._runner.check_again()
            except ProcedureError as cause:  # a client fails because its server is gone
                self.problem = Problem(state, cause.message)


def prepared(  # noqa: PLR0917 (what is made, where, and by whom)
    workload: Staged,
    data: Data,
    machine: Machine,
    results: Path,
    scratch: Scratch,
    account: pwd.struct_passwd | None,
    contain: Callable[[str], Contained],
    say: Callable[[str], None],
) -> dataset.Kept:
    """Return the data as they are kept below `results`, made now if need be.

    Raises UserError where there is no room for a copy, HugewiseError with the last lines of the step that failed.
    """
    kept = dataset.find(results, data)
    need_room(scratch.path, data.bytes if kept is None else kept.bytes)
    if kept is not None:
        return kept
    say(f"making {data.name} once; it is kept in {results / 'data'}")
    everywhere = machine.cpus()
    places = Places(
        data=str(scratch.folder("data")),
        run=str(scratch.folder("run")),
        ports=machine.ports(workload.ports),
        sut=everywhere,
        client=everywhere,
    )
    leaf = contain("data")
    outputs = scratch.path / "outputs"
    fresh(outputs, None, None)  # no other account writes there
    procedure_runner = ProcedureRunner(machine, outputs, places, account, leaf, leaf, None, "smaps")
    try:
        procedure_runner.run_all(data.recipe(places))
        return dataset.keep_dataset(results, data, Path(places.data))
    except ProcedureError as error:
        raise HugewiseError(f"{data.name} cannot be made: {error.message}", hint="see: hugewise doctor") from None
    finally:
        procedure_runner.end()
        leaf.kill()
        leaf.remove()
        scratch.clear()
