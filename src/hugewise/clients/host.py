"""The host of clients for a session: reached over the user's own ssh, asked what it has, and reached anew where lost.

One connection carries all: first the probe itself, which a fixed line of shell puts into a new folder there, then the
messages of its agent on the same stdin and stdout. Nothing listens. When the connection ends, so does the agent with
all that it has started, and the folder is removed; where a link is cut and nobody tells it, a silence ends it.

An account that is not root's has no cgroup of its own there in general. So the tree of processes below the agent is
looked at; what has ended in it is counted by those that waited for it: the launchers do, and the agent for them.

iperf3 asks the network between both hosts, before anything is measured: a transfer of one block for the round trip,
then one each way.

Sources: proc_pid_stat(5), proc_tid_children(5); iperf3(1) and its JSON; tcp(7), TCP_INFO; netdevice(7).
"""

from __future__ import annotations

import fcntl
import ipaddress
import os
import resource
import secrets
import shlex
import socket
import struct
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from hugewise import reading, unprivileged
from hugewise.errors import MachineError, ProbeError, UserError
from hugewise.host.local_host import LocalHost
from hugewise.host.local_machine import LocalMachine
from hugewise.machine import probe, programs
from hugewise.machine.agent import Agent
from hugewise.machine.machine import ClientSite, Contained, Machine, Serving, read_events, run_launchers
from hugewise.machine.messages import parse_foreign, plain
from hugewise.machine.programs import ssh_command
from hugewise.machine.remote import RemoteFolders, RemoteMachine
from hugewise.model.host import ClientHost, Host
from hugewise.model.procedure import RoleUse
from hugewise.processes import TICK, ProcessStat, parse_stat
from hugewise.reading import UnreadableError, shown, whole
from hugewise.unprivileged import NAME

_SECONDS = 1
_BLOCK = "128K"
_IPERF_PATIENCE_S, _IPERF_PAUSE_S, _LONGEST_S = 10.0, 0.05, 60.0
_SIOCGIFADDR = 0x8915
_DISCARD = 9  # a port to which nothing is sent
_OF_HOST = {"PATH": programs.PATH}


class NetworkSeen(msgspec.Struct, frozen=True):
    """Network as measured: bits a second from the clients to this host and back, and the round trip in seconds."""

    there: float
    back: float
    round_trip: float | None

    @property
    def least(self) -> float:
        return min(self.there, self.back)

    def __str__(self) -> str:
        trip = "" if self.round_trip is None else f", round trip {self.round_trip * 1e6:,.0f} us"
        return f"{self.there / 1e6:,.0f} Mbit/s from the client, {self.back / 1e6:,.0f} Mbit/s to it{trip}"


def resolved(address: str) -> str:
    """Return the IP address. Raises UserError where the name has none."""
    with suppress(ValueError):
        return str(ipaddress.ip_address(address))
    try:
        return str(socket.getaddrinfo(address, None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError as error:
        raise UserError(f"{address}: {error.strerror}", hint="name the client's IP address in the inventory") from None


def address_towards(client: str) -> str:
    """Return the address of this host that it would send from: the one at which servers listen. Raises UserError."""
    family = socket.AF_INET6 if ":" in client else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as asked:
        try:
            asked.connect((client, _DISCARD))
        except OSError as error:
            raise UserError(
                f"no route to the client at {client}: {error.strerror}", hint=f"see: ip route get {client}"
            ) from None
        return str(asked.getsockname()[0])


def interface_of(address: str) -> str | None:
    """Return the interface of this host that has the address as its first; None where none says so."""
    if ":" in address:
        wanted = ipaddress.ip_address(address).packed.hex()
        lines = reading.content(Path("/proc/net/if_inet6")).decode(errors="replace").splitlines()
        return next((line.split()[-1] for line in lines if line.startswith(wanted)), None)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, name in socket.if_nameindex():
            with suppress(OSError):
                told = fcntl.ioctl(asked, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                if socket.inet_ntoa(told[20:24]) == address:
                    return name
    return None


def carried(host: Host, interface: str | None) -> int | None:
    """Return the bytes that the interface has received and sent, or None where it does not say."""
    if interface is None:
        return None
    try:
        counts = [host.read(f"/sys/class/net/{interface}/statistics/{way}_bytes") for way in ("rx", "tx")]
        return sum(reading.whole(count, "what an interface has carried") for count in counts)
    except (OSError, UnreadableError):
        return None


def output_of(
    machine: Machine, argv: Sequence[str], owner: tuple[int | None, int | None], environment: dict[str, str]
) -> str:
    """Run a short program there and return its standard output. Raises MachineError."""
    with tempfile.TemporaryDirectory(prefix="hugewise-") as folder:
        job = _job(Path(folder), argv, owner, environment)
        status = run_launchers([(machine, job)])[0]
        ended = next((event for event in read_events(job) if isinstance(event, probe.Exit)), None)
        out, err = (reading.content(Path(path)).decode(errors="replace") for path in (job.spec.stdout, job.spec.stderr))
        if status != 0 or ended is None or ended.code != 0:
            lines = (err.strip() or out.strip()).splitlines()
            raise MachineError(f"{argv[0]}: {plain(lines[-1]) if lines else 'it did not start'}")
        return out


def _job(
    folder: Path,
    argv: Sequence[str],
    owner: tuple[int | None, int | None],
    environment: dict[str, str],
    *,
    server: bool = False,
) -> probe.Job:
    spec = probe.Spec(
        argv=tuple(argv),
        env=environment,
        cwd="/",
        stdout=str(folder / "stdout"),
        stderr=str(folder / "stderr"),
        uid=owner[0],
        gid=owner[1],
        timeout_s=_LONGEST_S,
        announce=server,
    )
    return probe.Job.below(folder, "server" if server else "asked", spec)


def look(machine: Machine, address: str, iperf3: str, owner: tuple[int | None, int | None]) -> NetworkSeen:
    """Measure the network from `machine` to this host's `address` by `iperf3`. Raises MachineError, UserError."""
    here = programs.which("iperf3", "/usr/bin")
    if here is None:
        raise UserError(
            "iperf3: no such program on this host; the network to a client is asked by it", hint="apt install iperf3"
        )
    who = unprivileged.account()
    local = (None, None) if who is None else (who.pw_uid, who.pw_gid)
    port = str(LocalMachine().ports(1, address)[0])
    with tempfile.TemporaryDirectory(prefix="hugewise-") as folder:
        job = _job(Path(folder), (here, "-s", "-B", address, "-p", port), local, _OF_HOST, server=True)
        try:
            server = Serving(LocalMachine(), job)
        except ProbeError as error:
            raise MachineError(f"iperf3 on this host: {error.message}") from None
        try:
            client = (iperf3, "-c", address, "-p", port, "-J")
            trip = _first(machine, (*client, "-n", _BLOCK), owner)
            way = ("-t", str(_SECONDS))
            there, back = (
                _rate(output_of(machine, (*client, *way, *more), owner, dict(machine.environment)))
                for more in ((), ("-R",))
            )
        finally:
            server.close()
    return NetworkSeen(there, back, trip)


def _first(machine: Machine, argv: Sequence[str], owner: tuple[int | None, int | None]) -> float | None:
    end = time.monotonic() + _IPERF_PATIENCE_S
    while True:
        try:
            return _round_trip(output_of(machine, argv, owner, dict(machine.environment)))
        except MachineError:
            if time.monotonic() > end:
                raise
            time.sleep(_IPERF_PAUSE_S)


def _rate(text: str) -> float:
    try:
        with reading.believing("iperf3's JSON"):
            return reading.number(_end(text)["sum_received"]["bits_per_second"], "what was received a second", low=0)
    except UnreadableError as error:
        raise MachineError(f"iperf3: {error.reason}") from None


def _round_trip(text: str) -> float | None:
    try:
        with reading.believing("iperf3's JSON"):
            sender = _end(text)["streams"][0]["sender"]
            trip = sender.get("min_rtt") or sender.get("mean_rtt")
            return None if not trip else reading.number(trip, "the round trip", low=0) / 1e6
    except UnreadableError as error:
        raise MachineError(f"iperf3: {error.reason}") from None


def _end(text: str) -> Any:
    # iperf3 reports an error here, too, with exit status 0 (3.12)
    report = reading.json(text.encode(), "iperf3's JSON")
    if "error" in report:
        raise MachineError(f"iperf3: {plain(str(report['error']))}")
    return report["end"]


_MOST = 4096  # processes that are looked at
_LAUNCHED = 3  # depth below the agent: guardian, launcher, program


@dataclass(frozen=True)
class RemoteProcessTree(Contained):
    """Process tree on the agent's host. Operations that make no sense there raise MachineError."""

    agent: Agent

    def processes(self) -> list[int]:
        with parse_foreign(self.agent.name, "its processes"):
            return [pid for pid, depth in self._tree() if depth >= _LAUNCHED]

    def used(self) -> RoleUse:
        """CPU time of all that was ever started, in steps of a clock tick; None where its kernel does not say."""
        with parse_foreign(self.agent.name, "the CPU time of its processes"):
            user = system = 0
            for pid, depth in self._tree():
                times = self._times(pid)
                if depth == 0:
                    times = (0, 0, *times[2:])  # the agent's own times do not count
                user, system = user + times[0] + times[2], system + times[1] + times[3]
            return RoleUse(cpu_s=(user + system) * TICK, user_s=user * TICK, system_s=system * TICK)

    def _tree(self) -> Iterator[tuple[int, int]]:
        left = [(self._stat("self").pid, 0)]
        seen = 0
        while left and (seen := seen + 1) <= _MOST:
            pid, depth = left.pop(0)
            yield pid, depth
            with suppress(OSError):  # it has ended
                text = self.agent.read(f"/proc/{pid}/task/{pid}/children")
                room = max(_MOST - seen - len(left), 0)  # it can name as many as it likes, each time
                children = text.split(maxsplit=room)[:room]
                left += [(whole(child, "the number of a process", low=1), depth + 1) for child in children]

    def _times(self, pid: int) -> tuple[int, int, int, int]:
        try:
            stat = self._stat(pid)
        except OSError:
            return (0, 0, 0, 0)
        return stat.utime, stat.stime, stat.cutime, stat.cstime

    def _stat(self, process: int | str) -> ProcessStat:
        text = self.agent.read(f"/proc/{process}/stat")
        if (stat := parse_stat(text)) is None:
            raise UnreadableError(f"/proc/{process}/stat is {shown(text)}")
        return stat


SILENCE_S = 30
_WATCHED_S, _PATIENCE_S = 5.0, 15.0
_CONNECT_S, _ALIVE_S = 10, 5
_HELLO_S, _LEAVE_S = 60.0, 15.0
_MOST_PROBE = 256 << 20
_LAST_WORDS = 2000  # bytes of ssh's output
_MOST_WORDS = 16 << 20  # bytes of it, which are memory of this host: stderr of the other host is among them
# The words are the folder, the bytes of the probe, and the silence; no user's text is among them.
_SHELL = """umask 077
mkdir -- "$1" && chmod 711 -- "$1" || exit 73
trap 'rm -rf -- "$1"' EXIT
trap 'exit 129' HUP INT TERM
head -c "$2" > "$1/hugewise-probe" && chmod 755 -- "$1/hugewise-probe" || exit 74
TMPDIR="$1" "$1/hugewise-probe" agent --channel - --silence "$3"
"""


@dataclass(frozen=True)
class Connection:
    """A client's host while it is reached.

    place   the folder there
    words   what ssh says to people
    """

    host: ClientHost
    agent: Agent
    process: subprocess.Popen[bytes]
    place: str
    words: BinaryIO

    def lost(self) -> bool:
        return self.agent.ended() or self.process.poll() is not None

    def close(self) -> None:
        if self.agent.ended():  # ssh may wait for a link that is cut; the agent ends by itself
            self.process.kill()
        with suppress(MachineError):
            self.agent.poweroff(_LEAVE_S)
        self.agent.close()
        try:
            self.process.wait(_LEAVE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.words.close()


def connect_agent(host: ClientHost, program: Path) -> Connection:
    """Reach the host and start the agent `program` there. Raises MachineError with what ssh said, UserError."""
    place = f"{host.folder}/hugewise-{secrets.token_hex(8)}"
    agent = reading.content(program, _MOST_PROBE)
    words = os.fdopen(os.memfd_create("ssh", os.MFD_CLOEXEC), "rb", buffering=0)
    ours, theirs = socket.socketpair()
    name = f"client {host.name}"

    def error(message: str) -> MachineError:
        stderr = "" if words.closed else os.pread(words.fileno(), _LAST_WORDS, 0).decode(errors="replace").strip()
        return MachineError(f"{message}; ssh: {plain(stderr)}" if stderr else message)

    with theirs:
        process = subprocess.Popen(
            _argv(host, place, len(agent)),
            stdin=theirs.fileno(),
            stdout=theirs.fileno(),
            stderr=words.fileno(),
            start_new_session=True,
        )
    with suppress(OSError):  # it has ended
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (_MOST_WORDS, _MOST_WORDS))  # beyond it, SIGXFSZ ends it
    try:
        ours.settimeout(_HELLO_S)
        try:
            ours.sendall(agent)
        except OSError as broken:
            with suppress(subprocess.TimeoutExpired):
                process.wait(1)
            raise error(f"{name} cannot be reached: {broken.strerror or 'it takes too long'}") from None
        channel = Agent(ours, name, error, patience=_PATIENCE_S)
        channel.hello(_HELLO_S)
        channel.watch(_WATCHED_S, _PATIENCE_S)
    except BaseException:
        ours.close()
        process.kill()
        process.wait()
        words.close()
        raise
    return Connection(host, channel, process, place, words)


def _argv(host: ClientHost, place: str, size: int) -> list[str]:
    command = shlex.join(["sh", "-c", _SHELL, "hugewise", place, str(size), str(SILENCE_S)])
    return ssh_command(host.ssh, f"exec {command}", connect_s=_CONNECT_S, alive_s=_ALIVE_S)


_POSTGRESQL = "/usr/lib/postgresql"  # Debian's, where its clients are by version
_IPERF3 = "iperf3"
_VERSIONS = {"go-tpc": ("version",)}  # arguments that print the version; all others: --version
_PAUSE_S = 1.0  # before the next attempt to connect
_KINDS = ("file", "link")


@dataclass
class ClientsHost:
    """A host of clients. `wanted`: the programs that they need there, by name."""

    host: ClientHost
    wanted: tuple[str, ...]
    seen: NetworkSeen | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    _address: str = ""
    _client: str = ""
    _digest: str = ""
    _paths: Mapping[str, str] = field(default_factory=dict)
    _connection: Connection | None = None
    _site: ClientSite | None = None

    def open(self) -> None:
        """Reach it, and look at what is there. Raises UserError with the cure, MachineError."""
        self._client = resolved(self.host.address)
        self._address = address_towards(self._client)
        program = Path(probe.find())
        self._digest = reading.sha256(program)
        connection = self._reach()
        agent = connection.agent
        with parse_foreign(agent.name, "what it has"):
            machine, owner = self._machine(connection), _owner(agent)
            self._paths = self._found(agent, machine)
            self.versions = self._asked(machine, owner)
            self.seen = look(machine, self._address, self._paths[_IPERF3], owner)
        self._site = self._made(connection, machine, owner)

    def site(self) -> ClientSite:
        """Return the site of an attempt's clients; reconnect where the connection was lost. Raises MachineError."""
        assert self._connection is not None and self._site is not None, "it was opened"
        if self._connection.lost():
            self._connection.close()
            time.sleep(_PAUSE_S)
            connection = self._reach()
            with parse_foreign(connection.agent.name, "what it has"):
                self._site = self._made(connection, self._machine(connection), _owner(connection.agent))
        return self._site

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def __str__(self) -> str:
        return (
            f"clients run on {self.host.name} ({self._client}, servers listen at {self._address}); network: {self.seen}"
        )

    def _reach(self) -> Connection:
        self._connection = connect_agent(self.host, Path(probe.find()))
        return self._connection

    def _machine(self, connection: Connection) -> RemoteMachine:
        machine = RemoteMachine(connection.agent, emulated=False, outputs=f"{connection.place}/out")
        machine.environment = {"PATH": _path(connection.agent), "LANG": "C"}
        return machine

    def _made(self, connection: Connection, machine: RemoteMachine, owner: tuple[int | None, int | None]) -> ClientSite:
        assert self.seen is not None
        interface = interface_of(self._address)
        here = LocalHost()
        return ClientSite(
            machine=machine,
            contain=RemoteProcessTree(connection.agent),
            scratch=RemoteFolders.open(machine, f"{connection.place}/run", *owner),
            owner=owner,
            cpus=self._cpus(machine),
            programs=self._paths,
            address=self._address,
            client=self._client,
            clock=connection.agent.clock,
            carried=lambda: carried(here, interface),
            network=self.seen.least,
            facts={
                "client": self.host.name,
                "network_mbit_per_s": round(self.seen.least / 1e6, 1),
                **(
                    {}
                    if self.seen.round_trip is None
                    else {"network_round_trip_us": round(self.seen.round_trip * 1e6, 1)}
                ),
                **{f"client_{name}": said for name, said in self.versions.items()},
            },
        )

    def _cpus(self, machine: RemoteMachine) -> tuple[int, ...]:
        there = machine.cpus()
        if absent := [cpu for cpu in self.host.cpus if cpu not in there]:
            raise UserError(
                f"client {self.host.name} has no CPU {absent[0]} for it", hint=f"name some of {list(there)} in cpus"
            )
        return self.host.cpus or there

    def _found(self, agent: Agent, machine: RemoteMachine) -> dict[str, str]:
        newest = sorted((name for name in agent.names(_POSTGRESQL) if name.isdecimal()), key=int, reverse=True)
        folders = [f"{_POSTGRESQL}/{name}/bin" for name in newest] + machine.environment["PATH"].split(":")
        found: dict[str, str] = {}
        for name in dict.fromkeys((_IPERF3, *self.wanted)):
            paths = (f"{folder}/{name}" for folder in folders if folder.startswith("/"))
            path = next((each for each in paths if _is_program(agent, each)), None)
            if path is not None:
                found[name] = path
        if absent := [name for name in dict.fromkeys((_IPERF3, *self.wanted)) if name not in found]:
            raise UserError(
                f"client {self.host.name} has no {', '.join(absent)} on the PATH of its ssh",
                hint="install there what the clients need; iperf3 asks the network",
            )
        return found

    def _asked(self, machine: RemoteMachine, owner: tuple[int | None, int | None]) -> dict[str, str]:
        facts = {"agent": self._digest[:16]}
        for name, path in self._paths.items():
            words = (path, *_VERSIONS.get(name, ("--version",)))
            lines = output_of(machine, words, owner, dict(machine.environment)).strip().splitlines()
            facts[name] = lines[0][:200] if lines else "it does not say"
        return facts


def _path(agent: Agent) -> str:
    variables = dict(part.partition("=")[::2] for part in agent.read("/proc/self/environ").split("\0"))
    return ":".join(dict.fromkeys((*filter(None, variables.get("PATH", "").split(":")), *programs.PATH.split(":"))))


def _is_program(agent: Agent, path: str) -> bool:
    status = agent.status(path)
    return status.kind in _KINDS and bool(status.mode & 0o111)


def _owner(agent: Agent) -> tuple[int | None, int | None]:
    # Where root has arrived: the unprivileged account of that host.
    lines = agent.read("/proc/self/status").splitlines()
    if next((line.split()[1] for line in lines if line.startswith("Uid:")), "") != "0":
        return None, None
    for line in agent.read("/etc/passwd").splitlines():
        name, _, uid, gid, *_ = line.split(":")
        if name == NAME:
            return reading.whole(uid, "its uid"), reading.whole(gid, "its gid")
    raise MachineError(f"{agent.name}: root arrives there, and it has no account {NAME} to run programs as")
