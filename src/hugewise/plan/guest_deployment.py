"""Deployment of a guest's memory: the libvirt elements that ask for it, and the settings of its host.

element(Backing(pages="hugetlb-1g"))                                  what asks libvirt for it
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from hugewise.deployment import configuration as host_files
from hugewise.errors import UserError
from hugewise.host.pool import pool_folder
from hugewise.model.guest import PAGE_OF, Backing, Pages
from hugewise.model.pages import THP
from hugewise.model.policy import UNREAD, DeployedFile, Deployment
from hugewise.quantity import format_size


def element(backing: Backing) -> str:
    """Return the elements of a domain that ask libvirt for `backing`. Raises UserError where it has no words for it."""
    if "base" in backing.kinds:
        raise UserError(
            "libvirt has no element that denies a guest transparent huge pages",
            hint="switch them off for the whole host, or choose: thp, hugetlb-2m, hugetlb-1g",
        )
    pooled = [kind for kind in backing.kinds if kind in PAGE_OF]
    lines = _huge(backing) if pooled else []
    if pooled and not backing.preallocate:
        raise UserError(
            f"libvirt always allocates {pooled[0]} before the guest starts", hint="leave preallocate = false out"
        )
    if (pooled and backing.source == "memfd") or (backing.share and not pooled):
        lines.append('  <source type="memfd"/>')
    if backing.share:
        lines.append('  <access mode="shared"/>')
    if not pooled and backing.preallocate:
        lines.append('  <allocation mode="immediate"/>')
    elements = ["<memoryBacking>", *lines, "</memoryBacking>"] if lines else ["<memoryBacking/>"]
    return "\n".join([*elements, *_bound(backing)]) + "\n"


def _huge(backing: Backing) -> list[str]:
    """`<hugepages>`: one size for all, or sizes of nodes."""
    nodes: dict[Pages, list[int]] = {}
    for number, kind in enumerate(_by_node(backing)):
        nodes.setdefault(kind, []).append(number)
    pages = [
        f'    <page size="{PAGE_OF[kind] >> 10}" unit="KiB"'
        + (f' nodeset="{node_ranges(numbers)}"' if len(nodes) > 1 else "")
        + "/>"
        for kind, numbers in nodes.items()
        if kind in PAGE_OF
    ]
    return ["  <hugepages>", *pages, "  </hugepages>"]


def _by_node(backing: Backing) -> tuple[Pages, ...]:
    return tuple(cell.pages for cell in backing.cells) or backing.by_node or (backing.pages,)


def _bound(backing: Backing) -> list[str]:
    """`<numatune>`, where it is bound to nodes of the host."""
    own = [(number, cell.nodes) for number, cell in enumerate(backing.cells) if cell.nodes is not None]
    lines = [] if backing.nodes is None else [f'  <memory mode="strict" nodeset="{_listed(backing.nodes)}"/>']
    lines += [
        f'  <memnode cellid="{number}" mode="strict" nodeset="{_listed(nodes)}"/>'
        for number, nodes in own
        if nodes != backing.nodes
    ]
    return ["<numatune>", *lines, "</numatune>"] if lines else []


def _listed(nodes: tuple[int, ...]) -> str:
    return ",".join(map(str, nodes))


def node_ranges(nodes: list[int]) -> str:
    """Nodes in order, runs as `1-3`."""
    runs: list[list[int]] = []
    for node in nodes:
        if runs and node == runs[-1][-1] + 1:
            runs[-1].append(node)
        else:
            runs.append([node])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


_COUNTED = "judged by what an emulated guest counts: no time was measured"
_MADE_OF = {"base": "base pages", "thp": "transparent huge pages"}


def deployed(
    inside: Deployment, kernel: str, base: int, backing: Backing, memory: int, *, emulated: bool = False
) -> Deployment:
    """Return the deployment of a guest of `memory` bytes, from that of its policy in it.

    kernel    what it runs under, in words; `base` is its base page in bytes
    emulated  no time was measured, which whoever deploys it must know
    """
    where = f"in a guest whose memory is {_memory_kinds(backing)} of its host, under {kernel}"
    where += f" with base pages of {format_size(base)}"
    within = tuple(msgspec.structs.replace(file, on="guest") for file in inside.files)
    note = f"{where}: {inside.note}"
    return Deployment(files=(*within, *_host(backing, memory)), note=f"{note}; {_COUNTED}" if emulated else note)


def _memory_kinds(backing: Backing) -> str:
    kinds = [_MADE_OF.get(kind) or f"{format_size(PAGE_OF[kind])} pages of a pool" for kind in backing.kinds]
    return " and ".join(kinds) + (", which other processes share" if backing.share else "")


def _host(backing: Backing, memory: int) -> Iterator[DeployedFile]:
    """Yield the host's settings, and what asks libvirt for the memory."""
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
    """Yield kernel parameters: for each page size the number of pages, by node where pages are bound."""
    for size in dict.fromkeys(size for size, _ in pool):
        counts = [(node, pages) for (page, node), pages in pool.items() if page == size]
        # The kernel takes a number for all of the machine, or one for each node.
        bound = [f"{node}:{pages}" for node, pages in counts if node is not None]
        anywhere = sum(pages for node, pages in counts if node is None)
        yield f"hugepagesz={format_size(size).upper()}"
        yield f"hugepages={','.join(bound)}" if bound and not anywhere else f"hugepages={sum(n for _, n in counts)}"


def _libvirt(backing: Backing) -> DeployedFile:
    """Return the domain's elements that replace its own `<memoryBacking>` (and `<numatune>`)."""
    path = "/etc/libvirt/qemu/GUEST.page-sizes.xml"
    return DeployedFile(
        kind="libvirt",
        path=path,
        content=element(backing),
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
