"""The hosts of a fleet, from a TOML file: how each is reached, where its installation and spool are, what it may do.

[fleet]
engine = "ssh"

[[host]]
name = "rack1-a"
ssh = "admin@rack1-a.example"
"""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Annotated

import msgspec

from hugewise import reading
from hugewise.errors import StudyError
from hugewise.fleet.entries import ClientEntry, FleetTable, HostEntry
from hugewise.model.client import ClientHost
from hugewise.study import keys
from hugewise.study.keys import Key, Place

__all__ = ["Inventory", "client", "load", "parse"]

_MOST = 4 << 20  # bytes: some 10,000 hosts


class Inventory(msgspec.Struct, frozen=True, kw_only=True):
    """A fleet's hosts. `file` is where it came from, and no key."""

    fleet: Annotated[FleetTable, Key("What holds for all hosts.", "[fleet]")] = FleetTable()
    host: Annotated[
        tuple[HostEntry, ...], keys.listing(keys.table(HostEntry), least=0), Key("A host; several tables.", "[[host]]")
    ] = ()
    client: Annotated[
        tuple[ClientEntry, ...],
        keys.listing(keys.table(ClientEntry), least=0),
        Key("A host for clients; several tables.", "[[client]]"),
    ] = ()
    file: str = ""

    def entry(self, name: str) -> HostEntry:
        """The host of that name. Raises KeyError."""
        for host in self.host:
            if host.name == name:
                return host
        raise KeyError(name)

    def client_of(self, host: HostEntry) -> ClientEntry | None:
        """Where the clients of its servers are; None: beside them."""
        return next((entry for entry in self.client if entry.name == host.client), None)

    def installation(self, host: HostEntry) -> str:
        """The folder of hugewise on it."""
        return host.installation or self.fleet.installation

    def spool(self, host: HostEntry) -> str | None:
        """The folder of its runs; None: what is usual for the account there."""
        return host.spool or self.fleet.spool

    def cpu(self, host: HostEntry) -> int | None:
        """The CPU of the engine's worker on it."""
        return self.fleet.housekeeping_cpu if host.housekeeping_cpu is None else host.housekeeping_cpu


def client(path: Path, name: str) -> ClientHost:
    """The host of clients of that name in the inventory at `path`, which need have no other. Raises StudyError."""
    found = parse(_text(path), str(path), fleet=False)
    for entry in found.client:
        if entry.name == name:
            return entry.host
    here = Place(str(path)).at("client")
    raise here.wrong(f"has no {name}", hint=keys.near(name, [entry.name for entry in found.client], what="clients"))


def load(path: Path) -> Inventory:
    """The inventory in the file at `path`. Raises StudyError, which names file, key, value and cure."""
    return parse(_text(path), str(path))


def _text(path: Path) -> str:
    try:
        return reading.text(reading.content(path, _MOST))
    except reading.AbsentError:
        raise StudyError("no such file", file=str(path), hint="docs/fleet.md has an example") from None
    except reading.UnreadableError as error:
        raise StudyError(error.reason, file=str(path), hint="save it as UTF-8 text that you can read") from None


def parse(text: str, file: str, *, fleet: bool = True) -> Inventory:
    """The inventory in `text`; `file` is named in errors. Without hosts it is none of a `fleet`. Raises StudyError."""
    try:
        data = reading.toml(text)
    except reading.UnreadableError as error:
        raise StudyError(error.reason, file=file, hint="see https://toml.io for the syntax") from None
    place = Place(file)
    found = keys.read_table(Inventory, data, place, file=file)
    names = [entry.name for entry in found.client]
    for number, name in enumerate(names):
        if name in names[:number]:
            raise place.at("client").item(number + 1).at("name").wrong("stands twice", name, hint="give it another")
    if fleet:
        if not found.host:
            raise place.at("host").wrong("is missing", hint="name a host: a table [[host]] with a name")
        _check(found, place)
    return found


def _check(found: Inventory, place: Place) -> None:
    """What no single key says. Raises StudyError."""
    engine, hosts = found.fleet.engine, place.at("host")
    lower = [host.name.lower() for host in found.host]  # they are folders, also where case does not count
    for number, host in enumerate(found.host, 1):
        here = hosts.item(number)
        if lower.index(host.name.lower()) != number - 1:
            raise here.at("name").wrong("stands twice", host.name, hint="give each host a name of its own")
        if engine in ("ssh", "dask") and host.ssh is None:
            hint = f'the engine is {engine}; add for example: ssh = "{host.name}"'
            raise here.at("ssh").wrong("is missing", hint=hint)
        if engine == "dask" and not _is_ip(host.address):
            hint = 'its worker listens at one address only; add for example: address = "10.0.0.2"'
            raise here.at("address").wrong("is to be an IP address of this host", host.address, hint=hint)
        if engine == "slurm" and host.slurm is None:
            raise here.at("slurm").wrong("is missing", hint=f'the engine is slurm; add: slurm = "{host.name}"')
        if engine == "slurm" and found.spool(host) is None:
            hint = 'name a folder that the nodes share with this machine, such as spool = "/home/me/fleet"'
            raise here.at("spool").wrong("is missing", hint=hint)
    if engine == "local" and len(found.host) > 1:
        hint = "the engine is local, whose only host is this machine: name another one, such as ssh"
        raise hosts.item(2).at("name").wrong("is one too many", found.host[1].name, hint=hint)
    _check_clients(found, hosts)
    for key in ("ssh", "slurm", "address"):
        named = [getattr(host, key) for host in found.host]
        for number, value in enumerate(named):
            if value is not None and value in named[:number]:
                raise hosts.item(number + 1).at(key).wrong("names a host that stands above", value, hint="remove one")
    if engine == "dask" and not _is_ip(found.fleet.address):
        hint = 'Dask\'s scheduler listens at one address only; add: address = "10.0.0.1"'
        here = place.at("fleet").at("address")
        raise here.wrong("is to be an IP address of this machine", found.fleet.address, hint=hint)


def _check_clients(found: Inventory, hosts: Place) -> None:
    """What hosts say of their clients. Raises StudyError."""
    clients = [entry.name for entry in found.client]
    for number, host in enumerate(found.host, 1):
        if host.client is None and any(other.client is not None for other in found.host):
            hint = "a load from another host is another question: name a client for each host, or for none"
            raise hosts.item(number).at("client").wrong("is missing", hint=hint)
        if host.client is not None and host.client not in clients:
            hint = keys.near(host.client, clients, what="clients")
            raise hosts.item(number).at("client").wrong("is no table [[client]]", host.client, hint=hint)
        if host.client is not None and host.client in [other.client for other in found.host[: number - 1]]:
            hint = "their loads would share it: give each a table [[client]] of its own"
            raise hosts.item(number).at("client").wrong("is another host's already", host.client, hint=hint)


def _is_ip(address: str | None) -> bool:
    """Whether it is an IP address of one machine: what listens at 0.0.0.0 listens everywhere."""
    try:
        found = ipaddress.ip_address(address or "")
    except ValueError:
        return False
    return not (found.is_unspecified or found.is_multicast or found.is_reserved)
