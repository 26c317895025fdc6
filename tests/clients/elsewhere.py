"""A host for clients: a network namespace of this machine with an sshd of its own, over a veth pair."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from hugewise.model.host import ClientHost
from tests.build import sshd

__all__ = ["Elsewhere", "elsewhere"]

_PORT = 2222


@dataclass(frozen=True)
class Elsewhere:
    """The namespace `name`; `near` is this host's end of the pair, whose other end is at `address`."""

    name: str
    near: str
    address: str
    here: str
    folder: Path
    sshd: subprocess.Popen[bytes]

    def host(self, *cpus: int) -> ClientHost:
        words = ("-F", str(self.folder / "ssh_config"), "elsewhere")
        return ClientHost(name="elsewhere", ssh=words, address=self.address, cpus=cpus, folder=str(self.folder))

    def link(self, state: str) -> None:
        """Set the link `up` or `down`."""
        _ip("link", "set", self.near, state)

    def processes(self) -> list[int]:
        """Those in the namespace, but for sshd's own, which may wait for a link that is cut."""
        said = subprocess.run(["ip", "netns", "pids", self.name], capture_output=True, text=True, check=True).stdout
        return [pid for pid in map(int, said.split()) if _name(pid) not in ("sshd", "")]

    def left(self) -> list[int | Path]:
        """What runs there, and folders of hugewise."""
        return [*self.processes(), *self.folder.glob("hugewise-*")]


def _name(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@contextmanager
def elsewhere(folder: Path) -> Iterator[Elsewhere]:
    """One that is reached by keys of its own. Root only."""
    sshd.needed()
    number = os.getpid() % 60_000
    name, near = f"hw{number}", f"hwn{number}"
    net = f"10.{200 + number % 50}.{number // 50 % 250}"
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o755)
    for key in ("host", "user"):
        sshd.key_pair(folder / key)
    there, here = f"{net}.2", f"{net}.1"
    (folder / "known").write_text(sshd.known(there, _PORT, folder / "host"))
    (folder / "ssh_config").write_text(
        sshd.reached_by(
            name="elsewhere", address=there, port=_PORT, account="root", key=folder / "user", known=folder / "known"
        )
    )
    _ip("netns", "add", name)
    try:
        _ip("link", "add", near, "type", "veth", "peer", "name", "eth0", "netns", name)
        _ip("addr", "add", f"{here}/24", "dev", near)
        _ip("link", "set", near, "up")
        for words in (
            ["addr", "add", f"{there}/24", "dev", "eth0"],
            ["link", "set", "eth0", "up"],
            ["link", "set", "lo", "up"],
        ):
            _ip("-n", name, *words)
        go_tpc = Path(sys.executable).parent
        with sshd.serving(
            ["ip", "netns", "exec", name],
            folder,
            address=there,
            port=_PORT,
            key=folder / "host",
            authorized=folder / "user.pub",
            more=f"SetEnv PATH={go_tpc}:/usr/local/bin:/usr/bin:/bin",
        ) as serving:
            found = Elsewhere(name, near, there, here, folder, serving)
            try:
                yield found
            finally:
                for pid in found.processes():
                    with suppress(ProcessLookupError):
                        os.kill(pid, 9)
    finally:
        with suppress(subprocess.CalledProcessError):
            _ip("link", "del", near)
        _ip("netns", "del", name)
