"""`thp-shmem` and `mthp-SIZE-shmem`: transparent huge pages for anonymous memory and for shared memory too.

`enabled` never touches shared memory, so that a database whose buffers are a shared anonymous mapping (PostgreSQL's
shared_buffers) keeps base pages under `thp`. What `shmem_enabled` reaches is the kernel's internal mount of tmpfs:
shared anonymous mappings, memfd, System V segments. A mounted tmpfs (/dev/shm, where a database may have its data) goes
by its own mount option `huge=`, and stays as it is. Measured on Linux 6.18: a System V segment goes by the top-level
knob alone, with pages of the PMD size, so that no `mthp-SIZE-shmem` reaches it; a memfd got a smaller size in some runs
and base pages in others.

Source: Documentation/admin-guide/mm/transhuge.rst of the Linux kernel, "Hugepages in tmpfs/shmem".
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from hugewise.model.host import Host
from hugewise.model.pages import THP, PageSizes
from hugewise.model.policy import Deployment, Mechanism, Policy, Treatment
from hugewise.policies import _thp
from hugewise.policies.mthp import MultiSize
from hugewise.policies.thp import Thp
from hugewise.quantity import format_size

_GIVEN = ("always", "force")  # where a program need not advise


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
        """The knob that decides for shared memory of this size."""
        return _thp.SHMEM_TOP if self._size == self._pmd else f"{_thp.folder(self._size)}/shmem_enabled"

    def missing(self, host: Host, sizes: PageSizes, mechanism: Mechanism) -> str | None:
        """What the policy of anonymous memory needs, and the same of shared memory."""
        reason = self._anonymous.missing(host, sizes, mechanism)
        if reason is not None:
            return reason
        if not host.writable(self._knob):
            return f"the kernel has no transparent huge pages of {format_size(self._size)} for shared memory"
        if mechanism == "system":
            return None
        found = _thp.mode(host, sizes, self._size, shared=True)
        if found not in _GIVEN:
            return f"huge pages of shared memory are set to {found}: root can set {self._knob} to always"
        # The kernel takes the largest size that fits.
        for other in sorted({*sizes.shmem, self._pmd} - {self._size}, reverse=True):
            if _thp.mode(host, sizes, other, shared=True) in _GIVEN:
                return (
                    f"pages of {format_size(other)} are on for shared memory as well: root can set"
                    f" {_thp.folder(other)}/shmem_enabled to never"
                )
        return None

    def treatment(self, host: Host, sizes: PageSizes, mechanism: Mechanism) -> Treatment:
        """The knobs of shared memory beside those of anonymous memory; as an ordinary user the machine is so set."""
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
        """The knobs after all others; at boot by the kernel's command line too, where it knows shared memory."""
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
    """One policy for the PMD size, and one for each mTHP size that the kernel offers for shared memory."""
    return [] if sizes.pmd is None else [WithShared(size, sizes.pmd) for size in (sizes.pmd, *sizes.shmem)]
