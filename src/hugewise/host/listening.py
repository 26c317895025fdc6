"""What a tree of processes of this host listens at, and who belongs to it. It looks, and connects to nobody.

A socket is a process's own where its inode stands in both: in the tables of the process's network namespace, and among
what the process has open. The name of a unix socket may hold line ends, so that any account writes lines of its own
into that table, with the inode of somebody else's socket, which stands there too. So an inode is believed where the
process has a socket of that family there, and the table says one thing of it alone.

Source: proc_pid_net(5), proc_pid_fd(5), proc_pid_stat(5); SO_ACCEPTCON of the kernel's include/uapi/linux/net.h.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

__all__ = ["ListeningSocket", "TreeUse", "listening", "sockets", "tree", "used"]

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
