"""`<memoryBacking>` of a libvirt domain as the backing of a guest, and back.

    asked(domain_xml.parse(text, file), file, page=2 << 20)   what the domain asks for, with warnings
    element(Backing(pages="hugetlb-1g"))                      what asks libvirt for it

Source: libvirt's documentation of the domain XML (Memory Backing, NUMA Node Tuning), and of what its QEMU driver
refuses: huge pages on demand, and of anonymous memory. Pure; what a bare `<hugepages/>` means is the host's to say.

How an arm whose attempts ran in guests is deployed: in the guest, and on the host below it. Pure.

The guest's memory on the host is what `<memoryBacking>` of a libvirt domain asks for, and QEMU's memory backend.

Sources: Documentation/admin-guide/mm/hugetlbpage.rst of the Linux kernel; libvirt, "Domain XML format", memory backing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from hugewise.deployment import configuration as host_files
from hugewise.errors import UserError
from hugewise.host.pool import pool_folder
from hugewise.machine.domain import Element, node_set, scaled, wrong
from hugewise.model.guest import PAGE_OF, Backing, Pages
from hugewise.model.pages import THP
from hugewise.model.policy import UNREAD, DeployedFile, Deployment
from hugewise.quantity import format_size

_THP: Pages = "thp"
_BASE_PAGE = 4096  # a <page> of it means ordinary memory

# Every element that is understood here, with its attributes. All others in the same place are named.
_BACKING: Mapping[str, frozenset[str]] = {
    "hugepages": frozenset(),
    "nosharepages": frozenset(),
    "locked": frozenset(),
    "source": frozenset({"type"}),
    "access": frozenset({"mode"}),
    "allocation": frozenset({"mode", "threads"}),
    "discard": frozenset(),
}
_PAGE = {"page": frozenset({"size", "unit", "nodeset"})}
_TUNING = {
    "memory": frozenset({"mode", "nodeset", "placement"}),
    "memnode": frozenset({"cellid", "mode", "nodeset"}),
}
_CHOICES: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("source", "type"): ("anonymous", "file", "memfd"),
    ("access", "mode"): ("private", "shared"),
    ("allocation", "mode"): ("immediate", "ondemand"),
}


@dataclass(frozen=True)
class DomainMemory:
    """What a domain asks for. `bare`: the line of a `<hugepages/>` that names no size, where there is one."""

    backing: Backing
    bare: int | None
    warnings: tuple[str, ...]


def requested_backing(root: Element, file: str, page: int | None) -> DomainMemory:
    """The backing that the domain (or its `<memoryBacking>` alone) asks for.

    `page` is the host's default size of huge pages in bytes, None where it has none. What hugewise's guests have not is
    said in the warnings. Raises UserError, which names file and line.
    """
    return _Reader(file, page).read(root)


def element(backing: Backing) -> str:
    """The elements of a domain that ask libvirt for `backing`. Raises UserError where it has no words for it."""
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
    found = ["<memoryBacking>", *lines, "</memoryBacking>"] if lines else ["<memoryBacking/>"]
    return "\n".join([*found, *_bound(backing)]) + "\n"


def _huge(backing: Backing) -> list[str]:
    """`<hugepages>`: one size for all, or sizes of nodes."""
    nodes: dict[Pages, list[int]] = {}
    for number, kind in enumerate(_by_node(backing)):
        nodes.setdefault(kind, []).append(number)
    pages = [
        f'    <page size="{PAGE_OF[kind] >> 10}" unit="KiB"'
        + (f' nodeset="{_written(each)}"' if len(nodes) > 1 else "")
        + "/>"
        for kind, each in nodes.items()
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


def toml(backing: Backing) -> str:
    """The backing as a line of a policy's table in a study: what differs from a study's defaults."""
    default = Backing(pages=backing.pages)
    said = [f'pages = "{backing.pages}"']
    if backing.pages in PAGE_OF and backing.source != default.source:
        said.append(f'source = "{backing.source}"')
    if backing.preallocate != default.preallocate:
        said.append(f"preallocate = {'true' if backing.preallocate else 'false'}")
    if backing.nodes is not None:
        said.append(f"nodes = [{', '.join(map(str, backing.nodes))}]")
    if backing.share:
        said.append("share = true")
    if backing.by_node:
        said.append(f"by_node = [{', '.join(map(_quoted, backing.by_node))}]")
    return f'backing = "{backing.pages}"\n' if len(said) == 1 else f"backing = {{ {', '.join(said)} }}\n"


def _quoted(text: str) -> str:
    return f'"{text}"'


class _Reader:
    """One reading of a domain, which collects its warnings."""

    def __init__(self, file: str, page: int | None) -> None:
        self.file = file
        self.default = page
        self.warnings: list[str] = []

    def read(self, root: Element) -> DomainMemory:
        if root.tag not in {"domain", "memoryBacking"}:
            raise self.wrong(root, f"<{root.tag}> is not a domain of libvirt", "write it with: virsh dumpxml DOMAIN")
        backing = root if root.tag == "memoryBacking" else self.only(root, "memoryBacking")
        parts = {} if backing is None else self.parts(backing)
        cells = _cells(root)
        by_node, bare = self.pages(parts.get("hugepages"), cells)
        huge = any(kind in PAGE_OF for kind in by_node)
        share = self.shared(parts.get("access"), root)
        source = self.source(parts.get("source"), huge=huge, share=share)
        preallocate = self.preallocated(parts.get("allocation"), huge=huge)
        self.unlike(parts, huge=huge)
        nodes = self.nodes(root, cells) if root.tag == "domain" else None
        if root.tag == "domain":
            self.domain(root)
        found = Backing(
            pages=by_node[0],
            source=source,
            preallocate=preallocate,
            nodes=nodes,
            share=share,
            by_node=by_node if len(set(by_node)) > 1 else (),
        )
        return DomainMemory(found, bare, tuple(self.warnings))

    def wrong(self, where: Element, message: str, hint: str) -> UserError:
        return wrong(self.file, where, message, hint)

    def warn(self, where: Element, message: str) -> None:
        self.warnings.append(f"{self.file}:{where.line}: {message}")

    def only(self, parent: Element, tag: str) -> Element | None:
        """The child of that tag, with a warning where there are more."""
        found = list(parent.all(tag))
        for other in found[1:]:
            self.warn(other, f"<{tag}> stands twice: the first one counts")
        return found[0] if found else None

    def known(self, parent: Element, known: Mapping[str, frozenset[str]]) -> None:
        """Name the children of `parent`, and their attributes, that are not known; wrong choices are errors."""
        for child in parent.children:
            if child.tag not in known:
                self.warn(child, f"<{child.tag}> in <{parent.tag}> is not known here and has no effect")
                continue
            for name, value in child.attributes.items():
                if name not in known[child.tag]:
                    self.warn(child, f"{name}={value!r} of <{child.tag}> is not known here and has no effect")
                choices = _CHOICES.get((child.tag, name), (value,))
                if value not in choices:
                    cure = f"choose from: {', '.join(choices)}"
                    raise self.wrong(child, f"{name}={value!r} of <{child.tag}> is not one of libvirt's", cure)

    def parts(self, parent: Element) -> dict[str, Element]:
        """The children of `<memoryBacking>` by tag."""
        self.known(parent, _BACKING)
        found = {tag: self.only(parent, tag) for tag in _BACKING}
        return {tag: part for tag, part in found.items() if part is not None}

    def pages(self, huge: Element | None, cells: Sequence[int]) -> tuple[tuple[Pages, ...], int | None]:
        """The pages of each of the guest's NUMA nodes, and the line of a `<hugepages/>` without sizes."""
        if huge is None:
            return tuple(_THP for _ in cells), None
        self.known(huge, _PAGE)
        sizes = [(page, self.size(page), node_set(self.file, page)) for page in huge.all("page")]
        if not sizes:
            if self.default is None:
                raise self.wrong(huge, "this host has no huge pages", "name a size: <page size='1' unit='GiB'/>")
            return tuple(self.kind(huge, self.default or 0) for _ in cells), huge.line
        found = tuple(self.of_node(huge, cell, sizes) for cell in cells)
        for page, size, nodes in sizes:
            others = sorted(nodes or ())
            if others and not set(others) & set(cells):
                plural = "s" if others[1:] else ""
                written = f"{format_size(size)} pages for node{plural} {_written(others)} of the guest"
                has = "node 0 alone" if list(cells) == [0] else f"nodes {_written(list(cells))}"
                self.warn(page, f"{written} have no effect: it has {has}")
        return found, None

    def of_node(self, huge: Element, cell: int, sizes: Sequence[tuple[Element, int, frozenset[int] | None]]) -> Pages:
        """The pages of one of the guest's NUMA nodes."""
        mine = [each for each in sizes if each[2] is not None and cell in each[2]]
        mine = mine or [each for each in sizes if each[2] is None]
        if len(mine) > 1:
            cure = "name one size for each node"
            raise self.wrong(mine[1][0], f"node {cell} of the guest has two sizes of pages", cure)
        if not mine:
            self.warn(huge, f"no page is for node {cell} of the guest, which then has ordinary memory")
            return "thp"
        page, size, _ = mine[0]
        if size == _BASE_PAGE:
            self.warn(page, "a page of 4k is none of a pool: ordinary memory, which may be huge transparently")
            return "thp"
        return self.kind(page, size)

    def kind(self, where: Element, size: int) -> Pages:
        for pages, each in PAGE_OF.items():
            if each == size:
                return pages
        offered = ", ".join(format_size(each) for each in PAGE_OF.values())
        raise self.wrong(where, f"pages of {format_size(size)} back no guest of hugewise", f"choose from: {offered}")

    def size(self, page: Element) -> int:
        """Bytes of a `<page>`; without a unit, its size is in KiB."""
        written = page.attributes.get("size", "")
        size = scaled(self.file, page, written)
        if size <= 0 or size & (size - 1):
            unit = page.attributes.get("unit", "KiB")
            cure = "write for example <page size='1' unit='GiB'/>"
            raise self.wrong(page, f"{written} {unit} ({size} bytes) is no size of pages", cure)
        return size

    def shared(self, access: Element | None, root: Element) -> bool:
        """Whether other processes can map it too: as the domain says, or one of its nodes."""
        numa = root.first("cpu", "numa")
        own = [cell for cell in ([] if numa is None else numa.all("cell")) if cell.attributes.get("memAccess")]
        whole = access is not None and access.attributes.get("mode") == "shared"
        for cell in own:
            if (cell.attributes["memAccess"] == "shared") != whole:
                self.warn(cell, "memAccess of one node alone has no key in a study: the access of all nodes is one")
        return whole or any(cell.attributes["memAccess"] == "shared" for cell in own)

    def source(self, given: Element | None, *, huge: bool, share: bool) -> Literal["memfd", "file"]:
        """Of huge pages: libvirt's own default is a file of a hugetlbfs."""
        kind = None if given is None else given.attributes.get("type")
        if huge:
            if given is not None and kind == "anonymous":
                self.warn(given, "libvirt refuses huge pages of anonymous memory; they are taken as a file's")
            return "memfd" if kind == "memfd" else "file"
        if given is not None and kind == "file" and share:
            self.warn(
                given,
                "type='file' is a file below memory_backing_dir of qemu.conf, which may be on a disk; shared memory of"
                " a guest of hugewise is a memfd",
            )
        elif given is not None and kind in {"file", "memfd"} and not share:
            self.warn(
                given, f"type={kind!r} without <hugepages> has no effect: guests of hugewise have anonymous memory"
            )
        return "memfd"

    def preallocated(self, given: Element | None, *, huge: bool) -> bool:
        """Whether all pages are there before the guest starts: with libvirt, huge ones always are."""
        mode = None if given is None else given.attributes.get("mode")
        if huge and given is not None and mode == "ondemand":
            self.warn(given, "libvirt refuses huge pages on demand; a guest of hugewise can have them so")
        return mode == "immediate" or (huge and mode != "ondemand")

    def unlike(self, parts: Mapping[str, Element], *, huge: bool) -> None:
        """Name what is understood, and what guests of hugewise do not have or do otherwise."""
        if "nosharepages" in parts and not huge:
            self.warn(
                parts["nosharepages"], "has no key in a study: whether pages are merged (KSM) is the host's to say"
            )
        if "locked" in parts and not huge:
            self.warn(parts["locked"], "has no key in a study: the guest's memory can be swapped out")

    def nodes(self, domain: Element, cells: Sequence[int]) -> tuple[int, ...] | None:
        """The host's nodes that the guest's memory is bound to; of a guest with several nodes, of those that are not
        bound by themselves.
        """
        tuning = self.only(domain, "numatune")
        if tuning is None:
            return None
        for child in tuning.children:
            if child.tag not in _TUNING:
                self.warn(child, f"<{child.tag}> in <numatune> is not known here and has no effect")
        chosen = self.only(tuning, "memory")
        for node in tuning.all("memnode"):
            cell = node.attributes.get("cellid", "")
            if not cell.isdecimal() or int(cell) not in cells:
                self.warn(node, f"cellid={cell!r} has no effect: the guest has no such node")
            elif len(cells) == 1:
                chosen = node
        if chosen is None:
            return None
        if chosen.attributes.get("placement") == "auto":
            self.warn(chosen, "placement='auto' has no key in a study: name nodes")
            return None
        mode = chosen.attributes.get("mode", "strict")
        if mode != "strict":
            self.warn(chosen, f"mode={mode!r} binds nothing, and has no key in a study")
            return None
        nodes = node_set(self.file, chosen)
        return tuple(sorted(nodes)) if nodes else None

    def domain(self, domain: Element) -> None:
        """Name what else of the domain is about its memory, and is not read anywhere."""
        for other in domain.all("qemu:commandline"):
            self.warn(other, "<qemu:commandline> is not read")


def _cells(root: Element) -> list[int]:
    """The guest's NUMA nodes."""
    numa = root.first("cpu", "numa")
    cells = [] if numa is None else list(numa.all("cell"))
    numbers = [cell.attributes.get("id", str(place)) for place, cell in enumerate(cells)]
    return sorted({int(number) for number in numbers if number.isascii() and number.isdecimal()}) or [0]


def _written(nodes: list[int]) -> str:
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
