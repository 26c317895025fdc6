"""Files below /proc that more than one room reads: memory, and what is mounted. Source: proc(5)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import msgspec

from hugewise.model.host import Host

__all__ = ["Mount", "meminfo", "mounts"]

_FIELD = re.compile(r"^(?:Node \d{1,9} )?(\w{1,64}):[ \t]{1,64}(\d{1,15}) kB$", re.MULTILINE | re.ASCII)
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
    """The mounts that a file such as /proc/self/mountinfo lists."""
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        root, point = (_ESCAPE.sub(lambda code: chr(int(code[1], 8)), text) for text in before.split(" ")[3:5])
        yield Mount(point, root, kind, options)
