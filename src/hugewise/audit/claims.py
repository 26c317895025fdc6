"""What makers of programs say of page sizes, as data with its source: claims that a run on this host can support.

A claim says that one set of policies (`hugewise list policies`) serves a program better than another. The audit shows
those about the programs that it finds, and what this host's own runs say of each; docs/reference/audit.md lists all.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from hugewise.audit.facts import HostFacts, RunningProcess
from hugewise.audit.known import server_kind

__all__ = ["BASE", "CLAIMS", "HUGETLB_POOLS", "THP_FOR_ALL", "VendorClaim", "about"]

BASE = ("base",)
THP_FOR_ALL = ("thp",)
ADVISED = ("thp-advised", "madvise")
HUGETLB_POOLS = ("hugetlb-2m", "hugetlb-1g", "hugetlb-32m", "hugetlb-512m", "hugetlb-16g")


class VendorClaim(msgspec.Struct, frozen=True, kw_only=True):
    """A claim: `better` policies serve the program better than `worse` ones.

    programs  kinds of servers, names of programs, or `lib:NAME` for those that have that allocator mapped
    """

    id: str
    programs: tuple[str, ...]
    says: str
    better: tuple[str, ...]
    worse: tuple[str, ...]
    sources: tuple[str, ...]


CLAIMS = (
    VendorClaim(
        id="redis-no-thp",
        programs=("redis",),
        says="transparent huge pages cost redis latency and memory when it forks to save: turn them off",
        better=BASE,
        worse=(*THP_FOR_ALL, *ADVISED),
        sources=("https://redis.io/docs/latest/operate/oss_and_stack/management/optimization/latency/",),
    ),
    VendorClaim(
        id="postgresql-huge-pages",
        programs=("postgresql",),
        says="huge pages for shared memory give smaller page tables and less CPU time for memory",
        better=HUGETLB_POOLS,
        worse=BASE,
        sources=("https://www.postgresql.org/docs/current/runtime-config-resource.html#GUC-HUGE-PAGES",),
    ),
    VendorClaim(
        id="postgresql-no-thp",
        programs=("postgresql",),
        says="transparent huge pages are discouraged: they were seen to make it slower with some kernels",
        better=BASE,
        worse=(*THP_FOR_ALL, *ADVISED),
        sources=("https://www.postgresql.org/docs/current/runtime-config-resource.html#GUC-HUGE-PAGES",),
    ),
    VendorClaim(
        id="mysql-large-pages",
        programs=("mysql",),
        says="large pages for the buffer pool reduce TLB misses and raise throughput",
        better=HUGETLB_POOLS,
        worse=BASE,
        sources=("https://dev.mysql.com/doc/refman/8.4/en/large-page-support.html",),
    ),
    VendorClaim(
        id="mongodb-8-thp",
        programs=("mongodb",),
        says="from 8.0 on transparent huge pages are to be on: always",
        better=THP_FOR_ALL,
        worse=BASE,
        sources=("https://www.mongodb.com/docs/manual/tutorial/transparent-huge-pages/",),
    ),
    VendorClaim(
        id="memcached-large-pages",
        programs=("memcached",),
        says="large pages can reduce the number of TLB misses and improve performance (-L)",
        better=ADVISED,
        worse=BASE,
        sources=("memcached(1)",),
    ),
    VendorClaim(
        id="jvm-thp",
        programs=("jvm",),
        says="large pages make applications with large heaps faster",
        better=(*THP_FOR_ALL, *ADVISED, *HUGETLB_POOLS),
        worse=BASE,
        sources=("https://docs.oracle.com/en/java/javase/21/docs/specs/man/java.html",),
    ),
    VendorClaim(
        id="tcmalloc-always",
        programs=("lib:tcmalloc",),
        says="tcmalloc relies on transparent huge pages: enabled is to be always",
        better=THP_FOR_ALL,
        worse=(*BASE, *ADVISED),
        sources=("https://google.github.io/tcmalloc/tuning.html", "https://github.com/google/tcmalloc/issues/85"),
    ),
)


def about(facts: HostFacts) -> Iterator[tuple[VendorClaim, RunningProcess]]:
    """The claims about each program that runs, for each program once."""
    seen = set()
    for each in facts.processes:
        names = {each.name, server_kind(each.name, each.program), *(f"lib:{one}" for one in each.libraries or ())}
        for claim in CLAIMS:
            if not names.isdisjoint(claim.programs) and (claim.id, each.program, each.unit) not in seen:
                seen.add((claim.id, each.program, each.unit))
                yield claim, each
