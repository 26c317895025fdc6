"""What a guest is made of, as plain values: everything that QEMU's command line and the record of an attempt need."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

__all__ = [
    "HARDWARE",
    "PAGE_OF",
    "Accelerator",
    "Architecture",
    "Backing",
    "BackingCell",
    "Disk",
    "DiskFile",
    "DiskFormat",
    "Guest",
    "Image",
    "Initramfs",
    "Kernel",
    "Network",
    "Pages",
]

Architecture = Literal["x86-64", "arm64"]
Accelerator = Literal["kvm", "tcg"]
Network = Literal["none", "user", "tap"]
DiskFormat = Literal["raw", "qcow2"]

# What uname calls an architecture.
HARDWARE: Mapping[Architecture, str] = {"x86-64": "x86_64", "arm64": "aarch64"}

# What the guest's memory is made of on the host. `base`: THP is switched off for QEMU by prctl. `thp`: QEMU itself
# advises huge pages for it.
Pages = Literal["base", "thp", "hugetlb-2m", "hugetlb-1g"]

# Bytes of a page of the pool that a backing takes its memory from.
PAGE_OF: Mapping[Pages, int] = {"hugetlb-2m": 1 << 21, "hugetlb-1g": 1 << 30}


class BackingCell(msgspec.Struct, frozen=True, kw_only=True):
    """The memory of one NUMA node of a guest: bytes, the pages that it is made of, the host's nodes that it is bound to
    (None: wherever), and the guest's CPUs of that node.
    """

    memory: int
    pages: Pages
    nodes: tuple[int, ...] | None = None
    cpus: tuple[int, ...] = ()


class Backing(msgspec.Struct, frozen=True, kw_only=True):
    """The guest's memory on the host.

    source       of hugetlb pages: an anonymous `memfd`, or a `file` on a hugetlbfs that hugewise mounts
    preallocate  all pages are there before the guest starts
    nodes        NUMA nodes of the host that it is bound to; None: wherever
    share        other processes can map it too, as virtiofs and vhost-user need it: shmem, where it is of no pool
    by_node      the pages of each NUMA node of the guest, where they differ; `pages` are those of the first
    cells        its NUMA nodes, where the guest has several; none until an arm is planned
    """

    pages: Pages = "thp"
    source: Literal["memfd", "file"] = "memfd"
    preallocate: bool = True
    nodes: tuple[int, ...] | None = None
    share: bool = False
    by_node: tuple[Pages, ...] = ()
    cells: tuple[BackingCell, ...] = ()

    def parts(self, memory: int) -> tuple[BackingCell, ...]:
        """The memory of each of its NUMA nodes, of a guest of `memory` bytes."""
        return self.cells or (BackingCell(memory=memory, pages=self.pages, nodes=self.nodes),)

    @property
    def kinds(self) -> tuple[Pages, ...]:
        """All kinds of pages that it is made of."""
        return tuple(dict.fromkeys((*(cell.pages for cell in self.cells), *self.by_node, self.pages)))

    @property
    def bound(self) -> bool:
        """Whether any of it is bound to nodes of the host."""
        return self.nodes is not None or any(cell.nodes is not None for cell in self.cells)

    def pool(self, memory: int) -> dict[tuple[int, int | None], int]:
        """The pages of pools that `memory` bytes need, by their size and the host's NUMA node (None: wherever).

        What is bound to several nodes takes pages of any of them: each has its share.
        """
        found: dict[tuple[int, int | None], int] = {}
        for part in self.parts(memory):
            size = PAGE_OF.get(part.pages)
            if size is None:
                continue
            nodes = part.nodes or (None,)
            each, more = divmod(-(-part.memory // size), len(nodes))
            for place, node in enumerate(nodes):
                found[size, node] = found.get((size, node), 0) + each + (place < more)
        return {where: pages for where, pages in found.items() if pages}

    def said(self) -> dict[str, Any]:
        """Its keys as JSON has them, without those that later versions have added and that say nothing here."""
        found: dict[str, Any] = msgspec.to_builtins(self)
        return {key: value for key, value in found.items() if value or key not in ("share", "by_node", "cells")}


class Kernel(msgspec.Struct, frozen=True, kw_only=True):
    """A kernel that is there.

    image     path of the bzImage or Image; `digest` is its SHA-256
    modules   paths of the modules that a guest needs (virtio, ext4, network, NFS), in the order to load them, which may
              be compressed (.ko.xz); empty where all is built in
    config    path of its configuration, where known
    origin    how it was had, in words: the package with its version and SHA-256, or the recipe and its hash
    """

    name: str
    arch: Architecture
    image: str
    digest: str
    release: str
    modules: tuple[str, ...] = ()
    config: str | None = None
    origin: str


class Initramfs(msgspec.Struct, frozen=True, kw_only=True):
    """The agent with the modules of a kernel: a file, and its SHA-256."""

    path: str
    digest: str


class DiskFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of a disk, and QEMU's name of its format."""

    path: str
    format: DiskFormat = "raw"


class Disk(msgspec.Struct, frozen=True, kw_only=True):
    """A disk that a guest reads, and never writes: what it writes goes to an overlay that is thrown away with it.

    files  the disk, and behind it what it is an overlay of itself, each before what it stands on
    """

    files: tuple[DiskFile, ...]


class Image(msgspec.Struct, frozen=True, kw_only=True):
    """A user space. `root` is an ext4 (None: all there is, is the agent in the initramfs).

    programs  the paths of all files in it that can be executed
    files     other files in it that workloads look for: the archives below /usr/src
    packages  name -> version and SHA-256 of what it is made of
    disk      somebody's own disk, in place of an ext4 that was made here; `place` is where in it the root folder is:
              the guest's name of the partition, or none, and the agent looks for it
    """

    arch: Architecture
    root: str | None = None
    digest: str = ""
    programs: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    packages: tuple[tuple[str, str], ...] = ()
    disk: Disk | None = None
    place: str = ""

    @property
    def drive(self) -> tuple[Disk, ...]:
        """Its disk, where it has one."""
        if self.disk is not None:
            return (self.disk,)
        return () if self.root is None else (Disk(files=(DiskFile(path=self.root),)),)


class Guest(msgspec.Struct, frozen=True, kw_only=True):
    """One guest, before it boots.

    memory     bytes
    cpus       vCPUs
    cpu        QEMU's CPU model
    counting   `-icount shift=0`, one vCPU, a fixed clock, no input from outside: instructions are counted exactly
    seed       QEMU's `-seed` (kernel address space layout, random numbers); runs of an arm differ in it
    append     more words for the kernel's command line
    disks      beside that of its image
    pins       of each virtual CPU, CPUs of the host; none: as its slot says
    """

    arch: Architecture
    kernel: Kernel
    image: Image
    backing: Backing
    accelerator: Accelerator
    memory: int
    cpus: int = 1
    cpu: str = "max"
    counting: bool = False
    seed: int = 1
    network: Network = "none"
    append: tuple[str, ...] = ()
    disks: tuple[Disk, ...] = ()
    pins: tuple[tuple[int, ...], ...] = ()

    @property
    def drives(self) -> tuple[Disk, ...]:
        """All its disks, that of its image first."""
        return (*self.image.drive, *self.disks)

    @property
    def opened(self) -> tuple[str, ...]:
        """The files of its disks, in the order in which QEMU knows them."""
        return tuple(file.path for disk in self.drives for file in disk.files)
