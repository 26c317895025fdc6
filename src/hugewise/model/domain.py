"""A virtual machine as a libvirt domain describes it, as far as it decides about its memory. Plain values.

Sizes are bytes; `line` is where in the file it stands, from 1. Source: libvirt, "Domain XML format".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

__all__ = [
    "Balloon",
    "Domain",
    "DomainCell",
    "DomainDisk",
    "DomainPart",
    "HugeWish",
    "MemoryDevice",
]

DiskKind = Literal["file", "block", "other"]


class DomainPart(msgspec.Struct, frozen=True):
    """Something of a domain that is named: what it is, in words, and its line."""

    what: str
    line: int


class HugeWish(msgspec.Struct, frozen=True):
    """A `<page>` of `<hugepages>`: its size in bytes (None: a bare `<hugepages/>`, the host's default), and the guest's
    nodes that it is for (None: those that no other names).
    """

    size: int | None
    nodes: frozenset[int] | None
    line: int


class DomainCell(msgspec.Struct, frozen=True, kw_only=True):
    """A NUMA node of the guest. `shared`: `memAccess`, None where the domain decides; `bind`: the host's nodes."""

    id: int
    memory: int
    cpus: tuple[int, ...]
    line: int
    shared: bool | None = None
    bind: tuple[int, ...] | None = None


class DomainDisk(msgspec.Struct, frozen=True, kw_only=True):
    """A disk: `source` is a path of this host where `kind` is file or block; `why`: why it cannot be had elsewhere."""

    target: str
    kind: DiskKind
    source: str
    format: str
    device: str
    readonly: bool
    line: int
    why: str = ""


class Balloon(msgspec.Struct, frozen=True, kw_only=True):
    """`<memballoon>` of another model than none."""

    line: int
    free_page_reporting: bool = False
    deflates: bool = False


class MemoryDevice(msgspec.Struct, frozen=True, kw_only=True):
    """`<memory model=...>` among the devices: dimm, virtio-mem, ...; its size and, of virtio-mem, its block."""

    model: str
    size: int
    line: int
    block: int | None = None


class Domain(msgspec.Struct, frozen=True, kw_only=True):
    """A domain.

    memory     what it is given at boot, without memory devices; `current` what its balloon leaves it
    cells      its NUMA nodes; none: one node with all of its memory
    cpu        QEMU's CPU model; None: the host's own
    pins       virtual CPU -> CPUs of the host
    huge       what it asks of pools; none: ordinary memory
    shared     whether other processes map its memory too: virtiofs and vhost-user need it
    sharers    the devices that need it
    assigned   devices of the host that it is given by VFIO: all of its memory is pinned
    most       `<maxMemory>`, to which it may grow while it runs
    limit      `<hard_limit>` of its cgroup
    lines      where its other elements stand, by their tags
    """

    name: str
    file: str
    arch: str = "x86_64"
    machine: str = ""
    emulator: str | None = None
    memory: int
    current: int
    vcpus: int = 1
    cells: tuple[DomainCell, ...] = ()
    cpu: str | None = None
    pins: Mapping[int, tuple[int, ...]] = {}
    huge: tuple[HugeWish, ...] = ()
    source: Literal["anonymous", "file", "memfd"] | None = None
    shared: bool = False
    immediate: bool | None = None
    unmerged: bool = False
    locked: bool = False
    disks: tuple[DomainDisk, ...] = ()
    balloon: Balloon | None = None
    sharers: tuple[DomainPart, ...] = ()
    assigned: tuple[DomainPart, ...] = ()
    plugged: tuple[MemoryDevice, ...] = ()
    most: tuple[int, int] | None = None
    limit: int | None = None
    kernel: str | None = None
    others: tuple[DomainPart, ...] = ()
    lines: Mapping[str, int] = {}

    @property
    def nodes(self) -> tuple[tuple[int, int], ...]:
        """Its NUMA nodes with their memory in bytes."""
        return tuple((cell.id, cell.memory) for cell in self.cells) or ((0, self.memory),)

    def page(self, node: int, default: int | None) -> int | None:
        """Bytes of the pool's page that a node asks for; None: ordinary memory. `default`: the host's own size."""
        mine = [wish for wish in self.huge if wish.nodes is not None and node in wish.nodes]
        wish = next(iter(mine or [wish for wish in self.huge if wish.nodes is None]), None)
        size = None if wish is None else wish.size or default
        return None if size is None or size <= _BASE_PAGE else size

    def at(self, line: int) -> str:
        """The place that is named in messages."""
        return f"{self.file}:{line}"


_BASE_PAGE = 4096  # a <page> of it means ordinary memory
