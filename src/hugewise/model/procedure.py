"""Parts of an attempt around its timed command: data, servers, clients. Declared here, played by `attempt.procedure
runner`.

A `Staged` workload says, as plain values, how its data are made (once, kept below the results folder), which servers
run as the system under test, how they are warmed, what is timed, and how the outputs are read. The same bytes are laid
out anew for every attempt of every arm. Nothing here performs an effect, so that a procedure can be played on any host.

    data(values)                       -> Data       made once, from a fixed seed
    procedure(treatment, values, places)   -> Procedure      one attempt
    read(outputs, values)              -> Reading    metrics from what was said

The treatment's variables and prctl reach the servers; where a procedure has none, the timed command.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Literal, Protocol, runtime_checkable

import msgspec

from hugewise.model.policy import Treatment
from hugewise.model.workload import Launch, ParameterValue, RunsAs, Workload

Role = Literal["sut", "client"]

# Which of a server's memory the policy is about. `all`: all anonymous, shared and hugetlb memory of its process.
# `shared`: its largest shared anonymous mapping (shared_buffers), seen in that of its processes which has most of it
# mapped. `large`: private mappings of at least 32 MiB (buffer pools, arenas). `tree`: as `all`, of every process of
# the system under test that is there; a page that several have mapped counts for each.
Named = Literal["all", "shared", "large", "tree"]


class Peer(msgspec.Struct, frozen=True, kw_only=True):
    """The host beside the machine on which an attempt is played: its other end of the network. Of this host: itself.

    bind     the address that a server on the host listens on
    address  the same host as the machine sees it (they differ under QEMU's user networking)
    ports    TCP ports that are free on the host, as many as the workload asks for
    """

    bind: str = "127.0.0.1"
    address: str = "127.0.0.1"
    ports: tuple[int, ...] = ()


class RemoteEndpoint(msgspec.Struct, frozen=True, kw_only=True):
    """The host of their own that a procedure's clients are on, and the way between the two.

    address   of this host, at which servers listen for them
    ports     TCP ports that are free there, as many as `Parted.far_ports` asks for
    client    the address that clients come from
    folder    private to the attempt, on the clients' host
    programs  the paths of their programs there, by name
    password  of the servers for this attempt; it goes into files that are written as `private`, never into a command
    """

    address: str
    ports: tuple[int, ...]
    client: str
    folder: str
    programs: Mapping[str, str]
    password: str

    def at(self, number: int = 0) -> str:
        """Return the address of the server of that number, as ADDRESS:PORT."""
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"{host}:{self.ports[number]}"

    def program(self, name: str) -> str:
        return self.programs.get(name, name)

    def __repr__(self) -> str:
        # without the password
        return f"Far({self.address}, {self.client}, {self.folder})"


class Places(msgspec.Struct, frozen=True, kw_only=True):
    """Places of an attempt; all folders are private to it and gone after it. Short paths: sockets may lie there.

    data         its own copy of the workload's data (an empty folder where it has none)
    run          for sockets, pid files, logs and outputs
    ports        free TCP ports on the loopback, as many as the procedure's workload asks for
    sut, client  the CPUs of each role; disjoint where the workload has clients (but on a machine with a single CPU),
                 else all CPUs are the system's under test
    peer         the host beside the machine, for a server that is to run there
    far          where the clients are, if on a host of their own; `client` are CPUs of that then
    idle         seconds for which the timed command will be frozen while others have their turn, beside its own lead
                 and measured part: it must outlast them
    """

    data: str
    run: str
    ports: tuple[int, ...]
    sut: tuple[int, ...]
    client: tuple[int, ...]
    peer: Peer = Peer()
    far: RemoteEndpoint | None = None
    idle: float = 0.0
    cwd: str | None = None


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """A command that runs to its end, untimed. It fails the attempt when it exits with another status than 0.

    name       of its output: `NAME.stdout`, `NAME.stderr` in the attempt's folder
    expects    text that its stdout must contain
    role       whose CPUs and cgroup it has
    micro      one of the probe's own commands: argv without the program's name; its stdout are the probe's JSON Lines
    far        it is a client: it runs where the clients are (`Places.far`), be that here or not
    stdin      a file that it reads; None: nothing
    """

    name: str
    argv: tuple[str, ...]
    environment: Mapping[str, str] = {}
    expects: str | None = None
    timeout: float = 300.0
    role: Role = "client"
    cwd: str | None = None
    micro: bool = False
    far: bool = False
    stdin: str | None = None


class PortReady(msgspec.Struct, frozen=True, kw_only=True):
    """One of a server's processes listens: at this TCP port of this host, or at this unix socket; where neither is
    named, at any. Nobody connects to see it.
    """

    port: int | None = None
    path: str | None = None


class OutputReady(msgspec.Struct, frozen=True):
    """A server has printed something that this regular expression matches, in multi-line mode."""

    pattern: str


class Server(msgspec.Struct, frozen=True, kw_only=True):
    """A program of the system under test that runs in the foreground until it is stopped.

    ready     that it answers: a step that is asked again and again until it succeeds, or what is waited for
    port      a TCP port that such a step asks at: where it succeeds, and somebody else holds the port, another answered
    stop      the signal that ends it in an orderly way; after `patience` seconds it is killed, and that is an error
    cpus      CPUs of its own among those of the role; None: all of them
    treated   whether the treatment's variables and prctl reach it (a helper server is none of the system under test)
    environment  variables of its own; they win over the treatment's
    where     on the machine where the attempt is played, or on the host beside a guest, where it is a helper that is
              neither treated nor looked at; `ready` is asked from the machine in any case. A procedure all of whose
              servers are on the host's side is one without servers: what is timed is the system under test
    """

    name: str
    argv: tuple[str, ...]
    ready: Step | PortReady | OutputReady
    port: int | None = None
    environment: Mapping[str, str] = {}
    ready_within: float = 60.0
    stop: Literal["TERM", "INT", "QUIT"] = "TERM"
    patience: float = 60.0
    cpus: tuple[int, ...] | None = None
    named: Named = "all"
    treated: bool = True
    where: Literal["machine", "host"] = "machine"
    cwd: str | None = None


class Write(msgspec.Struct, frozen=True):
    """A text file to write, by its path below the data folder: of a recipe, or of an attempt.

    far      it is the clients': below their folder, where they are on a host of their own
    private  nobody but the account may read it: it holds a password
    """

    path: str
    text: str
    far: bool = False
    private: bool = False


Act = Step | Server | Write


class Data(msgspec.Struct, frozen=True, kw_only=True):
    """Data that are made once and laid out anew for every attempt.

    key      everything that the bytes depend on (seed, scale, versions of the tools): two keys, two sets of data
    recipe   the acts that make them in `places.data`, in order; servers started there are stopped at the end
    bytes    about how large they are, so that a lack of room is told before
    inputs   files of this host that the recipe reads (an archive of sources); a guest is given them at the same path
    """

    name: str
    key: Mapping[str, str | int | float | bool]
    recipe: Callable[[Places], Iterable[Act]]
    bytes: int = 0
    inputs: tuple[str, ...] = ()


class Quota(msgspec.Struct, frozen=True):
    """Work of which every attempt does as much, however long it takes: what writes changes the data alike in all.

    begin    the file below the data that has the clients begin it; until then they connect and warm up, and wait
    done     the name of the file in `places.run` that each of them leaves when it has done its share
    clients  how many there are
    """

    begin: Write
    done: re.Pattern[str]
    clients: int


class Window(msgspec.Struct, frozen=True):
    """The part of the timed command that counts, in seconds from its start: `length` of it after `lead`.

    The command must go on for some seconds after it: meanwhile the servers' memory is scanned, with clients attached.
    Then it is not waited for where `Procedure.enough` ends it. With a `quota` the part is as long as that work takes,
    whatever `length` says.
    """

    lead: float
    length: float
    quota: Quota | None = None


class Procedure(msgspec.Struct, frozen=True, kw_only=True):
    """Attempt.

    timed      the command that is timed. Beside servers it is a client; else it is the system under test itself
    gate       `timed` is a micro-workload that says when it is set up: what is measured begins then
    window     the part of it that counts (None: all of it)
    enough     what ends it when the window is over and the memory was looked at: a signal to a client, or a file that
               it looks for. It reports all the same. None: it ends by itself
    before     untimed, before the servers start (in the copy of the data): commands, and files to write there
    warm       untimed, when the servers answer
    beside     short commands, one after the other, once the measured part has begun; the timed command goes on
    after      untimed, when the measured part is over and the servers still run
    """

    timed: Launch
    servers: tuple[Server, ...] = ()
    gate: bool = False
    window: Window | None = None
    enough: Literal["ALRM"] | Write | None = None
    before: tuple[Step | Write, ...] = ()
    warm: tuple[Step, ...] = ()
    beside: tuple[Step, ...] = ()
    after: tuple[Step, ...] = ()


class RoleUse(msgspec.Struct, frozen=True, kw_only=True):
    """Resources of a role in the measured part: CPU seconds, page faults of its processes; None where not counted."""

    cpu_s: float | None = None
    user_s: float | None = None
    system_s: float | None = None
    faults: int | None = None

    def since(self, before: RoleUse) -> RoleUse:
        now, then = msgspec.structs.astuple(self), msgspec.structs.astuple(before)
        spent = (None if None in pair else pair[0] - pair[1] for pair in zip(now, then, strict=True))
        return RoleUse(**dict(zip(self.__struct_fields__, spent, strict=True)))


class Part(msgspec.Struct, frozen=True):
    """A piece of the measured part, UTC epoch seconds.

    begin, end   what counts
    thawed       when the attempt's programs went on before it: from then to `begin` is wash-out
    """

    begin: float
    end: float
    thawed: float = float("-inf")


def counted(parts: Iterable[Part]) -> float:
    """Return seconds that count."""
    return sum(part.end - part.begin for part in parts)


class Outputs(Protocol):
    """Outputs of an attempt.

    begin, end   the measured part as UTC epoch seconds
    parts        what counts of it, in their order; one piece from begin to end, but where attempts take turns
    sut, client  what each role used in it; where there are no servers the timed command is `sut`
    """

    begin: float
    end: float
    sut: RoleUse
    client: RoleUse

    @property
    def parts(self) -> tuple[Part, ...]: ...

    def stdout(self, step: str = "timed") -> str:
        """Return a step's output; `timed` is the timed command, a server has its name."""
        ...

    def stderr(self, step: str = "timed") -> str:
        """Return the same of stderr."""
        ...

    def files(self, pattern: re.Pattern[str]) -> Iterable[bytes]:
        """Return the contents of the regular files in `places.run` with such a name, in order of names."""
        ...


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """Results read from the outputs of an attempt.

    metrics   by name, in the units of the workload's metrics; what cannot be had is absent with its reason
    series    the throughput in each whole second of the measured part, in work a second
    facts     what was done (versions, hashes, counts), kept with the attempt
    same      names of those facts that are the same in all attempts of a cell: one that differs from the first fails
    problem   why the attempt failed although every program exited with 0 (a wrong result)
    marks     disturbances to tell the reader of, such as a saturated client
    of_time   those of the marks, and the names of those facts, that rest on a clock: not told where it means nothing
    """

    metrics: Mapping[str, float | None] = {}
    absent: Mapping[str, str] = {}
    series: tuple[float, ...] = ()
    facts: Mapping[str, str | int | float] = {}
    same: tuple[str, ...] = ()
    problem: str | None = None
    marks: tuple[str, ...] = ()
    of_time: tuple[str, ...] = ()


@runtime_checkable
class Staged(Workload, Protocol):
    """A workload with data, servers, clients, or an output that is read."""

    ports: int  # how many free TCP ports an attempt needs
    clients: bool  # whether a client runs beside the system under test, on CPUs of its own
    stage_account: RunsAs  # of its servers and steps, who own its folders too

    def data(self, values: Mapping[str, ParameterValue]) -> Data | None:
        """Return the data that its attempts start from, or None when it needs none."""
        ...

    def procedure(self, treatment: Treatment, values: Mapping[str, ParameterValue], places: Places) -> Procedure:
        """Return one attempt."""
        ...

    def read(self, outputs: Outputs, values: Mapping[str, ParameterValue]) -> Reading:
        """Metrics from what was said. Raises ValueError when an output is not as expected, naming what was found."""
        ...


@runtime_checkable
class Parted(Staged, Protocol):
    """A staged workload whose clients can be on a host of their own."""

    def parted_refused(self, values: Mapping[str, ParameterValue]) -> str | None:
        """Return why clients cannot be on a host of their own with these values, or None."""
        ...

    def far_ports(self, values: Mapping[str, ParameterValue], places: Places) -> int:
        """Return how many TCP ports its servers listen at for those clients."""
        ...

    def far_programs(self, values: Mapping[str, ParameterValue]) -> tuple[str, ...]:
        """Return the programs needed on the clients' host; the load generator comes with hugewise."""
        ...

    def unprotected_access(self, values: Mapping[str, ParameterValue]) -> str | None:
        """Return what a host that reaches the servers' address can do without a password, or None."""
        ...
