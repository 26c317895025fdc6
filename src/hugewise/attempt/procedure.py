"""Runner of a procedure: lays out data, runs steps and servers, attends the timed command, and scans the memory.

All programs are started by the probe's launcher: unprivileged, in their role's cgroup and CPUs, ended when hugewise
dies. A server is asked whether it is ready. Where clients are on a host of their own, all durations are by that host's
clock. The servers' password is made for each attempt and lies in files of the attempt alone.
"""

from __future__ import annotations

import pwd
import re
import secrets
import select
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import msgspec

from hugewise.attempt import outcome
from hugewise.attempt.under_test import UnderTest
from hugewise.errors import HugewiseError, ProbeError
from hugewise.files import storing
from hugewise.host.local_machine import LocalMachine, removes_ipc
from hugewise.host.network import ListeningSocket, listening
from hugewise.machine import probe
from hugewise.machine.machine import ClientSite, Contained, Machine, Running, Serving, read_events, run_launchers
from hugewise.model.policy import Treatment
from hugewise.model.procedure import (
    Act,
    OutputReady,
    Places,
    PortReady,
    Quota,
    RemoteEndpoint,
    Server,
    Step,
    Window,
    Write,
)
from hugewise.reading import UnreadableError, patiently

# Share of the network's measured capacity above which the network may be what was measured.
_NEAR = 0.7


@dataclass(frozen=True)
class RemoteClient:
    """The clients' side of one attempt.

    folder  its own, there
    beside  the CPUs of this host that its clients would have here: untimed steps beside the servers have them
    """

    site: ClientSite
    folder: str
    beside: tuple[int, ...]

    @classmethod
    def begin(cls, site: ClientSite, beside: tuple[int, ...]) -> RemoteClient:
        """Make the folder. Raises MachineError, StorageError."""
        site.scratch.clear()
        return cls(site, str(site.scratch.folder("client")), beside)

    @property
    def machine(self) -> Machine:
        return self.site.machine

    @property
    def contain(self) -> Contained:
        """Container of the clients' processes."""
        return self.site.contain

    def places(self, places: Places, ports: int) -> Places:
        """Return the places with the way to the clients, and CPUs of theirs. Raises MachineError."""
        far = RemoteEndpoint(
            address=self.site.address,
            ports=LocalMachine().ports(ports, self.site.address),
            client=self.site.client,
            folder=self.folder,
            programs=self.site.programs,
            password=secrets.token_hex(16),
        )
        return msgspec.structs.replace(places, client=self.site.cpus, far=far)

    def put(self, path: str, content: bytes, mode: int) -> None:
        """Write a file into the folder. Raises StorageError."""
        self.machine.put(self.folder, path, content, *self.site.owner, mode=mode)

    def environment(self, added: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of programs there."""
        return {**self.machine.environment, "HOME": self.folder, "TMPDIR": self.folder, **added}

    def spec(self, spec: probe.Spec, added: Mapping[str, str], cwd: str | None = None) -> probe.Spec:
        """Return the spec that starts a program of the clients there, made from `spec`, which would start it here."""
        uid, gid = self.site.owner
        return msgspec.structs.replace(
            spec,
            env=self.environment(added),
            cwd=cwd or self.folder,
            uid=uid,
            gid=gid,
            groups=msgspec.UNSET,
            cgroup_procs=(),
            cpus=self.site.cpus,
            own_ipc=msgspec.UNSET,
        )

    def marks(self, carried: int | None, seconds: float) -> tuple[str, ...]:
        """Return a note where `carried` bytes in the measured part come near to the network's capacity."""
        if carried is None or seconds <= 0:
            return ()
        rate = 8 * carried / seconds
        if rate < _NEAR * self.site.network:
            return ()
        return (
            f"the network carried {rate / 1e6:,.0f} Mbit/s of the {self.site.network / 1e6:,.0f} that it was seen to"
            " carry: it may be what was measured",
        )

    def facts(self, carried: int | None, seconds: float) -> dict[str, str | int | float]:
        """Return the facts to keep with the attempt."""
        found = dict(self.site.facts)
        if carried is not None and seconds > 0:
            found["network_used_mbit_per_s"] = round(8 * carried / seconds / 1e6, 1)
        return found


_NUMBER = re.compile(r"[0-9]+")
_FOREGROUND = (
    "it went into the background, where nothing of it can be measured: have it stay in the foreground, such as by"
    " `--daemonize no`, `-g 'daemon off;'` or without `-d`"
)


def unready(waited: PortReady | OutputReady, processes: Sequence[int], said: tuple[Path, Path]) -> str | None:
    """Return why the server with these `processes` and files of output (`said`) is not ready, or None."""
    return _unheard(waited, processes) if isinstance(waited, PortReady) else _unsaid(waited, said)


def _unheard(waited: PortReady, processes: Sequence[int]) -> str | None:
    own, others = listening(processes)
    if waited.port is None and waited.path is None:
        return None if own else "it listens at no TCP port and no unix socket"
    if any(_is(waited, one) for one in own):
        return None
    what = f"TCP port {waited.port}" if waited.path is None else f"the socket {waited.path}"
    at = f", but at {', '.join(map(str, own[:4]))}" if own else ""
    taken = any(_is(waited, one) for one in others)
    whose = ": another program listens there already (see: ss -ltnxp); let it choose {port}" if taken else ""
    return f"it does not listen at {what}{at}{whose}"


def port_conflict(port: int, processes: Sequence[int]) -> str | None:
    """Return why the process that listens at `port` is not the server with these `processes`: another one holds the
    port, or a unix socket with the port's number in its name. None where the server holds it, or nobody does (a port of
    UDP).
    """
    own, others = listening(processes)
    if any(_has(port, one) for one in own):
        return None
    found = next((one for one in others if _has(port, one)), None)
    if found is None:
        return None
    whose = "no process of the service, or one that cannot be looked into, but another one"
    return f"at {found} listens {whose} (see: ss -ltnxp): it was that which answered"


def _has(port: int, one: ListeningSocket) -> bool:
    if one.path is None:
        return one.port == port
    return str(port) in _NUMBER.findall(one.path)


def _is(waited: PortReady, found: ListeningSocket) -> bool:
    if waited.path is None:
        return found.port == waited.port
    # A name that was bound from within a folder is shown without it.
    return found.path is not None and (
        found.path == waited.path or (not found.path.startswith(("/", "@")) and Path(waited.path).name == found.path)
    )


def _unsaid(waited: OutputReady, files: tuple[Path, Path]) -> str | None:
    for file in files:
        try:
            text = outcome.printed(file)
            with patiently(f"line:{waited.pattern}"):
                if re.search(waited.pattern, text, re.MULTILINE) is not None:
                    return None
        except UnreadableError as error:
            return error.reason
    return f"it has not printed what matches {waited.pattern!r} (a program may hold back what it prints: flush it)"


def how_ended(events: Sequence[probe.Event]) -> str:
    """Return, in brackets, how a server ended that should go on; empty where that is unknown."""
    ended = outcome.last(events, probe.Exit)
    if ended is None:
        return ""
    if ended.exceeded is not None:
        return f" ({ended.exceeded})"
    if ended.timed_out:
        return " (its time was over)"
    if ended.signal:
        return f" (signal {ended.signal})"
    left = left_behind(events)
    if ended.code == 0 and left:
        return f" (exit status 0, and it left {left}: {_FOREGROUND})"
    return f" (exit status {ended.code})"


def left_behind(events: Sequence[probe.Event]) -> str:
    """Return the processes that a server left when it ended, in words; empty where there were none."""
    ended = outcome.last(events, probe.Exit)
    count = 0 if ended is None else ended.killed
    return "" if not count else "a process" if count == 1 else f"{count} processes"


_LAST_LINES = 3
_GRACE = 0.5
_FIRST_PAUSE, _LONGEST_PAUSE = 0.005, 0.1
_TO_LOOK_S = 0.02  # interval of looking for clients' marks; their log has the exact time


class ProcedureError(HugewiseError):
    """A step or a server failed; the message has its last lines. `procedure_runner`: of which, where there may be
    several."""

    def __init__(self, message: str, procedure_runner: ProcedureRunner | None = None) -> None:
        super().__init__(message)
        self.procedure_runner = procedure_runner


@dataclass
class ProcedureRunner:
    """Runs one procedure.

    machine     whose programs, files and memory they are
    outputs     folder (of the attempt, on this host) for what the programs say
    account     whom they run as; None: as the caller
    sut, client the cgroups of the roles
    treatment   what reaches the servers; None while data are made
    far         the host of their own that its clients are on, if they are
    """

    machine: Machine
    outputs: Path
    places: Places
    account: pwd.struct_passwd | None
    sut: Contained
    client: Contained
    treatment: Treatment | None
    source: probe.Source
    running: list[tuple[Server, Serving]] = field(default_factory=list)
    far: RemoteClient | None = None

    # -- acts

    def run_all(self, acts: Iterable[Act]) -> None:
        """Carry out `acts` in their order, then stop the servers among them. Raises ProcedureError."""
        for act in acts:
            match act:
                case Step():
                    self.do(act)
                case Server():
                    self.start(act)
                case Write():
                    self.write(act)
        self.stop()

    def do(self, step: Step) -> str:
        """Run a step to its end; returns its stdout. Raises ProcedureError."""
        said = self._run(step)
        if isinstance(said, ProcedureError):
            raise said
        return said

    def start(self, server: Server) -> None:
        """Start a server, and wait until it answers. Raises ProcedureError."""
        beside = server.where == "host"
        treatment = self.treatment if server.treated and not beside else None
        spec = self._spec(
            server.name,
            server.argv,
            {**(treatment.environment if treatment is not None else {}), **server.environment},
            role="sut",
            cwd=server.cwd,
            thp_disable="none" if treatment is None else treatment.thp_disable,
            cpus=server.cpus,
            announce=True,
        )
        if beside:  # nothing of the procedure's machine is there
            env = {**LocalMachine().environment, **server.environment}
            spec = msgspec.structs.replace(spec, env=env, cwd=server.cwd or "/", cgroup_procs=(), cpus=server.cpus)
        try:
            begun = Serving(
                LocalMachine() if beside else self.machine, probe.Job.below(self.outputs, server.name, spec)
            )
        except ProbeError as error:
            raise ProcedureError(f"{server.name}: {error.message}") from None
        self.running.append((server, begun))
        self._await(server, begun)

    def _await(self, server: Server, begun: Serving) -> None:
        end = time.monotonic() + server.ready_within
        pause = _FIRST_PAUSE
        while True:
            why = self._unready(server)
            if begun.ended():  # whoever answers then is another's
                self.running.pop()[1].close()
                how = how_ended(begun.events())
                raise ProcedureError(f"{server.name} ended before it answered{how}{self._last(server.name)}")
            if why is None:
                return
            if time.monotonic() > end:
                raise ProcedureError(
                    f"{server.name} does not answer after {server.ready_within:g} s: {why}{self._last(server.name)}"
                )
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _unready(self, server: Server) -> str | None:
        if isinstance(server.ready, Step):
            said = self._run(server.ready)
            if isinstance(said, ProcedureError):
                return said.message
            return None if server.port is None else port_conflict(server.port, self.tested.processes())
        files = (self.outputs / f"{server.name}.stdout", self.outputs / f"{server.name}.stderr")
        return unready(server.ready, self.tested.processes(), files)

    def stop(self) -> None:
        """Stop the servers, the last first, and see that they are gone. ProcedureError if one had to be killed."""
        stubborn = []
        while self.running:
            server, begun = self.running.pop()
            if not begun.stop(signal.Signals[f"SIG{server.stop}"], server.patience):
                stubborn.append(f"{server.name} did not stop within {server.patience:g} s{self._last(server.name)}")
            elif server.named == "tree" and (left := left_behind(begun.events())):
                stubborn.append(f"{server.name} left {left} when it was stopped, which had to be killed")
            begun.close()
        self.sut.kill()
        if stubborn:
            raise ProcedureError("; ".join(stubborn))

    def end(self) -> None:
        """End whatever still runs, at once."""
        while self.running:
            self.running.pop()[1].close()

    def write(self, act: Write) -> None:
        """Write a text file into the data, or for clients elsewhere into their folder. Raises StorageError."""
        mode = 0o600 if act.private else 0o644
        if act.far and self.far is not None:
            self.far.put(act.path, act.text.encode(), mode)
        else:
            self.machine.put(self.places.data, act.path, act.text.encode(), *self._owner, mode=mode)

    @property
    def _owner(self) -> tuple[int | None, int | None]:
        return (None, None) if self.account is None else (self.account.pw_uid, self.account.pw_gid)

    # -- the timed command

    def attend(
        self,
        window: Window | None,
        mark: Callable[[], None],
        look: Callable[[], None],
        beside: Sequence[Step] = (),
        enough: Literal["ALRM"] | Write | None = None,
    ) -> Callable[[Sequence[Running]], None]:
        """Return the action while the timed command runs: wait for its end, or for both ends of the window.

        `mark` is called at the window's begin and end, `look` after it; the steps `beside` are done when the measured
        part has begun; `enough` ends it when that is over. Raises ProcedureError as soon as a server has ended, when
        such a step fails, or when the command ends before the window does.
        """
        begun = time.monotonic()

        def alongside(processes: Sequence[Running]) -> None:
            if window is None:
                for step in beside:
                    self.do(step)
            else:
                self._pass(processes, begun, window.lead, window)
                mark()
                if window.quota is not None:
                    self.write(window.quota.begin)
                for step in beside:
                    self.do(step)
                self._pass(processes, begun, window.lead + window.length, window, window.quota)
                mark()
                look()
                self.let_end(enough)
            self._ends(processes, None)

        return alongside

    def _pass(
        self, processes: Sequence[Running], begun: float, moment: float, window: Window, quota: Quota | None = None
    ) -> None:
        """Wait until the moment after `begun`, and until the quota is done. Raises ProcedureError."""
        until = begun + moment
        while not self._ends(processes, until):
            if quota is None or self.has_done(quota):
                return
            until = time.monotonic() + _TO_LOOK_S
        self.check_again()
        part = "of a given work" if window.quota else f"({window.lead:g} to {window.lead + window.length:g} s)"
        raise ProcedureError(
            f"it ended after {time.monotonic() - begun:.1f} s, before its measured part {part} was over"
            f"{self._last('timed')}"
        )

    def has_done(self, quota: Quota) -> bool:
        """Return whether all clients have done their share. Raises ProcedureError."""
        try:
            return sum(1 for _ in self.machine.files(self.places.run, quota.done)) >= quota.clients
        except UnreadableError as error:
            raise ProcedureError(f"what its clients have done cannot be seen: {error.reason}", self) from error

    def let_end(self, enough: Literal["ALRM"] | Write | None) -> None:
        """Have the timed command end now, with its report; where it cannot be told, it ends by itself."""
        match enough:
            case Write():
                self.write(enough)
            case str():
                there = (self.machine, self.client) if self.far is None else (self.far.machine, self.far.contain)
                for pid in there[1].processes():
                    there[0].signal(pid, signal.Signals[f"SIG{enough}"])

    def check_again(self) -> None:
        # a client whose server was killed may be gone before the server's launcher is
        launchers = [each.launcher for _, each in self.running]
        if launchers:
            select.select(launchers, [], [], _GRACE)
        self.check()

    def _ends(self, processes: Sequence[Running], until: float | None) -> bool:
        return ends([self], processes, until)

    def check(self) -> None:
        """Raise ProcedureError when a server is gone."""
        for server, begun in self.running:
            if begun.ended():
                raise ProcedureError(self.ended(server), self)

    def ended(self, server: Server) -> str:
        """Describe how the server ended, with its last lines."""
        begun = next(begun for known, begun in self.running if known is server)
        return self.how(f"{server.name} ended during the attempt", begun.events(), server.name)

    def how(self, what: str, events: Sequence[probe.Event], name: str = "timed") -> str:
        """Return `what` with how the program of that name ended, by its launcher's events, and with its last lines."""
        return f"{what}{how_ended(events)}{self._last(name)}"

    def scan(self) -> list[probe.Coverage]:
        """Return the pages that back the servers' named memory now. Raises ProbeError, ProcedureError."""
        self.check()
        return self.tested.scan()

    @property
    def tested(self) -> UnderTest:
        """System under test: its processes, their resources, and the pages that back their memory."""
        return UnderTest(self.machine, self.sut, self.source, self.running)

    # -- running a program

    def _run(self, step: Step) -> str | ProcedureError:
        spec = self._spec(step.name, step.argv, step.environment, role=step.role, cwd=step.cwd, timeout=step.timeout)
        machine = self.machine
        if step.far and self.far is not None:
            spec, machine = self.far.spec(spec, step.environment, step.cwd), self.far.machine
        if step.stdin is not None:
            spec = msgspec.structs.replace(spec, stdin=step.stdin)
        job = probe.Job.below(self.outputs, step.name, spec)
        if step.micro:  # its launcher passes the output on between its own lines
            spec = msgspec.structs.replace(spec, micro=True)
            job = msgspec.structs.replace(job, spec=spec, events=self.outputs / f"{step.name}.stdout")
        with storing(str(self.outputs)):
            run_launchers([(machine, job)])
        events = read_events(job)
        ended, error = outcome.last(events, probe.Exit), outcome.last(events, probe.Error)
        said = self.text(step.name, "stdout")
        if ended is None or ended.timed_out or ended.exceeded is not None or ended.code != 0:
            how = "did not start" if error is None else f"did not start: {error.message}"
            if ended is not None:
                how = f"exit status {ended.code}" if ended.code is not None else f"signal {ended.signal}"
            if ended is not None and ended.timed_out:
                how = f"not done after {step.timeout:g} s"
            if ended is not None and ended.exceeded is not None:
                how = ended.exceeded
            return ProcedureError(f"{step.name} ({Path(step.argv[0]).name}): {how}{self._last(step.name)}")
        if step.expects is not None and step.expects not in said:
            return ProcedureError(f"{step.name}: its output does not contain {step.expects!r}{self._last(step.name)}")
        return said

    def environment(self, added: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of a procedure's programs: little of the caller's, nothing of root's."""
        found = dict(self.machine.environment) | {"HOME": self.places.run, "TMPDIR": self.places.run}
        if self.account is not None:
            found |= {"USER": self.account.pw_name, "LOGNAME": self.account.pw_name}
        return found | dict(added)

    def _spec(
        self,
        name: str,
        argv: Sequence[str],
        added: Mapping[str, str],
        *,
        role: str,
        cwd: str | None,
        timeout: float = probe.FOREVER,
        thp_disable: str = "none",
        cpus: tuple[int, ...] | None = None,
        announce: bool = False,
    ) -> probe.Spec:
        leaf = self.sut if role == "sut" else self.client
        uid, gid = self._owner
        return probe.Spec(
            argv=tuple(argv),
            env=self.environment(added),
            cwd=cwd or self.places.run,
            stdout=str(self.outputs / f"{name}.stdout"),
            stderr=str(self.outputs / f"{name}.stderr"),
            uid=uid,
            gid=gid,
            thp_disable=thp_disable,
            cgroup_procs=tuple(str(path) for path in leaf.procs_files),
            cpus=cpus or (self.places.sut if role == "sut" else self.beside),
            timeout_s=timeout,
            source=self.source,
            announce=announce,
            limits=probe.Limits(rooms=(self.places.data, self.places.run)),
            own_ipc=removes_ipc(self.machine, self.account),
        )

    @property
    def beside(self) -> tuple[int, ...]:
        """The CPUs of this machine that are the clients', or would be if they were here."""
        return self.places.client if self.far is None else self.far.beside

    def text(self, name: str, stream: str) -> str:
        """Return a program's output, empty if there is none. Raises ProcedureError where the output is too long."""
        try:
            return outcome.printed(self.outputs / f"{name}.{stream}")
        except UnreadableError as error:
            raise ProcedureError(f"{name}: {error.reason}") from error

    def _last(self, name: str) -> str:
        """Return the last lines of a program's output, stderr before stdout, for an error."""
        for stream in ("stderr", "stdout"):
            file = stream if name == "timed" else f"{name}.{stream}"
            if lines := outcome.last_lines(self.outputs / file, _LAST_LINES):
                return ": " + " | ".join(lines)[:600]
        return ""


def ends(procedure_runners: Sequence[ProcedureRunner], processes: Sequence[Running], until: float | None) -> bool:
    """Wait until all `processes` have ended (True) or until the moment on the monotonic clock (False).

    Raises ProcedureError as soon as a server of one of the procedure runners has ended.
    """
    servers = {
        begun.launcher: (procedure_runner, server)
        for procedure_runner in procedure_runners
        for server, begun in procedure_runner.running
    }
    left_over = {process.fileno() for process in processes if process.poll() is None}
    while left_over:
        left = None if until is None else max(0.0, until - time.monotonic())
        readable, _, _ = select.select([*left_over, *servers], [], [], left)
        for descriptor in readable:
            if descriptor in servers:
                procedure_runner, server = servers[descriptor]
                raise ProcedureError(procedure_runner.ended(server), procedure_runner)
            left_over.discard(descriptor)
        if not readable:
            return False
    for process in processes:  # one whose machine is gone has not ended of itself: raises MachineError
        process.poll()
    return True
