"""Guests as plain values: what QEMU's command line and an attempt's record need, and what a libvirt domain says of
memory.

A run's `guests.json`, written once before the first block, keeps what its guests were, and how the configurations of
their kernels differ: a report is made from the folder alone. Sizes are bytes; `line` is where in a domain's file it
stands, from 1. Source: libvirt, "Domain XML format".
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec

from hugewise import reading
from hugewise.errors import RunError
from hugewise.files import write_whole

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
        return self.cells or (BackingCell(memory=memory, pages=self.pages, nodes=self.nodes),)

    @property
    def kinds(self) -> tuple[Pages, ...]:
        return tuple(dict.fromkeys((*(cell.pages for cell in self.cells), *self.by_node, self.pages)))

    @property
    def bound(self) -> bool:
        return self.nodes is not None or any(cell.nodes is not None for cell in self.cells)

    def pool(self, memory: int) -> dict[tuple[int, int | None], int]:
        """Return the pages of pools that `memory` bytes need, by their size and the host's NUMA node (None: wherever).

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
        if self.disk is not None:
            return (self.disk,)
        return () if self.root is None else (Disk(files=(DiskFile(path=self.root),)),)


class Guest(msgspec.Struct, frozen=True, kw_only=True):
    """Guest, before it boots.

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
        return (*self.image.drive, *self.disks)

    @property
    def opened(self) -> tuple[str, ...]:
        """The files of its disks, in the order in which QEMU knows them."""
        return tuple(file.path for disk in self.drives for file in disk.files)


NAME = "guests.json"


class Option(msgspec.Struct, frozen=True):
    """A symbol that two kernels' configurations set differently, without `CONFIG_`; `n`: not set, or not there."""

    symbol: str
    baseline: str
    kernel: str


class KernelRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A kernel that arms of the run boot.

    name       the study's
    had        how it was had: by a recipe of hugewise, by a Debian package, or by a file. Memory is compared only
               between kernels that were had in the same way
    base_page  bytes of its base page; null where its configuration is not known
    differs    in which symbols from the baseline's kernel (of which it is empty); null where one of the two
               configurations is not known
    """

    name: str
    release: str
    origin: str
    sha256: str
    had: Literal["build", "package", "path"]
    base_page: int | None
    differs: tuple[Option, ...] | None


class GuestsRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The content of `guests.json`. `why`: how the accelerator was chosen; `baseline`: the kernel of the study's
    baseline; `packages`: what the image is made of, with versions.
    """

    format: int = 1
    arch: Architecture
    accelerator: Accelerator
    why: str
    counting: bool
    baseline: str
    kernels: tuple[KernelRecord, ...]
    packages: Mapping[str, str] = {}


def write(folder: Path, record: GuestsRecord) -> str:
    """Keep it in the run's folder; its SHA-256. Raises OSError."""
    text = msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n"
    write_whole(folder / NAME, text)
    return hashlib.sha256(text).hexdigest()


def read(folder: Path, digest: str | None = None, *, demanded: bool = False) -> GuestsRecord | None:
    """Read the guests' record; None for a run without guests. `digest`: the SHA-256 that it must have where that is
    `demanded`.

    Raises RunError where it cannot be read, or is not what was kept.
    """
    path = folder / NAME
    try:
        text = reading.kept(path)
        found = reading.decoded(msgspec.json.Decoder(GuestsRecord), text)
    except FileNotFoundError:
        text, found = b"", None
    except OSError as error:
        raise RunError(f"{path}: {error.strerror}", hint="check its permissions") from None
    except reading.UnreadableError as error:
        raise RunError(
            f"{path} cannot be read: {error}", hint="put a copy of it back, or start a new run of its study"
        ) from None
    if demanded and digest != (None if found is None else hashlib.sha256(text).hexdigest()):
        raise RunError(f"{path} is not what the run began with", hint="put a copy of it back")
    return found


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
    bind       the host's nodes that all of its memory is bound to
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
    bind: tuple[int, ...] | None = None
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
    def filed(self) -> bool:
        """Return whether libvirt backs memory of no pool by a file: shared, and not of a memfd."""
        return self.shared and self.source in (None, "file")

    @property
    def nodes(self) -> tuple[tuple[int, int], ...]:
        return tuple((cell.id, cell.memory) for cell in self.cells) or ((0, self.memory),)

    def page(self, node: int, default: int | None) -> int | None:
        """Bytes of the pool's page that a node asks for; None: ordinary memory. `default`: the host's own size."""
        mine = [wish for wish in self.huge if wish.nodes is not None and node in wish.nodes]
        wish = next(iter(mine or [wish for wish in self.huge if wish.nodes is None]), None)
        size = None if wish is None else wish.size or default
        return None if size is None or size <= _BASE_PAGE else size

    def at(self, line: int) -> str:
        return f"{self.file}:{line}"


_BASE_PAGE = 4096  # a <page> of it means ordinary memory
