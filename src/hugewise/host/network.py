"""The network between a guest and this host.

User networking needs nothing of the host: QEMU is the other end, and what the guest asks of 10.0.2.2 it gets from the
host's loopback. With root, a bridge and a tap interface for each guest can be made instead. They have a private subnet
of their own; packets are not forwarded, not even to another guest, and no address is translated. No guest is told a
gateway. On a bridge there would be none; QEMU's user networking, however, would carry the packets of a guest whose root
adds a route, with the rights of QEMU's account.

The journal hears of the interfaces before they are made, and so the next root call removes what a killed run left.

Source: ip-link(8), ip-address(8), ip-tuntap(8); QEMU's documentation of `-netdev user` for its addresses.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from ipaddress import IPv4Interface, IPv4Network
from pathlib import Path

import msgspec

from hugewise.errors import HugewiseError, SettingError, UserError
from hugewise.host.ledger import Linked
from hugewise.machine import programs
from hugewise.model.workload import Missing

__all__ = ["USER", "Bridge", "Link", "free_subnet", "is_own", "missing", "remove", "taken"]

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


def taken(addresses: bytes, routes: bytes) -> Iterator[IPv4Network]:
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
            taken(_ip("-4", "-json", "address", "show"), _ip("-4", "-json", "route", "show", "table", "all"))
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
