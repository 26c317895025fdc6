"""Why this host cannot have its memory aged for a cell, or None when it can."""

from __future__ import annotations

from hugewise.machine.proc import meminfo
from hugewise.model import age
from hugewise.model.age import MemoryAge
from hugewise.model.host import Host, text_of
from hugewise.model.pages import THP
from hugewise.quantity import readable_size

__all__ = ["refusal"]

_LEAST = 4 << 30  # of memory: a quarter is left to others, and the rest is to be many times what one workload uses


def refusal(wanted: MemoryAge, host: Host) -> str | None:
    """Why this host cannot have its memory aged so, with the cure, or None when it can."""
    if wanted == "fresh":
        return None
    if not host.privileged():
        return "ageing this host's memory needs root"
    return (_unfragmentable(host) if age.fragmented(wanted) else None) or (
        _unpressable(host) if age.pressed(wanted) else None
    )


def _unfragmentable(host: Host) -> str | None:
    if text_of(host, f"{THP}/hpage_pmd_size") is None:
        return "the kernel has no transparent huge pages: nothing is lost to it in fragmented memory"
    for path in ("/proc/buddyinfo", "/proc/zoneinfo"):
        if text_of(host, path) is None:
            return f"whether memory is fragmented cannot be seen: {path} cannot be read"
    total = meminfo(host).get("MemTotal", 0)
    if total < _LEAST:
        least = readable_size(_LEAST)
        return f"this machine has {readable_size(total)} of memory: fragmenting it is for {least} and more"
    return None


def _unpressable(host: Host) -> str | None:
    if text_of(host, "/proc/swaps") is None:
        return "the kernel has no swap (CONFIG_SWAP)"
    groups = text_of(host, "/proc/self/cgroup") or ""
    first = any("memory" in line.split(":")[1].split(",") for line in groups.splitlines() if line.count(":") >= 2)
    if not first and "memory" not in (text_of(host, "/sys/fs/cgroup/cgroup.controllers") or "").split():
        return "there is no memory cgroup, whose limit would make programs swap"
    return None
