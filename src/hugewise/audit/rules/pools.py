"""Pools of hugetlb pages: stranded, short, of a size that cannot be had later; limits that end in SIGBUS."""

from __future__ import annotations

from collections.abc import Iterator

from hugewise.audit.facts import HostFacts
from hugewise.audit.inventory import boot_pools, pool_wishes
from hugewise.audit.rule import Hit, Rule, collected, unit_of
from hugewise.quantity import format_size, readable_size

RULES: list[Rule] = []
_rule = collected(RULES)

_HUGETLBPAGE = "Linux: Documentation/admin-guide/mm/hugetlbpage.rst"
_PARAMETERS = "Linux: Documentation/admin-guide/kernel-parameters.txt"
_LEAST_STRANDED = 64 << 20
_GIGANTIC = 1 << 30


@_rule(
    "pool-stranded",
    "warning",
    "a pool holds pages that nobody uses: memory that nothing else can have",
    why="Pages of a pool are not given to other uses, and not swapped. What is free and not reserved by a"
    " mapping is idle.",
    sources=(_HUGETLBPAGE, "https://github.com/ryan4yin/nix-config/issues/280"),
    cure="lower vm.nr_hugepages to what is used at the peak, or let the pool grow on demand:"
    " vm.nr_overcommit_hugepages",
)
def _(facts: HostFacts) -> Iterator[Hit]:
    for pool in facts.pools:
        idle = pool.stranded * pool.size
        if idle >= _LEAST_STRANDED and pool.stranded * 4 > pool.lasting:
            said = f"{pool.stranded} of {pool.lasting} pages of {format_size(pool.size)} are free and not reserved"
            yield Hit(f"{said}: {readable_size(idle)}")


@_rule(
    "pool-of-a-run",
    "note",
    "a pool holds pages of a run of hugewise, which gives them back when it ends",
    why="A run adds what its arms need to the pool of others, notes it in root's journal before it does, and takes it"
    " away at its end. They are no setting of this host's: nothing is said of them as idle, or as lost at boot.",
    sources=(_HUGETLBPAGE,),
    cure="wait for the end of the run; where it was killed: sudo hugewise restore",
)
def _(facts: HostFacts) -> Iterator[Hit]:
    run = facts.run
    for pool in facts.pools if run is not None else ():
        if pool.own and run is not None:
            whose = f"{run.name} (process {run.pid})" if run.alive else f"{run.name}, which was killed"
            yield Hit(f"{pool.own} of {pool.total} pages of {format_size(pool.size)} are of the run {whose}")


@_rule(
    "pool-granted-short",
    "error",
    "a pool has fewer pages than were asked for",
    why="The kernel makes as many as it finds contiguous memory for, and reports no error; a host that has run for long"
    " has little of it.",
    sources=(_HUGETLBPAGE, "https://github.com/spdk/spdk/issues/1332"),
    cure="ask earlier (kernel's command line), or free and compact memory first: echo 1 > /proc/sys/vm/compact_memory",
)
def _(facts: HostFacts) -> Iterator[Hit]:
    for pool in facts.pools:
        wishes = pool_wishes(facts, pool.size)
        numbers = {int(one.value) for one in wishes if one.value.isdecimal() and len(one.value) < 15}
        if len(numbers) == 1 and (asked := numbers.pop()) > pool.lasting:
            said = f"{pool.lasting} pages of {format_size(pool.size)}, asked for {asked}"
            yield Hit(f"{said} ({wishes[-1].where})")


@_rule(
    "gigantic-pool-after-boot",
    "warning",
    "pages of 1 GiB or more are to be made after boot",
    why="They need as much contiguous memory, which is there at boot; later requests are mostly granted in part.",
    sources=(_HUGETLBPAGE, _PARAMETERS, "https://github.com/spdk/spdk/issues/702"),
    cure="hugepagesz=1G hugepages=N on the kernel's command line, or hugetlb_cma=SIZE, which keeps room for them",
)
def _(facts: HostFacts) -> Iterator[Hit]:
    if any(word.startswith("hugetlb_cma=") for word in facts.boot):
        return
    for pool in facts.pools:
        wishes = pool_wishes(facts, pool.size) if pool.size >= _GIGANTIC else []
        if wishes and not any(one.by == "boot" for one in wishes) and wishes[-1].value != "0":
            yield Hit(f"{wishes[-1].value} pages of {format_size(pool.size)} ({wishes[-1].where})")


@_rule(
    "boot-hugepages-pairs",
    "error",
    "hugepagesz= on the kernel's command line does not do what it looks like",
    why="hugepages= counts pages of the size before it. A hugepagesz= without one behind it reserves"
    " nothing, and a size"
    " that the processor does not have is refused with its pages.",
    sources=(_PARAMETERS,),
    cure="write pairs: hugepagesz=1G hugepages=4 hugepagesz=2M hugepages=512",
)
def _(facts: HostFacts) -> Iterator[Hit]:
    for size, pages in boot_pools(facts):
        name = "a size that is none" if size is None else format_size(size)
        if pages is None:
            yield Hit(f"hugepagesz={name} without a number of pages behind it: {' '.join(facts.boot)}")
        elif facts.pools and (size is None or facts.pool(size) is None):
            yield Hit(f"{pages} pages of {name}, which this machine does not have: {' '.join(facts.boot)}")


@_rule(
    "cgroup-hugetlb-sigbus",
    "warning",
    "a group's limit on hugetlb pages ends its programs by SIGBUS",
    why="hugetlb.SIZE.max is looked at in the page fault, when mmap has long succeeded: the program is"
    " killed by SIGBUS,"
    " where with rsvd.max mmap itself is refused and the program can go on without.",
    sources=(
        "Linux: Documentation/admin-guide/cgroup-v2.rst (HugeTLB)",
        "https://github.com/kubernetes/kubernetes/issues/71233",
        "https://github.com/CrunchyData/postgres-operator/issues/3477",
        "https://github.com/sclorg/postgresql-container/issues/419",
    ),
    cure="set hugetlb.SIZE.rsvd.max to the same limit",
)
def _(facts: HostFacts) -> Iterator[Hit]:
    for each in facts.hugetlb_groups:
        if each.limit is not None and (each.reserved_limit is None or each.reserved_limit > each.limit):
            reserved = "no limit" if each.reserved_limit is None else readable_size(each.reserved_limit)
            said = f"{each.group}: pages of {format_size(each.size)}: limit {readable_size(each.limit)}"
            yield Hit(f"{said}, of reservations: {reserved}", unit_of(each.group))
