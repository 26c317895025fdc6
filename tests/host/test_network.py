"""The network of this host: the way to a guest, and what processes listen at."""

import fcntl
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

import pytest

from hugewise.errors import SettingError, UserError
from hugewise.host import network
from hugewise.host.journal import recover
from hugewise.host.ledger import Linked
from hugewise.host.local_host import LocalHost
from hugewise.host.network import (
    Bridge,
    ListeningSocket,
    free_subnet,
    is_own,
    listening,
    networks_in_use,
    sockets,
    tree,
    used,
)
from hugewise.machine import programs
from tests.requirements import need, need_program, need_root

pytestmark = pytest.mark.looks

ADDRESSES = b"""[{"ifname":"lo","addr_info":[{"family":"inet","local":"127.0.0.1","prefixlen":8}]},
{"ifname":"eth0","addr_info":[{"family":"inet6","local":"fe80::1","prefixlen":64},
{"family":"inet","local":"192.168.219.7","prefixlen":25}]},{}]"""
ROUTES = b"""[{"dst":"default","gateway":"192.168.219.1"},{"dst":"192.168.216.0/22","dev":"vpn"},
{"type":"local","dst":"10.219.0.1","dev":"eth0"}]"""


_TUNSETIFF, _TAP, _NO_HEADER = 0x400454CA, 2, 0x1000  # linux/if_tun.h


def test_networks_of_addresses_and_routes_are_taken() -> None:
    found = set(map(str, networks_in_use(ADDRESSES, ROUTES)))
    assert found == {"127.0.0.0/8", "192.168.219.0/25", "192.168.216.0/22", "10.219.0.1/32"}
    assert free_subnet(networks_in_use(ADDRESSES, ROUTES)) == IPv4Network("192.168.215.0/24")


def test_a_default_route_takes_nothing_and_wide_routes_all() -> None:
    assert free_subnet([IPv4Network("0.0.0.0/0")]) == IPv4Network("192.168.219.0/24")
    assert free_subnet([IPv4Network("192.168.0.0/16"), IPv4Network("10.219.0.0/24")]) == IPv4Network("10.219.1.0/24")
    assert free_subnet([IPv4Network("192.168.0.0/16"), IPv4Network("10.0.0.0/8")]) is None


@pytest.mark.parametrize("name", ["lo", "hw-br-", "hw-br-x", "hw-t100-1", "hw-br-12345678", "../hw-br-1", "hw-br-1/x"])
def test_other_interfaces_are_never_removed(name: str) -> None:
    assert not is_own(name)
    with pytest.raises(SettingError, match="is not one of hugewise's"):
        network.remove(name)


def test_what_cannot_be_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    noted: list[Linked] = []
    with pytest.raises(UserError, match="1 to 32"):
        Bridge.open(33, None, noted.append)
    with monkeypatch.context() as patched:
        patched.setattr(os, "geteuid", lambda: 1000)
        with pytest.raises(UserError, match="need root"):
            Bridge.open(1, None, noted.append)
    with monkeypatch.context() as patched:
        patched.setattr(os, "geteuid", lambda: 0)
        patched.setattr(programs, "PATH", "/nowhere")
        with pytest.raises(UserError, match="no such program") as caught:
            Bridge.open(1, None, noted.append)
    assert caught.value.hint == "apt install iproute2"
    assert noted == []


@pytest.mark.parametrize(
    ("mode", "owner", "may"),
    [(0o666, 0, True), (0o600, 0, False), (0o600, 65534, True), (0o664, 0, False)],
)
def test_qemus_account_must_be_able_to_open_the_node(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, mode: int, owner: int, may: bool
) -> None:
    need_root()
    need_program("ip", "iproute2")
    node = tmp_path / "tun"
    node.touch()
    node.chmod(mode)
    os.chown(node, owner, 0)
    monkeypatch.setattr(network, "_TUN", node)
    told = [one.reason for one in network.missing(65534)]
    assert told == ([] if may else [f"QEMU's account (uid 65534) may not open {node}: chmod 666 {node}"])
    assert network.missing(None) == ()


# -- as root


def _need_taps(owner: int | None = None) -> None:
    need_root()
    need_program("ip", "iproute2")
    lacking = network.missing(owner)
    need(not lacking, lacking[0].reason if lacking else "")


def _shown(name: str) -> dict[str, object]:
    said = subprocess.run(["ip", "-json", "-details", "address", "show", "dev", name], capture_output=True, check=True)
    found: dict[str, object] = json.loads(said.stdout)[0]
    return found


def _left() -> list[str]:
    return [path.name for path in Path("/sys/class/net").iterdir() if path.name.endswith(f"-{os.getpid()}")]


def test_a_bridge_and_its_taps_are_there_and_then_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    _need_taps()
    monkeypatch.setattr(network, "_may_open", lambda *_: True)  # nobody opens them here
    noted: list[tuple[Linked, list[str]]] = []
    with Bridge.open(2, 65534, lambda record: noted.append((record, _left()))) as bridge:
        assert noted == [(Linked((bridge.name, *bridge.taps)), [])]  # heard of before anything was made
        assert sorted(_left()) == sorted((bridge.name, *bridge.taps))
        first, second = bridge.link(0), bridge.link(1)
        own = [one for one in _shown(bridge.name)["addr_info"] if one["family"] == "inet"]  # type: ignore[attr-defined]
        assert [one["local"] for one in own] == [first.host] == [second.bind]
        assert len({first.address, second.address, first.host}) == 3
        assert (first.tap, second.tap) == bridge.taps
        shown = _shown(bridge.taps[0])
        assert shown["master"] == bridge.name
        assert shown["linkinfo"]["info_data"]["user"] == "nobody"  # type: ignore[index]
        assert shown["linkinfo"]["info_slave_data"]["isolated"] is True  # type: ignore[index]
        for name in (bridge.name, *bridge.taps):
            assert Path(f"/proc/sys/net/ipv4/conf/{name}/forwarding").read_text() == "0\n"
    assert _left() == []
    bridge.close()


def test_a_guest_on_a_tap_meets_the_host() -> None:
    """The test is the guest: it opens the tap as QEMU does, and asks by ARP who has the host's address."""
    _need_taps()
    mac = b"\x52\x54\x00\x01\x02\x03"
    with Bridge.open(1, None, lambda _: None) as bridge:
        link = bridge.link(0)
        own, host = (IPv4Address(one).packed for one in (link.address, link.host))
        question = b"\xff" * 6 + mac + b"\x08\x06\x00\x01\x08\x00\x06\x04\x00\x01" + mac + own + bytes(6) + host
        descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.ioctl(descriptor, _TUNSETIFF, struct.pack("16sH22x", bridge.taps[0].encode(), _TAP | _NO_HEADER))
            answer = b""
            while answer[12:14] != b"\x08\x06" or answer[20:22] != b"\x00\x02":
                os.write(descriptor, question)  # again: a port of a bridge forwards nothing for a moment
                if select.select([descriptor], [], [], 0.2)[0]:
                    answer = os.read(descriptor, 2048)
        finally:
            os.close(descriptor)
        assert answer[28:32] == host and answer[:6] == mac


def test_a_failure_half_way_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    _need_taps()
    monkeypatch.setattr(network, "_stay_here", lambda name: 1 / 0 if name.startswith("hw-t1") else None)
    with pytest.raises(ZeroDivisionError):
        Bridge.open(2, None, lambda _: None)
    assert _left() == []


_KILLED = """
import os, signal, sys
from pathlib import Path
from hugewise.host.network import Bridge
from hugewise.host.local_host import LocalHost
from hugewise.host.journal import Journal
journal = Journal.begin(LocalHost(), Path(sys.argv[1]), "the dead run")
bridge = Bridge.open(1, None, journal.append)
print(bridge.name, *bridge.taps, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_run_left_is_removed_by_the_next(tmp_path: Path) -> None:
    _need_taps()
    path = tmp_path / "journal" / "journal.jsonl"
    dead = subprocess.run([sys.executable, "-c", _KILLED, str(path)], capture_output=True, text=True, check=False)
    assert dead.returncode == -signal.SIGKILL
    names = dead.stdout.split()
    assert len(names) == 2
    assert all(Path("/sys/class/net", name).exists() for name in names)
    assert recover(LocalHost(), path).run == "the dead run"
    assert not any(Path("/sys/class/net", name).exists() for name in names)
    assert recover(LocalHost(), path).note == "no run is left to be put back"


TCP = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:18EB 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4001 1 0000 100 0 0 10 0
   1: 0100007F:18EC 0100007F:0050 01 00000000:00000000 00:00000000 00000000     0        0 4002 1 0000 20 4 30 10 -1
  broken
"""
UNIX = """\
Num       RefCount Protocol Flags    Type St Inode Path
0000000000000000: 00000002 00000000 00010000 0001 01 4003 /run/a b
0000000000000000: 00000002 00000000 00000000 0001 03 4004 /run/connected
0000000000000000: 00000002 00000000 00010000 0001 01 4005
0000000000000000: 00000002 00000000 nonsense 0001 01 4006 /run/c
0000000000000000: 00000002 00000000 00010000 0001 01 4007 @abstract
"""


def test_only_what_takes_connections_is_found() -> None:
    assert list(sockets(TCP, UNIX)) == [
        ListeningSocket(4001, port=6379),
        ListeningSocket(4003, path="/run/a b"),
        ListeningSocket(4007, path="@abstract"),
    ]
    assert list(sockets("", "")) == []


def test_own_sockets_are_told_from_others(tmp_path: Path) -> None:
    process = tmp_path / "7"
    (process / "fd").mkdir(parents=True)
    (process / "net").mkdir()
    (process / "net" / "tcp").write_text(TCP)
    (process / "net" / "unix").write_text(UNIX)
    (process / "fd" / "3").symlink_to("socket:[4003]")
    (process / "fd" / "4").symlink_to("/dev/null")
    own, others = listening([7, 8], tmp_path)
    assert own == [ListeningSocket(4003, path="/run/a b")]
    assert [one.inode for one in others] == [4001, 4007]


def test_a_process_that_has_ended_listens_at_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        own, others = listening([1 << 30])
        assert own == []
        assert held.getsockname()[1] in [one.port for one in others]


def test_a_real_process_is_found_with_its_children_and_what_they_listen_at(tmp_path: Path) -> None:
    script = """
import os, socket, sys, time
inet = socket.create_server(("127.0.0.1", 0))
if os.fork() == 0:
    unix = socket.socket(socket.AF_UNIX); unix.bind(sys.argv[1]); unix.listen()
    print(inet.getsockname()[1], flush=True)
    sum(range(10_000_000))
    print("worked", flush=True)
    time.sleep(60)
os.wait()
"""
    path = str(tmp_path / "socket")
    with subprocess.Popen([sys.executable, "-c", script, path], stdout=subprocess.PIPE, text=True) as begun:
        try:
            assert begun.stdout is not None
            port = int(begun.stdout.readline())
            assert begun.stdout.readline() == "worked\n"
            pids = tree([begun.pid])
            assert len(pids) == 2 and pids[0] == begun.pid
            own, others = listening(pids)
            assert {one.port for one in own if one.port} == {port}
            assert {one.path for one in own if one.path} == {path}
            assert port not in [one.port for one in others]
            assert used(pids).user > 0
            assert used(pids).faults > 100
        finally:
            for pid in reversed(tree([begun.pid])):
                os.kill(pid, 9)
    assert tree([begun.pid]) == []


def forged(inode: int, name: str) -> str:
    """A name of a unix socket that makes a line of its own in the kernel's table."""
    return f"\0x\n0000000000000000: 00000002 00000000 00010000 0001 01 {inode} {name}"


@pytest.mark.parametrize("kind", ["unix", "tcp", "pair"])
def test_a_name_with_a_line_end_makes_nobody_listen(kind: str) -> None:
    """The inode of the victim's socket stands in a table that everybody reads."""
    family = socket.AF_INET if kind == "tcp" else socket.AF_UNIX
    with socket.socket(family) as victim, socket.socket(socket.AF_UNIX) as other:
        if kind == "unix":
            victim.bind(f"\0hugewise-{os.getpid()}")
        inode = os.fstat(victim.fileno()).st_ino
        other.bind(forged(inode, "@awaited"))
        other.listen()
        own, _ = listening([os.getpid()])
        assert inode not in [one.inode for one in own]


def test_a_line_of_the_tables_ends_at_the_line_feed_alone() -> None:
    odd = "/run/a\x0b\x1c\x85\u2028b\r"
    table = f"{UNIX.splitlines()[0]}\n0: 00000002 00000000 00010000 0001 01 4003 {odd}\n"
    assert list(sockets("", table)) == [ListeningSocket(4003, path=odd)]
