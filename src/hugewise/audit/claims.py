"""What makers of programs say of page sizes: claims that a run on this host can support.

A claim says that one set of policies (`hugewise list policies`) serves a program better than another; they are the data
of `published.folklore`. The audit shows those about the programs that it finds, and what this host's own runs say of
each; docs/reference/audit.md lists all.
"""

from __future__ import annotations

from collections.abc import Iterator

from hugewise.audit.facts import HostFacts, RunningProcess
from hugewise.audit.known import server_kind
from hugewise.published.folklore import CommonClaim, claims

__all__ = ["CLAIMS", "HUGETLB_POOLS", "about"]

HUGETLB_POOLS = ("hugetlb-2m", "hugetlb-1g", "hugetlb-32m", "hugetlb-512m", "hugetlb-16g")

CLAIMS = tuple(claim for claim in claims() if claim.programs)


def about(facts: HostFacts) -> Iterator[tuple[CommonClaim, RunningProcess]]:
    """The claims about each program that runs, for each program once."""
    seen = set()
    for each in facts.processes:
        names = {each.name, server_kind(each.name, each.program), *(f"lib:{one}" for one in each.libraries or ())}
        for claim in CLAIMS:
            if not names.isdisjoint(claim.programs) and (claim.id, each.program, each.unit) not in seen:
                seen.add((claim.id, each.program, each.unit))
                yield claim, each
