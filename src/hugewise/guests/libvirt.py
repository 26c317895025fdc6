"""`<memoryBacking>` of a libvirt domain as the backing of a guest, and back; how an arm in guests is deployed. Pure.

    requested_backing(domain_xml.parse(text, file), file, page=2 << 20)   what the domain asks for, with warnings
    deployed(inside, kernel, base, backing, memory)                       in the guest, and on the host below it

What a bare `<hugepages/>` means is the host's to say.

Sources: libvirt's documentation of the domain XML (Memory Backing, NUMA Node Tuning), and of what its QEMU driver
refuses: huge pages on demand, and of anonymous memory; Documentation/admin-guide/mm/hugetlbpage.rst of the kernel.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from hugewise.errors import UserError
from hugewise.machine.domain import Element, node_set, scaled, wrong
from hugewise.model.guest import PAGE_OF, Backing, Pages
from hugewise.plan.guest_deployment import node_ranges
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
UNLIKE = {
    "nosharepages": "whether pages are merged is the host's to say (KSM), but for pages of a pool, which never are",
    "locked": "the guest's memory can be swapped out, but for pages of a pool",
}
"""Elements of `<memoryBacking>` without an equal here, and what guests of hugewise have in their place."""
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
    """Memory that a domain asks for. `bare`: the line of a `<hugepages/>` that names no size, where there is one."""

    backing: Backing
    bare: int | None
    warnings: tuple[str, ...]


def requested_backing(root: Element, file: str, page: int | None) -> DomainMemory:
    """Return the backing that the domain asks for, with warnings; `page`: the host's default huge page size, or None.
    Raises UserError naming file and line.
    """
    return _Reader(file, page).read(root)


def toml(backing: Backing) -> str:
    """Return the backing as a line of a policy's table in a study: what differs from a study's defaults."""
    default = Backing(pages=backing.pages)
    pairs = [f'pages = "{backing.pages}"']
    if backing.pages in PAGE_OF and backing.source != default.source:
        pairs.append(f'source = "{backing.source}"')
    if backing.preallocate != default.preallocate:
        pairs.append(f"preallocate = {'true' if backing.preallocate else 'false'}")
    if backing.nodes is not None:
        pairs.append(f"nodes = [{', '.join(map(str, backing.nodes))}]")
    if backing.share:
        pairs.append("share = true")
    if backing.by_node:
        pairs.append(f"by_node = [{', '.join(map(_quoted, backing.by_node))}]")
    return f'backing = "{backing.pages}"\n' if len(pairs) == 1 else f"backing = {{ {', '.join(pairs)} }}\n"


def _quoted(text: str) -> str:
    return f'"{text}"'


class _Reader:
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
        sharing = parts.get("access") or next(_sharing(root), root)
        source = self.source(parts.get("source"), sharing, huge=huge, share=share)
        preallocate = self.preallocated(parts.get("allocation"), huge=huge)
        self.unlike(parts)
        nodes = self.nodes(root, cells) if root.tag == "domain" else None
        if root.tag == "domain":
            self.domain(root)
        requested = Backing(
            pages=by_node[0],
            source=source,
            preallocate=preallocate,
            nodes=nodes,
            share=share,
            by_node=by_node if len(set(by_node)) > 1 else (),
        )
        return DomainMemory(requested, bare, tuple(self.warnings))

    def wrong(self, where: Element, message: str, hint: str) -> UserError:
        return wrong(self.file, where, message, hint)

    def warn(self, where: Element, message: str) -> None:
        self.warnings.append(f"{self.file}:{where.line}: {message}")

    def only(self, parent: Element, tag: str) -> Element | None:
        children = list(parent.all(tag))
        for other in children[1:]:
            self.warn(other, f"<{tag}> stands twice: the first one counts")
        return children[0] if children else None

    def known(self, parent: Element, known: Mapping[str, frozenset[str]]) -> None:
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
        self.known(parent, _BACKING)
        by_tag = {tag: self.only(parent, tag) for tag in _BACKING}
        return {tag: part for tag, part in by_tag.items() if part is not None}

    def pages(self, huge: Element | None, cells: Sequence[int]) -> tuple[tuple[Pages, ...], int | None]:
        if huge is None:
            return tuple(_THP for _ in cells), None
        self.known(huge, _PAGE)
        sizes = [(page, self.size(page), node_set(self.file, page)) for page in huge.all("page")]
        if not sizes:
            if self.default is None:
                raise self.wrong(huge, "this host has no huge pages", "name a size: <page size='1' unit='GiB'/>")
            return tuple(self.kind(huge, self.default or 0) for _ in cells), huge.line
        kinds = tuple(self.of_node(huge, cell, sizes) for cell in cells)
        for page, size, nodes in sizes:
            others = sorted(nodes or ())
            if others and not set(others) & set(cells):
                plural = "s" if others[1:] else ""
                written = f"{format_size(size)} pages for node{plural} {node_ranges(others)} of the guest"
                has = "node 0 alone" if list(cells) == [0] else f"nodes {node_ranges(list(cells))}"
                self.warn(page, f"{written} have no effect: it has {has}")
        return kinds, None

    def of_node(self, huge: Element, cell: int, sizes: Sequence[tuple[Element, int, frozenset[int] | None]]) -> Pages:
        mine = [entry for entry in sizes if entry[2] is not None and cell in entry[2]]
        mine = mine or [entry for entry in sizes if entry[2] is None]
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
        for pages, page in PAGE_OF.items():
            if page == size:
                return pages
        offered = ", ".join(format_size(page) for page in PAGE_OF.values())
        raise self.wrong(where, f"pages of {format_size(size)} back no guest of hugewise", f"choose from: {offered}")

    def size(self, page: Element) -> int:
        written = page.attributes.get("size", "")
        size = scaled(self.file, page, written)
        if size <= 0 or size & (size - 1):
            unit = page.attributes.get("unit", "KiB")
            cure = "write for example <page size='1' unit='GiB'/>"
            raise self.wrong(page, f"{written} {unit} ({size} bytes) is no size of pages", cure)
        return size

    def shared(self, access: Element | None, root: Element) -> bool:
        numa = root.first("cpu", "numa")
        own = [cell for cell in ([] if numa is None else numa.all("cell")) if cell.attributes.get("memAccess")]
        whole = access is not None and access.attributes.get("mode") == "shared"
        for cell in own:
            if (cell.attributes["memAccess"] == "shared") != whole:
                self.warn(cell, "memAccess of one node alone has no key in a study: the access of all nodes is one")
        return whole or any(cell.attributes["memAccess"] == "shared" for cell in own)

    def source(self, given: Element | None, sharing: Element, *, huge: bool, share: bool) -> Literal["memfd", "file"]:
        # libvirt's own default for huge pages is a file of a hugetlbfs; for shared memory it is a file too
        kind = None if given is None else given.attributes.get("type")
        if huge:
            if given is not None and kind == "anonymous":
                self.warn(given, "libvirt refuses huge pages of anonymous memory; they are taken as a file's")
            return "memfd" if kind == "memfd" else "file"
        if share and kind in {None, "file"}:
            what = "type='file'" if given is not None else "shared memory without <source type='memfd'/>"
            self.warn(
                given or sharing,
                f"{what} is a file below memory_backing_dir of qemu.conf (/var/lib/libvirt/qemu/ram by default), which"
                " may be on a disk; shared memory of a guest of hugewise is a memfd",
            )
        elif given is not None and kind in {"file", "memfd"} and not share:
            self.warn(
                given, f"type={kind!r} without <hugepages> has no effect: guests of hugewise have anonymous memory"
            )
        return "memfd"

    def preallocated(self, given: Element | None, *, huge: bool) -> bool:
        mode = None if given is None else given.attributes.get("mode")
        if huge and given is not None and mode == "ondemand":
            self.warn(given, "libvirt refuses huge pages on demand; a guest of hugewise can have them so")
        return mode == "immediate" or (huge and mode != "ondemand")

    def unlike(self, parts: Mapping[str, Element]) -> None:
        for tag, said in UNLIKE.items():
            if tag in parts:
                self.warn(parts[tag], f"<{tag}> has no key in a study: {said}")

    def nodes(self, domain: Element, cells: Sequence[int]) -> tuple[int, ...] | None:
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
            else:
                self.own_nodes(node, cell)
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

    def own_nodes(self, node: Element, cell: str) -> None:
        nodes = ",".join(map(str, sorted(node_set(self.file, node) or ())))
        if node.attributes.get("mode", "strict") == "strict":
            text = f"node {cell} of the guest is bound to node {nodes} of the host by itself, which has no key here:"
            self.warn(node, f"{text} `hugewise guest study` writes it as `bind` of its [[guest.node]]")
        else:
            mode = node.attributes["mode"]
            text = f"node {cell} of the guest has mode={mode!r} for node {nodes} of the host, which binds nothing"
            self.warn(node, f"{text}, and has no key in a study")

    def domain(self, domain: Element) -> None:
        for other in domain.all("qemu:commandline"):
            self.warn(other, "<qemu:commandline> is not read")


def _sharing(root: Element) -> Iterator[Element]:
    numa = root.first("cpu", "numa")
    return (cell for cell in ([] if numa is None else numa.all("cell")) if cell.attributes.get("memAccess") == "shared")


def _cells(root: Element) -> list[int]:
    numa = root.first("cpu", "numa")
    cells = [] if numa is None else list(numa.all("cell"))
    numbers = [cell.attributes.get("id", str(place)) for place, cell in enumerate(cells)]
    return sorted({int(number) for number in numbers if number.isascii() and number.isdecimal()}) or [0]
