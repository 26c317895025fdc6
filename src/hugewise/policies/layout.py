"""`layout-base`, `layout-thp`, `layout-hugetlb-SIZE`: the heap of a command, laid out by a library that it loads.

The program is unmodified: the layout library makes glibc's heap one region from the start, and chooses its pages. All
arms load the same library, `layout-base` too, so that what differs between them is the pages. The system's settings are
those of `madvise`: memory that is not the heap has base pages unless the program asks.

docs/concepts/layouts.md says what a layout reaches. Source: Documentation/admin-guide/mm/transhuge.rst of the kernel.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from hugewise.model.host import Host
from hugewise.model.pages import PageSizes, PageTarget
from hugewise.model.policy import Deployment, Mechanism, Policy, Treatment
from hugewise.policies import _thp, hugetlb
from hugewise.quantity import format_size

_BASE, _PMD = 4096, 2 << 20  # the sizes that the library knows
_POOLS = (2 << 20, 1 << 30)


class LaidOut:
    """The heap of base pages, or of transparent huge pages."""

    def __init__(self, pmd: int, *, huge: bool) -> None:
        self._pmd, self._huge = pmd, huge
        self._words = "thp" if huge else "base"
        self.name = f"layout-{self._words}"
        what = f"transparent huge pages of {format_size(pmd)}" if huge else "base pages"
        self.description = f"the heap of {what}, laid out by a preloaded library (commands and services)"

    def missing(self, host: Host, sizes: PageSizes, mechanism: Mechanism) -> str | None:
        # as an ordinary user the machine's setting must allow huge pages to memory that is advised
        reason = _thp.needs_thp(host, mechanism)
        if reason is not None or mechanism == "system" or not self._huge:
            return reason
        if _thp.mode(host, sizes, self._pmd) == "never":
            knob = _thp.decides(host, sizes, self._pmd)
            return f"transparent huge pages are set to never: root can set {knob} to madvise"
        return None

    def treatment(self, host: Host, sizes: PageSizes, mechanism: Mechanism) -> Treatment:
        """Return the same settings for both layouts; an ordinary user keeps the machine's, and none for base pages."""
        system = mechanism == "system"
        return Treatment(
            policy=self.name,
            mechanism=mechanism,
            target=PageTarget("thp", self._pmd) if self._huge else PageTarget("base", sizes.base),
            knobs=_thp.turn_all(host, "madvise", {self._pmd: "inherit"}) if system else {},
            thp_disable="none" if system or self._huge else "all",
            layout=self._words,
        )

    def deployment(self, sizes: PageSizes, treatment: Treatment, pool_bytes: int) -> Deployment:
        note = "one arena for all threads, and nothing is given back to the system: see docs/concepts/layouts.md"
        if treatment.mechanism == "process":
            return Deployment(note=note)
        knobs = _thp.follow_top(treatment, "madvise", self._pmd)
        return _thp.deploy(treatment, knobs, ("transparent_hugepage=madvise",), note)


class FromPool:
    """The heap from a pool of hugetlb pages; what does not fit in is base pages."""

    def __init__(self, size: int) -> None:
        self._pool = hugetlb.HugeTlb(size)
        self._words = f"hugetlb-{format_size(size)}"
        self.name = f"layout-{self._words}"
        self.description = (
            f"the heap of reserved pages of {format_size(size)}, laid out by a preloaded library (commands and"
            " services)"
        )

    def missing(self, host: Host, sizes: PageSizes, mechanism: Mechanism) -> str | None:
        return self._pool.missing(host, sizes, mechanism)

    def treatment(self, host: Host, sizes: PageSizes, mechanism: Mechanism) -> Treatment:
        other = self._pool.treatment(host, sizes, mechanism)
        return msgspec.structs.replace(other, policy=self.name, map_hugetlb=None, environment={}, layout=self._words)

    def deployment(self, sizes: PageSizes, treatment: Treatment, pool_bytes: int) -> Deployment:
        return self._pool.deployment(sizes, treatment, pool_bytes)


def policies(sizes: PageSizes) -> Iterable[Policy]:
    """Return the policies whose pages the library knows: it requires base pages of 4 KiB."""
    if sizes.base != _BASE or sizes.pmd != _PMD:
        return []
    pools = [FromPool(size) for size in sizes.hugetlb if size in _POOLS]
    return [LaidOut(sizes.pmd, huge=False), LaidOut(sizes.pmd, huge=True), *pools]
