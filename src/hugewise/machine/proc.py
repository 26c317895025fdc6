"""Files below /proc that more than one room reads: memory, mounts, maps, free blocks, control groups. Source: proc(5).

Names in them are of others: of mount points, control groups, files, programs. The kernel escapes the line feed in them
and no other character, so lines end there alone (`str.splitlines` and text mode see more ends), and no byte of a name
is taken for granted to be UTF-8.

Patience. Files that show the memory of a process are made under a lock of that process (mmap_lock). A reader waits as
long as somebody has the lock: for ever, where that one hangs in a page fault on a file of a server that does not
answer. Nothing but SIGKILL ends that wait, not even Ctrl-C. So whatever is read of a process that is not known to be
well is read in a thread, which is given up when the time is over, and which ends with this process
(mmap_read_lock_killable in fs/proc/task_mmu.c; proc_pid_smaps(5)).

Free memory. A zone whose free pages all lie below what it keeps back from programs serves none of them, however large
its blocks are (the first 16 MiB of x86-64). Where the kernel counts more free memory than its lists hold, the rest was
never given to them (kernels that prepare memory when it is first needed): that comes in blocks of any size
(/proc/buddyinfo, /proc/zoneinfo; __zone_watermark_ok() in mm/page_alloc.c).

Units. Whoever a subtree of control groups is delegated to (a user's own manager, a container, a service) makes groups
of any name in it. The system's manager puts its units below slices alone, so what lies below anything else is no unit
of the system's (cgroups(7); systemd.slice(5); systemd's "Control Group APIs and Delegation").
"""

from __future__ import annotations

import re
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from io import FileIO
from pathlib import Path
from typing import TypeVar

import msgspec

from hugewise.model.host import Host, text_of
from hugewise.model.pages import FreeMemory
from hugewise.model.procedure import Named
from hugewise.processes import parse_stat

AT_BASE, AT_SECURE = 7, 23
"""Keys of the auxiliary vector (getauxval(3))."""

_FIELD = re.compile(r"^(?:Node \d{1,9} )?(\w{1,64}):[ \t]{1,64}(\d{1,15}) kB$", re.MULTILINE | re.ASCII)
_AUXILIARY = struct.Struct("<QQ")
_ESCAPE = re.compile(r"\\(\d{3})")


def meminfo(host: Host, path: str = "/proc/meminfo") -> Mapping[str, int]:
    """Return bytes by name, such as MemTotal, of the machine or of the node whose file is `path`."""
    try:
        text = host.read(path)
    except OSError:
        return {}
    return {name: int(kib) << 10 for name, kib in _FIELD.findall(text)}


class Mount(msgspec.Struct, frozen=True):
    """Mount at `point` of the part `root` of a file system of type `kind`, with the file system's options."""

    point: str
    root: str
    kind: str
    options: str


def mounts(mountinfo: str) -> Iterator[Mount]:
    """Yield the mounts in a file such as /proc/self/mountinfo. Raises ValueError for any other text."""
    for line in filter(None, mountinfo.split("\n")):
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        root, point = (_ESCAPE.sub(lambda code: chr(int(code[1], 8)), text) for text in before.split(" ")[3:5])
        yield Mount(point, root, kind, options)


def kernel_text(path: Path) -> str:
    """Return a file of the kernel's, as it is; bytes that are no UTF-8 come back by `os.fsencode`. Raises OSError."""
    return path.read_bytes().decode("utf-8", "surrogateescape")


def fields(status: str) -> dict[str, str]:
    """Return the fields of `status` of a process by their names, without the blanks around them."""
    parts = (line.partition(":") for line in status.split("\n"))
    return {name: value.strip() for name, colon, value in parts if colon}


def living(host: Host, pid: int) -> int | None:
    """Return the pid or thread id by which /proc shows the memory of a process; None where all of it has ended."""
    for name in ("", *(name for name in host.names(f"/proc/{pid}/task") if name != str(pid))):
        place = f"/proc/{pid}/task/{name}" if name else f"/proc/{pid}"
        status = text_of(host, f"{place}/status")
        if status is not None and (fields(status).get("State") or "S")[0] not in ("Z", "X"):
            return int(name or pid)
        if status is None and not name:
            return None
    return None


def start_time(host: Host, pid: int) -> int | None:
    """Start of a process in clock ticks since boot; None when it is gone or a zombie."""
    stat = parse_stat(text_of(host, f"/proc/{pid}/stat") or "")
    return None if stat is None or stat.has_ended else stat.starttime


def variables(raw: bytes) -> Iterator[tuple[str, str]]:
    """Yield names and values in `environ`. glibc (to 2.37) writes an end of text over each colon of GLIBC_TUNABLES."""
    held = ""
    for word in raw.decode("utf-8", "replace").split("\0"):
        if held.startswith("GLIBC_TUNABLES=") and word.startswith("glibc."):
            held += f":{word}"
            continue
        if held:
            yield held.partition("=")[::2]
        held = word
    if held:
        yield held.partition("=")[::2]


def auxiliary(raw: bytes) -> Mapping[int, int]:
    """Parse `auxv` of a process, by key. The result is meaningless for a process of another word length."""
    return dict(_AUXILIARY.iter_unpack(raw[: len(raw) // _AUXILIARY.size * _AUXILIARY.size]))


_LINE = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (\S{4}) \S+ \S+ (\d+) *([^\n]*)")
_LARGE = 32 << 20
# Memory that no named file stands behind: shared anonymous mappings are shown as files of the kernel's own mount.
_SHARED = re.compile(r"/dev/zero \(deleted\)|/anon_hugepage \(deleted\)|/SYSV[0-9a-f]+ \(deleted\)|\[anon_shmem:.*\]")
_PRIVATE = re.compile(r"|\[heap\]|\[anon:.*\]|/anon_hugepage \(deleted\)")


class AddressRange(msgspec.Struct, frozen=True):
    """Line of maps: a half-open range of addresses, whether it is shared, and what it is called."""

    start: int
    end: int
    shared: bool
    name: str

    @property
    def size(self) -> int:
        return self.end - self.start


def mappings(maps: str) -> Iterator[AddressRange]:
    """Yield the mappings in the text of /proc/PID/maps."""
    for line in maps.split("\n"):
        if found := _LINE.fullmatch(line):
            yield AddressRange(int(found[1], 16), int(found[2], 16), found[3][3] == "s", found[5])


def named_ranges(maps: str, what: Named) -> list[tuple[int, int]] | None:
    """Return the ranges that `what` means; None means all anonymous, shared and hugetlb memory of the process.

    `shared`: the largest shared anonymous mapping. `large`: private mappings of at least 32 MiB, adjacent ones taken
    together (the kernel splits a mapping where its flags change). Empty when there is none.
    """
    if what == "all":
        return None
    mapped = list(mappings(maps))
    if what == "shared":
        shared = [each for each in mapped if each.shared and _SHARED.fullmatch(each.name)]
        largest = max(shared, key=lambda each: each.size, default=None)
        return [] if largest is None else [(largest.start, largest.end)]
    joined: list[tuple[int, int]] = []
    for each in mapped:
        if each.shared or not _PRIVATE.fullmatch(each.name):
            continue
        if joined and joined[-1][1] == each.start:
            joined[-1] = (joined[-1][0], each.end)
        else:
            joined.append((each.start, each.end))
    return [each for each in joined if each[1] - each[0] >= _LARGE]


PATIENCE_S = 60.0
"""Seconds for the memory map of one process: of 2 TiB in base pages smaps takes some 50."""

_AGAIN_S = 1.0
_PIECE = 1 << 20
_Value = TypeVar("_Value")


class StuckError(Exception):
    """Information about a process that could not be read in time; the message says the limit and the likely reason."""


class Patience:
    """Limit on the wait for each process: `seconds` for the first that is stuck, at most one for each later one."""

    def __init__(self, seconds: float = PATIENCE_S) -> None:
        self.seconds = seconds

    def until(self) -> float:
        return time.monotonic() + self.seconds

    def of(self, work: Callable[[], _Value], until: float | None = None) -> _Value:
        """Run `work` and return its result or raise its error; StuckError at `until` (None: a limit from now)."""
        until = self.until() if until is None else until
        done: Future[_Value] = Future()

        def run() -> None:
            try:
                done.set_result(work())
            except BaseException as error:
                done.set_exception(error)

        threading.Thread(target=run, daemon=True).start()
        try:
            return done.result(max(0.0, until - time.monotonic()))
        except TimeoutError:
            if done.done():
                raise
        told = (
            f"it could not be read within {self.seconds:g} s: its map of memory is held (it hangs in the kernel, or"
            " who looks into it does: see /proc/PID/task/*/stack)"
        )
        self.seconds = min(self.seconds, _AGAIN_S)
        raise StuckError(told)

    def lines(self, path: Path) -> Iterator[bytes]:
        """Yield the lines of a file of /proc, all of them within the time. Raises StuckError, OSError."""
        until = self.until()
        # Unbuffered: a buffer's lock would make the closing thread wait for this one.
        with self.of(lambda: path.open("rb", buffering=0), until) as file:
            rest = b""
            while piece := self.of(lambda: _piece(file), until):
                *whole, rest = (rest + piece).split(b"\n")
                for line in whole:
                    yield line + b"\n"
            if rest:
                yield rest


def _piece(file: FileIO) -> bytes:
    # the kernel gives a few thousand bytes at a time
    found = bytearray()
    while len(found) < _PIECE and (more := file.read(_PIECE)):
        found += more
    return bytes(found)


def patient_text(host: Host, path: str, patience: Patience | None = None) -> str:
    """Return the text of a file of a process. Raises StuckError, OSError."""
    return (patience or Patience()).of(lambda: host.read(path))


_LISTS = re.compile(r"^Node (\d{1,6}), zone +(\w{1,32})((?: +\d{1,15}){1,32}) *$", re.MULTILINE | re.ASCII)
_ZONE = re.compile(r"^Node (\d{1,6}), zone +(\w{1,32})$", re.MULTILINE | re.ASCII)
_LEAST = re.compile(r"^ +min +(\d{1,15})$", re.MULTILINE | re.ASCII)
_RESERVE = re.compile(r"^ +protection: \(([\d, ]{0,400})\)$", re.MULTILINE | re.ASCII)
_UNLISTED = 0.02  # share of the free memory: two readings differ by less


def free_memory(host: Host, base: int, pmd: int) -> FreeMemory:
    """Return free memory for base and PMD pages of these bytes. Raises OSError."""
    kept = dict(_kept(host.read("/proc/zoneinfo")))
    order = (pmd // base).bit_length() - 1
    everything = huge = 0
    for node, zone, counts in _LISTS.findall(host.read("/proc/buddyinfo")):
        blocks = [int(count) * (base << size) for size, count in enumerate(counts.split())]
        everything += sum(blocks)
        if sum(blocks) > base * kept.get((node, zone), 0):
            huge += sum(blocks[order:])
    unlisted = meminfo(host).get("MemFree", 0) - everything
    if unlisted > _UNLISTED * max(everything, pmd):
        return FreeMemory(everything + unlisted, huge + unlisted)
    return FreeMemory(everything, huge)


def largest_block(host: Host, base: int) -> int:
    """Return bytes of the largest block in the kernel's lists, where a base page has `base`; 0 where unknown."""
    lists = _LISTS.findall(text_of(host, "/proc/buddyinfo") or "")
    return max((base << (len(counts.split()) - 1) for _, _, counts in lists), default=0)


def _kept(zoneinfo: str) -> Iterator[tuple[tuple[str, str], int]]:
    zones = list(_ZONE.finditer(zoneinfo))
    names = list(dict.fromkeys(found[2] for found in zones))
    movable = names.index("Movable") if "Movable" in names else len(names) - 1
    ends = [*(found.start() for found in zones[1:]), len(zoneinfo)]
    for found, end in zip(zones, ends, strict=False):
        part = zoneinfo[found.end() : end]
        least, reserve = _LEAST.search(part), _RESERVE.search(part)
        each = [int(pages) for pages in reserve[1].split(",")] if reserve and reserve[1] else []
        yield (found[1], found[2]), (int(least[1]) if least else 0) + (each[movable] if movable < len(each) else 0)


_INIT = "init.scope"


def managed(cgroup: str) -> list[str]:
    """Return the paths in /proc/PID/cgroup by which systemd manages: of version 2, and of its own hierarchy."""
    parts = (line.split(":", 2) for line in cgroup.split("\n"))
    return [part[2] for part in parts if len(part) == 3 and (part[:2] == ["0", ""] or part[1] == "name=systemd")]


def top(cgroup_of_1: str) -> str:
    """Return the path above the manager's units, from /proc/1/cgroup: empty except in some containers."""
    return next((path.removesuffix(f"/{_INIT}") for path in managed(cgroup_of_1) if path.endswith(f"/{_INIT}")), "")


def is_of_system(path: str, above: str = "") -> bool:
    """Return whether a group named like a unit is one of the system's manager, whose units lie below `above`."""
    inside = path.removeprefix(above) if path.startswith(f"{above}/") else path
    return all(part.endswith(".slice") for part in inside.split("/")[1:-1])


def service(cgroup: str, above: str = "") -> str | None:
    """Return the service of the system's that a process of this /proc/PID/cgroup belongs to; None: to none."""
    for path in managed(cgroup):
        parts = path.split("/")
        at = next((at for at, part in enumerate(parts) if part.endswith(".service")), None)
        if at is not None and is_of_system("/".join(parts[: at + 1]), above):
            return parts[at]
    return None
