"""A virtual machine that runs, whoever started it: what its memory was asked to be made of, and what it is made of.

    found = running("db1", host)          a libvirt domain by its name, or a QEMU by its number; None: neither
    verify(found, host, None, 0.95)

libvirt is not asked: the number of a domain's QEMU is in a file of its daemon. What was asked for stands in QEMU's
command line, what is there in its smaps. What KVM maps of it is read in debugfs: the monitor of a domain is libvirt's,
and a command of somebody else's in it would mark the domain as tainted.

Sources: proc(5); libvirt, src/qemu/qemu_process.c (the pid file).
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from pathlib import Path

import msgspec

from hugewise.errors import UserError
from hugewise.guests import backing, kvm
from hugewise.guests.qemu_words import RamBlock, blocks
from hugewise.host.virtual_machines import PROGRAM
from hugewise.machine.proc import fields
from hugewise.model.domain import Domain, DomainCell, HugeWish
from hugewise.model.guest import PAGE_OF, Pages
from hugewise.model.host import Host, text_of
from hugewise.model.pages import THP
from hugewise.quantity import format_size, readable_size

__all__ = ["GuestVerified", "KvmSeen", "RamSeen", "RunningGuest", "as_domain", "running", "verify"]

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
    debugfs: Path = kvm.DEBUGFS,
    proc: Path = kvm.PROC,
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
    runs = kvm.runs(pid, proc)
    if runs is False:
        return None
    found = kvm.of_debugfs(pid, debugfs, proc) if runs else "whether KVM runs it cannot be seen: call it as root"
    seen = None if isinstance(found, str) else found.bytes
    sizes = {_PAGES.get(key) or int(key.removeprefix("hugetlb:")) for key in promised}
    if max(sizes, default=_BASE) == _BASE:
        # KVM maps nothing by more than the host's own pages: there is nothing to judge.
        return KvmSeen(bytes=seen, share=None, delivered=None, said=kvm.words(found))
    judged = kvm.judged(found, sizes, share)
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
