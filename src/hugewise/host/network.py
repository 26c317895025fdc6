"""Network of this host: the way between a guest and the host, and the sockets at which processes listen.

Guests. With QEMU's user networking a guest reaches the host's loopback at 10.0.2.2. With root, a bridge and a tap for
each guest can be made instead, with a private subnet and without forwarding, translation or gateway.

Sockets. A socket is a process's own where its inode stands in the tables of the process's network namespace and among
what the process has open. The name of a unix socket may hold line ends, by which any account writes lines into that
table: so an inode is believed where the process has a socket of that family, and the table says one thing of it alone.

Sources: ip-link(8), ip-address(8), ip-tuntap(8); QEMU's documentation of `-netdev user`; proc_pid_net(5),
proc_pid_fd(5); SO_ACCEPTCON of the kernel's include/uapi/linux/net.h.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from ipaddress import IPv4Interface, IPv4Network
from pathlib import Path

import msgspec

from hugewise import processes
from hugewise.errors import HugewiseError, SettingError, UserError
from hugewise.host.ledger import Linked
from hugewise.machine import programs
from hugewise.model.workload import Missing

_OWN = re.compile(r"hw-(?:br|t[0-9]{1,2})-[0-9]{1,7}")  # at most 15 characters, the kernel's limit
_INTERFACES = Path("/sys/class/net")
_TUN = Path("/dev/net/tun")
_PREFIX = 24
_MOST_GUESTS = 32
_IP_S = 30
# Home and office networks are rather at the low end of 192.168/16, containers in 172.16/12, VPNs in 10/8.
_CANDIDATES = (
    *(IPv4Network(f"192.168.{number}.0/24") for number in range(219, 100, -1)),
    *(IPv4Network(f"10.219.{number}.0/24") for number in range(256)),
)


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """A guest's end of its network.

    tap        the host's interface that QEMU is to open (`QemuPlaces.tap`); None: user networking
    interface  what the guest calls its own
    address    the guest's, with `prefix` bits of network; it is told no gateway
    host       this host as the guest sees it
    bind       what a server on this host listens on to be reached there
    """

    address: str
    host: str
    bind: str
    prefix: int = _PREFIX
    interface: str = "eth0"
    tap: str | None = None


USER = Link(address="10.0.2.15", host="10.0.2.2", bind="127.0.0.1")


def missing(owner: int | None = None) -> tuple[Missing, ...]:
    """Return what this host lacks for a bridge and taps, root aside, where QEMU runs as `owner` (None: root)."""
    lacking = []
    if programs.of_root("ip") is None:
        lacking.append(Missing("ip: no such program on PATH", "iproute2"))
    if not _TUN.exists():
        lacking.append(Missing(f"{_TUN} is not there: this kernel has no tap interfaces (CONFIG_TUN)"))
    elif owner is not None and not _may_open(_TUN.stat(), owner):
        # The node gives no right by itself, a tap is its owner's alone: distributions let everybody open it.
        lacking.append(Missing(f"QEMU's account (uid {owner}) may not open {_TUN}: chmod 666 {_TUN}"))
    return tuple(lacking)


def _may_open(node: os.stat_result, uid: int) -> bool:
    both = 0o600 if node.st_uid == uid else 0o006
    return node.st_mode & both == both


def free_subnet(networks: Iterable[IPv4Network]) -> IPv4Network | None:
    """Return a private network of 254 addresses that overlaps none of `networks`, default routes aside. Pure."""
    known = [network for network in networks if network.prefixlen]
    return next((one for one in _CANDIDATES if not any(one.overlaps(other) for other in known)), None)


def networks_in_use(addresses: bytes, routes: bytes) -> Iterator[IPv4Network]:
    """Return networks in use from the JSON of `ip address` and `ip route`. Raises ValueError."""
    for interface in msgspec.json.decode(addresses):
        for one in interface.get("addr_info", ()):
            if one.get("family") == "inet":
                yield IPv4Interface(f"{one['local']}/{one['prefixlen']}").network
    for route in msgspec.json.decode(routes):
        if route.get("dst", "default") != "default":
            yield IPv4Network(route["dst"], strict=False)


def is_own(name: str) -> bool:
    """Return whether an interface can be one of hugewise's, by its name and, where it exists, its kind."""
    if _OWN.fullmatch(name) is None:
        return False
    here = _INTERFACES / name
    return not here.exists() or (here / ("bridge" if name.startswith("hw-br") else "tun_flags")).exists()


def remove(name: str) -> None:
    """Remove an interface of hugewise's; nothing happens when it is gone. Raises SettingError."""
    if not is_own(name):
        raise SettingError(f"the interface {name} is not one of hugewise's", hint="look at it: ip -details link show")
    if not (_INTERFACES / name).exists():
        return
    try:
        _ip("link", "delete", "dev", name)
    except HugewiseError as error:
        if (_INTERFACES / name).exists():
            raise SettingError(error.message, hint=f"ip link delete dev {name}") from error


@dataclass
class Bridge:
    """A bridge on this host with a tap for each of several guests. A context; what was made is removed at its end.

    subnet   its addresses: the first is the bridge's, the next ones are the guests'
    """

    name: str
    subnet: IPv4Network
    taps: tuple[str, ...]
    _made: list[str] = field(default_factory=list, repr=False)

    @classmethod
    def open(cls, guests: int, owner: int | None, note: Callable[[Linked], None]) -> Bridge:
        """Make bridge and taps for QEMU's account `owner`; `note` hears before. Raises UserError, SettingError."""
        if not 1 <= guests <= _MOST_GUESTS:
            raise UserError(f"{guests} guests on one bridge: there can be 1 to {_MOST_GUESTS}")
        if os.geteuid() != 0:
            raise UserError("a bridge and taps need root", hint='network = "user" needs none')
        if lacking := missing(owner):
            package = lacking[0].package
            raise UserError(lacking[0].reason, hint=f"apt install {package}" if package else 'use network = "user"')
        subnet = free_subnet(
            networks_in_use(_ip("-4", "-json", "address", "show"), _ip("-4", "-json", "route", "show", "table", "all"))
        )
        if subnet is None:
            raise UserError("no private network is free on this host", hint='use network = "user"')
        pid = os.getpid()
        bridge = cls(f"hw-br-{pid}", subnet, tuple(f"hw-t{number}-{pid}" for number in range(guests)))
        for name in (*bridge.taps, bridge.name):
            remove(name)  # left by a dead process that had this number
        note(Linked((bridge.name, *bridge.taps)))
        try:
            bridge._make(owner)
        except BaseException:
            bridge.close()
            raise
        return bridge

    def _make(self, owner: int | None) -> None:
        self._made.append(self.name)
        _ip("link", "add", "name", self.name, "type", "bridge", "forward_delay", "0", "stp_state", "0")
        _stay_here(self.name)
        _ip("address", "add", f"{self.subnet[1]}/{self.subnet.prefixlen}", "dev", self.name)
        for tap in self.taps:
            self._made.append(tap)
            who = () if owner is None else ("user", str(owner))
            _ip("tuntap", "add", "dev", tap, "mode", "tap", *who)
            _stay_here(tap)
            _ip("link", "set", "dev", tap, "master", self.name, "up")
            _ip("link", "set", "dev", tap, "type", "bridge_slave", "isolated", "on")
        _ip("link", "set", "dev", self.name, "up")

    def link(self, number: int) -> Link:
        host = str(self.subnet[1])
        return Link(address=str(self.subnet[2 + number]), host=host, bind=host, tap=self.taps[number])

    def close(self) -> None:
        """Remove what was made, the last first. Raises SettingError when the kernel refuses."""
        while self._made:
            remove(self._made[-1])
            self._made.pop()

    def __enter__(self) -> Bridge:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _stay_here(name: str) -> None:
    # no IPv6 address of its own, no forwarding, whatever the host does for other interfaces
    _ip("link", "set", "dev", name, "addrgenmode", "none")
    switch = Path(f"/proc/sys/net/ipv4/conf/{name}/forwarding")
    try:
        if switch.read_text().strip() != "0":
            switch.write_text("0")
    except OSError as error:
        raise SettingError(f"{switch}: {error.strerror}; guests could reach beyond this host") from error


def _ip(*words: str) -> bytes:
    try:
        program = programs.of_root("ip") or "/sbin/ip"
        done = subprocess.run([program, *words], capture_output=True, check=True, timeout=_IP_S)
    except UserError as error:
        raise SettingError(error.message, hint=error.hint) from None
    except subprocess.CalledProcessError as error:
        complaint = error.stderr.decode(errors="replace").strip()
        raise SettingError(f"ip {' '.join(words)}: {complaint}") from None
    except (OSError, subprocess.SubprocessError) as error:
        raise SettingError(f"ip {' '.join(words)}: {error}") from None
    return done.stdout


PROC = Path("/proc")

_SOCKET = re.compile(r"socket:\[(\d+)\]")
_LISTEN = "0A"
_ACCEPTS = 0x10000


class ListeningSocket(msgspec.Struct, frozen=True):
    """A socket that takes connections: its TCP port, or the name that it was bound to (`@...` is of no file)."""

    inode: int
    port: int | None = None
    path: str | None = None

    def __str__(self) -> str:
        return f"TCP port {self.port}" if self.path is None else f"the socket {self.path}"


class TreeUse(msgspec.Struct, frozen=True):
    """Resources used by the processes of a tree, including its processes that have ended and were waited for."""

    user: int
    system: int
    faults: int


def sockets(tcp: str, unix: str) -> Iterator[ListeningSocket]:
    """Yield the listening sockets in the texts of the tables `tcp` (or `tcp6`) and `unix`."""
    for line in tcp.split("\n")[1:]:
        words = line.split()
        if len(words) > 9 and words[3] == _LISTEN and words[9].isdigit():
            with suppress(ValueError):
                yield ListeningSocket(int(words[9]), port=int(words[1].rpartition(":")[2], 16))
    rows = set(_unix(unix))
    lines = Counter(inode for inode, *_ in rows)
    for inode, accepts, path in sorted(rows):
        if accepts and path and lines[inode] == 1:
            yield ListeningSocket(inode, path=path)


def _unix(table: str) -> Iterator[tuple[int, bool, str]]:
    for line in table.split("\n")[1:]:
        fields = line.split(None, 7)
        if len(fields) > 6 and fields[6].isdecimal() and fields[6].isascii():
            with suppress(ValueError):
                yield int(fields[6]), bool(int(fields[3], 16) & _ACCEPTS), "".join(fields[7:])


def listening(pids: Iterable[int], proc: Path = PROC) -> tuple[list[ListeningSocket], list[ListeningSocket]]:
    """Return listening sockets of these processes, and of others in the same network."""
    processes = list(pids)
    own: dict[int, str] = {}
    for pid in processes:
        own.update(_inodes(proc / str(pid)))
    seen = next((table for pid in processes if (table := _tables(proc / str(pid))) is not None), None)
    table = seen if seen is not None else _tables(proc / "self") or []
    mine = [one for one in table if one.inode in own and own[one.inode] in ("", "tcp" if one.path is None else "unix")]
    return mine, [one for one in table if one not in mine]


def _inodes(process: Path) -> Iterator[tuple[int, str]]:
    with suppress(OSError):
        for link in (process / "fd").iterdir():
            with suppress(OSError):
                if (match := _SOCKET.fullmatch(str(link.readlink()))) is not None:
                    yield int(match[1]), _family(link)


def _family(link: Path) -> str:
    # every socket has the attribute (net/socket.c, `sockfs_xattr_get`)
    try:
        name = os.getxattr(link, "system.sockprotoname").rstrip(b"\0").decode("ascii", "replace").lower()
    except OSError:
        return ""
    return next((known for known in ("unix", "tcp") if name.startswith(known)), name)


def _tables(process: Path) -> list[ListeningSocket] | None:
    try:
        tcp, unix = (_text(process / "net" / name) for name in ("tcp", "unix"))
    except OSError:
        return None
    rows = list(sockets(tcp, unix))
    with suppress(OSError):  # a kernel without IPv6
        rows += sockets(_text(process / "net" / "tcp6"), "")
    return rows


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


def tree(roots: Iterable[int], proc: Path = PROC) -> list[int]:
    """Return these processes and all their descendants that have not ended."""
    children: dict[int, list[int]] = {}
    alive = set()
    for pid, parent in _parents(proc):
        alive.add(pid)
        children.setdefault(parent, []).append(pid)
    pids = [pid for pid in dict.fromkeys(roots) if pid in alive]
    for pid in pids:  # the list grows meanwhile
        pids += [child for child in children.get(pid, ()) if child not in pids]
    return pids


def _parents(proc: Path) -> Iterator[tuple[int, int]]:
    for folder in proc.iterdir():
        if folder.name.isdigit() and (stat := processes.stat(folder)) is not None and not stat.has_ended:
            yield stat.pid, stat.ppid


def used(pids: Iterable[int], proc: Path = PROC) -> TreeUse:
    """Return the resources used by these processes and by their descendants that have ended and were waited for."""
    user = system = faults = 0
    for pid in pids:
        stat = processes.stat(proc / str(pid))
        if stat is not None:
            faults += stat.minflt + stat.cminflt + stat.majflt + stat.cmajflt
            user += stat.utime + stat.cutime
            system += stat.stime + stat.cstime
    return TreeUse(user, system, faults)
