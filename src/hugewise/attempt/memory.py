"""How much memory the processes of a system under test have, as the kernel says it of each."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress

from hugewise.machine.machine import Contained
from hugewise.machine.patience import PATIENCE_S, Patience, StuckError, patient_text
from hugewise.model.host import Host

__all__ = ["footprint", "most_shared", "peaks"]

_SIZE = re.compile(r"^(\w{1,64}):[ \t]{1,64}(\d{1,15}) kB$", re.MULTILINE | re.ASCII)


def footprint(host: Host, pids: Iterable[int]) -> int | None:
    """Bytes resident: proportional set size and hugetlb pages of these processes; None where there are none, and where
    one of them cannot be read in time.
    """
    total, shared, patience = 0, 0, Patience(PATIENCE_S)
    for pid in pids:
        with suppress(OSError):
            try:
                sizes = _sizes(patient_text(host, f"/proc/{pid}/smaps_rollup", patience))
            except StuckError:
                return None
            total += sizes.get("Pss", 0) + sizes.get("Private_Hugetlb", 0)
            shared = max(shared, sizes.get("Shared_Hugetlb", 0))
    return (total + shared) or None


def peaks(host: Host, pids: Iterable[int]) -> list[int]:
    """The most bytes that each of these processes had resident at once, but for pages of pools."""
    found = []
    for pid in pids:
        with suppress(OSError):
            found.append(_sizes(host.read(f"/proc/{pid}/status")).get("VmHWM", 0))
    return found


def _sizes(text: str) -> dict[str, int]:
    """Sizes in bytes by name, of smaps_rollup or status."""
    return {name: int(size) << 10 for name, size in _SIZE.findall(text)}


def most_shared(host: Host, root: int, leaf: Contained) -> int:
    """The process of the system under test that has most shared memory mapped: the one in which it can be looked at."""
    best, most = root, -1
    for pid in leaf.processes() or [root]:
        with suppress(OSError):
            sizes = _sizes(host.read(f"/proc/{pid}/status"))
            mapped = sizes.get("RssShmem", 0) + sizes.get("HugetlbPages", 0)
            if mapped > most:
                best, most = pid, mapped
    return best
