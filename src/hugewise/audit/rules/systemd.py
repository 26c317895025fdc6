"""Units of systemd, and knobs that do not exist."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from hugewise.audit.facts import HostFacts
from hugewise.audit.rules import Hit, rule
from hugewise.model.pages import THP

_VALUES = ("inherit", "disable", "madvise", "system")
_FIRST = 260
_SYSCTLS = ("vm.nr_hugepages", "vm.nr_hugepages_mempolicy", "vm.nr_overcommit_hugepages", "vm.hugetlb_shm_group")


@rule("unit-memorythp-invalid")
def _(facts: HostFacts) -> Iterator[Hit]:
    yield from _memory_thp(facts, lambda value: value not in _VALUES)


def _memory_thp(facts: HostFacts, chosen: Callable[[str], bool], more: str = "") -> Iterator[Hit]:
    """Yield the units with such a value of MemoryTHP=."""
    for unit in facts.units:
        said = unit.memory_thp
        if said is not None and chosen(said.value.lower()):
            yield Hit(f"{unit.name}: MemoryTHP={said.value} ({said.where}){more}", unit.name)


@rule("unit-memorythp-too-new")
def _(facts: HostFacts) -> Iterator[Hit]:
    if facts.systemd is not None and facts.systemd < _FIRST:
        yield from _memory_thp(facts, lambda value: value in _VALUES, f", systemd {facts.systemd}")


@rule("unit-memorythp-madvise-kernel")
def _(facts: HostFacts) -> Iterator[Hit]:
    if facts.except_advised is False:
        yield from _memory_thp(facts, lambda value: value == "madvise", f", kernel {facts.kernel}")


@rule("cgroup-thp-invented")
def _(facts: HostFacts) -> Iterator[Hit]:
    for unit in facts.units:
        for one in unit.invented:
            yield Hit(f"{unit.name}: {one.key}={one.value} ({one.where})", unit.name)
    for path, one in facts.tmpfiles.items():
        if path.startswith("/sys/fs/cgroup/") and not path.rpartition("/")[2].startswith("hugetlb."):
            yield Hit(f"{path} ({one.where})")


@rule("sysctl-thp-invented")
def _(facts: HostFacts) -> Iterator[Hit]:
    for key, one in facts.sysctl.items():
        if key not in _SYSCTLS:
            yield Hit(f"{key} = {one.value} ({one.where})")


@rule("setting-without-knob")
def _(facts: HostFacts) -> Iterator[Hit]:
    for path, one in (*facts.tmpfiles.items(), *facts.tuned.items()):
        key = path.removeprefix(f"{THP}/")
        if key != path and facts.thp and key not in facts.thp:
            yield Hit(f"{path} ({one.where})")
