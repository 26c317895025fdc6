"""`madvise`: huge pages where the program asks for them, the default of most distributions."""

from __future__ import annotations

from collections.abc import Iterable

from hugewise.model.host import Host
from hugewise.model.pages import PageSizes, PageTarget
from hugewise.model.policy import Deployment, Mechanism, Policy, Treatment
from hugewise.policies import _thp
from hugewise.quantity import format_size


class Madvise:
    """The program decides, so no page size is promised."""

    name = "madvise"

    def __init__(self, pmd: int) -> None:
        self._pmd = pmd
        self.description = f"{format_size(pmd)} pages where the program asks for them with madvise"

    def missing(self, host: Host, sizes: PageSizes, mechanism: Mechanism) -> str | None:
        """As an ordinary user the machine must be so set already."""
        reason = _thp.needs_thp(host, mechanism)
        if reason is not None or mechanism == "system" or (found := _thp.mode(host, sizes, self._pmd)) == "madvise":
            return reason
        knob = _thp.decides(host, sizes, self._pmd)
        return f"transparent huge pages are set to {found}: root can set {knob} to madvise"

    def treatment(self, host: Host, sizes: PageSizes, mechanism: Mechanism) -> Treatment:
        """The top level madvise, and only the PMD size follows it."""
        knobs = _thp.turn_all(host, "madvise", {self._pmd: "inherit"}) if mechanism == "system" else {}
        return Treatment(policy=self.name, mechanism=mechanism, target=PageTarget("any", sizes.base), knobs=knobs)

    def deployment(self, sizes: PageSizes, treatment: Treatment, pool_bytes: int) -> Deployment:
        """The top-level knob; nothing where the machine was so set already."""
        if treatment.mechanism == "process":
            return Deployment(note="this machine is already set so")
        words = ("transparent_hugepage=madvise",)
        knobs = _thp.follow_top(treatment, "madvise", self._pmd)
        return _thp.deploy(treatment, knobs, words, "huge pages where a program asks for them")


def policies(sizes: PageSizes) -> Iterable[Policy]:
    """One policy, where the kernel has THP."""
    return [] if sizes.pmd is None else [Madvise(sizes.pmd)]
