"""Files below /proc that more than one room reads: memory, mounts, how a process was begun. Source: proc(5).

Names in them are of others: of mount points, control groups, files, programs. The kernel escapes the line feed in them
and no other character, so lines end there alone (`str.splitlines` and text mode see more ends), and no byte of a name
is taken for granted to be UTF-8.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from hugewise.model.host import Host, text_of

__all__ = [
    "AT_BASE",
    "AT_SECURE",
    "Mount",
    "auxiliary",
    "fields",
    "kernel_text",
    "living",
    "meminfo",
    "mounts",
    "start_time",
    "variables",
]

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
