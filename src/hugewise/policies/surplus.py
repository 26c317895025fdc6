"""`surplus-SIZE`: nothing is reserved; the kernel makes pages of the pool when a program asks for them, if it can.

Who did not reserve at boot fills a pool on a machine that has run for long. That is this policy: pages beyond those of
the pool (surplus pages, up to nr_overcommit_hugepages) come out of the memory as it is when the program starts, and go
back when it ends. So in a cell of aged memory it says what filling the pool then is worth, beside `hugetlb-SIZE`, whose
pages were there before. A program that gets none has base pages, as with most programs' own options, and with malloc.

Source: Documentation/admin-guide/mm/hugetlbpage.rst of the Linux kernel.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from hugewise.deployment import configuration as host_files
from hugewise.host.pool import pool_folder
from hugewise.machine.proc import largest_block, meminfo
from hugewise.model.host import Host
from hugewise.model.pages import PageSizes
from hugewise.model.policy import Deployment, Mechanism, Policy, Treatment
from hugewise.policies import _thp
from hugewise.policies.hugetlb import HugeTlb
from hugewise.quantity import format_size


class Surplus:
    """The mapping and the tunable of `hugetlb-SIZE`, without a pool of its own."""

    def __init__(self, size: int) -> None:
        self._pool = HugeTlb(size)
        self._size = size
        self._knob = f"{pool_folder(size)}/nr_overcommit_hugepages"
        self.name = f"surplus-{format_size(size)}"
        self.description = f"pages of {format_size(size)} that the kernel makes when they are mapped; none is reserved"

    def missing(self, host: Host, sizes: PageSizes, mechanism: Mechanism) -> str | None:
        """A page of the pool must fit into a block of the kernel's lists; larger ones are reserved alone."""
        if not host.writable(self._knob):
            return f"the kernel has no pool of {format_size(self._size)} pages"
        if self._size > largest_block(host, sizes.base):
            return f"the kernel makes no page of {format_size(self._size)} when it is asked for: those are reserved"
        if mechanism != "system":
            return f"turning {self._knob} needs " + ('mechanism = "system"' if host.privileged() else "root")
        return None

    def treatment(self, host: Host, sizes: PageSizes, mechanism: Mechanism) -> Treatment:
        """As many pages as the machine's memory has: what is really taken, the program decides."""
        reserved = self._pool.treatment(host, sizes, mechanism)
        most = meminfo(host).get("MemTotal", 0) // self._size
        knobs = {**reserved.knobs, self._knob: str(most)}
        return msgspec.structs.replace(reserved, policy=self.name, knobs=knobs, surplus=True)

    def deployment(self, sizes: PageSizes, treatment: Treatment, pool_bytes: int) -> Deployment:
        """As many pages as the workload mapped may be made, and what a study has set beside that."""
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
    """One policy for each pool that the kernel has."""
    return [Surplus(size) for size in sizes.hugetlb]
