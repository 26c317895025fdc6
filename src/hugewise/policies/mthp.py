"""`mthp-SIZE`: one multi-size THP size for all anonymous memory, every other size and the top level off.

The setting is that of the 2024 study of mTHP on Arm servers (LPC 2024): the target's knob `always`, the others `never`.
"""

from __future__ import annotations

from collections.abc import Iterable

from hugewise.model.host import Host
from hugewise.model.pages import THP, PageSizes, PageTarget
from hugewise.model.policy import Deployment, Mechanism, Policy, Treatment
from hugewise.policies import _thp
from hugewise.quantity import format_size


class MultiSize:
    """Folios of one size below the PMD's. No process can ask for a size by itself: the knobs are the machine's."""

    def __init__(self, size: int) -> None:
        self._size = size
        self.name = f"mthp-{format_size(size)}"
        self.description = f"transparent pages of {format_size(size)} for all anonymous memory"

    def missing(self, host: Host, sizes: PageSizes, mechanism: Mechanism) -> str | None:
        """As an ordinary user the machine must give this size already, and no other one in its place."""
        reason = _thp.needs_thp(host, mechanism)
        if reason is not None or mechanism == "system":
            return reason
        path = f"{_thp.folder(self._size)}/enabled"
        found = _thp.mode(host, sizes, self._size)
        if found == "never":
            return f"only root can choose a size: {path} is set to never"
        # The kernel takes the largest size that fits: advice would reach larger ones that are set to madvise.
        rivals = ("always",) if found == "always" else ("always", "madvise")
        others = {*sizes.mthp, *([sizes.pmd] if sizes.pmd else [])} - {self._size}
        for other in sorted(others, reverse=True):
            if _thp.mode(host, sizes, other) in rivals:
                return (
                    f"pages of {format_size(other)} are on as well: root can set {_thp.folder(other)}/enabled to never"
                )
        return None

    def treatment(self, host: Host, sizes: PageSizes, mechanism: Mechanism) -> Treatment:
        """The target's knob always, the others never; as an ordinary user advice where the machine wants it."""
        target = PageTarget("mthp", self._size)
        if mechanism == "system":
            knobs = _thp.turn_all(host, "never", {self._size: "always"})
            return Treatment(policy=self.name, mechanism=mechanism, target=target, knobs=knobs)
        advise = _thp.mode(host, sizes, self._size) == "madvise"
        return Treatment(
            policy=self.name,
            mechanism=mechanism,
            target=target,
            advice="huge" if advise else "none",
            environment=_thp.ADVISED_MALLOC if advise and _thp.top_mode(host) == "madvise" else {},
        )

    def deployment(self, sizes: PageSizes, treatment: Treatment, pool_bytes: int) -> Deployment:
        """The target's knob after all others; at boot the others are never by default."""
        if treatment.mechanism == "process":
            return Deployment(note="this machine is already set so")
        knobs = {f"{THP}/enabled": "never", f"{_thp.folder(self._size)}/enabled": "always"}
        words = ("transparent_hugepage=never", f"thp_anon={self._size >> 10}K:always")
        return _thp.deploy(treatment, knobs, words, self.description, needs=("Linux 6.12 (thp_anon=)",))


def policies(sizes: PageSizes) -> Iterable[Policy]:
    """One policy for each size that the kernel offers for anonymous memory."""
    return [MultiSize(size) for size in sizes.mthp]
