"""The host of clients for a session: reached, asked what it has, its network looked at; reached anew where lost.

What runs on a client's host for hugewise: everything below the agent there, as its /proc shows it.

An account that is not root's has no cgroup of its own there in general. So the tree is looked at; what has ended in it
is counted by those that waited for it: the launchers do, and the agent for them.

Source: proc_pid_stat(5), proc_tid_children(5).

The agent on a client's host, over the user's own ssh: started with it, ended with it, and nothing of it is left.

One connection carries all: first the probe itself, which a fixed line of shell puts into a new folder there, then the
messages of its agent on the same stdin and stdout. Nothing listens. When the connection ends, so does the agent with
all that it has started, and the folder is removed; where a link is cut and nobody tells it, a silence ends it.
"""

from __future__ import annotations

import os
import secrets
import shlex
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from hugewise import reading
from hugewise.clients import network
from hugewise.errors import MachineError, UserError
from hugewise.host.local_host import LocalHost
from hugewise.machine import probe, programs
from hugewise.machine.agent import Agent
from hugewise.machine.machine import Contained
from hugewise.machine.messages import parse_foreign, plain
from hugewise.machine.noise import TICK
from hugewise.machine.programs import ssh_command
from hugewise.machine.remote import RemoteFolders, RemoteMachine
from hugewise.machine.serving import ClientSite
from hugewise.model.host import ClientHost
from hugewise.model.procedure import RoleUse
from hugewise.reading import whole
from hugewise.unprivileged import NAME

_MOST = 4096  # processes that are looked at
_LAUNCHED = 3  # below the agent: guardian, launcher, program
_USER, _SYSTEM = 11, 12  # fields of `stat` behind the name, from the state on; those of children follow


@dataclass(frozen=True)
class RemoteProcessTree(Contained):
    """Of the agent's host. Whatever makes no sense there is a MachineError."""

    agent: Agent

    def processes(self) -> list[int]:
        """The programs that were launched, and what descends from them."""
        with parse_foreign(self.agent.name, "its processes"):
            return [pid for pid, depth in self._tree() if depth >= _LAUNCHED]

    def used(self) -> RoleUse:
        """CPU time of all that was ever started, in steps of a clock tick; None where its kernel does not say."""
        with parse_foreign(self.agent.name, "the CPU time of its processes"):
            user = system = 0
            for pid, depth in self._tree():
                times = self._times(pid)
                if depth == 0:
                    times = (0, 0, *times[2:])  # its own are nobody's
                user, system = user + times[0] + times[2], system + times[1] + times[3]
            return RoleUse(cpu_s=(user + system) * TICK, user_s=user * TICK, system_s=system * TICK)

    def _tree(self) -> Iterator[tuple[int, int]]:
        """Each process with its depth below the agent, which is the first."""
        left = [(whole(self.agent.read("/proc/self/stat").split(" ", 1)[0], "its own number", low=1), 0)]
        seen = 0
        while left and (seen := seen + 1) <= _MOST:
            pid, depth = left.pop(0)
            yield pid, depth
            with suppress(OSError):  # it has ended
                told = self.agent.read(f"/proc/{pid}/task/{pid}/children").split()
                left += [(whole(child, "the number of a process", low=1), depth + 1) for child in told]

    def _times(self, pid: int) -> tuple[int, int, int, int]:
        """utime, stime, and those of its children that were waited for; none of a process that has ended."""
        try:
            fields = self.agent.read(f"/proc/{pid}/stat").rpartition(")")[2].split()
        except OSError:
            return (0, 0, 0, 0)
        user, system, child_user, child_system = (whole(each, "CPU time") for each in fields[_USER : _SYSTEM + 3])
        return user, system, child_user, child_system


SILENCE_S = 30
_WATCHED_S, _PATIENCE_S = 5.0, 15.0
_CONNECT_S, _ALIVE_S = 10, 5
_HELLO_S, _LEAVE_S = 60.0, 15.0
_MOST_PROBE = 256 << 20
_LAST_WORDS = 2000  # bytes of what ssh said
# Its words are the folder, the bytes of the probe, and the silence. No user's text is in it.
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
        """Whether it is reached no more."""
        return self.agent.ended() or self.process.poll() is not None

    def close(self) -> None:
        """End the agent with all that it has started, and see that ssh is gone."""
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
        said = "" if words.closed else os.pread(words.fileno(), _LAST_WORDS, 0).decode(errors="replace").strip()
        return MachineError(f"{message}; ssh: {plain(said)}" if said else message)

    with theirs:
        process = subprocess.Popen(
            _argv(host, place, len(agent)),
            stdin=theirs.fileno(),
            stdout=theirs.fileno(),
            stderr=words.fileno(),
            start_new_session=True,
        )
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
_VERSIONS = {"go-tpc": ("version",)}  # of all others: --version
_PAUSE_S = 1.0  # before it is tried to be reached once more
_KINDS = ("file", "link")


@dataclass
class ClientsHost:
    """A host of clients. `wanted`: the programs that they need there, by name."""

    host: ClientHost
    wanted: tuple[str, ...]
    seen: network.NetworkSeen | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    _address: str = ""
    _client: str = ""
    _digest: str = ""
    _paths: Mapping[str, str] = field(default_factory=dict)
    _connection: Connection | None = None
    _site: ClientSite | None = None

    def open(self) -> None:
        """Reach it, and look at what is there. Raises UserError with the cure, MachineError."""
        self._client = network.resolved(self.host.address)
        self._address = network.address_towards(self._client)
        program = Path(probe.find())
        self._digest = reading.sha256(program)
        connection = self._reach()
        agent = connection.agent
        with parse_foreign(agent.name, "what it has"):
            machine, owner = self._machine(connection), _owner(agent)
            self._paths = self._found(agent, machine)
            self.versions = self._asked(machine, owner)
            self.seen = network.look(machine, self._address, self._paths[_IPERF3], owner)
        self._site = self._made(connection, machine, owner)

    def site(self) -> ClientSite:
        """Where an attempt's clients run; reached anew where it was lost. Raises MachineError."""
        assert self._connection is not None and self._site is not None, "it was opened"
        if self._connection.lost():
            self._connection.close()
            time.sleep(_PAUSE_S)
            connection = self._reach()
            with parse_foreign(connection.agent.name, "what it has"):
                self._site = self._made(connection, self._machine(connection), _owner(connection.agent))
        return self._site

    def close(self) -> None:
        """Leave nothing there."""
        if self._connection is not None:
            self._connection.close()

    def __str__(self) -> str:
        """What the reader is told of it."""
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
        interface = network.interface_of(self._address)
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
            carried=lambda: network.carried(here, interface),
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
        """The paths of what is wanted. Raises UserError with all that is missing."""
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
        """The versions of its programs, and what its agent is."""
        found = {"agent": self._digest[:16]}
        for name, path in self._paths.items():
            words = (path, *_VERSIONS.get(name, ("--version",)))
            lines = network.output_of(machine, words, owner, dict(machine.environment)).strip().splitlines()
            found[name] = lines[0][:200] if lines else "it does not say"
        return found


def _path(agent: Agent) -> str:
    """The PATH that ssh gives there, and the usual folders."""
    told = dict(part.partition("=")[::2] for part in agent.read("/proc/self/environ").split("\0"))
    return ":".join(dict.fromkeys((*filter(None, told.get("PATH", "").split(":")), *programs.PATH.split(":"))))


def _is_program(agent: Agent, path: str) -> bool:
    found = agent.status(path)
    return found.kind in _KINDS and bool(found.mode & 0o111)


def _owner(agent: Agent) -> tuple[int | None, int | None]:
    """Whom programs run as: where root has arrived, the unprivileged account of that host."""
    lines = agent.read("/proc/self/status").splitlines()
    if next((line.split()[1] for line in lines if line.startswith("Uid:")), "") != "0":
        return None, None
    for line in agent.read("/etc/passwd").splitlines():
        name, _, uid, gid, *_ = line.split(":")
        if name == NAME:
            return reading.whole(uid, "its uid"), reading.whole(gid, "its gid")
    raise MachineError(f"{agent.name}: root arrives there, and it has no account {NAME} to run programs as")
