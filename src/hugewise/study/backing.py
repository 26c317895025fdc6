"""What an arm says of the memory of its guests: a kind of pages, or a table.

    backing = "hugetlb-1g"
    backing = { pages = "thp", share = true, nodes = [0] }

What it means is said in `hugewise.model.guest`.
"""

from __future__ import annotations

import typing
from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec

from hugewise.model.guest import PAGE_OF, Backing, Pages
from hugewise.study import keys
from hugewise.study.keys import Key, Kind, Place

__all__ = ["BACKING", "BackingUse"]


class BackingUse(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the guest's memory is made of on the host. Only its page size: `backing = "hugetlb-1g"`."""

    pages: Annotated[
        Pages,
        Key(
            "Base pages (QEMU is denied huge ones), transparent huge pages (QEMU advises them), or pages of a pool of"
            " the host.",
            'pages = "hugetlb-2m"',
        ),
    ]
    source: Annotated[
        Literal["memfd", "file"],
        Key("Of pages of a pool: an anonymous memfd, or a file of a hugetlbfs (root).", 'source = "file"'),
    ] = "memfd"
    preallocate: Annotated[bool, Key("All of its pages are there before the guest starts.", "preallocate = false")] = (
        True
    )
    nodes: Annotated[
        tuple[int, ...] | None,
        keys.listing(keys.integer(0, 1023)),
        Key("NUMA nodes of the host that it is bound to.", "nodes = [0]", default="wherever"),
    ] = None
    share: Annotated[
        bool,
        Key(
            "Other processes can map it too, as virtiofs and vhost-user need it. Shared memory that is of no pool has"
            " huge pages by the host's `shmem_enabled`.",
            "share = true",
        ),
    ] = False
    by_node: Annotated[
        tuple[Pages, ...],
        keys.listing(keys.choice(*typing.get_args(Pages)), least=0),
        Key(
            "The pages of each NUMA node of the guest, where they differ; the first are those of `pages`.",
            'by_node = ["hugetlb-2m", "hugetlb-1g"]',
            default="`pages` for all",
        ),
    ] = ()


def _backing(value: object, place: Place) -> Backing:
    if isinstance(value, Mapping):
        use = keys.read_table(BackingUse, value, place)
        if "source" in value and not PAGE_OF.keys() & {use.pages, *use.by_node}:
            raise place.at("source").wrong(
                f"is of pages of a pool, and these are {use.pages}", use.source, hint="remove it"
            )
        place.at("nodes").once(use.nodes or ())
        if use.by_node and use.by_node[0] != use.pages:
            raise place.at("by_node").wrong(
                f"begins with the pages of the first node, and pages are {use.pages}", list(use.by_node)
            )
        if "base" in use.by_node and "thp" in use.by_node:
            cure = "QEMU is denied huge pages as a whole: have nodes of a pool beside the one, or the other"
            raise place.at("by_node").wrong("has base and thp", list(use.by_node), hint=cure)
        return Backing(
            pages=use.pages,
            source=use.source,
            preallocate=use.preallocate,
            nodes=use.nodes,
            share=use.share,
            by_node=use.by_node,
        )
    if not isinstance(value, str):
        cure = 'write "hugetlb-1g" or { pages = "hugetlb-1g", preallocate = false }'
        raise place.wrong("must be a kind of pages or a table", value, hint=cure)
    return Backing(pages=keys.choice(*typing.get_args(Pages)).read(value, place))


BACKING = Kind('"base", "thp", "hugetlb-2m", "hugetlb-1g" or a table', _backing, BackingUse)
