"""The host of clients for a session: reached, asked what it has, its network looked at; reached anew where lost."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hugewise import reading
from hugewise.clients import network, ssh
from hugewise.clients.below import Below
from hugewise.errors import MachineError, UserError
from hugewise.host.local_host import LocalHost
from hugewise.machine import probe, programs
from hugewise.machine.agent import Agent
from hugewise.machine.foreign import heard
from hugewise.machine.remote import RemoteMachine
from hugewise.machine.remote_folders import RemoteFolders
from hugewise.machine.site import ClientSite
from hugewise.model.client import ClientHost
from hugewise.unprivileged import NAME

__all__ = ["ClientsHost"]

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
    _connection: ssh.Connection | None = None
    _site: ClientSite | None = None

    def open(self) -> None:
        """Reach it, and look at what is there. Raises UserError with the cure, MachineError."""
        self._client = network.resolved(self.host.address)
        self._address = network.address_towards(self._client)
        program = Path(probe.find())
        self._digest = reading.sha256(program)
        connection = self._reach()
        agent = connection.agent
        with heard(agent.name, "what it has"):
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
            with heard(connection.agent.name, "what it has"):
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

    def _reach(self) -> ssh.Connection:
        self._connection = ssh.connect(self.host, Path(probe.find()))
        return self._connection

    def _machine(self, connection: ssh.Connection) -> RemoteMachine:
        machine = RemoteMachine(connection.agent, emulated=False, outputs=f"{connection.place}/out")
        machine.environment = {"PATH": _path(connection.agent), "LANG": "C"}
        return machine

    def _made(
        self, connection: ssh.Connection, machine: RemoteMachine, owner: tuple[int | None, int | None]
    ) -> ClientSite:
        assert self.seen is not None
        interface = network.interface_of(self._address)
        here = LocalHost()
        return ClientSite(
            machine=machine,
            contain=Below(connection.agent),
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
            lines = network.said(machine, words, owner, dict(machine.environment)).strip().splitlines()
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
