"""Hosts of a fleet, from a TOML file: how each is reached, where its installation and spool are, what it may do.

docs/reference/inventory.md is generated from the tables here. What stands in them goes to programs as arguments, over
ssh quoted, so that every value has a pattern. Strata are hosts that are alike in what moves page effects: fingerprint,
page settings and the state of free memory, in which an unknown value is a value of its own.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec

from hugewise import reading
from hugewise.errors import StudyError
from hugewise.model.host import ClientHost
from hugewise.model.pages import THP
from hugewise.study import keys
from hugewise.study.keys import Name, Place
from hugewise.visible import printable

# A word for ssh: a name or user@name, as ssh_config(5) has them; never an option.
_TARGET = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@:%\[\]-]{0,254}")
_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}")
_ADDRESS = re.compile(r"[0-9A-Za-z][0-9A-Za-z.:-]{0,254}")
_FOLDER = re.compile(r"/[A-Za-z0-9._/@+=-]{0,399}")
# Lines of sbatch before a job; those that hugewise writes itself are refused.
_SBATCH = re.compile(
    r"--(?!(?:job-name|nodelist|nodes|output|export|open-mode|partition|array|wrap|requeue)=)[a-z][a-z-]{0,40}"
    r"=[A-Za-z0-9._/@+=:,%-]{1,200}"
)
_FOLDER_CURE = "write an absolute path of letters, digits, dots, -, _, +, = and @"

_PATH = keys.text(pattern=_FOLDER, words="an absolute folder", cure=_FOLDER_CURE)


class HostEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A host: `[[host]]`. How it is reached goes by the engine: by `ssh`, as the node `slurm`, or by its name."""

    name: Name
    ssh: Annotated[
        str | None, keys.text(pattern=_TARGET, words="a target of ssh", cure="write HOST or USER@HOST, as for ssh")
    ] = None
    slurm: Annotated[
        str | None, keys.text(pattern=_NODE, words="a node of Slurm", cure="write it as sinfo -N shows it")
    ] = None
    address: Annotated[
        str | None,
        keys.text(pattern=_ADDRESS, words="an address", cure="write an IP address or a host name, without a port"),
    ] = None
    root: bool = False
    installation: Annotated[str | None, _PATH] = None
    spool: Annotated[str | None, _PATH] = None
    directory: Annotated[str, _PATH] = "/"
    client: Name | None = None


class ClientEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A host for the clients of servers: `[[client]]`. Nothing is measured on it; hugewise need not be installed."""

    name: Name
    ssh: Annotated[str, keys.text(pattern=_TARGET, words="a target of ssh", cure="write HOST or USER@HOST, as for ssh")]
    ssh_config: Annotated[str | None, keys.text(pattern=_FOLDER, words="an absolute path", cure=_FOLDER_CURE)] = None
    address: Annotated[
        str, keys.text(pattern=_ADDRESS, words="an address", cure="write an IP address or a host name, without a port")
    ]
    cpus: Annotated[tuple[int, ...], keys.listing(keys.integer(0, 65_535))] = ()
    folder: Annotated[str, _PATH] = "/tmp"  # noqa: S108  (a new folder of its own in it)

    def toml(self) -> str:
        entries = {name: value for name, value in msgspec.to_builtins(self).items() if value not in (None, [], ())}
        # A string of JSON is one of TOML.
        lines = (f"{name} = {msgspec.json.encode(value).decode()}" for name, value in entries.items())
        return "\n".join(["[[client]]", *lines, ""])

    @property
    def host(self) -> ClientHost:
        options = () if self.ssh_config is None else ("-F", self.ssh_config)
        words = (*options, self.ssh)
        return ClientHost(name=self.name, ssh=words, address=self.address, cpus=self.cpus, folder=self.folder)


class FleetTable(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the whole fleet: `[fleet]`. Durations in seconds."""

    engine: Annotated[str, keys.choice("ssh", "dask", "slurm")] = "ssh"
    installation: Annotated[str, _PATH] = "/opt/hugewise"
    spool: Annotated[str | None, _PATH] = None
    housekeeping_cpu: Annotated[int | None, keys.integer(0, 4095)] = None
    wait: Annotated[float, keys.duration(1.0)] = 3600.0
    largest_run: Annotated[int, keys.size(1 << 20)] = 4 << 30
    look: Annotated[float, keys.duration(0.05)] = 60.0
    check: Annotated[int, keys.integer(0, 1000)] = 20
    restarts: Annotated[int, keys.integer(0, 1000)] = 3
    port: Annotated[int | None, keys.integer(1024, 65535)] = None
    address: Annotated[
        str | None,
        keys.text(pattern=_ADDRESS, words="an address", cure="write an IP address or a host name, without a port"),
    ] = None
    partition: Annotated[
        str | None, keys.text(pattern=_NODE, words="a partition of Slurm", cure="write it as sinfo shows it")
    ] = None
    sbatch: Annotated[
        tuple[str, ...],
        keys.listing(
            keys.text(pattern=_SBATCH, words="an option of sbatch", cure="write --NAME=VALUE, as for sbatch"), least=0
        ),
    ] = ()


_MOST = 4 << 20  # bytes: some 10,000 hosts


class Inventory(msgspec.Struct, frozen=True, kw_only=True):
    """A fleet's hosts. `file` is where it came from, and no key."""

    fleet: FleetTable = FleetTable()
    host: Annotated[tuple[HostEntry, ...], keys.listing(keys.table(HostEntry), least=0)] = ()
    client: Annotated[tuple[ClientEntry, ...], keys.listing(keys.table(ClientEntry), least=0)] = ()
    file: str = ""

    def entry(self, name: str) -> HostEntry:
        """Return the host of that name. Raises KeyError."""
        for host in self.host:
            if host.name == name:
                return host
        raise KeyError(name)

    def client_of(self, host: HostEntry) -> ClientEntry | None:
        return next((entry for entry in self.client if entry.name == host.client), None)

    def installation(self, host: HostEntry) -> str:
        return host.installation or self.fleet.installation

    def spool(self, host: HostEntry) -> str | None:
        """Return the folder of its runs; None: what is usual for the account there."""
        return host.spool or self.fleet.spool


def client(path: Path, name: str) -> ClientHost:
    """Return the host of clients of that name in the inventory at `path`. Raises StudyError."""
    inventory = parse(_text(path), str(path), fleet=False)
    for entry in inventory.client:
        if entry.name == name:
            return entry.host
    here = Place(str(path)).at("client")
    raise here.wrong(f"has no {name}", hint=keys.near(name, [entry.name for entry in inventory.client], what="clients"))


def load(path: Path) -> Inventory:
    """Return the inventory in the file at `path`. Raises StudyError, which names file, key, value and cure."""
    return parse(_text(path), str(path))


def _text(path: Path) -> str:
    try:
        return reading.text(reading.content(path, _MOST))
    except reading.AbsentError:
        raise StudyError("no such file", file=str(path), hint="docs/fleet.md has an example") from None
    except reading.UnreadableError as error:
        raise StudyError(error.reason, file=str(path), hint="save it as UTF-8 text that you can read") from None


def parse(text: str, file: str, *, fleet: bool = True) -> Inventory:
    """Return the inventory in `text`; `file` is named in errors. A `fleet` must have hosts. Raises StudyError."""
    try:
        data = reading.toml(text)
    except reading.UnreadableError as error:
        raise StudyError(error.reason, file=file, hint="see https://toml.io for the syntax") from None
    place = Place(file)
    inventory = keys.read_table(Inventory, data, place, file=file)
    place.at("client").once([entry.name for entry in inventory.client])
    if fleet:
        if not inventory.host:
            raise place.at("host").wrong("is missing", hint="name a host: a table [[host]] with a name")
        _check(inventory, place)
    return inventory


def _check(inventory: Inventory, place: Place) -> None:
    engine, hosts = inventory.fleet.engine, place.at("host")
    lower = [host.name.lower() for host in inventory.host]  # names are folders, also on file systems that ignore case
    for number, host in enumerate(inventory.host, 1):
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
        if engine == "slurm" and inventory.spool(host) is None:
            hint = 'name a folder that the nodes share with this machine, such as spool = "/home/me/fleet"'
            raise here.at("spool").wrong("is missing", hint=hint)
    _check_clients(inventory, hosts)
    for key in ("ssh", "slurm", "address"):
        named = [getattr(host, key) for host in inventory.host]
        for number, value in enumerate(named):
            if value is not None and value in named[:number]:
                raise hosts.item(number + 1).at(key).wrong("names a host that stands above", value, hint="remove one")
    if engine == "dask" and not _is_ip(inventory.fleet.address):
        hint = 'Dask\'s scheduler listens at one address only; add: address = "10.0.0.1"'
        here = place.at("fleet").at("address")
        raise here.wrong("is to be an IP address of this machine", inventory.fleet.address, hint=hint)


def _check_clients(inventory: Inventory, hosts: Place) -> None:
    clients = [entry.name for entry in inventory.client]
    for number, host in enumerate(inventory.host, 1):
        if host.client is None and any(other.client is not None for other in inventory.host):
            hint = "a load from another host is another question: name a client for each host, or for none"
            raise hosts.item(number).at("client").wrong("is missing", hint=hint)
        if host.client is not None and host.client not in clients:
            hint = keys.near(host.client, clients, what="clients")
            raise hosts.item(number).at("client").wrong("is no table [[client]]", host.client, hint=hint)
        if host.client is not None and host.client in [other.client for other in inventory.host[: number - 1]]:
            hint = "their loads would share it: give each a table [[client]] of its own"
            raise hosts.item(number).at("client").wrong("is another host's already", host.client, hint=hint)


def _is_ip(address: str | None) -> bool:
    try:
        ip = ipaddress.ip_address(address or "")
    except ValueError:
        return False
    return not (ip.is_unspecified or ip.is_multicast or ip.is_reserved)


_UNKNOWN = "not known"
_LARGE_ORDER = 9  # 2 MiB in base pages of 4 KiB: below it free memory is of no use to a huge page
_FRESH, _USED = 0.1, 0.5
_MOST_SETTINGS = 64
# Not of the policy: how busily khugepaged works does not tell hosts apart that a study sets alike.
_SETTINGS = re.compile(rf"{re.escape(THP)}/(?:enabled|defrag|shmem_enabled|khugepaged/defrag|hugepages-\d+kB/enabled)")


class Stratum(msgspec.Struct, frozen=True, order=True):
    """Properties that the hosts of a stratum share, each in words.

    cpu          the model, with family, model and stepping
    microcode    its revision
    kernel       its release
    libc         name and version
    pages        THP settings in force, and the sizes that there are
    hypervisor   none, or what the board says it is
    memory       how much of the free memory is in pieces too small for a huge page: fresh, used, aged
    """

    cpu: str
    microcode: str
    kernel: str
    libc: str
    pages: str
    hypervisor: str
    memory: str

    @property
    def key(self) -> str:
        return reading.key_digest(self)[:8]


def stratum(fingerprint: Mapping[str, Any], settings: Mapping[str, str], memory: str | None) -> Stratum:
    """Return a host's stratum from its fingerprint, its page settings by path, and `memory_age`."""
    cpu, kernel = _table(fingerprint, "cpu"), _table(fingerprint, "kernel")
    numbers = [
        f"{word} {_fact_text(str(cpu[key]))[:40]}" for key, word in _CPU.items() if cpu.get(key) not in (None, "")
    ]
    model = _fact_text(cpu.get("model") or cpu.get("vendor"))
    return Stratum(
        cpu=f"{model} ({', '.join(numbers)})" if numbers else model,
        microcode=_fact_text(cpu.get("microcode")),
        kernel=_fact_text(kernel.get("release")),
        libc=_fact_text(fingerprint.get("libc")),
        pages=_pages(fingerprint, settings),
        hypervisor=_hypervisor(_table(fingerprint, "virtualisation")),
        memory=memory or _UNKNOWN,
    )


_CPU = {"family": "family", "model_number": "model", "stepping": "stepping"}


def _table(facts: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    table = facts.get(key)
    return table if isinstance(table, Mapping) else {}


def _fact_text(value: object) -> str:
    return printable(" ".join(value.split()))[:200] if isinstance(value, str) and value.strip() else _UNKNOWN


def _pages(fingerprint: Mapping[str, Any], settings: Mapping[str, str]) -> str:
    thp = {path.removeprefix(f"{THP}/"): value for path, value in settings.items() if _SETTINGS.fullmatch(path)}
    sizes = _table(fingerprint, "pages")
    base = f"base {sizes['base']}" if isinstance(sizes.get("base"), int) else "base not known"
    assignments = [f"{name}={_fact_text(thp[name])[:40]}" for name in sorted(thp)[:_MOST_SETTINGS]]
    return "; ".join([base, *assignments] if assignments else [base, "THP not known"])


def _hypervisor(facts: Mapping[str, Any]) -> str:
    flag = facts.get("hypervisor")
    if flag is False:
        return "none"
    board = " ".join(str(facts[key]) for key in ("vendor", "product") if isinstance(facts.get(key), str))
    return _fact_text(board) if flag is None else f"guest of {_fact_text(board)}"


def memory_age(buddyinfo: str) -> str | None:
    """Return the class of the state that free memory is in, from /proc/buddyinfo (proc(5)); None where it says nothing.

    The measure is Gorman's and Whitcroft's unusable free space index (2006) at the order of a 2 MiB page, over all
    zones: the share of free memory that lies in smaller pieces. fresh: up to 10%; used: up to 50%; aged: above.
    """
    total = small = 0
    for line in buddyinfo.splitlines():
        counts = line.partition("zone")[2].split()[1:]
        if not all(count.isascii() and count.isdigit() for count in counts):
            return None
        for order, count in enumerate(counts):
            pages = int(count) << order
            total += pages
            small += pages if order < _LARGE_ORDER else 0
    if not total:
        return None
    share = small / total
    return "fresh" if share <= _FRESH else "used" if share <= _USED else "aged"


def differences(stratum: Stratum, other: Stratum) -> list[str]:
    """Return the differences between two strata, such as `kernel: 6.1.0 / 6.12.0`."""
    lines = []
    for field in stratum.__struct_fields__:
        here, there = getattr(stratum, field), getattr(other, field)
        if here == there:
            continue
        if field == "pages":
            first, second = set(here.split("; ")), set(there.split("; "))
            here, there = "; ".join(sorted(first - second)) or "-", "; ".join(sorted(second - first)) or "-"
        lines.append(f"{field}: {here} / {there}")
    return lines


def strata_names(strata: Iterable[Stratum]) -> dict[Stratum, str]:
    """Return a distinct name for each stratum: the model, and whatever tells it from the others."""
    known = sorted(set(strata))
    telling = [
        field
        for field in ("microcode", "kernel", "libc", "hypervisor", "memory", "pages")
        if len({getattr(stratum, field) for stratum in known}) > 1
    ]
    names: dict[Stratum, str] = {}
    for stratum in known:
        parts = [stratum.cpu.partition(" (")[0]]
        for field in telling:
            value = getattr(stratum, field)
            if field == "pages":
                alike = set.intersection(*(set(other.pages.split("; ")) for other in known))
                value = ", ".join(part for part in value.split("; ") if part not in alike) or "pages alike"
            parts.append(f"memory {value}" if field == "memory" else value)
        name = ", ".join(parts)
        names[stratum] = name if name not in names.values() else f"{name} [{stratum.key}]"
    return names
