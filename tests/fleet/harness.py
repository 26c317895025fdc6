"""Hosts of a fleet on one machine: network, mount and UTS namespaces on a bridge, each with an account and sshd.

    desk            where the coordinator is; the bridge is in there too
    alpha, ...      hosts: a network of their own, and with it the lock that accounts have among themselves (its name is
                    an abstract one of a network namespace); /var/lib/hugewise of their own, and so no journal of
                    root's; an id of a machine, a name, an account with a home, an sshd, and an installation

All is set up by this code: nothing is asked of an environment or a study. What they share is the kernel, with its page
settings: whole tests alone may run here, and they compare them.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from pathlib import Path

import hugewise
from hugewise import beneath
from tests.build import sshd
from tests.requirements import need_own_namespaces, need_program
from tests.wait import until

DESK, HOSTS = "desk", ("alpha", "beta", "gamma")
_NETWORK = "10.77.0"
_UID = 64100
_SOURCES = Path(hugewise.__file__).parent.parent
_TESTS = Path(__file__).parents[2]

_INSTALLED = """#!{python}
import sys
sys.path[:0] = {paths!r}
from hugewise.cli.main import main
sys.exit(main())
"""


class Machine:
    """A set of namespaces, held by a process that sleeps. `folder`: its account's home, with `spool` and `install`."""

    def __init__(self, name: str, number: int, folder: Path) -> None:
        self.name, self.number, self.folder = name, number, folder
        self.address = f"{_NETWORK}.{1 if name == DESK else 10 + number}"
        self.account, self.uid = f"hw-{name}", _UID + number
        self.spool, self.install = folder / "spool", folder / "install"
        self.holder = subprocess.Popen(
            ["unshare", "--net", "--mount", "--uts", "--propagation", "private", "--", "sleep", "infinity"],
            stdin=subprocess.DEVNULL,
        )

    def within(self, *words: str, account: bool = True) -> list[str]:
        """The command that does it in there: as its account, or as root."""
        entered = ["nsenter", f"--target={self.holder.pid}", "--net", "--mount", "--uts", "--wd=/", "--"]
        if account:
            entered += ["setpriv", f"--reuid={self.uid}", f"--regid={self.uid}", "--clear-groups", "--"]
        return [*entered, *words]

    def do(self, *words: str, account: bool = False, timeout: float = 120.0) -> str:
        """What it says. Raises CalledProcessError."""
        done = subprocess.run(
            self.within(*words, account=account), capture_output=True, text=True, timeout=timeout, check=False
        )
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        return done.stdout

    def environment(self, **more: str) -> dict[str, str]:
        """What its account has: nothing of who runs the tests."""
        known = {"HOME": str(self.folder), "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "USER": self.account}
        return {**known, "PYTHONPATH": str(_SOURCES), "PYTHONDONTWRITEBYTECODE": "1", **more}

    def start(self, *words: str, **more: str) -> subprocess.Popen[str]:
        """A program of its account, in a session of its own; what it says on both is one text."""
        return subprocess.Popen(
            self.within(*words),
            env=self.environment(**more),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def path(self, path: Path | str) -> Path:
        """A path of its mount namespace, from here."""
        return Path(f"/proc/{self.holder.pid}/root") / str(path).lstrip("/")

    def pids(self, words: str = "") -> list[int]:
        """Processes of its account in its network that have these words in their command: another rack is others'."""
        items = []
        own = Path(f"/proc/{self.holder.pid}/ns/net").readlink()
        for status in Path("/proc").glob("[0-9]*/status"):
            with suppress(OSError):
                command = status.with_name("cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                network = status.with_name("ns").joinpath("net").readlink()
                if status.stat().st_uid == self.uid and words in command and network == own:
                    items.append(int(status.parent.name))
        return sorted(items)

    def end(self) -> None:
        """End all that is in its network, whosever it is, and let the namespaces go."""
        with suppress(OSError):  # of a holder that is gone
            own = Path(f"/proc/{self.holder.pid}/ns/net").readlink()
            if own != Path("/proc/self/ns/net").readlink():  # or it never came to be in one
                for link in Path("/proc").glob("[0-9]*/ns/net"):
                    with suppress(OSError):
                        if link.readlink() == own:
                            os.kill(int(link.parts[2]), signal.SIGKILL)
        self.holder.kill()
        self.holder.wait()


class Rack:
    """A desk and hosts, wired. `bare`: nothing is installed on the hosts."""

    def __init__(self, hosts: Sequence[str] = HOSTS, *, bare: bool = False) -> None:
        self.names, self.bare = tuple(hosts), bare
        self._stack = ExitStack()
        self.machines: dict[str, Machine] = {}
        self.started: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Rack:
        sshd.needed()
        need_own_namespaces()
        need_program("nsenter", "util-linux")
        with self._stack as stack:
            self.folder = Path(tempfile.mkdtemp(prefix="hw-fleet-", dir="/var/tmp"))
            self.folder.chmod(0o755)
            stack.callback(beneath.discard, self.folder)
            for number, name in enumerate((DESK, *self.names)):
                (self.folder / name).mkdir()
                self.machines[name] = machine = Machine(name, number, self.folder / name)
                stack.callback(machine.end)
            _entered(self.machines.values())
            self._keys()
            for machine in self.machines.values():
                self._furnish(machine)
            self._wire()
            for name in self.names:
                stack.enter_context(self._sshd(self.machines[name]))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        for each in self.started:
            if each.poll() is None:  # of a test that failed
                each.kill()
                each.wait()
        self._stack.close()

    @property
    def desk(self) -> Machine:
        return self.machines[DESK]

    def __getitem__(self, name: str) -> Machine:
        return self.machines[name]

    # -- made once

    def _keys(self) -> None:
        for name in (DESK, *self.names):
            sshd.key_pair(self.folder / name / "key")

    def _furnish(self, machine: Machine) -> None:
        """Its files, and what stands over those of this machine in its mount namespace."""
        home, _top = machine.folder, self.folder
        accounts = "".join(
            f"{each.account}:*:{each.uid}:{each.uid}::{each.folder}:/bin/sh\n" for each in self.machines.values()
        )
        files = {
            "passwd": Path("/etc/passwd").read_text() + accounts,
            "machine-id": f"{secrets.token_hex(16)}\n",
        }
        for name, text in files.items():
            (home / name).write_text(text)
            machine.do("mount", "--bind", str(home / name), f"/etc/{name}")
        if Path("/var/lib/hugewise").is_dir():
            machine.do("mount", "-t", "tmpfs", "-o", "mode=755", "none", "/var/lib/hugewise")
        machine.do("hostname", machine.name)
        _reachable(machine, [sys.base_prefix, sys.prefix, str(_SOURCES), str(_TESTS), os.path.realpath(sys.executable)])
        (home / "site").mkdir()
        if machine.name == DESK or not self.bare:
            (machine.install / "bin").mkdir(parents=True)
            script = machine.install / "bin" / "hugewise"
            script.write_text(_INSTALLED.format(python=sys.executable, paths=[str(home / "site"), str(_SOURCES)]))
            script.chmod(0o755)
        machine.spool.mkdir(mode=0o700)
        if machine.name == DESK:
            self._ssh(machine)
        for path in (home, machine.spool, *(home / ".ssh").rglob("*"), home / ".ssh", home / "key"):
            if path.exists():
                os.chown(path, machine.uid, machine.uid)

    def _ssh(self, desk: Machine) -> None:
        """What the desk's account knows of hosts: its configuration of ssh, which the fleet uses as it is."""
        folder = desk.folder / ".ssh"
        folder.mkdir(mode=0o700)
        known = folder / "known_hosts"
        hosts = [self.machines[name] for name in self.names]
        known.write_text("".join(sshd.known(each.address, 22, each.folder / "key") for each in hosts))
        (folder / "config").write_text(
            "".join(
                sshd.reached_by(
                    name=each.name, address=each.address, account=each.account, key=desk.folder / "key", known=known
                )
                for each in hosts
            )
        )

    def _wire(self) -> None:
        desk = self.desk
        desk.do("ip", "link", "add", "br0", "type", "bridge")
        desk.do("ip", "address", "add", f"{desk.address}/24", "dev", "br0")
        for link in ("br0", "lo"):
            desk.do("ip", "link", "set", link, "up")
        for name in self.names:
            host = self.machines[name]
            far = ("peer", "name", "eth0", "netns", str(host.holder.pid))
            desk.do("ip", "link", "add", name, "type", "veth", *far)
            desk.do("ip", "link", "set", name, "master", "br0", "up")
            host.do("ip", "address", "add", f"{host.address}/24", "dev", "eth0")
            for link in ("eth0", "lo"):
                host.do("ip", "link", "set", link, "up")

    def _sshd(self, host: Machine) -> AbstractContextManager[object]:
        os.chown(host.folder / "key", 0, 0)
        # The path of the sources reaches what a run starts again: hugewise calls its own Python.
        path = f"SetEnv PYTHONPATH={host.folder}/site:{_SOURCES} PYTHONDONTWRITEBYTECODE=1"
        return sshd.serving(
            host.within(account=False),
            host.folder,
            address=host.address,
            key=host.folder / "key",
            authorized=self.desk.folder / "key.pub",
            more="" if self.bare else path,
        )

    # -- what a test does to it

    def as_root(self, host: str) -> None:
        """Have root log in there, with a spool of its own, and this machine's journal: a killed test is put back."""
        machine = self[host]
        machine.account, machine.uid, machine.spool = "root", 0, self.folder / f"{host}-spool"
        machine.spool.mkdir(mode=0o700)
        if Path("/var/lib/hugewise").is_dir():
            machine.do("umount", "/var/lib/hugewise")
        config = self.desk.folder / ".ssh" / "config"
        config.write_text(config.read_text().replace(f"User hw-{host}\n", "User root\n"))

    def processes(self, words: str) -> list[int]:
        """Processes whose command has these words and this rack's folder in it, whosever they are."""
        items = []
        for command in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):
                said = command.read_bytes().replace(b"\0", b" ").decode(errors="replace")
                if words in said and str(self.folder) in said and "sshd" not in said and not said.startswith("sh -c"):
                    items.append(int(command.parent.name))
        return sorted(items)

    def process(self, words: str) -> int:
        """The only one of them."""
        (found,) = self.processes(words)
        return found

    def hold(self, host: str) -> None:
        """Have the attempt that is measured there, or the next one, last until `release`: in a study that is `held`."""
        (self.folder / f"hold-{host}").touch()

    def release(self, host: str) -> None:
        """Let it go on."""
        (self.folder / f"hold-{host}").unlink(missing_ok=True)

    def cut(self, host: str) -> None:
        """Pull the plug of a host."""
        self.desk.do("ip", "link", "set", host, "down")

    def mend(self, host: str) -> None:
        """Put it back."""
        self.desk.do("ip", "link", "set", host, "up")

    def skew(self, host: str, seconds: float) -> None:
        """Have every Python of that host begin with a wall's clock that is so many seconds off: that of `model.host`,
        and `time.time`. The machine's clock stays.
        """
        site = self[host].folder / "site" / "sitecustomize.py"
        site.write_text(
            f"import time\n_true = time.time\ntime.time = lambda: _true() + {seconds!r}\n" if seconds else ""
        )

    def small_spool(self, host: str, size: int) -> None:
        """A spool that is a file system of so many bytes."""
        machine = self[host]
        owner = f"uid={machine.uid},gid={machine.uid},mode=700"
        machine.do("mount", "-t", "tmpfs", "-o", f"size={size},{owner}", "none", str(machine.spool))

    def inventory(
        self, fleet: str = "", hosts: Sequence[str] | None = None, *, engine: str = "dask", more: str = ""
    ) -> Path:
        """An inventory of the hosts; `fleet` are more lines of its first table, `more` of each host's."""
        text = f'[fleet]\nengine = "{engine}"\naddress = "{self.desk.address}"\n{fleet}\n'
        for name in hosts or self.names:
            host = self[name]
            text += f'[[host]]\nname = "{name}"\nssh = "{name}"\naddress = "{host.address}"\n'
            text += f'installation = "{host.install}"\nspool = "{host.spool}"\n{more}\n'
        path = self.desk.folder / f"hosts-{secrets.token_hex(3)}.toml"
        path.write_text(text)
        return path


def _entered(machines: Iterable[Machine]) -> None:
    """Wait until each holder is in namespaces of its own."""
    here = {kind: Path(f"/proc/self/ns/{kind}").readlink() for kind in ("net", "mnt", "uts")}
    for machine in machines:
        own = Path(f"/proc/{machine.holder.pid}/ns")
        until(lambda: all((own / kind).readlink() != here[kind] for kind in here), "unshare makes namespaces", 60)  # noqa: B023


def _reachable(machine: Machine, paths: Sequence[str]) -> None:
    """Have the account reach these paths in its mount namespace, also where they lie below a folder of root's alone."""
    closed: dict[Path, list[Path]] = {}
    for path in map(Path, paths):
        above = next((parent for parent in reversed(path.parents) if not parent.stat().st_mode & 0o001), None)
        if above is not None:
            closed.setdefault(above, []).append(path if path.is_dir() else path.parent)
    for above, below in closed.items():
        held = machine.folder / "held"
        held.mkdir(exist_ok=True)
        machine.do("mount", "--rbind", str(above), str(held))
        machine.do("mount", "-t", "tmpfs", "-o", "mode=755", "none", str(above))
        for path in dict.fromkeys(below):
            machine.do("mkdir", "-p", str(path))
            machine.do("mount", "--bind", str(held / path.relative_to(above)), str(path))
        machine.do("umount", "--lazy", str(held))
