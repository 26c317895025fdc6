"""How an arm whose attempts ran in guests is deployed: in the guest, and on the host below it. Pure.

The guest's memory on the host is what `<memoryBacking>` of a libvirt domain asks for, and QEMU's memory backend.

Sources: Documentation/admin-guide/mm/hugetlbpage.rst of the Linux kernel; libvirt, "Domain XML format", memory backing.
"""

from __future__ import annotations

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
    made_of = _MADE_OF.get(backing.pages) or f"{format_size(PAGE_OF[backing.pages])} pages of a pool"
    where = f"in a guest whose memory is {made_of} of its host, under {kernel} with base pages of {format_size(base)}"
    within = tuple(msgspec.structs.replace(file, on="guest") for file in inside.files)
    note = f"{where}: {inside.note}"
    return Deployment(files=(*within, *_host(backing, memory)), note=f"{note}; {_COUNTED}" if emulated else note)


def _host(backing: Backing, memory: int) -> tuple[DeployedFile, ...]:
    """The host's settings, and what asks libvirt for the memory."""
    if backing.pages == "base":
        return host_files.now({f"{THP}/enabled": "never"}), host_files.boot(("transparent_hugepage=never",))
    if backing.pages == "thp":  # QEMU advises it for the guest's memory
        return host_files.now({f"{THP}/enabled": "madvise"}), _libvirt(backing)
    size, pool = PAGE_OF[backing.pages], backing.pool(memory)
    wanted = {f"{pool_folder(size, node)}/nr_hugepages": str(pages) for node, pages in pool.items()}
    counts = ",".join(f"{node}:{pages}" if node is not None else f"{pages}" for node, pages in pool.items())
    words = (f"hugepagesz={format_size(size).upper()}", f"hugepages={counts}")
    return host_files.now(wanted), host_files.boot(words), _libvirt(backing)


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
        check="virsh dumpxml GUEST | grep -A 9 memoryBacking; hugewise verify PID  # of its QEMU",
        label=UNREAD,
        needs=("the pages are there before the guest starts",) if backing.pages in PAGE_OF else (),
    )
