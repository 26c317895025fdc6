"""Common parts of the policies of transparent huge pages: the knobs, and the pages that they give.

Every policy sets all sizes, so that a treatment does not depend on what another one left: the sizes that it does not
want are `never`, and so are huge pages of shared memory unless it is about them. Sizes are found by what is present in
sysfs.

Source: Documentation/admin-guide/mm/transhuge.rst of the Linux kernel.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from hugewise.deployment import configuration as host_files
from hugewise.host import knob
from hugewise.model.host import Host
from hugewise.model.pages import THP, PageSizes
from hugewise.model.policy import Deployment, Mechanism, Treatment

# glibc's malloc advises huge pages for its own memory, but only while the top-level `enabled` says madvise.
ADVISED_MALLOC = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}

_FOLDER = re.compile(r"hugepages-([0-9]{1,12})kB")
_TOP = f"{THP}/enabled"
SHMEM_TOP = f"{THP}/shmem_enabled"


def folder(size: int) -> str:
    """Return the sysfs folder of the THP size `size` in bytes."""
    return f"{THP}/hugepages-{size >> 10}kB"


def has_thp(host: Host) -> bool:
    """Return whether the kernel has transparent huge pages at all."""
    return host.writable(_TOP)


def needs_thp(host: Host, mechanism: Mechanism) -> str | None:
    """Return why THP knobs cannot be used here, or None when they can."""
    if not has_thp(host):
        return "the kernel has no transparent huge pages (CONFIG_TRANSPARENT_HUGEPAGE)"
    if mechanism == "system" and not host.privileged():
        return "turning system-wide page settings needs root"
    return None


def turn_all(
    host: Host,
    top: str,
    sizes: Mapping[int, str] | None = None,
    *,
    shmem_top: str = "never",
    shmem_sizes: Mapping[int, str] | None = None,
) -> dict[str, str]:
    """Return every THP knob: the named ones, `never` for all others."""
    wanted, wanted_shared = dict(sizes or {}), dict(shmem_sizes or {})
    knobs = {_TOP: top, SHMEM_TOP: shmem_top}
    for name in host.names(THP):
        if match := _FOLDER.fullmatch(name):
            size = int(match[1]) << 10
            knobs[f"{THP}/{name}/enabled"] = wanted.get(size, "never")
            knobs[f"{THP}/{name}/shmem_enabled"] = wanted_shared.get(size, "never")
    return {path: value for path, value in knobs.items() if host.writable(path)}


def chosen(host: Host, path: str, absent: str = "never") -> str:
    """Return the chosen word of a knob; `absent` where the kernel lacks the knob."""
    try:
        return knob.read(host, path)
    except OSError:
        return absent


def top_mode(host: Host) -> str:
    """Return the chosen word of the top-level `enabled`; `never` on a kernel without it."""
    return chosen(host, _TOP)


def mode(host: Host, sizes: PageSizes, size: int, *, shared: bool = False) -> str:
    """Return the mode of this size, `inherit` resolved; before mTHP the PMD's size follows the top level."""
    name = "shmem_enabled" if shared else "enabled"
    own = chosen(host, f"{folder(size)}/{name}", "inherit" if size == sizes.pmd else "never")
    return chosen(host, f"{THP}/{name}") if own == "inherit" else own


def decides(host: Host, sizes: PageSizes, size: int) -> str:
    """Return the knob that `mode` comes from: the size's own, unless it follows the top level or there is none."""
    own = f"{folder(size)}/enabled"
    return _TOP if chosen(host, own, "inherit" if size == sizes.pmd else "never") == "inherit" else own


def follow_top(treatment: Treatment, top: str, pmd: int) -> dict[str, str]:
    """Return the knobs to deploy where the PMD size follows the top level; older kernels have no knob for the size."""
    own = f"{folder(pmd)}/enabled"
    return {_TOP: top} | ({own: "inherit"} if own in treatment.knobs else {})


def deploy(
    treatment: Treatment,
    knobs: Mapping[str, str],
    words: tuple[str, ...],
    note: str,
    *,
    shared: bool = False,
    needs: tuple[str, ...] = (),
) -> Deployment:
    """Return files that set what the arm had, now and at boot: `knobs`, which are the policy's, and what a study has
    added.

    All other sizes are off, those of shared memory where the policy is about it: a knob that somebody set long ago
    would be part of the policy. On the command line the sizes that are not named are off: its `words`, which need
    `needs`, have the same effect, where a study has added nothing.
    """
    names = ("kB/enabled", "kB/shmem_enabled") if shared else ("kB/enabled",)
    own = {**{path: "never" for path in treatment.knobs if path.endswith(names)}, **knobs}
    settings = {**own, **added(treatment, shared=shared)}
    made = [host_files.now(settings), host_files.tmpfiles(settings)]
    made += [host_files.boot(words, needs=needs, instead=True)] if settings == own else []
    return Deployment(files=(*made, host_files.tuned(settings)), note=note)


def added(treatment: Treatment, *, shared: bool = False) -> dict[str, str]:
    """Return the knobs of the treatment, without those of shared memory that are only kept off."""
    return {
        path: value
        for path, value in treatment.knobs.items()
        if shared or value != "never" or not path.endswith("shmem_enabled")
    }


def pool_side_settings(treatment: Treatment) -> dict[str, str]:
    """Return the settings that a study adds to pages of a pool, without those that turn transparent huge pages off."""
    return {path: value for path, value in added(treatment).items() if value != "never"}
