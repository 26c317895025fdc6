"""`reserved-SIZE`: pages of a pool are there, and nothing but the program itself asks for them; all else is as it was.

For servers that take such pages by an option of their own (PostgreSQL's `huge_pages`, MariaDB's `large-pages`), which
`hugetlb-SIZE` reaches too, but with malloc's tunable and with transparent huge pages off: settings that nobody has to
make who gives such an option.

Source: Documentation/admin-guide/mm/hugetlbpage.rst of the Linux kernel.
"""

from __future__ import annotations

from collections.abc import Iterable

from hugewise.model.host import Host
from hugewise.model.pages import PageSizes, PageTarget
from hugewise.model.policy import Deployment, Mechanism, Policy, Treatment
from hugewise.policies.hugetlb import HugeTlb
from hugewise.quantity import format_size


class Reserved:
    """The pool of `hugetlb-SIZE`, without what has a program map from it."""

    def __init__(self, size: int) -> None:
        self._pool = HugeTlb(size)
        self._size = size
        self.name = f"reserved-{format_size(size)}"
        self.description = f"reserved pages of {format_size(size)}, which a server takes by an option of its own"

    def missing(self, host: Host, sizes: PageSizes, mechanism: Mechanism) -> str | None:
        """As for other uses of the pool."""
        return self._pool.missing(host, sizes, mechanism)

    def treatment(self, host: Host, sizes: PageSizes, mechanism: Mechanism) -> Treatment:
        """Nothing is turned, whoever calls, and no variable is set."""
        return Treatment(policy=self.name, mechanism=mechanism, target=PageTarget("hugetlb", self._size))

    def deployment(self, sizes: PageSizes, treatment: Treatment, pool_bytes: int) -> Deployment:
        """The pool, filled now and at boot."""
        return self._pool.pool(treatment, pool_bytes, default=self._size == sizes.default)


def policies(sizes: PageSizes) -> Iterable[Policy]:
    """One policy for each pool that the kernel has."""
    return [Reserved(size) for size in sizes.hugetlb]
