"""Page-size policy: what it needs, what it turns, what it promises, and how it is deployed.

A policy is one file under `policies/`, whose function `policies(sizes)` yields one for each size of the machine. The
*mechanism* is part of a treatment's identity: `system` turns the knobs of the whole machine (root), `process` uses only
what an ordinary process may ask for. Measurements of different mechanisms are never merged. Files to deploy are written
below a folder, or shown, and never put in their place.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Literal, Protocol

import msgspec

from hugewise.model.host import Host
from hugewise.model.pages import PageSizes, PageTarget
from hugewise.quantity import format_size, parse_size

FileScope = Literal["process", "service", "host-now", "host-boot", "server", "guest", "pod"]

FileKind = Literal[
    "script",
    "launcher",
    "unit",
    "tmpfiles",
    "sysctl",
    "boot",
    "tuned",
    "postgresql",
    "mariadb",
    "redis",
    "memcached",
    "libvirt",
    "compose",
    "kubernetes",
]

_COMMENT = re.compile(r"#|set |\s*$")

UNREAD = "not read by a tool here"
"""The label of a kind whose text no program has read in hugewise's own tests."""


class DeployedFile(msgspec.Struct, frozen=True, kw_only=True):
    """A setting as a file.

    path      absolute: where it belongs, on the machine or (`on`) in the guest
    content   the whole of it, in the quoting of its format
    scope     what it reaches: a process that is started by it, a service, the whole host now or from its next boot,
              a server's own configuration, a guest's memory, a pod
    apply     commands that put it in force once it lies there; undo: those that take it back
    check     the command that shows whether it is in force
    label     `read by TOOL`, where hugewise's tests have that tool read such files, or `not read by a tool here`
    needs     what it needs there, such as `systemd 260 or later`
    sets      of a script: the kernel settings that it turns, path -> value
    instead   a file above it in the same deployment has the same effect: one of them is enough
    """

    kind: FileKind
    path: str
    content: str
    scope: FileScope
    apply: tuple[str, ...] = ()
    undo: tuple[str, ...]
    check: str
    label: str
    needs: tuple[str, ...] = ()
    sets: Mapping[str, str] = {}
    instead: bool = False
    on: Literal["machine", "guest"] = "machine"


class Deployment(msgspec.Struct, frozen=True, kw_only=True):
    """The files that set a policy, the narrowest reach first, and a line of explanation."""

    files: tuple[DeployedFile, ...] = ()
    note: str

    def commands(self) -> tuple[str, ...]:
        told: list[str] = []
        guest = any(file.on == "guest" for file in self.files)
        for on, where in (("guest", "# in the guest:"), ("machine", "# on its host, before it starts:")):
            scripts = [file for file in self.files if file.on == on and file.kind in ("script", "launcher")]
            scripts.sort(key=lambda file: file.kind == "launcher")  # a pool is filled before the program starts
            told += [where] if guest and scripts else []
            told += [line for file in scripts for line in file.content.splitlines() if not _COMMENT.match(line)]
        return tuple(told)


Mechanism = Literal["system", "process"]
ThpDisable = Literal["none", "all", "except-advised"]

_HEAP_UNIT = 2 << 20  # layouts are of whole huge pages
_POOLED = re.compile(r"([0-9.]{1,16}[kmgt]?)-([0-9.]{1,16}[kmgt]?)(%?)=hugetlb-(2m|1g)")


def laid_pool(layout: str) -> tuple[int, int]:
    """Return the page size and the bytes of a valid mosaic's ranges from a pool; 0 where there are none."""
    ranges, *options = layout.split(",")
    heap = next((parse_size(each.removeprefix("heap=")) for each in options if each.startswith("heap=")), 0)
    page = total = 0
    for begin, end, percent, size in _POOLED.findall(ranges) if ranges.startswith("mosaic:") else ():
        page = parse_size(size)
        edges = (Fraction(each) * heap / 100 if percent else Fraction(parse_size(each)) for each in (begin, end))
        first, last = (min(int(each + page // 2) // page, heap // page) for each in edges)
        total += (last - first) * page
    return page, total


def mechanism(host: Host) -> Mechanism:
    """Return how policies reach a workload here: root turns the system's knobs, a user has process-level means."""
    return "system" if host.privileged() else "process"


class Treatment(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a policy does to one attempt, decided before anything runs.

    knobs         sysfs path -> value to write before the attempt (empty for the process mechanism)
    thp_disable   prctl(PR_SET_THP_DISABLE) in the child: `all`, or `except-advised` (Linux 6.18 and later)
    advice        what our own micro-workloads pass to madvise: `huge`, `nohuge` or nothing
    map_hugetlb   page size in bytes that our own micro-workloads map with MAP_HUGETLB, or nothing
    surplus       nothing is reserved of these pages: the kernel makes them when they are mapped, or it has none
    environment   variables for commands that are not ours, such as GLIBC_TUNABLES
    parameters    parameters of the workload that this arm has instead of the cell's
    layout        what the layout library makes a command's heap of, in its words (docs/concepts/layouts.md), or nothing
    """

    policy: str
    mechanism: Mechanism
    target: PageTarget
    knobs: Mapping[str, str] = {}
    thp_disable: ThpDisable = "none"
    advice: Literal["none", "huge", "nohuge"] = "none"
    map_hugetlb: int | None = None
    surplus: bool = False
    environment: Mapping[str, str] = {}
    parameters: Mapping[str, str | int | float | bool | tuple[str, ...]] = {}
    layout: str = ""

    def laid_out(self, heap: int) -> str:
        """Return the words of the layout, with the size of the heap where they do not say it: `heap` bytes in whole
        pages.

        0: the size that the library chooses; of pages of a pool one at least, as it would take all that it lays out.
        """
        page = max(self.target.size, _HEAP_UNIT)
        if self.target.kind == "hugetlb":
            heap = max(heap, 1)
        if not self.layout or not heap or ",heap=" in self.layout:
            return self.layout
        return f"{self.layout},heap={format_size(-(-heap // page) * page)}"


class Policy(Protocol):
    """Treatment of pages."""

    name: str
    description: str

    def missing(self, host: Host, sizes: PageSizes, mechanism: Mechanism) -> str | None:
        """Return why this machine cannot offer the policy by this mechanism, or None when it can."""
        ...

    def treatment(self, host: Host, sizes: PageSizes, mechanism: Mechanism) -> Treatment:
        """Return the treatment of an attempt. Only called when `missing` is None."""
        ...

    def deployment(self, sizes: PageSizes, treatment: Treatment, pool_bytes: int) -> Deployment:
        """Return the host's settings that make up the policy, now and at boot, none where it needs none; what one
        program is started with is `hugewise.deployment.program`'s. `pool_bytes` is the hugetlb memory that the workload
        used.
        """
        ...
