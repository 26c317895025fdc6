"""A virtual machine that runs, whoever started it: what its memory was asked to be made of, and what it is made of.

    found = running("db1", host)          a libvirt domain by its name, or a QEMU by its number; None: neither
    verify(found, host, None, 0.95)

libvirt is not asked: the number of a domain's QEMU is in a file of its daemon. What was asked for stands in QEMU's
command line, what is there in its smaps. What KVM maps of it is read in debugfs: the monitor of a domain is libvirt's,
and a command of somebody else's in it would mark the domain as tainted.

Sources: proc(5); libvirt, src/qemu/qemu_process.c (the pid file).

What a QEMU's command line asks for as its guest's memory: whoever wrote it, libvirt with JSON or a user with words.

    blocks(words, mountinfo)

Sources: qemu(1), -m, -object memory-backend-*, -numa, -device; QEMU, qapi/qom.json. Pure.
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
from hugewise.model.guest import PAGE_OF, Domain, DomainCell, HugeWish, Pages
from hugewise.model.host import Host, text_of
from hugewise.model.pages import THP
from hugewise.quantity import format_size, readable_size

_UNIT = {"": 20, "b": 0, "k": 10, "m": 20, "g": 30, "t": 40}
_ON = (True, "on", "yes", "true", "y")
_DEFAULT = 128 << 20  # of a guest that says nothing of its memory


class RamBlock(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of the guest's memory, as QEMU was asked for it: bytes; `page`: of the pool (0: ordinary memory).

    shared  it is a shared mapping
    file    it has a file descriptor, and is of no pool: QEMU maps it at a boundary of base pages, and no huge page fits
    nodes   the host's NUMA nodes that it is bound to; node: the guest's
    """

    id: str
    size: int
    page: int = 0
    shared: bool = False
    file: bool = False
    preallocated: bool = False
    nodes: tuple[int, ...] = ()
    node: int | None = None


def blocks(words: Sequence[str], mountinfo: str) -> tuple[RamBlock, ...]:
    """The guest's memory: the backends that the machine, its nodes and its memory devices name; without any, what -m
    says. `mountinfo` is that of the process.
    """
    given = list(_given(words))
    objects = {str(each.get("id", "")): each for option, each in given if option == "object"}
    found = [_block(name, objects[name], node, mountinfo) for name, node in _used(given) if name in objects]
    if found:
        return tuple(found)
    whole, page, file = _DEFAULT, 0, False
    for option, each in given:
        if option == "m":
            whole = _bytes(each.get("size", each.get("qom-type", "")), 20) or whole
        elif option == "mem-path":
            page, file = _pages_of(str(each.get("qom-type", "")), mountinfo)
    preallocated = any(option == "mem-prealloc" for option, _ in given)
    return (RamBlock(id="ram", size=whole, page=page, file=file, preallocated=preallocated),)


def _given(words: Sequence[str]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The options that memory is made by, with their values."""
    for option, value in zip(words, [*words[1:], ""], strict=True):
        name = option.lstrip("-") if option.startswith("-") else ""
        if name in ("machine", "M", "numa", "device", "m", "mem-prealloc", "mem-path"):
            yield name, _options(value)
        elif name == "object" and str((found := _options(value)).get("qom-type", "")).startswith("memory-backend-"):
            yield name, found


def _used(given: Sequence[tuple[str, Mapping[str, Any]]]) -> Iterator[tuple[str, int | None]]:
    """The backends that are memory of the guest, with its NUMA node."""
    nodes = 0
    for option, each in given:
        name = each.get("memory-backend" if option in ("machine", "M") else "memdev")
        if name is None or option not in ("machine", "M", "numa", "device"):
            continue
        number = _whole(each.get("nodeid" if option == "numa" else "node"))
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
    bound = [number for each in (nodes if isinstance(nodes, list) else [nodes]) for number in _range(each)]
    return RamBlock(
        id=name,
        size=_bytes(given.get("size", ""), 0),
        page=page,
        shared=given.get("share") in _ON or (kind in ("memfd", "shm") and "share" not in given),
        file=file,
        preallocated=given.get("prealloc") in _ON,
        nodes=tuple(bound) if given.get("policy") == "bind" else (),
        node=node,
    )


def _options(text: str) -> dict[str, Any]:
    """The value of an option: JSON, or words with commas between, of which the first may have no name."""
    if text.startswith("{"):
        try:
            said = json.loads(text)
        except (ValueError, RecursionError):
            return {}
        return said if isinstance(said, dict) else {}
    pairs = re.split(r"(?<!,),(?!,)", text)
    found: dict[str, Any] = {}
    for number, pair in enumerate(pairs):
        key, equals, value = pair.partition("=")
        if equals and key == "host-nodes":  # one word for each, or a range
            found.setdefault(key, []).append(value)
        elif equals:
            found[key] = value.replace(",,", ",")
        elif number == 0:
            found["qom-type"] = key
    return found


def _range(value: object) -> range:
    """The numbers that `2` or `0-1` means."""
    match = re.fullmatch(r"(\d{1,4})(?:-(\d{1,4}))?", str(value), re.ASCII)
    return range(0) if match is None else range(int(match[1]), int(match[2] or match[1]) + 1)


def _whole(value: object) -> int | None:
    text = str(value)
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None


def _bytes(value: object, shift: int) -> int:
    """A size as QEMU takes it: a number, or one with a unit; `shift` where it has none."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value if value < 1 << 60 else 0
    match = re.fullmatch(r"(\d{1,18})(?:\.(\d{1,9}))?([bkmgt]?)", str(value).lower(), re.ASCII)
    if match is None:
        return 0
    unit = 1 << (_UNIT[match[3]] if match[3] else shift)
    return int(match[1]) * unit + int(match[2] or 0) * unit // int(f"1{'0' * len(match[2] or '')}")


def _pages_of(path: str, mountinfo: str) -> tuple[int, bool]:
    """Of a file of memory: bytes of its pages where it lies on a hugetlbfs, and whether it lies elsewhere."""
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
        """What it is called in messages."""
        return f"process {self.pid} ({self.program})" if self.domain is None else f"domain {self.domain}"


class RamSeen(msgspec.Struct, frozen=True, kw_only=True):
    """What a piece of the guest's memory is made of: bytes by kind (`base`, `thp`, `hugetlb:SIZE`)."""

    id: str
    size: int
    promised: str
    resident: int
    bytes: Mapping[str, int]
    share: float | None
    delivered: bool | None
    said: str


class KvmSeen(msgspec.Struct, frozen=True, kw_only=True):
    """What KVM maps of the guest, in bytes by the size of the page that maps them (None: not known), and the share of
    it that is as promised. `delivered` None: not known, or nothing larger than base pages is promised.
    """

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
    """The virtual machine that is meant: a domain that libvirt runs, or a QEMU by its number. Raises UserError where
    such a domain does not run.
    """
    if not _NAME.fullmatch(text):
        return None
    home = os.environ.get("XDG_RUNTIME_DIR", "/run/user/0")
    for place in _PLACES:
        path = place.format(text, home=home)
        said = text_of(host, path)
        if said is None:
            continue
        found = _guest(int(said), host, domain=text) if said.strip().isdecimal() and len(said) <= 12 else None
        if found is None:
            raise UserError(
                f"domain {text}: {path} is there, and its QEMU is not", hint=f"start it: virsh start {text}"
            )
        return found
    return _guest(int(text), host) if text.isascii() and text.isdigit() and len(text) <= 10 else None


def _guest(pid: int, host: Host, domain: str | None = None) -> RunningGuest | None:
    """The process, if it is a QEMU that has memory for a guest."""
    status = text_of(host, f"/proc/{pid}/status")
    words = (text_of(host, f"/proc/{pid}/cmdline") or "")[:_MOST_WORDS].rstrip("\0").split("\0")
    program = words[0].rsplit("/", 1)[-1]
    if (
        status is None
        or not program
        or not (PROGRAM.fullmatch(program) or PROGRAM.match(fields(status).get("Name", "")))
    ):
        return None
    found = blocks(words, text_of(host, f"/proc/{pid}/mountinfo") or "")
    notes = ("memory that is added while it runs is not looked at",) if any("maxmem=" in each for each in words) else ()
    return RunningGuest(pid=pid, program=program, blocks=found, domain=domain, notes=notes)


def verify(
    guest: RunningGuest,
    host: Host,
    promised: Pages | None,
    share: float = backing.SHARE,
    *,
    debugfs: Path = backing.DEBUGFS,
    proc: Path = backing.PROC,
) -> GuestVerified:
    """Look once at what the guest's memory is made of, and what KVM maps of it. `promised`: for all of it; None: what
    its QEMU was asked for, and what the rules of this host promise ordinary memory. `proc`: where its descriptors are
    looked at. Raises UserError where it may not be looked at, or is gone.
    """
    try:
        text = backing.smaps(guest.pid)
    except PermissionError:
        raise UserError(f"{guest.name}: its memory cannot be looked at", hint="call it as root: sudo") from None
    except OSError as error:
        raise UserError(f"{guest.name}: {error.strerror}", hint="is it running?") from None
    if not text:
        raise UserError(f"{guest.name}: it has ended", hint="name one that runs")
    off = re.search(r"^THP_enabled:\s+0$", text_of(host, f"/proc/{guest.pid}/status") or "", re.M) is not None
    found = backing.node_memory(text, [block.size for block in guest.blocks])
    numa = text_of(host, f"/proc/{guest.pid}/numa_maps") or ""
    seen = tuple(
        _seen(block, areas, _key(block, promised, host, disabled=off), share, numa)
        for block, areas in zip(guest.blocks, found, strict=True)
    )
    shares = [one.share for one in seen if one.share is not None and one.promised]
    states = {one.delivered for one in seen}
    on_host = False if False in states else None if None in states else True
    mapped = _by_kvm(guest.pid, {one.promised for one in seen}, share, debugfs, proc)
    larger = any(_PAGES.get(one.promised) != _BASE for one in seen)
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
        said="; ".join(one.said if len(seen) == 1 else f"{one.id}: {one.said}" for one in seen),
        memory=seen,
        kvm=mapped,
        notes=(
            *guest.notes,
            *(["transparent huge pages are off for this QEMU (prctl)"] if off else []),
            *([emulated] if mapped is None else []),
        ),
    )


def _by_kvm(pid: int, promised: Collection[str], share: float, debugfs: Path, proc: Path) -> KvmSeen | None:
    """What KVM maps of it, against what its pieces are promised, as `_key` calls it; None: it is emulated."""
    runs = backing.runs(pid, proc)
    if runs is False:
        return None
    found = backing.of_debugfs(pid, debugfs, proc) if runs else "whether KVM runs it cannot be seen: call it as root"
    seen = None if isinstance(found, str) else found.bytes
    sizes = {_PAGES.get(key) or int(key.removeprefix("hugetlb:")) for key in promised}
    if max(sizes, default=_BASE) == _BASE:
        # KVM maps nothing by more than the host's own pages: there is nothing to judge.
        return KvmSeen(bytes=seen, share=None, delivered=None, said=backing.words(found))
    judged = backing.judge_mappings(found, sizes, share)
    return KvmSeen(bytes=seen, share=judged.share, delivered=judged.good, said=judged.said)


def _key(block: RamBlock, promised: Pages | None, host: Host, *, disabled: bool) -> str:
    """What the block is to be made of, as `backing.kinds` calls it; empty: nothing is promised."""
    if promised is not None:
        return f"hugetlb:{PAGE_OF[promised]}" if promised in PAGE_OF else promised
    if block.page:
        return f"hugetlb:{block.page}"
    if block.file or disabled:
        return ""
    setting = text_of(host, f"{THP}/{'shmem_enabled' if block.shared else 'enabled'}") or "[never]"
    return "" if "[never]" in setting or "[deny]" in setting else "thp"


def _seen(block: RamBlock, areas: list[backing.Area], key: str, share: float, numa: str) -> RamSeen:
    """What the block's mappings are made of, against what was promised."""
    kinds = backing.kinds(areas)
    resident = sum(kinds.values())
    whole = block.size if block.preallocated or key.startswith("hugetlb") else resident
    reached = None if not whole else min(1.0, kinds.get(key, 0) / whole)
    least = _WHOLE if key.startswith("hugetlb") else share
    others = ", ".join(f"{readable_size(size)} {_named(kind)}" for kind, size in sorted(kinds.items()) if kind != key)
    delivered: bool | None = reached is not None and reached >= least and not (key == "base" and others)
    said = f"{readable_size(kinds.get(key, 0))} of {readable_size(whole)} are {_named(key)}"
    said += f" ({least:.0%} promised)" + (f"; the rest is {others}" if others else "")
    if not areas:
        delivered, said = None, f"no mapping of QEMU holds {readable_size(block.size)}"
    elif not key:
        delivered, said = True, f"no larger pages are promised; it is {others or 'not touched yet'}"
    elif reached is None:
        delivered, said = None, "nothing of it is there yet"
    elif delivered and block.nodes and (away := _away(areas, block.nodes, numa)):
        delivered, said = False, away
    return RamSeen(
        id=block.id,
        size=block.size,
        promised=key,
        resident=resident,
        bytes=kinds,
        share=reached if key else None,
        delivered=delivered,
        said=said,
    )


def _away(areas: list[backing.Area], nodes: tuple[int, ...], numa: str) -> str | None:
    """What of it lies on other nodes of the host than it is bound to."""
    placed = {node: size for node, size in backing.nodes(numa, areas).items() if node not in nodes and size}
    return "; ".join(f"{readable_size(size)} lie on NUMA node {node} of the host" for node, size in placed.items())


def _named(kind: str) -> str:
    return _WORDS.get(kind) or f"pages of the {format_size(int(kind.removeprefix('hugetlb:')))} pool"


def as_domain(guest: RunningGuest) -> Domain:
    """The machine as a domain, of what its command line says: for whoever asks what takes huge pages from it."""
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
    )
