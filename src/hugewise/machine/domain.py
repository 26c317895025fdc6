"""A libvirt domain from its XML: `read(parse(text, file), file)`. Pure.

Nothing in the XML is expanded, and a document type is refused: entities are declared there, and a libvirt domain has
none. Elements that decide nothing about memory, CPUs and disks are passed over. What is written wrongly is an error
that names file and line; what a reader does not know is a part of `Domain.others`, never an error.

Source: libvirt, "Domain XML format" (Memory Allocation, Memory Backing, CPU model and topology, NUMA Node Tuning,
Devices).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal
from xml.parsers import expat

from hugewise.errors import UserError
from hugewise.model.guest import Balloon, Domain, DomainCell, DomainDisk, DomainPart, HugeWish, MemoryDevice

_DEEPEST = 100  # a domain has about ten levels
_LARGEST_NODE, _LARGEST_CPU = 1023, 8191


@dataclass
class Element:
    """An element: its tag, attributes, text and children, and the line of the file that it begins in."""

    tag: str
    attributes: Mapping[str, str]
    line: int
    text: str = ""
    children: list[Element] = field(default_factory=list)

    def all(self, tag: str) -> Iterator[Element]:
        return (child for child in self.children if child.tag == tag)

    def first(self, *path: str) -> Element | None:
        """Return the first child of the first tag, its first child of the second, and so on, or None."""
        here: Element | None = self
        for tag in path:
            here = None if here is None else next(here.all(tag), None)
        return here


def parse(text: bytes, file: str) -> Element:
    """Return the root element of the document in `text`. Raises UserError, which names `file` and the line."""
    roots: list[Element] = []
    open_: list[Element] = []
    texts: list[list[str]] = []
    parser = expat.ParserCreate()
    parser.buffer_text = True

    def begin(tag: str, attributes: dict[str, str]) -> None:
        element = Element(tag, attributes, parser.CurrentLineNumber)
        if len(open_) >= _DEEPEST:
            raise UserError(f"{file}:{element.line}: is nested too deeply", hint="name the XML of one domain")
        (open_[-1].children if open_ else roots).append(element)
        open_.append(element)
        texts.append([])

    def end(_: str) -> None:
        open_.pop().text = "".join(texts.pop())

    def characters(data: str) -> None:
        texts[-1].append(data)

    def document_type(*_: object) -> None:
        raise UserError(
            f"{file}:{parser.CurrentLineNumber}: has a document type, which could declare entities, and is not read",
            hint="remove <!DOCTYPE ...>: a libvirt domain has none",
        )

    parser.StartElementHandler = begin
    parser.EndElementHandler = end
    parser.CharacterDataHandler = characters
    parser.StartDoctypeDeclHandler = document_type
    try:
        parser.Parse(text, True)
    except expat.ExpatError as error:
        raise UserError(
            f"{file}:{error.lineno}: is not well-formed XML: {expat.ErrorString(error.code)}"
            f" (column {error.offset + 1})",
            hint="write it anew with: virsh dumpxml DOMAIN",
        ) from None
    except (LookupError, ValueError, TypeError) as error:  # of the codec that its declaration names
        cure = "write it anew, in UTF-8, with: virsh dumpxml DOMAIN"
        raise UserError(f"{file}:1: its encoding cannot be read: {error}", hint=cure) from None
    return roots[0]


def wrong(file: str, where: Element, message: str, hint: str) -> UserError:
    """Return the error to raise for an element."""
    return UserError(f"{file}:{where.line}: {message}", hint=hint)


def scaled(file: str, where: Element, written: str) -> int:
    """`written` in the element's unit, as bytes: as libvirt scales, KiB where there is none. Raises UserError."""
    unit = where.attributes.get("unit") or "KiB"
    if re.fullmatch(r"[0-9]{1,19}", written.strip()) is None:
        raise wrong(file, where, f"{written!r} is not a number of {unit}", "write a whole number")
    scale = _scale(unit)
    if scale is None:
        choices = "choose from: b, KiB, MiB, GiB, KB, MB, GB"
        raise wrong(file, where, f"unit={unit!r} is not one of libvirt's", choices)
    return int(written) * scale


def node_set(file: str, where: Element) -> frozenset[int] | None:
    """Return the nodes that the attribute names; None where it names none. Raises UserError."""
    written = where.attributes.get("nodeset")
    return None if written is None else _numbers(file, where, "nodeset", (_LARGEST_NODE, "nodes"))


def cpu_set(file: str, where: Element, name: str) -> tuple[int, ...]:
    """Return the CPUs that the attribute names, in order; none where it names none. Raises UserError."""
    if name not in where.attributes:
        return ()
    return tuple(sorted(_numbers(file, where, name, (_LARGEST_CPU, "CPUs"))))


def _numbers(file: str, where: Element, name: str, of: tuple[int, str]) -> frozenset[int]:
    (largest, what), written = of, where.attributes[name]
    chosen: set[int] = set()
    for part in written.split(","):
        match = re.fullmatch(r"\s*(\^?)(\d{1,4})(?:-(\d{1,4}))?\s*", part, re.ASCII)
        first, last = (int(match[2]), int(match[3] or match[2])) if match else (1, 0)
        if match is None or first > last or last > largest or (match[1] and match[3]):
            cure = "write for example 0-3,^2"
            raise wrong(file, where, f"{name}={written!r} is not a set of {what}", cure)
        chosen = chosen - {first} if match[1] else chosen | set(range(first, last + 1))
    return frozenset(chosen)


def _scale(unit: str) -> int | None:
    small = unit.lower()
    if small in {"b", "byte", "bytes"}:
        return 1
    power = "kmgtpe".find(small[0]) + 1
    if power == 0 or small[1:] not in {"", "ib", "b"}:
        return None
    return int((1000 if small[1:] == "b" else 1024) ** power)


_MODEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,127}")
_FEATURE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_MOST_VCPUS = 4096
_LONGEST_NAME = 255
_ON = "on"


def read(root: Element, file: str) -> Domain:
    """Return the domain below `root`: a `<domain>`, or libvirt's own file of one that runs. Raises UserError."""
    domain = root.first("domain") if root.tag == "domstatus" else root
    if domain is None or domain.tag != "domain":
        cure = "write it with: virsh dumpxml DOMAIN"
        raise wrong(file, root, f"<{root.tag}> is not a domain of libvirt", cure)
    return _Reader(file, domain).read()


class _Reader:
    def __init__(self, file: str, domain: Element) -> None:
        self.file, self.domain = file, domain

    def read(self) -> Domain:
        domain = self.domain
        name = self.name()
        vcpus = self.vcpus()
        bound = self.bound()
        cells = tuple(self.cells(bound))
        whole = self.size("memory")
        plugged = tuple(self.plugged())
        # <memory> includes the memory devices; the nodes have the rest.
        memory = sum(cell.memory for cell in cells) or max(0, whole - sum(one.size for one in plugged))
        os_type = domain.first("os", "type")
        machine = {} if os_type is None else os_type.attributes
        backing = domain.first("memoryBacking")
        emulator = domain.first("devices", "emulator")
        direct = domain.first("os", "kernel")
        tags = ("memory", "currentMemory", "maxMemory", "vcpu", "cpu", "memoryBacking", "numatune", "cputune", "os")
        return Domain(
            name=name,
            file=self.file,
            arch=machine.get("arch", "x86_64"),
            machine=machine.get("machine", ""),
            emulator=None if emulator is None else emulator.text.strip() or None,
            memory=memory,
            current=self.size("currentMemory") or whole,
            vcpus=vcpus,
            cells=cells,
            bind=bound.get(None) if cells[1:] else bound.get(0, bound.get(None)),
            cpu=self.cpu(),
            pins=self.pins(vcpus),
            huge=() if backing is None else tuple(self.huge(backing)),
            source=self.source(backing),
            shared=self.choice(backing, "access", "mode") == "shared" or any(cell.shared for cell in cells),
            immediate=self.immediate(backing),
            unmerged=backing is not None and backing.first("nosharepages") is not None,
            locked=backing is not None and backing.first("locked") is not None,
            disks=tuple(self.disks()),
            balloon=self.balloon(),
            sharers=tuple(self.sharers()),
            assigned=tuple(self.assigned()),
            plugged=plugged,
            most=self.most(),
            limit=self.limit(),
            kernel=None if direct is None else direct.text.strip() or None,
            others=tuple(self.others()),
            lines={tag: found.line for tag in tags if (found := domain.first(tag)) is not None},
        )

    def name(self) -> str:
        element = self.domain.first("name")
        text = "" if element is None else element.text.strip()
        if element is not None and (not text.isprintable() or "/" in text or len(text) > _LONGEST_NAME):
            raise wrong(self.file, element, f"{text[:40]!r} is no name of a domain", "see: virsh list --all")
        return text or "domain"

    def size(self, tag: str) -> int:
        element = self.domain.first(tag)
        return 0 if element is None else scaled(self.file, element, element.text)

    def number(self, where: Element, name: str, default: int) -> int:
        written = where.attributes.get(name, str(default))
        if not re.fullmatch(r"[0-9]{1,9}", written):
            raise wrong(self.file, where, f"{name}={written!r} is not a number", "write a whole number")
        return int(written)

    def vcpus(self) -> int:
        element = self.domain.first("vcpu")
        if element is None:
            return 1
        text = element.attributes.get("current", element.text).strip()
        if not re.fullmatch(r"[0-9]{1,4}", text) or not 1 <= int(text) <= _MOST_VCPUS:
            raise wrong(
                self.file, element, f"{text!r} is no number of virtual CPUs", "write for example <vcpu>4</vcpu>"
            )
        return int(text)

    def choice(self, parent: Element | None, tag: str, name: str) -> str | None:
        element = None if parent is None else parent.first(tag)
        return None if element is None else element.attributes.get(name)

    def source(self, backing: Element | None) -> Literal["anonymous", "file", "memfd"] | None:
        match self.choice(backing, "source", "type"):
            case "anonymous":
                return "anonymous"
            case "file":
                return "file"
            case "memfd":
                return "memfd"
        return None

    def immediate(self, backing: Element | None) -> bool | None:
        mode = self.choice(backing, "allocation", "mode")
        return None if mode is None else mode == "immediate"

    def huge(self, backing: Element) -> Iterator[HugeWish]:
        hugepages = backing.first("hugepages")
        if hugepages is None:
            return
        pages = list(hugepages.all("page"))
        for page in pages:
            size = scaled(self.file, page, page.attributes.get("size", ""))
            yield HugeWish(size, node_set(self.file, page), page.line)
        if not pages:
            yield HugeWish(None, None, hugepages.line)

    def cells(self, bound: Mapping[int | None, tuple[int, ...] | None]) -> Iterator[DomainCell]:
        numa = self.domain.first("cpu", "numa")
        seen = set[int]()
        for place, cell in enumerate([] if numa is None else numa.all("cell")):
            number = self.number(cell, "id", place)
            if number in seen:
                raise wrong(self.file, cell, f"two nodes have the number {number}", "number them from 0")
            seen.add(number)
            access = cell.attributes.get("memAccess")
            yield DomainCell(
                id=number,
                memory=scaled(self.file, cell, cell.attributes.get("memory", "")),
                cpus=cpu_set(self.file, cell, "cpus"),
                line=cell.line,
                shared=None if access is None else access == "shared",
                bind=bound.get(number, bound.get(None)),
            )

    def bound(self) -> dict[int | None, tuple[int, ...] | None]:
        tuning = self.domain.first("numatune")
        found: dict[int | None, tuple[int, ...] | None] = {}
        for node in () if tuning is None else tuning.children:
            strict = _is_strict(node)
            nodes = node_set(self.file, node)
            if node.tag == "memnode" and nodes:
                found[self.number(node, "cellid", 0)] = tuple(sorted(nodes)) if strict else None
            elif node.tag == "memory" and strict and nodes:
                found[None] = tuple(sorted(nodes))
        return found

    def cpu(self) -> str | None:
        element = self.domain.first("cpu")
        model = None if element is None else element.first("model")
        name = "" if model is None else model.text.strip()
        if element is None or element.attributes.get("mode", "custom") != "custom" or not name:
            return None
        words = [name]
        for feature in element.all("feature"):
            sign = {"require": "+", "force": "+", "disable": "-", "forbid": "-"}.get(
                feature.attributes.get("policy", "require")
            )
            called = feature.attributes.get("name", "")
            if not _FEATURE.fullmatch(called):
                raise wrong(self.file, feature, f"name={called!r} is no feature of a CPU", "see: virsh cpu-models")
            if sign is not None:
                words.append(f"{sign}{called}")
        if not _MODEL.fullmatch(name):
            raise wrong(self.file, element, f"{name!r} is no model of a CPU", "see: virsh cpu-models")
        return ",".join(words)

    def pins(self, vcpus: int) -> Mapping[int, tuple[int, ...]]:
        of_all = self.domain.first("vcpu")
        together = () if of_all is None else cpu_set(self.file, of_all, "cpuset")
        cpus_of = {number: together for number in range(vcpus) if together}
        tuning = self.domain.first("cputune")
        for pin in () if tuning is None else tuning.all("vcpupin"):
            number = self.number(pin, "vcpu", 0)
            if number < vcpus and (cpus := cpu_set(self.file, pin, "cpuset")):
                cpus_of[number] = cpus
        return cpus_of

    def devices(self, tag: str) -> Iterator[Element]:
        devices = self.domain.first("devices")
        return iter(()) if devices is None else devices.all(tag)

    def disks(self) -> Iterator[DomainDisk]:
        for disk in self.devices("disk"):
            source = disk.first("source")
            driver, target = disk.first("driver"), disk.first("target")
            given = {} if source is None else source.attributes
            kind, path, why = _place(disk.attributes.get("type", "file"), given)
            if disk.first("encryption") is not None or (source is not None and source.first("encryption") is not None):
                why = "it is encrypted, and no secret of libvirt's is asked for"
            yield DomainDisk(
                target="" if target is None else target.attributes.get("dev", ""),
                kind=kind,
                source=path,
                format="raw" if driver is None else driver.attributes.get("type", "raw"),
                device=disk.attributes.get("device", "disk"),
                readonly=disk.first("readonly") is not None,
                line=disk.line,
                why=why,
            )

    def balloon(self) -> Balloon | None:
        device = next(self.devices("memballoon"), None)
        if device is None or device.attributes.get("model") == "none":
            return None
        return Balloon(
            line=device.line,
            free_page_reporting=device.attributes.get("freePageReporting") == _ON,
            deflates=device.attributes.get("autodeflate") == _ON,
        )

    def sharers(self) -> Iterator[DomainPart]:
        for found in self.devices("filesystem"):
            driver = found.first("driver")
            if driver is not None and driver.attributes.get("type") == "virtiofs":
                yield DomainPart("<filesystem> of virtiofs", found.line)
        for tag, kind in (("interface", "vhostuser"), ("disk", "vhostuser")):
            for found in self.devices(tag):
                if found.attributes.get("type") == kind:
                    yield DomainPart(f"<{tag} type='{kind}'>", found.line)
        for found in self.devices("video"):
            driver = found.first("driver")
            if driver is not None and driver.attributes.get("name") == "vhostuser":
                yield DomainPart("<video> of vhost-user", found.line)

    def assigned(self) -> Iterator[DomainPart]:
        for found in self.devices("hostdev"):
            if found.attributes.get("type") in ("pci", "mdev") or found.attributes.get("mode") == "capabilities":
                yield DomainPart(f"<hostdev type='{found.attributes.get('type', '')}'>", found.line)
        for found in self.devices("interface"):
            if found.attributes.get("type") == "hostdev":
                yield DomainPart("<interface type='hostdev'>", found.line)
        for tag in ("interface", "disk"):
            for found in self.devices(tag):
                if found.attributes.get("type") in ("vdpa", "nvme"):
                    yield DomainPart(f"<{tag} type='{found.attributes['type']}'>", found.line)

    def plugged(self) -> Iterator[MemoryDevice]:
        for found in self.devices("memory"):
            target = found.first("target")
            size, block = (None if target is None else target.first(tag) for tag in ("size", "block"))
            yield MemoryDevice(
                model=found.attributes.get("model", "dimm"),
                size=0 if size is None else scaled(self.file, size, size.text),
                line=found.line,
                block=None if block is None else scaled(self.file, block, block.text),
            )

    def most(self) -> tuple[int, int] | None:
        element = self.domain.first("maxMemory")
        return None if element is None else (scaled(self.file, element, element.text), self.number(element, "slots", 0))

    def limit(self) -> int | None:
        element = self.domain.first("memtune", "hard_limit")
        size = None if element is None else scaled(self.file, element, element.text)
        return None if size is None or size >= 1 << 62 else size  # libvirt's word for unlimited is its largest number

    def others(self) -> Iterator[DomainPart]:
        for tag, found in (
            ("<topology> of <cpu>", self.domain.first("cpu", "topology")),
            ("<emulatorpin>", self.domain.first("cputune", "emulatorpin")),
            ("<iothreads>", self.domain.first("iothreads")),
            ("<qemu:commandline>", self.domain.first("qemu:commandline")),
            ("<launchSecurity>", self.domain.first("launchSecurity")),
            ("<distances> of a node", self.domain.first("cpu", "numa", "cell", "distances")),
        ):
            if found is not None:
                yield DomainPart(tag, found.line)
        tuning = self.domain.first("numatune")
        for found in () if tuning is None else tuning.children:
            if not _is_strict(found):
                yield DomainPart(f"<{found.tag}> of <numatune>, which binds nothing,", found.line)


def _is_strict(tuning: Element) -> bool:
    return tuning.attributes.get("mode", "strict") == "strict" and tuning.attributes.get("placement") != "auto"


def _place(kind: str, source: Mapping[str, str]) -> tuple[Literal["file", "block", "other"], str, str]:
    if kind == "file" and source.get("file"):
        return "file", source["file"], ""
    if kind == "block" and source.get("dev"):
        return "block", source["dev"], ""
    if kind in ("file", "block"):
        return "other", "", "it has no medium"
    return "other", "", f"it is of the type {kind}, which is no file of this host"
