"""What a guest is made of, as plain values: everything that QEMU's command line and the record of an attempt need."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

__all__ = [
    "HARDWARE",
    "PAGE_OF",
    "Accelerator",
    "Architecture",
    "Backing",
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

# What uname calls an architecture.
HARDWARE: Mapping[Architecture, str] = {"x86-64": "x86_64", "arm64": "aarch64"}

# What the guest's memory is made of on the host. `base`: THP is switched off for QEMU by prctl. `thp`: QEMU itself
# advises huge pages for it.
Pages = Literal["base", "thp", "hugetlb-2m", "hugetlb-1g"]

# Bytes of a page of the pool that a backing takes its memory from.
PAGE_OF: Mapping[Pages, int] = {"hugetlb-2m": 1 << 21, "hugetlb-1g": 1 << 30}


class Backing(msgspec.Struct, frozen=True, kw_only=True):
    """The guest's memory on the host.

    source       of hugetlb pages: an anonymous `memfd`, or a `file` on a hugetlbfs that hugewise mounts
    preallocate  all pages are there before the guest starts
    nodes        NUMA nodes of the host that it is bound to; None: wherever
    """

    pages: Pages = "thp"
    source: Literal["memfd", "file"] = "memfd"
    preallocate: bool = True
    nodes: tuple[int, ...] | None = None

    def pool(self, memory: int) -> dict[int | None, int]:
        """The pages of its pool that `memory` bytes need, by NUMA node (None: wherever); nothing where it has none.

        What is bound to several nodes takes pages of any of them: each has its share.
        """
        size = PAGE_OF.get(self.pages)
        if size is None:
            return {}
        nodes = self.nodes or (None,)
        each, more = divmod(-(-memory // size), len(nodes))
        return {node: each + (place < more) for place, node in enumerate(nodes)}


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


class Image(msgspec.Struct, frozen=True, kw_only=True):
    """A user space. `root` is an ext4 (None: all there is, is the agent in the initramfs).

    programs  the paths of all files in it that can be executed
    files     other files in it that workloads look for: the archives below /usr/src
    packages  name -> version and SHA-256 of what it is made of
    """

    arch: Architecture
    root: str | None = None
    digest: str = ""
    programs: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    packages: tuple[tuple[str, str], ...] = ()


class Guest(msgspec.Struct, frozen=True, kw_only=True):
    """One guest, before it boots.

    memory     bytes
    cpus       vCPUs
    cpu        QEMU's CPU model
    counting   `-icount shift=0`, one vCPU, a fixed clock, no input from outside: instructions are counted exactly
    seed       QEMU's `-seed` (kernel address space layout, random numbers); runs of an arm differ in it
    append     more words for the kernel's command line
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
