"""Policies of transparent huge pages, and `base`, without any.

    as-is             the machine as found: it promises no page size, and shows what a change would be worth
    base              the kernel's base pages only: the baseline of most studies
    madvise           huge pages where the program asks for them, the default of most distributions
    thp, thp-advised  transparent huge pages of the PMD size, for all memory or for advised memory
    mthp-SIZE         one multi-size THP size for all anonymous memory, every other size and the top level off: the
                      setting of the 2024 study of mTHP on Arm servers (LPC 2024)
    thp-shmem, mthp-SIZE-shmem  the same for anonymous memory and for shared memory too

`enabled` never touches shared memory, so that a database whose buffers are a shared anonymous mapping (PostgreSQL's
shared_buffers) keeps base pages under `thp`. What `shmem_enabled` reaches is the kernel's internal mount of tmpfs:
shared anonymous mappings, memfd, System V segments. A mounted tmpfs (/dev/shm, where a database may have its data) goes
by its own mount option `huge=`, and stays as it is. Measured on Linux 6.18: a System V segment goes by the top-level
knob alone, with pages of the PMD size, so that no `mthp-SIZE-shmem` reaches it; a memfd got a smaller size in some runs
and base pages in others.

Source: Documentation/admin-guide/mm/transhuge.rst of the Linux kernel, with "Hugepages in tmpfs/shmem".
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from hugewise.model.host import Host
from hugewise.model.pages import THP, PageSizes, PageTarget
from hugewise.model.policy import Deployment, Mechanism, Policy, Treatment
from hugewise.policies import _thp
from hugewise.quantity import format_size

_GIVEN = ("always", "force")  # modes in which a program need not advise


class AsIs:
    """Changes no setting."""

    name = "as-is"
    description = "the machine's page settings as they were found"

    def missing(self, host: Host, sizes: PageSizes, mechanism: Mechanism) -> str | None:
        return None

    def treatment(self, host: Host, sizes: PageSizes, mechanism: Mechanism) -> Treatment:
        return Treatment(policy=self.name, mechanism=mechanism, target=PageTarget("any", sizes.base))

    def deployment(self, sizes: PageSizes, treatment: Treatment, pool_bytes: int) -> Deployment:
        if treatment.knobs:
            return _thp.deploy(treatment, {}, (), "the page settings as they were found, but for these")
        return Deployment(note="leave the page settings as they are")


class Base:
    """System: every THP size is off. Process: prctl(PR_SET_THP_DISABLE) in the workload, inherited by its children."""

    name = "base"

    def __init__(self, sizes: PageSizes) -> None:
        self.description = f"base pages only ({format_size(sizes.base)})"

    def missing(self, host: Host, sizes: PageSizes, mechanism: Mechanism) -> str | None:
        """Return why the policy cannot be used, or None: with THP in the kernel it needs root."""
        return _thp.needs_thp(host, mechanism) if _thp.has_thp(host) else None

    def treatment(self, host: Host, sizes: PageSizes, mechanism: Mechanism) -> Treatment:
        target = PageTarget("base", sizes.base)
        if not _thp.has_thp(host):
            return Treatment(policy=self.name, mechanism=mechanism, target=target)
        if mechanism == "process":
            return Treatment(policy=self.name, mechanism=mechanism, target=target, thp_disable="all")
        knobs = _thp.turn_all(host, "never")
        return Treatment(policy=self.name, mechanism=mechanism, target=target, knobs=knobs)

    def deployment(self, sizes: PageSizes, treatment: Treatment, pool_bytes: int) -> Deployment:
        if treatment.mechanism == "process":
            return Deployment(note="no transparent huge pages for this program and its children")
        if not treatment.knobs:
            return Deployment(note="the kernel has no transparent huge pages: nothing is to be done")
        words = ("transparent_hugepage=never",)
        return _thp.deploy(treatment, {f"{THP}/enabled": "never"}, words, "no transparent huge pages on this machine")


class Madvise:
    """The program decides, so no page size is promised."""

    name = "madvise"

    def __init__(self, pmd: int) -> None:
        self._pmd = pmd
        self.description = f"{format_size(pmd)} pages where the program asks for them with madvise"

    def missing(self, host: Host, sizes: PageSizes, mechanism: Mechanism) -> str | None:
        # an ordinary user depends on the machine's setting
        reason = _thp.needs_thp(host, mechanism)
        if reason is not None or mechanism == "system" or (found := _thp.mode(host, sizes, self._pmd)) == "madvise":
            return reason
        knob = _thp.decides(host, sizes, self._pmd)
        return f"transparent huge pages are set to {found}: root can set {knob} to madvise"

    def treatment(self, host: Host, sizes: PageSizes, mechanism: Mechanism) -> Treatment:
        knobs = _thp.turn_all(host, "madvise", {self._pmd: "inherit"}) if mechanism == "system" else {}
        return Treatment(policy=self.name, mechanism=mechanism, target=PageTarget("any", sizes.base), knobs=knobs)

    def deployment(self, sizes: PageSizes, treatment: Treatment, pool_bytes: int) -> Deployment:
        if treatment.mechanism == "process":
            return Deployment(note="this machine is already set so")
        words = ("transparent_hugepage=madvise",)
        knobs = _thp.follow_top(treatment, "madvise", self._pmd)
        return _thp.deploy(treatment, knobs, words, "huge pages where a program asks for them")


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
        # an ordinary user depends on the machine's setting
        reason = _thp.needs_thp(host, mechanism)
        if reason is not None or mechanism == "system":
            return reason
        mode = _thp.mode(host, sizes, self._pmd)
        if mode == "never" or (self._advised and mode != "madvise"):
            wanted = "madvise" if self._advised else "always or madvise"
            knob = _thp.decides(host, sizes, self._pmd)
            return f"transparent huge pages are set to {mode}: root can set {knob} to {wanted}"
        return None

    def treatment(self, host: Host, sizes: PageSizes, mechanism: Mechanism) -> Treatment:
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
        if treatment.mechanism == "process":
            return Deployment(note="this machine's setting already gives huge pages to memory that asks for them")
        words = (f"transparent_hugepage={self._top}",)
        return _thp.deploy(treatment, _thp.follow_top(treatment, self._top, self._pmd), words, self.description)


class MultiSize:
    """Folios of one size below the PMD's. No process can ask for a size by itself: the knobs are the machine's."""

    def __init__(self, size: int) -> None:
        self._size = size
        self.name = f"mthp-{format_size(size)}"
        self.description = f"transparent pages of {format_size(size)} for all anonymous memory"

    def missing(self, host: Host, sizes: PageSizes, mechanism: Mechanism) -> str | None:
        """Return why the policy cannot be used, or None; a user needs this size, and no other, to be given already."""
        reason = _thp.needs_thp(host, mechanism)
        if reason is not None or mechanism == "system":
            return reason
        path = f"{_thp.folder(self._size)}/enabled"
        mode = _thp.mode(host, sizes, self._size)
        if mode == "never":
            return f"only root can choose a size: {path} is set to never"
        # The kernel takes the largest size that fits: advice would reach larger ones that are set to madvise.
        rivals = ("always",) if mode == "always" else ("always", "madvise")
        others = {*sizes.mthp, *([sizes.pmd] if sizes.pmd else [])} - {self._size}
        for other in sorted(others, reverse=True):
            if _thp.mode(host, sizes, other) in rivals:
                return (
                    f"pages of {format_size(other)} are on as well: root can set {_thp.folder(other)}/enabled to never"
                )
        return None

    def treatment(self, host: Host, sizes: PageSizes, mechanism: Mechanism) -> Treatment:
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
        """Return the deployment: the target's knob after all others; at boot the others are never by default."""
        if treatment.mechanism == "process":
            return Deployment(note="this machine is already set so")
        knobs = {f"{THP}/enabled": "never", f"{_thp.folder(self._size)}/enabled": "always"}
        words = ("transparent_hugepage=never", f"thp_anon={self._size >> 10}K:always")
        return _thp.deploy(treatment, knobs, words, self.description, needs=("Linux 6.12 (thp_anon=)",))


class WithShared:
    """A policy of anonymous memory at one size, and the same size for shared memory.

    The PMD size follows the top level (kernels before sizes of shared memory have no other knob), and any other size
    is set by its own knob.
    """

    def __init__(self, size: int, pmd: int) -> None:
        self._size = size
        self._pmd = pmd
        self._anonymous: Policy = Thp(pmd, advised=False) if size == pmd else MultiSize(size)
        self.name = f"{self._anonymous.name}-shmem"
        self.description = f"transparent pages of {format_size(size)} for all anonymous and shared memory"

    @property
    def _knob(self) -> str:
        return _thp.SHMEM_TOP if self._size == self._pmd else f"{_thp.folder(self._size)}/shmem_enabled"

    def missing(self, host: Host, sizes: PageSizes, mechanism: Mechanism) -> str | None:
        reason = self._anonymous.missing(host, sizes, mechanism)
        if reason is not None:
            return reason
        if not host.writable(self._knob):
            return f"the kernel has no transparent huge pages of {format_size(self._size)} for shared memory"
        if mechanism == "system":
            return None
        mode = _thp.mode(host, sizes, self._size, shared=True)
        if mode not in _GIVEN:
            return f"huge pages of shared memory are set to {mode}: root can set {self._knob} to always"
        # The kernel takes the largest size that fits.
        for other in sorted({*sizes.shmem, self._pmd} - {self._size}, reverse=True):
            if _thp.mode(host, sizes, other, shared=True) in _GIVEN:
                return (
                    f"pages of {format_size(other)} are on for shared memory as well: root can set"
                    f" {_thp.folder(other)}/shmem_enabled to never"
                )
        return None

    def treatment(self, host: Host, sizes: PageSizes, mechanism: Mechanism) -> Treatment:
        treatment = msgspec.structs.replace(self._anonymous.treatment(host, sizes, mechanism), policy=self.name)
        if mechanism == "process":
            return treatment
        if self._size == self._pmd:
            inherit = {self._size: "inherit"}
            knobs = _thp.turn_all(host, "always", inherit, shmem_top="always", shmem_sizes=inherit)
        else:
            always = {self._size: "always"}
            knobs = _thp.turn_all(host, "never", always, shmem_sizes=always)
        return msgspec.structs.replace(treatment, knobs=knobs)

    def deployment(self, sizes: PageSizes, treatment: Treatment, pool_bytes: int) -> Deployment:
        if treatment.mechanism == "process":
            return self._anonymous.deployment(sizes, treatment, pool_bytes)
        shared = f"{_thp.folder(self._size)}/shmem_enabled"
        if self._size == self._pmd:
            inherit = {shared: "inherit"} if shared in treatment.knobs else {}
            knobs = {**_thp.follow_top(treatment, "always", self._pmd), _thp.SHMEM_TOP: "always", **inherit}
            words: tuple[str, ...] = ("transparent_hugepage=always", "transparent_hugepage_shmem=always")
        else:
            own = f"{_thp.folder(self._size)}/enabled"
            knobs = {f"{THP}/enabled": "never", own: "always", _thp.SHMEM_TOP: "never", shared: "always"}
            size = f"{self._size >> 10}K"
            words = (
                *("transparent_hugepage=never", f"thp_anon={size}:always"),
                *("transparent_hugepage_shmem=never", f"thp_shmem={size}:always"),
            )
        note = f"{self.description}; a mounted tmpfs goes by its own mount option huge="
        needs = ("Linux 6.13 (thp_shmem=, transparent_hugepage_shmem=)",)
        return _thp.deploy(treatment, knobs, words, note, shared=True, needs=needs)


def policies(sizes: PageSizes) -> Iterable[Policy]:
    """Return those that the kernel has: the first two on every machine, the others by the sizes that it offers."""
    found: list[Policy] = [AsIs(), Base(sizes), *(MultiSize(size) for size in sizes.mthp)]
    if (pmd := sizes.pmd) is not None:
        found += [Madvise(pmd), Thp(pmd, advised=False), Thp(pmd, advised=True)]
        found += [WithShared(size, pmd) for size in (pmd, *sizes.shmem)]
    return found
