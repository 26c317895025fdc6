"""Files below /proc that more than one room reads: memory, mounts, how a process was begun. Source: proc(5).

Names in them are of others: of mount points, control groups, files, programs. The kernel escapes the line feed in them
and no other character, so lines end there alone (`str.splitlines` and text mode see more ends), and no byte of a name
is taken for granted to be UTF-8.

Which address ranges of a process a policy is about, from its /proc/PID/maps. Pure.

Source: proc(5); Documentation/filesystems/proc.rst of the Linux kernel.

Reading what a process keeps from being read, for a limited time.

Files of /proc that show the memory of a process are made under a lock of that process's (mmap_lock). Who waits for it
waits as long as somebody has it: for ever, where that one hangs in a page fault on a file of a server that does not
answer. Nothing but SIGKILL ends that wait, not even Ctrl-C. So whatever is read of a process that is not known to be
well is read in a thread, which is given up when the time is over. The kernel takes such a thread along when this
process ends.

Sources: fs/proc/task_mmu.c of Linux (mmap_read_lock_killable); proc_pid_smaps(5).

What of the free memory can become a huge page at once, as the kernel's lists of free blocks say it. Pure.

A zone whose free pages all lie below what it keeps back from programs serves none of them, however large its blocks are
(the first 16 MiB of x86-64). Where the kernel counts more free memory than its lists hold, the rest was never given to
them (kernels that prepare memory when it is first needed): that comes in blocks of any size.

Sources: proc(5) for buddyinfo and zoneinfo; __zone_watermark_ok() in mm/page_alloc.c of the Linux kernel.

Which unit of systemd a control group is of, by its path: units of the system, and what others call so.

Whoever a subtree is delegated to (a user's own manager, a container, a service) makes groups of any name in it. The
manager of the system puts its units below slices alone, so what lies below anything else is no unit of the system's.

Sources: cgroups(7); systemd.slice(5); systemd's "Control Group APIs and Delegation" (names that begin as the kernel's
own have a `_` before them).
"""

from __future__ import annotations

import re
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from io import FileIO
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from hugewise.model.age import FreeMemory
from hugewise.model.host import Host, text_of
from hugewise.model.procedure import Named

AT_BASE, AT_SECURE = 7, 23
"""Keys of the auxiliary vector (getauxval(3))."""

_FIELD = re.compile(r"^(?:Node \d{1,9} )?(\w{1,64}):[ \t]{1,64}(\d{1,15}) kB$", re.MULTILINE | re.ASCII)
_AUXILIARY = struct.Struct("<QQ")
_ESCAPE = re.compile(r"\\(\d{3})")


def meminfo(host: Host, path: str = "/proc/meminfo") -> Mapping[str, int]:
    """Bytes by name, such as MemTotal; those that the machine, or its node whose file `path` is, does not say lack."""
    try:
        said = host.read(path)
    except OSError:
        return {}
    return {name: int(kib) << 10 for name, kib in _FIELD.findall(said)}


class Mount(msgspec.Struct, frozen=True):
    """What is mounted at `point`: `root` within a file system of that kind, with the options of the whole."""

    point: str
    root: str
    kind: str
    options: str


def mounts(mountinfo: str) -> Iterator[Mount]:
    """The mounts that a file such as /proc/self/mountinfo lists. Raises ValueError for a text that is none of these."""
    for line in filter(None, mountinfo.split("\n")):
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        root, point = (_ESCAPE.sub(lambda code: chr(int(code[1], 8)), text) for text in before.split(" ")[3:5])
        yield Mount(point, root, kind, options)


def kernel_text(path: Path) -> str:
    """A file of the kernel's, as it is; bytes that are no UTF-8 come back by `os.fsencode`. Raises OSError."""
    return path.read_bytes().decode("utf-8", "surrogateescape")


def fields(status: str) -> dict[str, str]:
    """The fields of `status` of a process by their names, without the blanks around them."""
    parts = (line.partition(":") for line in status.split("\n"))
    return {name: value.strip() for name, colon, value in parts if colon}


def living(host: Host, pid: int) -> int | None:
    """The number by which /proc shows the memory of a process: its own or, where its first thread has ended and others
    go on, that of one of these; None where all of it has ended.
    """
    for name in ("", *(name for name in host.names(f"/proc/{pid}/task") if name != str(pid))):
        place = f"/proc/{pid}/task/{name}" if name else f"/proc/{pid}"
        status = text_of(host, f"{place}/status")
        if status is not None and (fields(status).get("State") or "S")[0] not in ("Z", "X"):
            return int(name or pid)
        if status is None and not name:
            return None
    return None


def start_time(host: Host, pid: int) -> int | None:
    """Start of a process in clock ticks since boot (field 22 of /proc/PID/stat); None when it is gone or a zombie."""
    try:
        found = host.read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    except OSError:
        return None
    return None if found[0] in ("Z", "X", "x") else int(found[19])


def variables(raw: bytes) -> Iterator[tuple[str, str]]:
    """Names and values in `environ` of a process; words without `=` have an empty value.

    glibc (to 2.37 at least) writes an end of text over each colon of GLIBC_TUNABLES, in place: what follows as
    `glibc.NAME=VALUE` belongs to it.
    """
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
    """What `auxv` of a process says, by key; of one of another word length, nothing that means anything."""
    return dict(_AUXILIARY.iter_unpack(raw[: len(raw) // _AUXILIARY.size * _AUXILIARY.size]))


_LINE = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (\S{4}) \S+ \S+ (\d+) *([^\n]*)")
_LARGE = 32 << 20
# Memory that no named file stands behind: shared anonymous mappings are shown as files of the kernel's own mount.
_SHARED = re.compile(r"/dev/zero \(deleted\)|/anon_hugepage \(deleted\)|/SYSV[0-9a-f]+ \(deleted\)|\[anon_shmem:.*\]")
_PRIVATE = re.compile(r"|\[heap\]|\[anon:.*\]|/anon_hugepage \(deleted\)")


class AddressRange(msgspec.Struct, frozen=True):
    """One line of maps: a half-open range of addresses, whether it is shared, and what it is called."""

    start: int
    end: int
    shared: bool
    name: str

    @property
    def size(self) -> int:
        """Bytes."""
        return self.end - self.start


def mappings(maps: str) -> Iterator[AddressRange]:
    """The mappings in the text of /proc/PID/maps."""
    for line in maps.split("\n"):
        if found := _LINE.fullmatch(line):
            yield AddressRange(int(found[1], 16), int(found[2], 16), found[3][3] == "s", found[5])


def named_ranges(maps: str, what: Named) -> list[tuple[int, int]] | None:
    """The ranges that `what` means; None means all anonymous, shared and hugetlb memory of the process.

    `shared`: the largest shared anonymous mapping. `large`: private mappings of at least 32 MiB, adjacent ones taken
    together (the kernel splits a mapping where its flags change). Empty when there is none.
    """
    if what == "all":
        return None
    found = list(mappings(maps))
    if what == "shared":
        shared = [each for each in found if each.shared and _SHARED.fullmatch(each.name)]
        largest = max(shared, key=lambda each: each.size, default=None)
        return [] if largest is None else [(largest.start, largest.end)]
    joined: list[tuple[int, int]] = []
    for each in found:
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
    """It could not be read in time; the message says within how many seconds, and why that may be."""


class _Work(Generic[_Value]):
    """What a thread is to find out, and what it found."""

    def __init__(self, work: Callable[[], _Value]) -> None:
        self._work = work
        self.done = threading.Event()
        self.found: list[_Value] = []
        self.failed: BaseException | None = None

    def __call__(self) -> None:
        try:
            self.found.append(self._work())
        except BaseException as error:  # raised again by who waits
            self.failed = error
        self.done.set()


class Patience:
    """How long is waited for one process after the other: for one that is stuck `seconds`, for all later ones a second
    at most, so that many of them do not add up.
    """

    def __init__(self, seconds: float = PATIENCE_S) -> None:
        self.seconds = seconds

    def until(self) -> float:
        """When the time for a process that is begun now is over, by the monotonic clock."""
        return time.monotonic() + self.seconds

    def of(self, work: Callable[[], _Value], until: float | None = None) -> _Value:
        """What `work` gives, or raises. Raises StuckError where it has not ended by then (None: from now on)."""
        until = self.until() if until is None else until
        one = _Work(work)
        threading.Thread(target=one, daemon=True).start()
        if not one.done.wait(max(0.0, until - time.monotonic())):
            told = (
                f"it could not be read within {self.seconds:g} s: its map of memory is held (it hangs in the kernel, or"
                " who looks into it does: see /proc/PID/task/*/stack)"
            )
            self.seconds = min(self.seconds, _AGAIN_S)
            raise StuckError(told)
        if one.failed is not None:
            raise one.failed
        return one.found[0]

    def lines(self, path: Path) -> Iterator[bytes]:
        """The lines of a file of /proc, all of them within the time. Raises StuckError, OSError."""
        until = self.until()
        # Without a buffer of Python's: its lock would have whoever gives up wait for the thread, to close it.
        with self.of(lambda: path.open("rb", buffering=0), until) as file:
            rest = b""
            while piece := self.of(lambda: _piece(file), until):
                *whole, rest = (rest + piece).split(b"\n")
                for line in whole:
                    yield line + b"\n"
            if rest:
                yield rest


def _piece(file: FileIO) -> bytes:
    """So many bytes, or what is left: the kernel gives a few thousand at a time."""
    found = bytearray()
    while len(found) < _PIECE and (more := file.read(_PIECE)):
        found += more
    return bytes(found)


def patient_text(host: Host, path: str, patience: Patience | None = None) -> str:
    """The text of a file of a process. Raises StuckError, OSError."""
    return (patience or Patience()).of(lambda: host.read(path))


_LISTS = re.compile(r"^Node (\d{1,6}), zone +(\w{1,32})((?: +\d{1,15}){1,32}) *$", re.MULTILINE | re.ASCII)
_ZONE = re.compile(r"^Node (\d{1,6}), zone +(\w{1,32})$", re.MULTILINE | re.ASCII)
_LEAST = re.compile(r"^ +min +(\d{1,15})$", re.MULTILINE | re.ASCII)
_RESERVE = re.compile(r"^ +protection: \(([\d, ]{0,400})\)$", re.MULTILINE | re.ASCII)
_UNLISTED = 0.02  # of the free memory: what lies between two readings is no more


def free_memory(host: Host, base: int, pmd: int) -> FreeMemory:
    """Of `host`, whose base and PMD pages have these sizes in bytes. Raises OSError where it does not say it."""
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
    """Bytes of the largest block in the kernel's lists, where a base page has `base`; 0 where it does not say."""
    lists = _LISTS.findall(text_of(host, "/proc/buddyinfo") or "")
    return max((base << (len(counts.split()) - 1) for _, _, counts in lists), default=0)


def _kept(zoneinfo: str) -> Iterator[tuple[tuple[str, str], int]]:
    """Pages that each zone of each node keeps from programs: its lowest watermark, and its reserve against them."""
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
    """The paths in the text of /proc/PID/cgroup by which systemd manages: of version 2, and of its own hierarchy."""
    parts = (line.split(":", 2) for line in cgroup.split("\n"))
    return [each[2] for each in parts if len(each) == 3 and (each[:2] == ["0", ""] or each[1] == "name=systemd")]


def top(cgroup_of_1: str) -> str:
    """Below what the manager's units lie, from /proc/1/cgroup: nothing, but for a container that sees where it is."""
    return next((path.removesuffix(f"/{_INIT}") for path in managed(cgroup_of_1) if path.endswith(f"/{_INIT}")), "")


def is_of_system(path: str, above: str = "") -> bool:
    """Whether a group that is called as a unit is one of the system's manager, whose units lie below `above`."""
    inside = path.removeprefix(above) if path.startswith(f"{above}/") else path
    return all(part.endswith(".slice") for part in inside.split("/")[1:-1])


def service(cgroup: str, above: str = "") -> str | None:
    """The service of the system's that a process of this /proc/PID/cgroup belongs to; None: to none."""
    for path in managed(cgroup):
        parts = path.split("/")
        at = next((at for at, part in enumerate(parts) if part.endswith(".service")), None)
        if at is not None and is_of_system("/".join(parts[: at + 1]), above):
            return parts[at]
    return None
