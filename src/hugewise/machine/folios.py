"""What the probe's `folios` says of a process: which folios back each of its mappings, and how.

The protocol is docs/design/probe-protocol.md. Sizes are bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec

from hugewise.machine.load_generator import Natural

__all__ = ["DrawnBlock", "FoliosOfMapping", "MappedFolios", "SampledBlocks"]

# What backs memory: its kind, the size of its folio in bytes, and how that is mapped.
FolioState = Annotated[
    str, msgspec.Meta(pattern=r"^(?:anon|shmem|hugetlb|file):[0-9]{1,15}:(?:pmd|aligned|unaligned|partial)$")
]


class FoliosOfMapping(msgspec.Struct, frozen=True):
    """A mapping, as /proc/PID/maps has it, with bytes by `kind:folio size:state`.

    again    of these, what was counted before, in this process or another one of the same call
    nodes    by NUMA node; empty where the kernel does not say
    zero     reads as zero, and has no memory
    whole    in aligned blocks of the PMD size that are touched throughout, and that the PMD does not map
    """

    start: Natural
    end: Natural
    permissions: str
    offset: Natural
    device: str
    inode: Natural
    name: str
    bytes: Mapping[FolioState, Natural]
    nodes: Mapping[int, Natural]
    swapped: Natural
    zero: Natural
    whole: Natural
    again: Mapping[FolioState, Natural] = msgspec.field(default_factory=dict)


class DrawnBlock(msgspec.Struct, frozen=True):
    """A block that was drawn: the place of its mapping in the list, and what backs it."""

    mapping: Natural
    bytes: Mapping[FolioState, Natural]


class SampledBlocks(msgspec.Struct, frozen=True):
    """A simple random sample without replacement of `population` blocks of at most `block` bytes, in its order."""

    population: Natural
    block: Natural
    drawn: list[DrawnBlock]


class MappedFolios(msgspec.Struct, frozen=True, tag_field="ev", tag="folios"):
    """A process. With `sampled`, what is said of a mapping is of its drawn blocks alone."""

    pid: Natural
    mappings: list[FoliosOfMapping]
    sampled: SampledBlocks | None
    scan_ns: Natural
