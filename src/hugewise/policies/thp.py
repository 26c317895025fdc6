"""`thp` and `thp-advised`: transparent huge pages of the PMD size, for all memory or for advised memory."""

from __future__ import annotations

from collections.abc import Iterable

from hugewise.model.host import Host
from hugewise.model.pages import PageSizes, PageTarget
from hugewise.model.policy import Deployment, Mechanism, Policy, Treatment
from hugewise.policies import _thp
from hugewise.quantity import format_size


class Thp:
    """Huge pages wherever they fit.

    An ordinary user gets what the machine's setting allows: under `always` nothing is to be done, under `madvise` our
    micro-workloads advise their memory and glibc's malloc is told to. Where glibc grows its heap in small steps,
    `always` finds no room for a huge page at the first touch: the proof of coverage tells.
    """

    def __init__(self, pmd: int, *, advised: bool) -> None:
        self._pmd = pmd
        self._advised = advised
        self._top = "madvise" if advised else "always"
        self.name = "thp-advised" if advised else "thp"
        what = "for memory that is advised (malloc by a glibc tunable)" if advised else "for all anonymous memory"
        self.description = f"transparent huge pages of {format_size(pmd)} {what}"

    def missing(self, host: Host, sizes: PageSizes, mechanism: Mechanism) -> str | None:
        """As an ordinary user the machine's setting must allow it."""
        reason = _thp.needs_thp(host, mechanism)
        if reason is not None or mechanism == "system":
            return reason
        found = _thp.mode(host, sizes, self._pmd)
        if found == "never" or (self._advised and found != "madvise"):
            wanted = "madvise" if self._advised else "always or madvise"
            knob = _thp.decides(host, sizes, self._pmd)
            return f"transparent huge pages are set to {found}: root can set {knob} to {wanted}"
        return None

    def treatment(self, host: Host, sizes: PageSizes, mechanism: Mechanism) -> Treatment:
        """Only the PMD size is on; memory is advised where the setting asks for it."""
        target = PageTarget("thp", self._pmd)
        if mechanism == "system":
            knobs = _thp.turn_all(host, self._top, {self._pmd: "inherit"})
            advise, top = self._advised, self._top
        else:
            knobs = {}
            advise, top = _thp.mode(host, sizes, self._pmd) == "madvise", _thp.top_mode(host)
        return Treatment(
            policy=self.name,
            mechanism=mechanism,
            target=target,
            knobs=knobs,
            advice="huge" if advise else "none",
            environment=_thp.ADVISED_MALLOC if advise and top == "madvise" else {},
        )

    def deployment(self, sizes: PageSizes, treatment: Treatment, pool_bytes: int) -> Deployment:
        """The top-level knob."""
        if treatment.mechanism == "process":
            return Deployment(note="this machine's setting already gives huge pages to memory that asks for them")
        words = (f"transparent_hugepage={self._top}",)
        return _thp.deploy(treatment, _thp.follow_top(treatment, self._top, self._pmd), words, self.description)


def policies(sizes: PageSizes) -> Iterable[Policy]:
    """Two policies, where the kernel has THP."""
    return [] if sizes.pmd is None else [Thp(sizes.pmd, advised=False), Thp(sizes.pmd, advised=True)]
