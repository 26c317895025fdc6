"""The virtual machines of a host: the XML that libvirt keeps of them, and what of the kernel is about them.

libvirt is not asked: the files of its system daemon are read. That of a machine that runs says what it has now, and
stands before the one by which it is started the next time.

Sources: libvirt, "Directory locations"; Documentation/admin-guide/mm/ksm.rst and hw-vuln/multihit.rst of Linux.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from hugewise.audit import sysfs
from hugewise.audit.facts import HostFacts
from hugewise.audit.root import Root
from hugewise.errors import UserError
from hugewise.machine import domain, domain_xml
from hugewise.model.domain import Domain

__all__ = ["Machines", "about", "machines", "of_host"]

_LIVE, _KEPT = "/run/libvirt/qemu", "/etc/libvirt/qemu"
_MOST_BYTES, _MOST_DOMAINS = 1 << 20, 1000
_KVM, _KSM = "/sys/module/kvm/parameters", "/sys/kernel/mm/ksm"


@dataclass(frozen=True)
class Machines:
    """What was found; see `facts.HostFacts`."""

    domains: tuple[Domain, ...]
    running: frozenset[str]
    kvm: Mapping[str, str]
    ksm: Mapping[str, str]


def machines(root: Root) -> Machines:
    """All that can be read of them; a file that is no domain is told, and left out."""
    found: dict[str, Domain] = {}
    running = set[str]()
    for folder in (_LIVE, _KEPT):
        names = [name for name in root.names(folder) if name.endswith(".xml")]
        for name in names[:_MOST_DOMAINS]:
            one = _domain(root, f"{folder}/{name}")
            if one is not None and one.name not in found:
                found[one.name] = one
                running |= {one.name} if folder == _LIVE else set()
    return Machines(
        domains=tuple(found.values()),
        running=frozenset(running),
        kvm=_values(root, _KVM, ("nx_huge_pages", "tdp_mmu")),
        ksm=_values(root, _KSM, ("run", "pages_shared", "pages_sharing")),
    )


def about(root: Root, domain: Domain, *, running: bool = False) -> HostFacts:
    """What the rules of virtual machines know of one domain on the host below `root`, without what they do not ask."""
    names = frozenset({domain.name}) if running else frozenset()
    return msgspec.structs.replace(of_host(root), domains=(domain,), running=names)


def of_host(root: Root) -> HostFacts:
    """What they know of all domains on the host, and what of it could not be read."""
    found = machines(root)
    return HostFacts(
        thp=sysfs.thp(root),
        pools=sysfs.pools(root, {}),
        memory_groups=sysfs.groups(root)[1],
        boot=sysfs.boot_words(root),
        domains=found.domains,
        running=found.running,
        kvm=found.kvm,
        ksm=found.ksm,
        unread=root.unread(),
    )


def _domain(root: Root, path: str) -> Domain | None:
    text = root.data(path, _MOST_BYTES)
    if text is None:
        return None
    try:
        return domain.read(domain_xml.parse(text, path), path)
    except UserError as error:
        root.tell(path, error.message)
        return None


def _values(root: Root, folder: str, names: tuple[str, ...]) -> dict[str, str]:
    said = {name: root.text(f"{folder}/{name}", 64) for name in names}
    return {name: text.strip() for name, text in said.items() if text is not None}
