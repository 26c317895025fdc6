"""Units of systemd, and knobs that do not exist."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from hugewise.audit.facts import HostFacts
from hugewise.audit.rules import Hit, rule
from hugewise.model.pages import THP

_EXEC = "systemd 260: systemd.exec(5), MemoryTHP="
_MERGED = "https://github.com/systemd/systemd/pull/39085"
_VALUES = ("inherit", "disable", "madvise", "system")
_FIRST = 260
_SYSCTLS = ("vm.nr_hugepages", "vm.nr_hugepages_mempolicy", "vm.nr_overcommit_hugepages", "vm.hugetlb_shm_group")


@rule(
    "unit-memorythp-invalid",
    "error",
    "a unit has a value of MemoryTHP= that systemd does not take",
    why="systemd warns in the journal and goes on as if the line were not there. Web pages print always and never, the"
    " words of sysfs.",
    sources=(_EXEC, _MERGED),
    cure="write inherit, disable (no huge pages), madvise (where the program advises) or system",
)
def _(facts: HostFacts) -> Iterator[Hit]:
    yield from _memory_thp(facts, lambda value: value not in _VALUES)


def _memory_thp(facts: HostFacts, chosen: Callable[[str], bool], more: str = "") -> Iterator[Hit]:
    """Yield the units with such a value of MemoryTHP=."""
    for unit in facts.units:
        said = unit.memory_thp
        if said is not None and chosen(said.value.lower()):
            yield Hit(f"{unit.name}: MemoryTHP={said.value} ({said.where}){more}", unit.name)


@rule(
    "unit-memorythp-too-new",
    "error",
    "a unit has MemoryTHP=, and this systemd does not know it",
    why="systemd has it since 260; an older one warns of an unknown key and starts the service without it.",
    sources=(_EXEC, _MERGED),
    cure="start the program through a launcher that calls prctl(PR_SET_THP_DISABLE), in ExecStart=",
)
def _(facts: HostFacts) -> Iterator[Hit]:
    if facts.systemd is not None and facts.systemd < _FIRST:
        yield from _memory_thp(facts, lambda value: value in _VALUES, f", systemd {facts.systemd}")


@rule(
    "unit-memorythp-madvise-kernel",
    "error",
    "a unit has MemoryTHP=madvise, and this kernel cannot do it",
    why="It needs PR_THP_DISABLE_EXCEPT_ADVISED, which Linux has since 6.18; without it the service does not start, or"
    " starts as it would have anyway.",
    sources=(_EXEC, "Linux 6.18: prctl(2), PR_THP_DISABLE_EXCEPT_ADVISED"),
    cure="MemoryTHP=disable, or a kernel that has it",
)
def _(facts: HostFacts) -> Iterator[Hit]:
    if facts.except_advised is False:
        yield from _memory_thp(facts, lambda value: value == "madvise", f", kernel {facts.kernel}")


@rule(
    "cgroup-thp-invented",
    "error",
    "a setting of huge pages for a cgroup that does not exist",
    why="No cgroup has a knob for transparent huge pages: memory.huge_pages and MemoryHugePages= are inventions of web"
    " pages. The kernel only counts them (anon_thp in memory.stat).",
    sources=("Linux: Documentation/admin-guide/cgroup-v2.rst", _EXEC),
    cure="MemoryTHP= in the unit (systemd 260), a launcher with prctl, or the host's setting",
)
def _(facts: HostFacts) -> Iterator[Hit]:
    for unit in facts.units:
        for one in unit.invented:
            yield Hit(f"{unit.name}: {one.key}={one.value} ({one.where})", unit.name)
    for path, one in facts.tmpfiles.items():
        if path.startswith("/sys/fs/cgroup/") and not path.rpartition("/")[2].startswith("hugetlb."):
            yield Hit(f"{path} ({one.where})")


@rule(
    "sysctl-thp-invented",
    "error",
    "a sysctl for huge pages that does not exist",
    why="Transparent huge pages have no sysctl, only files in sysfs; sysctl reports an unknown key, or with"
    " a leading `-`"
    " nothing at all.",
    sources=("Linux: Documentation/admin-guide/sysctl/vm.rst", "Linux: Documentation/admin-guide/mm/transhuge.rst"),
    cure="a line of tmpfiles.d: w /sys/kernel/mm/transparent_hugepage/enabled - - - - madvise",
)
def _(facts: HostFacts) -> Iterator[Hit]:
    for key, one in facts.sysctl.items():
        if key not in _SYSCTLS:
            yield Hit(f"{key} = {one.value} ({one.where})")


@rule(
    "setting-without-knob",
    "error",
    "a file sets a knob of huge pages that this kernel does not have",
    why="tmpfiles.d and tuned pass over what is not there. Sizes of mTHP, the shrinker and names of distributions came"
    " and went with kernels.",
    sources=("Linux: Documentation/admin-guide/mm/transhuge.rst", "tmpfiles.d(5)"),
    cure="take the line out, or write the name that stands below /sys/kernel/mm/transparent_hugepage here",
)
def _(facts: HostFacts) -> Iterator[Hit]:
    for path, one in (*facts.tmpfiles.items(), *facts.tuned.items()):
        key = path.removeprefix(f"{THP}/")
        if key != path and facts.thp and key not in facts.thp:
            yield Hit(f"{path} ({one.where})")
