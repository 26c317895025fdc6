"""`base`: the kernel's base pages only. The baseline of most studies."""

from __future__ import annotations

from collections.abc import Iterable

from hugewise.model.host import Host
from hugewise.model.pages import THP, PageSizes, PageTarget
from hugewise.model.policy import Deployment, Mechanism, Policy, Treatment
from hugewise.policies import _thp
from hugewise.quantity import format_size


class Base:
    """System: every THP size is off. Process: prctl(PR_SET_THP_DISABLE) in the workload, inherited by its children."""

    name = "base"

    def __init__(self, sizes: PageSizes) -> None:
        self.description = f"base pages only ({format_size(sizes.base)})"

    def missing(self, host: Host, sizes: PageSizes, mechanism: Mechanism) -> str | None:
        """A kernel without THP has nothing to turn off; otherwise the system's knobs need root."""
        return _thp.needs_thp(host, mechanism) if _thp.has_thp(host) else None

    def treatment(self, host: Host, sizes: PageSizes, mechanism: Mechanism) -> Treatment:
        """All knobs never; or the process alone, whatever the system's knobs say."""
        target = PageTarget("base", sizes.base)
        if not _thp.has_thp(host):
            return Treatment(policy=self.name, mechanism=mechanism, target=target)
        if mechanism == "process":
            return Treatment(policy=self.name, mechanism=mechanism, target=target, thp_disable="all")
        knobs = _thp.turn_all(host, "never")
        return Treatment(policy=self.name, mechanism=mechanism, target=target, knobs=knobs)

    def deployment(self, sizes: PageSizes, treatment: Treatment, pool_bytes: int) -> Deployment:
        """THP off for the machine, or for one program."""
        if treatment.mechanism == "process":
            return Deployment(note="no transparent huge pages for this program and its children")
        if not treatment.knobs:
            return Deployment(note="the kernel has no transparent huge pages: nothing is to be done")
        words = ("transparent_hugepage=never",)
        return _thp.deploy(treatment, {f"{THP}/enabled": "never"}, words, "no transparent huge pages on this machine")


def policies(sizes: PageSizes) -> Iterable[Policy]:
    """One policy, whatever the base page of the running kernel is."""
    return [Base(sizes)]
