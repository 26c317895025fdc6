"""Virtual machines: what takes huge pages from their memory, on the host or in what their domain says."""

from __future__ import annotations

from collections.abc import Iterator

from hugewise.audit.demand import domain_pages
from hugewise.audit.facts import HostFacts
from hugewise.audit.rules import Hit, rule
from hugewise.model.guest import Domain
from hugewise.quantity import format_size, readable_size

_DOMAIN_XML = "libvirt: Domain XML format"
_BALLOON = "QEMU: hw/virtio/virtio-balloon.c"
_KSM = "Linux: Documentation/admin-guide/mm/ksm.rst"
_TRANSHUGE = "Linux: Documentation/admin-guide/mm/transhuge.rst"
_HUGETLBPAGE = "Linux: Documentation/admin-guide/mm/hugetlbpage.rst"
_OVERHEAD = 256 << 20  # of QEMU itself: devices, video memory, threads; more with many disks


def _ordinary(domain: Domain) -> bool:
    """Return whether some of the domain's memory is not from a pool."""
    return any(domain.page(node, 1 << 21) is None for node, _ in domain.nodes)


def _pooled(domain: Domain) -> bool:
    return any(domain.page(node, 1 << 21) is not None for node, _ in domain.nodes)


def _hit(domain: Domain, line: int, said: str) -> Hit:
    return Hit(f"{domain.at(line)}: {domain.name}: {said}")


@rule(
    "vm-ballooned-at-boot",
    "warning",
    "currentMemory below memory: the balloon takes single base pages out of the guest's huge ones",
    why="The guest boots with all of its memory, and its balloon gives back the difference page by page: QEMU discards"
    " 4 KiB at a time, which splits a transparent huge page of the host. Of memory from a pool a page comes back only"
    " when all of it is in the balloon, so that mostly nothing does. What counts is the memory at boot with its DIMMs:"
    " a virtio-mem device gives and takes memory by itself.",
    sources=(_DOMAIN_XML, "QEMU: hw/virtio/virtio-balloon.c (get_current_ram_size)", _TRANSHUGE),
    cure="give currentMemory and memory the same value (virsh setmaxmem, then setmem, with --config)",
)
def _(facts: HostFacts) -> Iterator[Hit]:
    for domain in facts.domains:
        # QEMU's balloon takes from what the guest boots with and its DIMMs; virtio-mem is none of it.
        whole = domain.memory + sum(one.size for one in domain.plugged if one.model == "dimm")
        if 0 < domain.current < whole:
            given = f"currentMemory is {readable_size(domain.current)} of {readable_size(whole)}"
            without = "" if domain.balloon is not None else ", and there is no balloon that could take it"
            yield _hit(domain, domain.lines.get("currentMemory", 1), f"{given}{without}")


@rule(
    "vm-balloon",
    "note",
    "a balloon: whoever inflates it splits the guest's huge pages",
    why="virsh setmem, and every manager that moves memory between guests, has the guest return base pages of 4 KiB."
    " They split transparent huge pages of the host, which khugepaged makes whole again only when the guest has them"
    " back. As long as nobody inflates it, it costs nothing, and its statistics are what a host knows of its guests.",
    sources=(_BALLOON, _DOMAIN_XML),
    cure="leave memory as it is at boot; where nobody wants its statistics either: <memballoon model='none'/>",
)
def _(facts: HostFacts) -> Iterator[Hit]:
    for domain in facts.domains:
        if domain.balloon is not None and not domain.balloon.free_page_reporting:
            more = ", which deflates when the guest runs out of memory" if domain.balloon.deflates else ""
            yield _hit(domain, domain.balloon.line, f"<memballoon>{more}")


@rule(
    "vm-free-page-reporting",
    "warning",
    "freePageReporting: the host takes back what was preallocated",
    why="The guest reports free blocks of its pageblock order and above, and QEMU discards them: memory that was huge"
    " when the guest started is faulted in anew whenever it is used, by then from a fragmented host; pages of a pool go"
    " back to it, and where another took them meanwhile the guest ends by SIGBUS.",
    sources=(_BALLOON, "Linux: Documentation/mm/free_page_reporting.rst", _DOMAIN_XML),
    cure="remove freePageReporting='on' of <memballoon> where the memory is to stay: pools, <allocation immediate>",
)
def _(facts: HostFacts) -> Iterator[Hit]:
    for domain in facts.domains:
        if domain.balloon is not None and domain.balloon.free_page_reporting:
            kept = " beside memory from a pool" if _pooled(domain) else ""
            kept = kept or (" beside <allocation mode='immediate'>" if domain.immediate else "")
            yield _hit(domain, domain.balloon.line, f"freePageReporting='on'{kept}")


@rule(
    "vm-hotplug",
    "warning",
    "memory that is added while the guest runs finds no huge pages ready",
    why="What <maxMemory> allows for is not reserved: a DIMM asks the pool, or the host's free memory, when it is"
    " plugged, which by then is fragmented or taken, and it fails, or has base pages. virtio-mem takes and gives"
    " blocks: one that is smaller than the host's huge page splits it.",
    sources=(_DOMAIN_XML, "QEMU: docs/system/devices/virtio-mem (and hw/virtio/virtio-mem.c)"),
    cure="give it at boot what it will need; else reserve the pool for maxMemory, and a block of virtio-mem of at least"
    " the huge page",
)
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


@rule(
    "vm-vfio",
    "warning",
    "a device of the host is passed through: all memory is pinned as it is when the guest starts",
    why="VFIO pins every page for as long as the device is there. What is a base page then stays one: khugepaged"
    " leaves pinned pages alone. Nothing of it can be swapped, merged or given back by a balloon.",
    sources=("Linux: Documentation/driver-api/vfio.rst", "Linux: mm/khugepaged.c (page references)", _DOMAIN_XML),
    cure="have it huge before it is pinned: pages of a pool; or THP while the host has free huge pages, and look with:"
    " hugewise verify DOMAIN",
)
def _(facts: HostFacts) -> Iterator[Hit]:
    for domain in facts.domains:
        for device in domain.assigned if _ordinary(domain) else ():
            yield _hit(domain, device.line, f"{device.what}, and memory that is of no pool")


@rule(
    "vm-shared-memory-not-huge",
    "warning",
    "memory that virtiofs or vhost-user share has base pages, whatever THP is set to",
    why="Shared memory that is of no pool is shmem: it follows shmem_enabled, not enabled. And QEMU maps what has a"
    " file descriptor at a boundary of the file's pages, 4 KiB, so that no huge page fits in where shmem_enabled"
    " would give one (seen with QEMU 7.2 in each start, with shmem_enabled = advise).",
    sources=(_TRANSHUGE, "QEMU: system/physmem.c, file_ram_alloc (align)", "https://libvirt.org/kbase/virtiofs.html"),
    cure="pages of a pool: <hugepages> in <memoryBacking>, which shared memory can have too",
)
def _(facts: HostFacts) -> Iterator[Hit]:
    for domain in facts.domains:
        if domain.shared and not domain.filed and _ordinary(domain):
            set_to = facts.thp.get("shmem_enabled", "unknown")
            line = domain.lines.get("memoryBacking", 1)
            yield _hit(domain, line, f"shared memory of no pool (shmem_enabled is {set_to})")


@rule(
    "vm-shared-memory-on-file",
    "warning",
    "shared memory that is neither of a pool nor of a memfd is a file below memory_backing_dir",
    why="Where memory is shared and <source type='memfd'/> is missing, libvirt gives QEMU a file (memory-backend-file)"
    " in that folder, /var/lib/libvirt/qemu/ram unless qemu.conf names another. On the file system of a disk the"
    " guest's memory is page cache of that file: it is written back, needs room there, and has base pages whatever"
    " enabled and shmem_enabled say. On a tmpfs its mount option huge= decides.",
    sources=(_DOMAIN_XML, "libvirt: src/qemu/qemu_command.c, qemuBuildMemoryBackendProps; qemu.conf", _TRANSHUGE),
    cure="<source type='memfd'/> beside <access mode='shared'/> in <memoryBacking>, or pages of a pool: <hugepages>",
)
def _(facts: HostFacts) -> Iterator[Hit]:
    folder = facts.backing_dir
    on = f"on a file system of the kind {folder.key}" if folder.key else "which may be on a disk"
    for domain in facts.domains:
        if domain.filed and _ordinary(domain):
            line = domain.lines.get("memoryBacking", domain.lines.get("cpu", 1))
            yield _hit(
                domain, line, f"shared memory without a memfd: a file below {folder.value} ({folder.where}), {on}"
            )


@rule(
    "vm-sharer-without-shared-memory",
    "error",
    "virtiofs or vhost-user without shared memory: the guest does not start, or the device does not work",
    why="Their daemon maps the guest's memory: it must be shared, and of a file descriptor.",
    sources=("https://libvirt.org/kbase/virtiofs.html", _DOMAIN_XML),
    cure="<memoryBacking><source type='memfd'/><access mode='shared'/></memoryBacking>",
)
def _(facts: HostFacts) -> Iterator[Hit]:
    for domain in facts.domains:
        for device in () if domain.shared else domain.sharers:
            yield _hit(domain, device.line, f"{device.what}, and the access of its memory is not shared")


@rule(
    "vm-merged",
    "warning",
    "KSM merges pages of guests, and splits their huge pages for it",
    why="QEMU offers the memory of every guest to KSM. It compares base pages, and splits a transparent huge page"
    " before one of its parts is merged; merged pages are small, read-only, and copied at the next write.",
    sources=(_KSM, "Linux: mm/ksm.c (try_to_merge_one_page splits the page)", _DOMAIN_XML),
    cure="echo 2 > /sys/kernel/mm/ksm/run splits what was merged and stops it (and systemctl disable --now ksmtuned"
    " ksm); or <nosharepages/> in <memoryBacking> of the guests that are to be huge",
)
def _(facts: HostFacts) -> Iterator[Hit]:
    if facts.ksm.get("run") != "1":
        return
    shared = facts.ksm.get("pages_sharing", "0")
    for domain in facts.domains:
        if _ordinary(domain) and not domain.unmerged:
            said = f"KSM runs ({shared} pages are merged on this host), and <nosharepages/> is missing"
            yield _hit(domain, domain.lines.get("memoryBacking", domain.lines.get("memory", 1)), said)


@rule(
    "vm-nx-huge-pages",
    "warning",
    "kvm.nx_huge_pages: KVM maps what the guest executes by base pages",
    why="Against iTLB multihit (CVE-2018-12207) KVM makes huge mappings non-executable, and splits one when the guest"
    " executes from it; a thread of the host puts some together again every hour. The host's pages are huge, its smaps"
    " say so, and the guest's code walks base pages all the same.",
    sources=(
        "Linux: Documentation/admin-guide/hw-vuln/multihit.rst",
        "Linux: kernel-parameters.txt, kvm.nx_huge_pages=",
    ),
    cure="leave it where guests are not trusted; else kvm.nx_huge_pages=off, or a processor that is not affected"
    " (/sys/devices/system/cpu/vulnerabilities/itlb_multihit)",
)
def _(facts: HostFacts) -> Iterator[Hit]:
    said = facts.kvm.get("nx_huge_pages", "")
    guests = facts.domains or any("qemu" in process.program for process in facts.processes)
    if guests and said in ("Y", "1", "force"):
        yield Hit(f"/sys/module/kvm/parameters/nx_huge_pages is {said}")


@rule(
    "vm-memory-limit",
    "error",
    "a memory limit leaves the guest no room for all of its memory",
    why="The limit counts QEMU's own memory too, and its page cache. At the limit a huge page is charged whole or not"
    " at all: faults fall back to base pages first, then the guest swaps, and QEMU is killed. libvirt's documentation"
    " advises against <hard_limit>.",
    sources=(_DOMAIN_XML, "Linux: Documentation/admin-guide/cgroup-v2.rst (memory.max)"),
    cure="remove <hard_limit>, or leave QEMU room above the guest's memory; a limit of machine.slice above the sum of"
    " its guests",
)
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


@rule(
    "vm-not-whole-pages",
    "warning",
    "a node of the guest is not a multiple of the huge page: it, or the node behind it, is not aligned",
    why="KVM maps by huge pages only where the guest's address and QEMU's are aligned alike; where they are not, all of"
    " that memory is mapped by base pages, however the host backs it. A node begins in the guest where the one before"
    " it ends, and in QEMU at a boundary of the huge page.",
    sources=("Linux: arch/x86/kvm/x86.c, kvm_alloc_memslot_metadata (disallow_lpage)", _DOMAIN_XML),
    cure="make the memory of each <cell> (and <memory>) a multiple of the huge page: 2 MiB, or 1 GiB",
)
def _(facts: HostFacts) -> Iterator[Hit]:
    for domain in facts.domains:
        lines = {cell.id: cell.line for cell in domain.cells}
        for node, size in domain.nodes:
            page = domain.page(node, facts.default_huge_size) or facts.pmd
            if size % page:
                said = f"node {node} has {format_size(size)}, no multiple of {format_size(page)}"
                yield _hit(domain, lines.get(node, domain.lines.get("memory", 1)), said)


@rule(
    "vm-bare-hugepages",
    "note",
    "<hugepages/> without a size: the host's default decides, and another host decides otherwise",
    why="It is the default huge page size of the host that the guest happens to start on: 2 MiB unless that was booted"
    " with default_hugepagesz=1G. After a migration, or a change of the boot line, the same domain has other pages.",
    sources=(_DOMAIN_XML, _HUGETLBPAGE),
    cure="name it: <hugepages><page size='1' unit='GiB'/></hugepages>",
)
def _(facts: HostFacts) -> Iterator[Hit]:
    for domain in facts.domains:
        for wish in domain.huge:
            if wish.size is None:
                yield _hit(domain, wish.line, f"<hugepages/> means {format_size(facts.default_huge_size)} here")


@rule(
    "vm-pool-too-small",
    "error",
    "the pool has too few free pages for a guest that is to be started",
    why="libvirt has QEMU allocate all of a guest's pages before it starts; where the pool has fewer, it does not. Of a"
    " pool of several nodes those of the node count that the guest is bound to.",
    sources=(_DOMAIN_XML, _HUGETLBPAGE),
    cure="raise the pool at boot (hugepagesz=, hugepages=), or with vm.nr_hugepages while memory is free",
)
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
