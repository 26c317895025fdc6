"""`hugetlb-SIZE`: pages from a reserved pool, for programs that ask for them; THP is off for the rest.

Our micro-workloads map with MAP_HUGETLB; commands get a glibc tunable that makes malloc do it. glibc falls back to base
pages without a word when the pool is short: the proof of coverage tells.

Sources: Documentation/admin-guide/mm/hugetlbpage.rst of the Linux kernel; the glibc manual, Memory Allocation Tunables.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from hugewise.deployment import configuration as host_files
from hugewise.host.pool import available, pool_folder
from hugewise.machine.proc import meminfo
from hugewise.model.host import Host
from hugewise.model.pages import PageSizes, PageTarget
from hugewise.model.policy import Deployment, Mechanism, Policy, Treatment
from hugewise.policies import _thp
from hugewise.quantity import format_size


def _default_size(host: Host) -> int | None:
    """The page size of vm.nr_hugepages and of mmap(MAP_HUGETLB) without a size, in bytes."""
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
        """Mapped from the pool; whatever is not gets base pages."""
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
        """As many pages as the workload mapped, reserved now or (surer, memory is whole then) at boot."""
        return self.pool(treatment, pool_bytes, default=any(v.endswith("=2") for v in treatment.environment.values()))

    def pool(self, treatment: Treatment, pool_bytes: int, *, default: bool) -> Deployment:
        """The same; `default`: its size is the one that vm.nr_hugepages counts."""
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


def policies(sizes: PageSizes) -> Iterable[Policy]:
    """One policy for each pool that the kernel has."""
    return [HugeTlb(size) for size in sizes.hugetlb]
