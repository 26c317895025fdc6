"""How an arm whose attempts ran in guests is deployed: in the guest, and on the host below it. Pure.

The guest's memory on the host is what `<memoryBacking>` of a libvirt domain asks for, and QEMU's memory backend.

Sources: Documentation/admin-guide/mm/hugetlbpage.rst of the Linux kernel; libvirt, "Domain XML format", memory backing.
"""

from __future__ import annotations

from collections.abc import Iterator

from hugewise.guests import libvirt
from hugewise.host.pool import pool_folder
from hugewise.model.guest import PAGE_OF, Backing
from hugewise.model.pages import THP
from hugewise.model.policy import Deployment
from hugewise.quantity import format_size

__all__ = ["deployed"]

_COUNTED = "# judged by what an emulated guest counts: no time was measured"
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
    return Deployment(
        now=(
            *((_COUNTED,) if emulated else ()),
            f"# in the guest, booted with {kernel} (base pages of {format_size(base)}):",
            *inside.now,
            f"# on its host, before it starts ({format_size(memory)} of {made_of}):",
            *_now(backing, memory),
        ),
        boot=(*(f"in the guest: {line}" for line in inside.boot), *_boot(backing, memory)),
        note=f"{where}: {inside.note}",
    )


def _now(backing: Backing, memory: int) -> Iterator[str]:
    """Commands on the host."""
    if backing.pages == "base":
        yield f"echo never > {THP}/enabled  # or, for its QEMU alone: prctl(PR_SET_THP_DISABLE)"
    elif backing.pages == "thp":
        yield f"echo madvise > {THP}/enabled  # QEMU advises it for the guest's memory"
    else:
        for node, pages in backing.pool(memory).items():
            yield f"echo {pages} > {pool_folder(PAGE_OF[backing.pages], node)}/nr_hugepages  # and of other guests"


def _boot(backing: Backing, memory: int) -> Iterator[str]:
    """Lines for the host's configuration, and for the guest's."""
    if backing.pages == "base":
        yield "on the host's kernel command line: transparent_hugepage=never"
        return
    if backing.pages in PAGE_OF:
        size = PAGE_OF[backing.pages]
        counts = ",".join(
            f"{node}:{pages}" if node is not None else f"{pages}" for node, pages in backing.pool(memory).items()
        )
        yield f"on the host's kernel command line: hugepagesz={format_size(size).upper()} hugepages={counts}"
    words = "".join(line.strip() for line in libvirt.element(backing).splitlines())
    yield f"in the guest's libvirt domain: {words}"
