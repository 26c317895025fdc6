"""`<memoryBacking>` of a libvirt domain as the backing of a guest, and back.

    asked(domain_xml.parse(text, file), file, page=2 << 20)   what the domain asks for, with warnings
    element(Backing(pages="hugetlb-1g"))                      what asks libvirt for it

Source: libvirt's documentation of the domain XML (Memory Backing, NUMA Node Tuning), and of what its QEMU driver
refuses: huge pages on demand, and of anonymous memory. Pure; what a bare `<hugepages/>` means is the host's to say.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from hugewise.errors import UserError
from hugewise.guests.domain_xml import Element
from hugewise.model.guest import PAGE_OF, Backing, Pages
from hugewise.quantity import format_size

__all__ = ["DomainMemory", "asked", "element", "toml"]

_BASE_PAGE = 4096  # a <page> of it means ordinary memory
_LARGEST_NODE = 1023

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


def asked(root: Element, file: str, page: int | None) -> DomainMemory:
    """The backing that the domain (or its `<memoryBacking>` alone) asks for.

    `page` is the host's default size of huge pages in bytes, None where it has none. What hugewise's guests have not is
    said in the warnings. Raises UserError, which names file and line.
    """
    return _Reader(file, page).read(root)


def element(backing: Backing) -> str:
    """The elements of a domain that ask libvirt for `backing`. Raises UserError where it has no words for it."""
    lines: list[str] = []
    if backing.pages == "base":
        raise UserError(
            "libvirt has no element that denies a guest transparent huge pages",
            hint="switch them off for the whole host, or choose: thp, hugetlb-2m, hugetlb-1g",
        )
    if backing.pages == "thp":
        lines += ['  <allocation mode="immediate"/>'] if backing.preallocate else []
    else:
        if not backing.preallocate:
            raise UserError(
                f"libvirt always allocates {backing.pages} before the guest starts",
                hint="leave preallocate = false out",
            )
        lines += ["  <hugepages>", f'    <page size="{PAGE_OF[backing.pages] >> 10}" unit="KiB"/>', "  </hugepages>"]
        lines += ['  <source type="memfd"/>'] if backing.source == "memfd" else []
    found = ["<memoryBacking>", *lines, "</memoryBacking>"] if lines else ["<memoryBacking/>"]
    if backing.nodes is not None:
        nodes = ",".join(map(str, backing.nodes))
        found += ["<numatune>", f'  <memory mode="strict" nodeset="{nodes}"/>', "</numatune>"]
    return "\n".join(found) + "\n"


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
    return f'backing = "{backing.pages}"\n' if len(said) == 1 else f"backing = {{ {', '.join(said)} }}\n"


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
        pages, bare = self.pages(parts.get("hugepages"))
        huge = pages in PAGE_OF
        source = self.source(parts.get("source"), huge=huge)
        preallocate = self.preallocated(parts.get("allocation"), huge=huge)
        self.unlike(parts, huge=huge)
        nodes = self.nodes(root) if root.tag == "domain" else None
        if root.tag == "domain":
            self.domain(root, pages)
        found = Backing(pages=pages, source=source, preallocate=preallocate, nodes=nodes)
        return DomainMemory(found, bare, tuple(self.warnings))

    def wrong(self, where: Element, message: str, hint: str) -> UserError:
        return UserError(f"{self.file}:{where.line}: {message}", hint=hint)

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

    def pages(self, huge: Element | None) -> tuple[Pages, int | None]:
        """The pages of the guest's only NUMA node, and the line of a `<hugepages/>` without sizes."""
        if huge is None:
            return "thp", None
        self.known(huge, _PAGE)
        sizes = [(page, self.size(page), self.node_set(page)) for page in huge.all("page")]
        if not sizes:
            if self.default is None:
                raise self.wrong(huge, "this host has no huge pages", "name a size: <page size='1' unit='GiB'/>")
            return self.kind(huge, self.default), huge.line
        mine = [each for each in sizes if each[2] is not None and 0 in each[2]]
        mine = mine or [each for each in sizes if each[2] is None]
        if len(mine) > 1:
            raise self.wrong(mine[1][0], "node 0 of the guest has two sizes of pages", "name one size for each node")
        for page, size, nodes in sizes:
            others = sorted((nodes or frozenset()) - {0})
            if others and not (mine and page is mine[0][0]):
                written = (
                    f"{format_size(size)} pages for node{'s' if others[1:] else ''} {_written(others)} of the guest"
                )
                self.warn(page, f"{written} have no effect: a guest of hugewise has node 0 alone")
        if not mine:
            self.warn(huge, "no page is for node 0 of the guest, which then has ordinary memory")
            return "thp", None
        page, size, _ = mine[0]
        if size == _BASE_PAGE:
            self.warn(page, "a page of 4k is none of a pool: ordinary memory, which may be huge transparently")
            return "thp", None
        return self.kind(page, size), None

    def kind(self, where: Element, size: int) -> Pages:
        for pages, each in PAGE_OF.items():
            if each == size:
                return pages
        offered = ", ".join(format_size(each) for each in PAGE_OF.values())
        raise self.wrong(where, f"pages of {format_size(size)} back no guest of hugewise", f"choose from: {offered}")

    def size(self, page: Element) -> int:
        """Bytes of a `<page>`; without a unit, its size is in KiB."""
        written = page.attributes.get("size", "")
        size = self.scaled(page, written)
        if size <= 0 or size & (size - 1):
            unit = page.attributes.get("unit", "KiB")
            cure = "write for example <page size='1' unit='GiB'/>"
            raise self.wrong(page, f"{written} {unit} ({size} bytes) is no size of pages", cure)
        return size

    def scaled(self, where: Element, written: str) -> int:
        """`written` in the element's unit, as bytes: as libvirt scales, KiB where there is none."""
        unit = where.attributes.get("unit") or "KiB"
        if re.fullmatch(r"[0-9]{1,19}", written.strip()) is None:
            raise self.wrong(where, f"{written!r} is not a number of {unit}", "write a whole number")
        scale = _scale(unit)
        if scale is None:
            raise self.wrong(
                where, f"unit={unit!r} is not one of libvirt's", "choose from: b, KiB, MiB, GiB, KB, MB, GB"
            )
        return int(written) * scale

    def node_set(self, where: Element) -> frozenset[int] | None:
        """The nodes that `nodeset` names; None where it names none."""
        written = where.attributes.get("nodeset")
        if written is None:
            return None
        chosen: set[int] = set()
        for part in written.split(","):
            match = re.fullmatch(r"\s*(\^?)(\d{1,4})(?:-(\d{1,4}))?\s*", part)
            first, last = (int(match[2]), int(match[3] or match[2])) if match else (1, 0)
            if match is None or first > last or last > _LARGEST_NODE or (match[1] and match[3]):
                cure = "write for example 0-3,^2"
                raise self.wrong(where, f"nodeset={written!r} is not a set of nodes", cure)
            chosen = chosen - {first} if match[1] else chosen | set(range(first, last + 1))
        return frozenset(chosen)

    def source(self, given: Element | None, *, huge: bool) -> Literal["memfd", "file"]:
        """Of huge pages: libvirt's own default is a file of a hugetlbfs."""
        kind = None if given is None else given.attributes.get("type")
        if huge:
            if given is not None and kind == "anonymous":
                self.warn(given, "libvirt refuses huge pages of anonymous memory; they are taken as a file's")
            return "memfd" if kind == "memfd" else "file"
        if given is not None and kind in {"file", "memfd"}:
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
        access = parts.get("access")
        if access is not None and access.attributes.get("mode") == "shared" and not huge:
            self.warn(access, "mode='shared' has no key in a study: the guest's memory is private to QEMU")

    def nodes(self, domain: Element) -> tuple[int, ...] | None:
        """The host's nodes that the memory of the guest's node 0 is bound to."""
        tuning = self.only(domain, "numatune")
        if tuning is None:
            return None
        for child in tuning.children:
            if child.tag not in _TUNING:
                self.warn(child, f"<{child.tag}> in <numatune> is not known here and has no effect")
        chosen = self.only(tuning, "memory")
        for node in tuning.all("memnode"):
            if node.attributes.get("cellid") == "0":
                chosen = node
            else:
                cell = node.attributes.get("cellid", "")
                self.warn(node, f"cellid={cell!r} has no effect: a guest of hugewise has node 0 alone")
        if chosen is None:
            return None
        if chosen.attributes.get("placement") == "auto":
            self.warn(chosen, "placement='auto' has no key in a study: name nodes")
            return None
        mode = chosen.attributes.get("mode", "strict")
        if mode != "strict":
            self.warn(chosen, f"mode={mode!r} binds nothing, and has no key in a study")
            return None
        nodes = self.node_set(chosen)
        return tuple(sorted(nodes)) if nodes else None

    def domain(self, domain: Element, pages: Pages) -> None:
        """Name what else of the domain is about its memory."""
        memory = domain.first("memory")
        page = PAGE_OF.get(pages, 1)
        if memory is not None and self.scaled(memory, memory.text.strip()) % page:
            size = format_size(self.scaled(memory, memory.text.strip()))
            self.warn(memory, f"a memory of {size} is not a multiple of {format_size(page)} pages")
        numa = domain.first("cpu", "numa")
        for cell in () if numa is None else numa.all("cell"):
            if cell.attributes.get("id", "0") != "0":
                self.warn(cell, "another node of the guest has no effect: a guest of hugewise has node 0 alone")
        for tag in ("memtune", "qemu:commandline"):
            for other in domain.all(tag):
                self.warn(other, f"<{tag}> is not read")


def _scale(unit: str) -> int | None:
    """Bytes of a unit as libvirt names them, without regard to case; None where it is none."""
    small = unit.lower()
    if small in {"b", "byte", "bytes"}:
        return 1
    power = "kmgtpe".find(small[0]) + 1
    if power == 0 or small[1:] not in {"", "ib", "b"}:
        return None
    return int((1000 if small[1:] == "b" else 1024) ** power)


def _written(nodes: list[int]) -> str:
    """Nodes in order, runs as `1-3`."""
    runs: list[list[int]] = []
    for node in nodes:
        if runs and node == runs[-1][-1] + 1:
            runs[-1].append(node)
        else:
            runs.append([node])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
