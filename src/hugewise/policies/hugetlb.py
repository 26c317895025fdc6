"""Policies of reserved pages. Programs ask for them: our micro-workloads by MAP_HUGETLB, commands by malloc's tunable.

    hugetlb-SIZE   pages of a pool; transparent huge pages are off for the rest
    reserved-SIZE  the pool is there, and nothing but the program itself asks for its pages; all else is as it was. For
                   servers that take them by an option of their own (PostgreSQL's `huge_pages`, MariaDB's `large-pages`)
    surplus-SIZE   nothing is reserved: the kernel makes pages when a program asks (up to nr_overcommit_hugepages), out
                   of the memory as it is then, and frees them when unmapped. In a cell of aged memory this shows
                   the value of filling the pool before

glibc falls back to base pages without a word when a pool is short: the proof of coverage tells.

Sources: Documentation/admin-guide/mm/hugetlbpage.rst of the Linux kernel; the glibc manual, Memory Allocation Tunables.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from hugewise.deployment import configuration as host_files
from hugewise.host.pool import available, pool_folder
from hugewise.machine.proc import largest_block, meminfo
from hugewise.model.host import Host
from hugewise.model.pages import PageSizes, PageTarget
from hugewise.model.policy import Deployment, Mechanism, Policy, Treatment
from hugewise.policies import _thp
from hugewise.quantity import format_size


def _default_size(host: Host) -> int | None:
    return meminfo(host).get("Hugepagesize")


class HugeTlb:
    """The pool is filled once per run, by what its workloads need; an ordinary user can only use what is free."""

    def __init__(self, size: int) -> None:
        self._size = size
        self.name = f"hugetlb-{format_size(size)}"
        self.description = f"reserved pages of {format_size(size)}, mapped with MAP_HUGETLB (malloc by a glibc tunable)"

    def missing(self, host: Host, sizes: PageSizes, mechanism: Mechanism) -> str | None:
        """Root can fill the pool, whatever the mechanism; a user needs free pages in it."""
        path = f"{pool_folder(self._size)}/nr_hugepages"
        if not host.writable(path):
            return f"the kernel has no pool of {format_size(self._size)} pages"
        if mechanism == "system" and not host.privileged():
            return "filling a pool needs root"
        if not host.privileged() and available(host, self._size) == 0:
            return f"the pool of {format_size(self._size)} pages has no free page: root can write a number to {path}"
        return None

    def treatment(self, host: Host, sizes: PageSizes, mechanism: Mechanism) -> Treatment:
        tunable = 2 if self._size == _default_size(host) else self._size
        system = mechanism == "system"
        return Treatment(
            policy=self.name,
            mechanism=mechanism,
            target=PageTarget("hugetlb", self._size),
            knobs=_thp.turn_all(host, "never") if system else {},
            thp_disable="all" if not system and _thp.has_thp(host) else "none",
            map_hugetlb=self._size,
            environment={"GLIBC_TUNABLES": f"glibc.malloc.hugetlb={tunable}"},
        )

    def deployment(self, sizes: PageSizes, treatment: Treatment, pool_bytes: int) -> Deployment:
        """Return the deployment: the pages that the workload mapped, reserved at run time or at boot."""
        return self.pool(treatment, pool_bytes, default=any(v.endswith("=2") for v in treatment.environment.values()))

    def pool(self, treatment: Treatment, pool_bytes: int, *, default: bool) -> Deployment:
        """Return the deployment of a pool; `default`: its size is the one that vm.nr_hugepages counts."""
        pages = max(1, -(-pool_bytes // self._size))
        path = f"{pool_folder(self._size)}/nr_hugepages"
        more = _thp.pool_side_settings(treatment)
        wanted = {**more, path: str(pages)}
        at_boot = host_files.sysctl(pages) if default and not more else host_files.tmpfiles(wanted)
        words = (f"hugepagesz={format_size(self._size).upper()}", f"hugepages={pages}")
        return Deployment(
            files=(
                host_files.now(wanted, f"cat {path}  # granted in part when memory is fragmented"),
                *(() if more else (host_files.boot(words),)),
                msgspec.structs.replace(at_boot, instead=not more),
                host_files.tuned(wanted),
            ),
            note=f"{pages} × {format_size(self._size)} stays reserved, used or not; other programs cannot have it",
        )


class Reserved:
    """The pool of `hugetlb-SIZE`, without what has a program map from it."""

    def __init__(self, size: int) -> None:
        self._pool = HugeTlb(size)
        self._size = size
        self.name = f"reserved-{format_size(size)}"
        self.description = f"reserved pages of {format_size(size)}, which a server takes by an option of its own"

    def missing(self, host: Host, sizes: PageSizes, mechanism: Mechanism) -> str | None:
        return self._pool.missing(host, sizes, mechanism)

    def treatment(self, host: Host, sizes: PageSizes, mechanism: Mechanism) -> Treatment:
        return Treatment(policy=self.name, mechanism=mechanism, target=PageTarget("hugetlb", self._size))

    def deployment(self, sizes: PageSizes, treatment: Treatment, pool_bytes: int) -> Deployment:
        return self._pool.pool(treatment, pool_bytes, default=self._size == sizes.default)


class Surplus:
    """The mapping and the tunable of `hugetlb-SIZE`, without a pool of its own."""

    def __init__(self, size: int) -> None:
        self._pool = HugeTlb(size)
        self._size = size
        self._knob = f"{pool_folder(size)}/nr_overcommit_hugepages"
        self.name = f"surplus-{format_size(size)}"
        self.description = f"pages of {format_size(size)} that the kernel makes when they are mapped; none is reserved"

    def missing(self, host: Host, sizes: PageSizes, mechanism: Mechanism) -> str | None:
        """Return why the policy cannot be used, or None: a page must fit into a block of the buddy allocator."""
        if not host.writable(self._knob):
            return f"the kernel has no pool of {format_size(self._size)} pages"
        if self._size > largest_block(host, sizes.base):
            return f"the kernel makes no page of {format_size(self._size)} when it is asked for: those are reserved"
        if mechanism != "system":
            return f"turning {self._knob} needs " + ('mechanism = "system"' if host.privileged() else "root")
        return None

    def treatment(self, host: Host, sizes: PageSizes, mechanism: Mechanism) -> Treatment:
        """Return the treatment, with as many pages as the machine has memory: the program decides how many it takes."""
        reserved = self._pool.treatment(host, sizes, mechanism)
        most = meminfo(host).get("MemTotal", 0) // self._size
        knobs = {**reserved.knobs, self._knob: str(most)}
        return msgspec.structs.replace(reserved, policy=self.name, knobs=knobs, surplus=True)

    def deployment(self, sizes: PageSizes, treatment: Treatment, pool_bytes: int) -> Deployment:
        wanted = {**_thp.pool_side_settings(treatment), self._knob: str(max(1, -(-pool_bytes // self._size)))}
        return Deployment(
            files=(
                host_files.now(wanted, f"cat {pool_folder(self._size)}/surplus_hugepages  # while the program runs"),
                host_files.tmpfiles(wanted),
                host_files.tuned(wanted),
            ),
            note="what the kernel cannot make when the program asks is base pages, without a word",
        )


def policies(sizes: PageSizes) -> Iterable[Policy]:
    """Return three policies for each pool that the kernel has."""
    return [kind(size) for kind in (HugeTlb, Reserved, Surplus) for size in sizes.hugetlb]
