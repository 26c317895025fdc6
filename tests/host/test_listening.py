"""What processes listen at: the kernel's tables, of processes of the test's own."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from hugewise.host.network import ListeningSocket, listening, sockets, tree, used

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
    sum(range(3_000_000))
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


@pytest.mark.parametrize(("one", "told"), [(TCP, "TCP port 6379"), (UNIX, "the socket /run/a b")])
def test_a_socket_is_told_in_words(one: str, told: str) -> None:
    found = next(iter(sockets(one, "") if one is TCP else sockets("", one)))
    assert str(found) == told


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
