"""A fleet over Dask on this machine: two hosts that are addresses of the loopback, and their workers."""

import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hugewise import reading
from hugewise.errors import HostLostError
from hugewise.fleet import inventory
from hugewise.fleet.dask.engine import DaskEngine
from hugewise.fleet.inventory import HostEntry
from hugewise.fleet.protocol import THIS, Assignment
from hugewise.fleet.spool import ProcessIdentity

FLEET = "f-1"
COORDINATOR = "127.0.0.10"
NOWHERE = Assignment(FLEET, 1)

HOSTS = """
[fleet]
engine = "dask"
address = "{coordinator}"
{more}

[[host]]
name = "alpha"
ssh = "alpha"
address = "127.0.0.11"
spool = "{folder}/alpha"

[[host]]
name = "beta"
ssh = "beta"
address = "127.0.0.12"
spool = "{folder}/beta"
"""


class Local:
    """The fleet, and what its coordinator was told. A worker is started when it `may_start`."""

    def __init__(self, folder: Path, cpu: int | None = None) -> None:
        self.folder = folder
        self.told: list[str] = []
        self.starts: list[str] = []
        self.unreachable: set[str] = set()
        self.given: dict[str, bytes] = {}
        self.may_start = threading.Event()
        self.may_start.set()
        more = "" if cpu is None else f"housekeeping_cpu = {cpu}"
        self.inventory = inventory.parse(HOSTS.format(coordinator=COORDINATOR, folder=folder, more=more), "hosts.toml")

    @contextmanager
    def up(self) -> Iterator[DaskEngine]:
        with DaskEngine(self.inventory, FLEET, self.start, self.told.append) as engine:
            yield engine

    def start(self, host: HostEntry, told: bytes) -> None:
        """As over ssh, without ssh."""
        assert self.may_start.wait(60)
        if host.name in self.unreachable:
            raise HostLostError(f"{host.name}: ssh: No route to host", hint="try: ssh it")
        self.starts.append(host.name)
        self.given[host.name] = told
        self.started(told)

    @staticmethod
    def started(told: bytes) -> None:
        done = subprocess.run([*THIS, "fleet", "work"], input=told, capture_output=True, timeout=120, check=False)
        assert (done.returncode, done.stdout.strip(), done.stderr) == (0, b"registered", b"")

    def worker(self, host: str) -> int:
        return self.known(host).pid

    def known(self, host: str) -> ProcessIdentity:
        return reading.stored(self.folder / host / f".worker-{FLEET}-{host}.json", ProcessIdentity)


def opened(pid: int) -> list[str]:
    """What a process has open."""
    items = []
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):  # it is closed meanwhile
            items.append(str(link.readlink()))
    return items


def listening(pid: int) -> set[str]:
    """The local addresses at which a process listens for TCP, as `ADDRESS:PORT`."""
    inodes = {target[8:-1] for target in opened(pid) if target.startswith("socket:[")}
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and words[9] in inodes:
                address, _, port = words[1].partition(":")
                known = (
                    ".".join(str(int(address[at : at + 2], 16)) for at in (6, 4, 2, 0)) if table == "tcp" else address
                )
                found.add(f"{known}:{int(port, 16)}")
    return found
