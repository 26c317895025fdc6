"""The network of this host: the way between a guest and the host, and the sockets at which processes listen.

The network between a guest and this host.

User networking needs nothing of the host: QEMU is the other end, and what the guest asks of 10.0.2.2 it gets from the
host's loopback. With root, a bridge and a tap interface for each guest can be made instead. They have a private subnet
of their own; packets are not forwarded, not even to another guest, and no address is translated. No guest is told a
gateway. On a bridge there would be none; QEMU's user networking, however, would carry the packets of a guest whose root
adds a route, with the rights of QEMU's account.

The journal hears of the interfaces before they are made, and so the next root call removes what a killed run left.

Source: ip-link(8), ip-address(8), ip-tuntap(8); QEMU's documentation of `-netdev user` for its addresses.

What a tree of processes of this host listens at, and who belongs to it. It looks, and connects to nobody.

A socket is a process's own where its inode stands in both: in the tables of the process's network namespace, and among
what the process has open. The name of a unix socket may hold line ends, so that any account writes lines of its own
into that table, with the inode of somebody else's socket, which stands there too. So an inode is believed where the
process has a socket of that family there, and the table says one thing of it alone.

Source: proc_pid_net(5), proc_pid_fd(5), proc_pid_stat(5); SO_ACCEPTCON of the kernel's include/uapi/linux/net.h.
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

from hugewise.errors import HugewiseError, SettingError, UserError
from hugewise.host.ledger import Linked
from hugewise.machine import programs
from hugewise.model.workload import Missing

_OWN = re.compile(r"hw-(?:br|t[0-9]{1,2})-[0-9]{1,7}")  # at most 15 characters, as the kernel wants it
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

    tap        the host's interface that QEMU is to open (`qemu.Places.tap`); None: user networking
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
    """What this host lacks for a bridge and taps, root aside, where QEMU runs as the user `owner` (None: root)."""
    found = []
    if programs.of_root("ip") is None:
        found.append(Missing("ip: no such program on PATH", "iproute2"))
    if not _TUN.exists():
        found.append(Missing(f"{_TUN} is not there: this kernel has no tap interfaces (CONFIG_TUN)"))
    elif owner is not None and not _may_open(_TUN.stat(), owner):
        # The node gives no right by itself, a tap is its owner's alone: distributions let everybody open it.
        found.append(Missing(f"QEMU's account (uid {owner}) may not open {_TUN}: chmod 666 {_TUN}"))
    return tuple(found)


def _may_open(node: os.stat_result, uid: int) -> bool:
    both = 0o600 if node.st_uid == uid else 0o006
    return node.st_mode & both == both


def free_subnet(networks: Iterable[IPv4Network]) -> IPv4Network | None:
    """A private network of 254 addresses that overlaps none of `networks` (a default route is no network). Pure."""
    known = [network for network in networks if network.prefixlen]
    return next((one for one in _CANDIDATES if not any(one.overlaps(other) for other in known)), None)


def networks_in_use(addresses: bytes, routes: bytes) -> Iterator[IPv4Network]:
    """Networks of this host's addresses and routes, from the JSON of `ip address` and `ip route`. Pure.

    Raises ValueError when it is none.
    """
    for interface in msgspec.json.decode(addresses):
        for one in interface.get("addr_info", ()):
            if one.get("family") == "inet":
                yield IPv4Interface(f"{one['local']}/{one['prefixlen']}").network
    for route in msgspec.json.decode(routes):
        if route.get("dst", "default") != "default":
            yield IPv4Network(route["dst"], strict=False)


def is_own(name: str) -> bool:
    """Whether an interface can be one of hugewise's: by its name and, where it is there, by its kind."""
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
        """Make them; `owner` is the account that QEMU runs as (None: root). `note` (the journal) hears of it before.

        Raises UserError when this user cannot, or no network is free; SettingError when the kernel refuses one.
        """
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
            remove(name)  # of a dead process that had this number
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
        """The end of guest `number`, from 0."""
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
    """No IPv6 address of its own, and nothing is forwarded from it, whatever the host does for others."""
    _ip("link", "set", "dev", name, "addrgenmode", "none")
    switch = Path(f"/proc/sys/net/ipv4/conf/{name}/forwarding")
    try:
        if switch.read_text().strip() != "0":
            switch.write_text("0")
    except OSError as error:
        raise SettingError(f"{switch}: {error.strerror}; guests could reach beyond this host") from error


def _ip(*words: str) -> bytes:
    """What `ip` says. Raises SettingError."""
    try:
        program = programs.of_root("ip") or "/sbin/ip"
        done = subprocess.run([program, *words], capture_output=True, check=True, timeout=_IP_S)
    except UserError as error:
        raise SettingError(error.message, hint=error.hint) from None
    except subprocess.CalledProcessError as error:
        said = error.stderr.decode(errors="replace").strip()
        raise SettingError(f"ip {' '.join(words)}: {said}") from None
    except (OSError, subprocess.SubprocessError) as error:
        raise SettingError(f"ip {' '.join(words)}: {error}") from None
    return done.stdout


PROC = Path("/proc")

_SOCKET = re.compile(r"socket:\[(\d+)\]")
_LISTEN = "0A"
_ACCEPTS = 0x10000
_STAT = re.compile(r"(\d+) \((.*)\) (\S) (.*)", re.DOTALL)
_DEAD = ("Z", "X")


class ListeningSocket(msgspec.Struct, frozen=True):
    """A socket that takes connections: its TCP port, or the name that it was bound to (`@...` is of no file)."""

    inode: int
    port: int | None = None
    path: str | None = None

    def __str__(self) -> str:
        return f"TCP port {self.port}" if self.path is None else f"the socket {self.path}"


class TreeUse(msgspec.Struct, frozen=True):
    """What the processes of a tree have used, those among them that have ended and were waited for too.

    user, system   clock ticks
    faults         page faults
    """

    user: int
    system: int
    faults: int


def sockets(tcp: str, unix: str) -> Iterator[ListeningSocket]:
    """Those that listen, in the texts of the tables `tcp` (or `tcp6`) and `unix`."""
    for line in tcp.split("\n")[1:]:
        words = line.split()
        if len(words) > 9 and words[3] == _LISTEN and words[9].isdigit():
            with suppress(ValueError):
                yield ListeningSocket(int(words[9]), port=int(words[1].rpartition(":")[2], 16))
    said = set(_unix(unix))
    lines = Counter(inode for inode, *_ in said)
    for inode, accepts, path in sorted(said):
        if accepts and path and lines[inode] == 1:
            yield ListeningSocket(inode, path=path)


def _unix(table: str) -> Iterator[tuple[int, bool, str]]:
    """The lines of the table of unix sockets: inode, whether it takes connections, and its name, which may be empty."""
    for line in table.split("\n")[1:]:
        fields = line.split(None, 7)
        if len(fields) > 6 and fields[6].isdecimal() and fields[6].isascii():
            with suppress(ValueError):
                yield int(fields[6]), bool(int(fields[3], 16) & _ACCEPTS), "".join(fields[7:])


def listening(pids: Iterable[int], proc: Path = PROC) -> tuple[list[ListeningSocket], list[ListeningSocket]]:
    """What these processes listen at, and what others do in the same network; processes that have ended have nothing.

    Of a process whose open files may not be looked at nothing is known: then all that is listened at is the others'.
    """
    processes = list(pids)
    own: dict[int, str] = {}
    for pid in processes:
        own.update(_inodes(proc / str(pid)))
    seen = next((found for pid in processes if (found := _tables(proc / str(pid))) is not None), None)
    found = seen if seen is not None else _tables(proc / "self") or []
    mine = [one for one in found if one.inode in own and own[one.inode] in ("", "tcp" if one.path is None else "unix")]
    return mine, [one for one in found if one not in mine]


def _inodes(process: Path) -> Iterator[tuple[int, str]]:
    """The sockets that it has open, each with its family: tcp, unix, another, or nothing where nobody says."""
    with suppress(OSError):
        for link in (process / "fd").iterdir():
            with suppress(OSError):
                if (match := _SOCKET.fullmatch(str(link.readlink()))) is not None:
                    yield int(match[1]), _family(link)


def _family(link: Path) -> str:
    """By the attribute that every socket has (net/socket.c, `sockfs_xattr_get`)."""
    try:
        name = os.getxattr(link, "system.sockprotoname").rstrip(b"\0").decode("ascii", "replace").lower()
    except OSError:
        return ""
    return next((known for known in ("unix", "tcp") if name.startswith(known)), name)


def _tables(process: Path) -> list[ListeningSocket] | None:
    """What is listened at in a process's network; None where the process has ended."""
    try:
        tcp, unix = (_text(process / "net" / name) for name in ("tcp", "unix"))
    except OSError:
        return None
    found = list(sockets(tcp, unix))
    with suppress(OSError):  # a kernel without IPv6
        found += sockets(_text(process / "net" / "tcp6"), "")
    return found


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


def tree(roots: Iterable[int], proc: Path = PROC) -> list[int]:
    """These processes and all that descend from them, as far as they are there and have not ended."""
    children: dict[int, list[int]] = {}
    alive = set()
    for pid, parent in _parents(proc):
        alive.add(pid)
        children.setdefault(parent, []).append(pid)
    found = [pid for pid in dict.fromkeys(roots) if pid in alive]
    for pid in found:  # which grows
        found += [child for child in children.get(pid, ()) if child not in found]
    return found


def _parents(proc: Path) -> Iterator[tuple[int, int]]:
    for folder in proc.iterdir():
        if folder.name.isdigit() and (fields := _stat(folder)) is not None and fields[0] not in _DEAD:
            yield int(folder.name), int(fields[1])


def _stat(process: Path) -> list[str] | None:
    """The fields of a process's `stat` behind its name, from its state on; None where it has ended."""
    try:
        match = _STAT.fullmatch(_text(process / "stat").rstrip("\n"))
    except OSError:
        return None
    return None if match is None else [match[3], *match[4].split()]


def used(pids: Iterable[int], proc: Path = PROC) -> TreeUse:
    """What these processes have used, and those below them that have ended and were waited for."""
    user = system = faults = 0
    for pid in pids:
        fields = _stat(proc / str(pid))
        if fields is None or len(fields) < 15:
            continue
        numbers = [int(each) for each in fields[7:15]]
        faults += sum(numbers[:4])
        user += numbers[4] + numbers[6]
        system += numbers[5] + numbers[7]
    return TreeUse(user, system, faults)
