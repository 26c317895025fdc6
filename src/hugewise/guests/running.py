"""Running virtual machine, whoever started it: the pages promised for its memory, and those that it has.

libvirt is not asked: a file of its daemon has the process number of a domain's QEMU, whose command line has the promise
(JSON by libvirt, words by a user). KVM's mappings are read in debugfs: a foreign command in the monitor would mark the
domain as tainted.

Sources: proc(5); libvirt, src/qemu/qemu_process.c (the pid file); qemu(1); QEMU, qapi/qom.json.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from hugewise.errors import UserError
from hugewise.guests import backing
from hugewise.host.pool import PROGRAM
from hugewise.machine.proc import fields, mounts
from hugewise.machine.smaps import BackedMapping
from hugewise.model.guest import PAGE_OF, Domain, DomainCell, HugeWish, Pages
from hugewise.model.host import Host, text_of
from hugewise.model.pages import THP
from hugewise.quantity import format_size, readable_size

_UNIT = {"": 20, "b": 0, "k": 10, "m": 20, "g": 30, "t": 40}
_ON = (True, "on", "yes", "true", "y")
_DEFAULT = 128 << 20  # QEMU's default


class RamBlock(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of the guest's memory, as QEMU was asked for it: bytes; `page`: of the pool (0: ordinary memory).

    shared  it is a shared mapping
    file    it has a file descriptor, and is of no pool: QEMU maps it at a boundary of base pages, and no huge page fits
    named   it is of no pool, and a file that has a path
    nodes   the host's NUMA nodes that it is bound to; node: the guest's
    """

    id: str
    size: int
    page: int = 0
    shared: bool = False
    file: bool = False
    named: bool = False
    preallocated: bool = False
    nodes: tuple[int, ...] = ()
    node: int | None = None


def blocks(words: Sequence[str], mountinfo: str) -> tuple[RamBlock, ...]:
    """Return the guest's memory by its backends, else by -m; `mountinfo` is that of the process."""
    given = list(_given(words))
    objects = {str(value.get("id", "")): value for option, value in given if option == "object"}
    ram = [_block(name, objects[name], node, mountinfo) for name, node in _used(given) if name in objects]
    if ram:
        return tuple(ram)
    whole, page, file = _DEFAULT, 0, False
    for option, value in given:
        if option == "m":
            whole = _bytes(value.get("size", value.get("qom-type", "")), 20) or whole
        elif option == "mem-path":
            page, file = _pages_of(str(value.get("qom-type", "")), mountinfo)
    preallocated = any(option == "mem-prealloc" for option, _ in given)
    return (RamBlock(id="ram", size=whole, page=page, file=file, named=file, preallocated=preallocated),)


def _given(words: Sequence[str]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for option, value in zip(words, [*words[1:], ""], strict=True):
        name = option.lstrip("-") if option.startswith("-") else ""
        if name in ("machine", "M", "numa", "device", "m", "mem-prealloc", "mem-path"):
            yield name, _options(value)
        elif name == "object" and str((options := _options(value)).get("qom-type", "")).startswith("memory-backend-"):
            yield name, options


def _used(given: Sequence[tuple[str, Mapping[str, Any]]]) -> Iterator[tuple[str, int | None]]:
    nodes = 0
    for option, value in given:
        name = value.get("memory-backend" if option in ("machine", "M") else "memdev")
        if name is None or option not in ("machine", "M", "numa", "device"):
            continue
        number = _whole(value.get("nodeid" if option == "numa" else "node"))
        yield str(name), nodes if option == "numa" and number is None else number
        nodes += option == "numa"


def _block(name: str, given: Mapping[str, Any], node: int | None, mountinfo: str) -> RamBlock:
    kind = str(given.get("qom-type")).removeprefix("memory-backend-")
    page, file = 0, kind in ("memfd", "shm")
    if kind == "memfd" and given.get("hugetlb") in _ON:
        page, file = _bytes(given.get("hugetlbsize", ""), 0) or 2 << 20, False
    elif kind == "file":
        page, file = _pages_of(str(given.get("mem-path", "")), mountinfo)
    nodes = given.get("host-nodes", [])
    bound = [number for value in (nodes if isinstance(nodes, list) else [nodes]) for number in _range(value)]
    return RamBlock(
        id=name,
        size=_bytes(given.get("size", ""), 0),
        page=page,
        shared=given.get("share") in _ON or (kind in ("memfd", "shm") and "share" not in given),
        file=file,
        preallocated=given.get("prealloc") in _ON,
        nodes=tuple(bound) if given.get("policy") == "bind" else (),
        node=node,
        named=kind == "file" and file,
    )


def _options(text: str) -> dict[str, Any]:
    if text.startswith("{"):
        try:
            said = json.loads(text)
        except (ValueError, RecursionError):
            return {}
        return said if isinstance(said, dict) else {}
    pairs = re.split(r"(?<!,),(?!,)", text)
    options: dict[str, Any] = {}
    for number, pair in enumerate(pairs):
        key, equals, value = pair.partition("=")
        if equals and key == "host-nodes":  # one word for each, or a range
            options.setdefault(key, []).append(value)
        elif equals:
            options[key] = value.replace(",,", ",")
        elif number == 0:
            options["qom-type"] = key
    return options


def _range(value: object) -> range:
    match = re.fullmatch(r"(\d{1,4})(?:-(\d{1,4}))?", str(value), re.ASCII)
    return range(0) if match is None else range(int(match[1]), int(match[2] or match[1]) + 1)


def _whole(value: object) -> int | None:
    text = str(value)
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None


def _bytes(value: object, shift: int) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value if value < 1 << 60 else 0
    match = re.fullmatch(r"(\d{1,18})(?:\.(\d{1,9}))?([bkmgt]?)", str(value).lower(), re.ASCII)
    if match is None:
        return 0
    unit = 1 << (_UNIT[match[3]] if match[3] else shift)
    return int(match[1]) * unit + int(match[2] or 0) * unit // int(f"1{'0' * len(match[2] or '')}")


def _pages_of(path: str, mountinfo: str) -> tuple[int, bool]:
    best: tuple[int, str, str] = (-1, "", "")
    try:
        for mount in mounts(mountinfo):
            inside = path == mount.point or path.startswith(mount.point.rstrip("/") + "/")
            if inside and len(mount.point) > best[0]:
                best = (len(mount.point), mount.kind, mount.options)
    except ValueError:
        return 0, True
    if best[1] == "hugetlbfs":
        size = re.search(r"pagesize=(\d{1,9}[KMG]?)", best[2])
        return (_bytes(size[1], 0) if size else 2 << 20), False
    return 0, True


_PLACES = ("/run/libvirt/qemu/{}.pid", "{home}/libvirt/qemu/run/{}.pid")
_NAME = re.compile(r"[^/\0]{1,240}")
_MOST_WORDS = 1 << 22
_WORDS: Mapping[str, str] = {"": "larger pages", "base": "base pages", "thp": "transparent huge pages"}
_BASE = 4096
_PAGES: Mapping[str, int] = {"": _BASE, "base": _BASE, "thp": 2 << 20}
_WHOLE = 1.0


class RunningGuest(msgspec.Struct, frozen=True, kw_only=True):
    """A QEMU with its guest's memory. `domain`: libvirt's name of it, as the caller named it; None: by its number."""

    pid: int
    program: str
    blocks: tuple[RamBlock, ...]
    domain: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"process {self.pid} ({self.program})" if self.domain is None else f"domain {self.domain}"


class RamSeen(msgspec.Struct, frozen=True, kw_only=True):
    """Pages of a piece of the guest's memory: bytes by kind (`base`, `thp`, `hugetlb:SIZE`)."""

    id: str
    size: int
    promised: str
    resident: int
    bytes: Mapping[str, int]
    share: float | None
    delivered: bool | None
    said: str


class KvmSeen(msgspec.Struct, frozen=True, kw_only=True):
    """KVM's mappings of the guest in bytes by page size; `delivered` None: not known, or base pages are promised."""

    bytes: Mapping[int, int] | None
    share: float | None
    delivered: bool | None
    said: str


class GuestVerified(msgspec.Struct, frozen=True, kw_only=True):
    """The answer.

    promised   by whom
    delivered  by the host and, of larger pages under KVM, by KVM too; None: it could not be proven
    host       the host's pages alone, from smaps
    kvm        None: the guest is emulated, and no hardware maps its memory
    share      of the host's pages: the smallest of its pieces that were promised something
    """

    subject: str
    pid: int
    promised: str
    delivered: bool | None
    host: bool | None
    share: float | None
    said: str
    memory: tuple[RamSeen, ...]
    kvm: KvmSeen | None
    notes: tuple[str, ...] = ()


def running(text: str, host: Host) -> RunningGuest | None:
    """Return the virtual machine: a libvirt domain, or a QEMU by number. Raises UserError if it does not run."""
    if not _NAME.fullmatch(text):
        return None
    home = os.environ.get("XDG_RUNTIME_DIR", "/run/user/0")
    for place in _PLACES:
        path = place.format(text, home=home)
        pid_text = text_of(host, path)
        if pid_text is None:
            continue
        guest = (
            _guest(int(pid_text), host, domain=text) if pid_text.strip().isdecimal() and len(pid_text) <= 12 else None
        )
        if guest is None:
            raise UserError(
                f"domain {text}: {path} is there, and its QEMU is not", hint=f"start it: virsh start {text}"
            )
        return guest
    return _guest(int(text), host) if text.isascii() and text.isdigit() and len(text) <= 10 else None


def _guest(pid: int, host: Host, domain: str | None = None) -> RunningGuest | None:
    status = text_of(host, f"/proc/{pid}/status")
    words = (text_of(host, f"/proc/{pid}/cmdline") or "")[:_MOST_WORDS].rstrip("\0").split("\0")
    program = words[0].rsplit("/", 1)[-1]
    if (
        status is None
        or not program
        or not (PROGRAM.fullmatch(program) or PROGRAM.match(fields(status).get("Name", "")))
    ):
        return None
    ram = blocks(words, text_of(host, f"/proc/{pid}/mountinfo") or "")
    notes = ("memory that is added while it runs is not looked at",) if any("maxmem=" in word for word in words) else ()
    return RunningGuest(pid=pid, program=program, blocks=ram, domain=domain, notes=notes)


def verify(
    guest: RunningGuest,
    host: Host,
    promised: Pages | None,
    share: float = backing.SHARE,
    *,
    debugfs: Path = backing.DEBUGFS,
    proc: Path = backing.PROC,
) -> GuestVerified:
    """Look once at the guest's memory and KVM's mappings; `promised` None: as QEMU promises. Raises UserError."""
    try:
        text = backing.smaps(guest.pid)
    except PermissionError:
        raise UserError(f"{guest.name}: its memory cannot be looked at", hint="call it as root: sudo") from None
    except OSError as error:
        raise UserError(f"{guest.name}: {error.strerror}", hint="is it running?") from None
    if not text:
        raise UserError(f"{guest.name}: it has ended", hint="name one that runs")
    off = re.search(r"^THP_enabled:\s+0$", text_of(host, f"/proc/{guest.pid}/status") or "", re.M) is not None
    mappings = backing.node_memory(text, [block.size for block in guest.blocks])
    numa = text_of(host, f"/proc/{guest.pid}/numa_maps") or ""
    seen = tuple(
        _seen(block, areas, _key(block, promised, host, disabled=off), share, numa)
        for block, areas in zip(guest.blocks, mappings, strict=True)
    )
    shares = [piece.share for piece in seen if piece.share is not None and piece.promised]
    states = {piece.delivered for piece in seen}
    on_host = False if False in states else None if None in states else True
    mapped = _by_kvm(guest.pid, {piece.promised for piece in seen}, share, debugfs, proc)
    larger = any(_PAGES.get(piece.promised) != _BASE for piece in seen)
    delivered = mapped.delivered if mapped is not None and on_host and larger else on_host
    emulated = "it is emulated (no virtual machine of KVM's): its memory is mapped by no hardware"
    by = "--policy" if promised is not None else "QEMU's command line and the rules in force"
    return GuestVerified(
        subject=guest.name,
        pid=guest.pid,
        promised=by,
        delivered=delivered,
        host=on_host,
        share=min(shares, default=None),
        said="; ".join(piece.said if len(seen) == 1 else f"{piece.id}: {piece.said}" for piece in seen),
        memory=seen,
        kvm=mapped,
        notes=(
            *guest.notes,
            *(["transparent huge pages are off for this QEMU (prctl)"] if off else []),
            *([emulated] if mapped is None else []),
        ),
    )


def _by_kvm(pid: int, promised: Collection[str], share: float, debugfs: Path, proc: Path) -> KvmSeen | None:
    runs = backing.has_kvm_vm(pid, proc)
    if runs is False:
        return None
    mapping = (
        backing.kvm_mapping_of_debugfs(pid, debugfs, proc)
        if runs
        else "whether KVM runs it cannot be seen: call it as root"
    )
    seen = None if isinstance(mapping, str) else mapping.bytes
    sizes = {_PAGES.get(key) or int(key.removeprefix("hugetlb:")) for key in promised}
    if max(sizes, default=_BASE) == _BASE:
        # KVM maps nothing by more than the host's own pages: there is nothing to judge.
        return KvmSeen(bytes=seen, share=None, delivered=None, said=backing.describe_mapping(mapping))
    judged = backing.judge_mappings(mapping, sizes, share)
    return KvmSeen(bytes=seen, share=judged.share, delivered=judged.good, said=judged.description)


def _key(block: RamBlock, promised: Pages | None, host: Host, *, disabled: bool) -> str:
    if promised is not None:
        return f"hugetlb:{PAGE_OF[promised]}" if promised in PAGE_OF else promised
    if block.page:
        return f"hugetlb:{block.page}"
    if block.file or disabled:
        return ""
    setting = text_of(host, f"{THP}/{'shmem_enabled' if block.shared else 'enabled'}") or "[never]"
    return "" if "[never]" in setting or "[deny]" in setting else "thp"


def _seen(block: RamBlock, areas: list[BackedMapping], key: str, share: float, numa: str) -> RamSeen:
    kinds = backing.kinds(areas)
    resident = sum(kinds.values())
    whole = block.size if block.preallocated or key.startswith("hugetlb") else resident
    reached = None if not whole else min(1.0, kinds.get(key, 0) / whole)
    least = _WHOLE if key.startswith("hugetlb") else share
    others = ", ".join(
        f"{readable_size(size)} {_kind_name(kind)}" for kind, size in sorted(kinds.items()) if kind != key
    )
    delivered: bool | None = reached is not None and reached >= least and not (key == "base" and others)
    description = f"{readable_size(kinds.get(key, 0))} of {readable_size(whole)} are {_kind_name(key)}"
    description += f" ({least:.0%} promised)" + (f"; the rest is {others}" if others else "")
    if not areas:
        delivered, description = None, f"no mapping of QEMU holds {readable_size(block.size)}"
    elif not key:
        delivered, description = True, f"no larger pages are promised; it is {others or 'not touched yet'}"
    elif reached is None:
        delivered, description = None, "nothing of it is there yet"
    elif delivered and block.nodes and (away := _misplaced(areas, block.nodes, numa)):
        delivered, description = False, away
    return RamSeen(
        id=block.id,
        size=block.size,
        promised=key,
        resident=resident,
        bytes=kinds,
        share=reached if key else None,
        delivered=delivered,
        said=description,
    )


def _misplaced(areas: list[BackedMapping], nodes: tuple[int, ...], numa: str) -> str | None:
    placed = {node: size for node, size in backing.nodes(numa, areas).items() if node not in nodes and size}
    return "; ".join(f"{readable_size(size)} lie on NUMA node {node} of the host" for node, size in placed.items())


def _kind_name(kind: str) -> str:
    return _WORDS.get(kind) or f"pages of the {format_size(int(kind.removeprefix('hugetlb:')))} pool"


def as_domain(guest: RunningGuest) -> Domain:
    """Return the machine as a domain, from its command line, to find what takes huge pages from it."""
    pieces = guest.blocks
    cells = tuple(
        DomainCell(id=number, memory=block.size, cpus=(), line=1) for number, block in enumerate(pieces) if pieces[1:]
    )
    huge = tuple(HugeWish(block.page, frozenset({number}), 1) for number, block in enumerate(pieces) if block.page)
    return Domain(
        name=guest.domain or str(guest.pid),
        file=f"process {guest.pid}",
        memory=sum(block.size for block in pieces),
        current=sum(block.size for block in pieces),
        cells=cells,
        huge=huge,
        shared=any(block.shared and not block.page for block in pieces),
        source="file" if any(block.named for block in pieces) else "memfd",
    )
