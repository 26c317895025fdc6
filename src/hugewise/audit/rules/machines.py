"""Virtual machines: what takes huge pages from their memory, on the host or in what their domain says."""

from __future__ import annotations

from collections.abc import Iterator

from hugewise.audit.demand import domain_pages
from hugewise.audit.facts import HostFacts
from hugewise.audit.rules import Hit, rule
from hugewise.model.guest import Domain
from hugewise.quantity import format_size, readable_size

_OVERHEAD = 256 << 20  # of QEMU itself: devices, video memory, threads; more with many disks


def _ordinary(domain: Domain) -> bool:
    """Return whether some of the domain's memory is not from a pool."""
    return any(domain.page(node, 1 << 21) is None for node, _ in domain.nodes)


def _pooled(domain: Domain) -> bool:
    return any(domain.page(node, 1 << 21) is not None for node, _ in domain.nodes)


def _hit(domain: Domain, line: int, said: str) -> Hit:
    return Hit(f"{domain.at(line)}: {domain.name}: {said}")


@rule("vm-ballooned-at-boot")
def _(facts: HostFacts) -> Iterator[Hit]:
    for domain in facts.domains:
        # QEMU's balloon takes from what the guest boots with and its DIMMs; virtio-mem is none of it.
        whole = domain.memory + sum(one.size for one in domain.plugged if one.model == "dimm")
        if 0 < domain.current < whole:
            given = f"currentMemory is {readable_size(domain.current)} of {readable_size(whole)}"
            without = "" if domain.balloon is not None else ", and there is no balloon that could take it"
            yield _hit(domain, domain.lines.get("currentMemory", 1), f"{given}{without}")


@rule("vm-balloon")
def _(facts: HostFacts) -> Iterator[Hit]:
    for domain in facts.domains:
        if domain.balloon is not None and not domain.balloon.free_page_reporting:
            more = ", which deflates when the guest runs out of memory" if domain.balloon.deflates else ""
            yield _hit(domain, domain.balloon.line, f"<memballoon>{more}")


@rule("vm-free-page-reporting")
def _(facts: HostFacts) -> Iterator[Hit]:
    for domain in facts.domains:
        if domain.balloon is not None and domain.balloon.free_page_reporting:
            kept = " beside memory from a pool" if _pooled(domain) else ""
            kept = kept or (" beside <allocation mode='immediate'>" if domain.immediate else "")
            yield _hit(domain, domain.balloon.line, f"freePageReporting='on'{kept}")


@rule("vm-hotplug")
def _(facts: HostFacts) -> Iterator[Hit]:
    for domain in facts.domains:
        if domain.most is not None and domain.most[0] > domain.memory:
            said = f"maxMemory is {readable_size(domain.most[0])}, and {readable_size(domain.memory)} are there at boot"
            yield _hit(domain, domain.lines.get("maxMemory", 1), said)
        for one in domain.plugged:
            small = one.block is not None and one.block < (domain.page(0, facts.default_huge_size) or facts.pmd)
            block = f" in blocks of {format_size(one.block)}" if one.block is not None and small else ""
            if one.model in ("dimm", "virtio-mem"):
                yield _hit(domain, one.line, f"<memory model='{one.model}'> of {readable_size(one.size)}{block}")


@rule("vm-vfio")
def _(facts: HostFacts) -> Iterator[Hit]:
    for domain in facts.domains:
        for device in domain.assigned if _ordinary(domain) else ():
            yield _hit(domain, device.line, f"{device.what}, and memory that is of no pool")


@rule("vm-shared-memory-not-huge")
def _(facts: HostFacts) -> Iterator[Hit]:
    for domain in facts.domains:
        if domain.shared and not domain.filed and _ordinary(domain):
            set_to = facts.thp.get("shmem_enabled", "unknown")
            line = domain.lines.get("memoryBacking", 1)
            yield _hit(domain, line, f"shared memory of no pool (shmem_enabled is {set_to})")


@rule("vm-shared-memory-on-file")
def _(facts: HostFacts) -> Iterator[Hit]:
    folder = facts.backing_dir
    on = f"on a file system of the kind {folder.key}" if folder.key else "which may be on a disk"
    for domain in facts.domains:
        if domain.filed and _ordinary(domain):
            line = domain.lines.get("memoryBacking", domain.lines.get("cpu", 1))
            yield _hit(
                domain, line, f"shared memory without a memfd: a file below {folder.value} ({folder.where}), {on}"
            )


@rule("vm-sharer-without-shared-memory")
def _(facts: HostFacts) -> Iterator[Hit]:
    for domain in facts.domains:
        for device in () if domain.shared else domain.sharers:
            yield _hit(domain, device.line, f"{device.what}, and the access of its memory is not shared")


@rule("vm-merged")
def _(facts: HostFacts) -> Iterator[Hit]:
    if facts.ksm.get("run") != "1":
        return
    shared = facts.ksm.get("pages_sharing", "0")
    for domain in facts.domains:
        if _ordinary(domain) and not domain.unmerged:
            said = f"KSM runs ({shared} pages are merged on this host), and <nosharepages/> is missing"
            yield _hit(domain, domain.lines.get("memoryBacking", domain.lines.get("memory", 1)), said)


@rule("vm-nx-huge-pages")
def _(facts: HostFacts) -> Iterator[Hit]:
    said = facts.kvm.get("nx_huge_pages", "")
    guests = facts.domains or any("qemu" in process.program for process in facts.processes)
    if guests and said in ("Y", "1", "force"):
        yield Hit(f"/sys/module/kvm/parameters/nx_huge_pages is {said}")


@rule("vm-memory-limit")
def _(facts: HostFacts) -> Iterator[Hit]:
    for domain in facts.domains:
        charged = sum(size for node, size in domain.nodes if domain.page(node, facts.default_huge_size) is None)
        if domain.limit is not None and domain.limit < charged + _OVERHEAD:
            said = f"hard_limit is {readable_size(domain.limit)}, and its memory of no pool {readable_size(charged)}"
            yield _hit(domain, domain.lines.get("memory", 1), said)
    running = [domain for domain in facts.domains if domain.name in facts.running]
    together = sum(
        size for one in running for node, size in one.nodes if one.page(node, facts.default_huge_size) is None
    )
    for group in facts.memory_groups:
        if group.group.rstrip("/").endswith("machine.slice") and group.limit < together:
            yield Hit(f"{group.group} has {readable_size(group.limit)}, and its guests {readable_size(together)}")


@rule("vm-not-whole-pages")
def _(facts: HostFacts) -> Iterator[Hit]:
    for domain in facts.domains:
        lines = {cell.id: cell.line for cell in domain.cells}
        for node, size in domain.nodes:
            page = domain.page(node, facts.default_huge_size) or facts.pmd
            if size % page:
                said = f"node {node} has {format_size(size)}, no multiple of {format_size(page)}"
                yield _hit(domain, lines.get(node, domain.lines.get("memory", 1)), said)


@rule("vm-bare-hugepages")
def _(facts: HostFacts) -> Iterator[Hit]:
    for domain in facts.domains:
        for wish in domain.huge:
            if wish.size is None:
                yield _hit(domain, wish.line, f"<hugepages/> means {format_size(facts.default_huge_size)} here")


@rule("vm-pool-too-small")
def _(facts: HostFacts) -> Iterator[Hit]:
    for domain in facts.domains:
        if domain.name in facts.running:
            continue
        for page, pages in domain_pages(facts, domain).items():
            pool = facts.pool(page)
            there = 0 if pool is None else pool.available
            if facts.short(page, pages):
                line = domain.huge[0].line
                yield _hit(domain, line, f"it needs {pages} pages of {format_size(page)}, and {there} are free")
