"""How an arm whose attempts ran in guests is deployed: in the guest, and on the host below it. Pure.

The guest's memory on the host is what `<memoryBacking>` of a libvirt domain asks for, and QEMU's memory backend.

Sources: Documentation/admin-guide/mm/hugetlbpage.rst of the Linux kernel; libvirt, "Domain XML format", memory backing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from hugewise.deployment import host as host_files
from hugewise.guests import libvirt
from hugewise.host.pool import pool_folder
from hugewise.model.deployment import UNREAD, DeployedFile, Deployment
from hugewise.model.guest import PAGE_OF, Backing
from hugewise.model.pages import THP
from hugewise.quantity import format_size

__all__ = ["deployed"]

_COUNTED = "judged by what an emulated guest counts: no time was measured"
_MADE_OF = {"base": "base pages", "thp": "transparent huge pages"}


def deployed(
    inside: Deployment, kernel: str, base: int, backing: Backing, memory: int, *, emulated: bool = False
) -> Deployment:
    """The deployment of a guest of `memory` bytes, from that of its policy in it.

    kernel    what it runs under, in words; `base` is its base page in bytes
    emulated  no time was measured, which whoever deploys it must know
    """
    where = f"in a guest whose memory is {_made_of(backing)} of its host, under {kernel}"
    where += f" with base pages of {format_size(base)}"
    within = tuple(msgspec.structs.replace(file, on="guest") for file in inside.files)
    note = f"{where}: {inside.note}"
    return Deployment(files=(*within, *_host(backing, memory)), note=f"{note}; {_COUNTED}" if emulated else note)


def _made_of(backing: Backing) -> str:
    kinds = [_MADE_OF.get(kind) or f"{format_size(PAGE_OF[kind])} pages of a pool" for kind in backing.kinds]
    return " and ".join(kinds) + (", which other processes share" if backing.share else "")


def _host(backing: Backing, memory: int) -> Iterator[DeployedFile]:
    """The host's settings, and what asks libvirt for the memory."""
    if "base" in backing.kinds:
        name = "shmem_enabled" if backing.share else "enabled"
        yield host_files.now({f"{THP}/{name}": "never"})
        yield host_files.boot(("transparent_hugepage_shmem=never" if backing.share else "transparent_hugepage=never",))
        return
    if "thp" in backing.kinds:  # QEMU advises it for the guest's memory
        yield host_files.now({f"{THP}/shmem_enabled": "advise"} if backing.share else {f"{THP}/enabled": "madvise"})
    pool = backing.pool(memory)
    if pool:
        yield host_files.now(
            {f"{pool_folder(size, node)}/nr_hugepages": str(pages) for (size, node), pages in pool.items()}
        )
        yield host_files.boot(tuple(_boot_words(pool)))
    yield _libvirt(backing)


def _boot_words(pool: Mapping[tuple[int, int | None], int]) -> Iterator[str]:
    """Of each size of pages, how many there are; of each node, where they are bound."""
    for size in dict.fromkeys(size for size, _ in pool):
        counts = [(node, pages) for (each, node), pages in pool.items() if each == size]
        # The kernel takes a number for all of the machine, or one for each node.
        bound = [f"{node}:{pages}" for node, pages in counts if node is not None]
        anywhere = sum(pages for node, pages in counts if node is None)
        yield f"hugepagesz={format_size(size).upper()}"
        yield f"hugepages={','.join(bound)}" if bound and not anywhere else f"hugepages={sum(n for _, n in counts)}"


def _libvirt(backing: Backing) -> DeployedFile:
    """What stands in the domain, in place of its own `<memoryBacking>` (and `<numatune>`)."""
    path = "/etc/libvirt/qemu/GUEST.page-sizes.xml"
    return DeployedFile(
        kind="libvirt",
        path=path,
        content=libvirt.element(backing),
        scope="guest",
        apply=(
            "virsh edit GUEST  # put it into <domain>, in place of what it has of these elements",
            "virsh start GUEST",
        ),
        undo=("virsh edit GUEST  # take it out again",),
        check="hugewise verify GUEST  # the domain's name, after it was started with it",
        label=UNREAD,
        needs=("the pages are there before the guest starts",) if PAGE_OF.keys() & set(backing.kinds) else (),
    )
