"""Pools of hugetlb pages: stranded, short, of a size that cannot be had later; limits that end in SIGBUS."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hugewise.audit.boot import pool_words
from hugewise.audit.demand import PageNeed, waiting
from hugewise.audit.facts import HostFacts
from hugewise.audit.inventory import pool_wishes
from hugewise.audit.rules import Hit, rule, unit_of
from hugewise.quantity import format_size, readable_size

_LEAST_STRANDED = 64 << 20
_GIGANTIC = 1 << 30
_MOST_NAMED = 4


@rule("pool-stranded")
def _(facts: HostFacts) -> Iterator[Hit]:
    for pool in facts.pools:
        # What is free may be there for a program that does not run now, or whose request was refused.
        asking = waiting(facts, pool.size)
        pages = pool.stranded - sum(need.high for need in asking)
        if pages * pool.size >= _LEAST_STRANDED and pages * 4 > pool.lasting:
            said = f"{pool.stranded} of {pool.lasting} pages of {format_size(pool.size)} are free and not reserved"
            beside = f", beside what {_named(asking)} may need" if asking else ""
            yield Hit(f"{said}: {readable_size(pages * pool.size)}{beside}")


def _named(asking: Sequence[PageNeed]) -> str:
    return ", ".join(f"{need.what} ({need.said})" for need in asking[:_MOST_NAMED])


@rule("pool-smaller-than-asked")
def _(facts: HostFacts) -> Iterator[Hit]:
    for pool in facts.pools:
        asking = [need for need in waiting(facts, pool.size) if not need.machine]
        alone = len(asking) == 1 and not asking[0].running
        least = sum(need.low for need in asking)
        # A single one that insists has a rule of its own.
        if pool.lasting and facts.short(pool.size, least) and (len(asking) > 1 or (alone and _tries(facts, asking[0]))):
            there = f"the pool has {pool.lasting}, {pool.available} to be had"
            yield Hit(f"pages of {format_size(pool.size)}: {_named(asking)}; {there}")


def _tries(facts: HostFacts, need: PageNeed) -> bool:
    """Return whether the need is of a PostgreSQL that goes on without huge pages."""
    of = (server for server in facts.servers if server.what == need.what and server.kind == "postgresql")
    return any(server.value("huge_pages", "try") == "try" for server in of)


@rule("pool-of-a-run")
def _(facts: HostFacts) -> Iterator[Hit]:
    run = facts.run
    for pool in facts.pools if run is not None else ():
        if pool.own and run is not None:
            yield Hit(f"{pool.own} of {pool.total} pages of {format_size(pool.size)} are of {run.told}")


@rule("pool-granted-short")
def _(facts: HostFacts) -> Iterator[Hit]:
    for pool in facts.pools:
        wishes = pool_wishes(facts, pool.size)
        numbers = {int(wish.value) for wish in wishes if wish.value.isdecimal() and len(wish.value) < 15}
        if len(numbers) == 1 and (asked := numbers.pop()) > pool.lasting:
            said = f"{pool.lasting} pages of {format_size(pool.size)}, asked for {asked}"
            yield Hit(f"{said} ({wishes[-1].where})")


@rule("gigantic-pool-after-boot")
def _(facts: HostFacts) -> Iterator[Hit]:
    if any(word.startswith("hugetlb_cma=") for word in facts.boot):
        return
    for pool in facts.pools:
        wishes = pool_wishes(facts, pool.size) if pool.size >= _GIGANTIC else []
        if wishes and not any(wish.by == "boot" for wish in wishes) and wishes[-1].value != "0":
            yield Hit(f"{wishes[-1].value} pages of {format_size(pool.size)} ({wishes[-1].where})")


@rule("boot-hugepages-pairs")
def _(facts: HostFacts) -> Iterator[Hit]:
    for one in pool_words(facts.boot, facts.default_huge_size):
        name = "a size that is none" if one.size is None else format_size(one.size)
        if one.pages is None:
            said = (
                "without a number of pages behind it" if "hugepages=" not in one.written else "and no number of pages"
            )
            yield Hit(f"{one.written}: hugepagesz={name} {said}: {' '.join(facts.boot)}")
        elif one.size is None or (facts.pools and _absent(facts, one.size)):
            there = "is passed over" if one.size is None else "which this machine does not have"
            yield Hit(f"{one.pages} pages of {name}, {there} ({one.written}): {' '.join(facts.boot)}")
        elif one.why:
            yield Hit(f"{one.written} is passed over: {one.why}: {' '.join(facts.boot)}")
        elif (letter := one.written.rpartition("=")[2].lstrip("0123456789"))[:1].isalpha():
            yield Hit(f"{one.written} asks for {one.pages} pages: it counts pages, and {letter} is passed over")


def _absent(facts: HostFacts, size: int) -> bool:
    """Return whether the kernel has no pool of that size; False where a host shows the default pool alone."""
    return facts.pool(size) is None and "thp" not in facts.hidden


@rule("cgroup-hugetlb-sigbus")
def _(facts: HostFacts) -> Iterator[Hit]:
    for group in facts.hugetlb_groups:
        if group.limit is not None and (group.reserved_limit is None or group.reserved_limit > group.limit):
            reserved = "no limit" if group.reserved_limit is None else readable_size(group.reserved_limit)
            said = f"{group.group}: pages of {format_size(group.size)}: limit {readable_size(group.limit)}"
            yield Hit(f"{said}, of reservations: {reserved}", unit_of(group.group))
