"""What is set when the host boots, against what is in force now; surfaces that overwrite each other."""

from __future__ import annotations

from collections.abc import Iterator

from hugewise.audit.facts import HostFacts
from hugewise.audit.inventory import RequestedValue, knob_wishes, pool_wishes, turned
from hugewise.audit.rule import Hit, Rule, collected
from hugewise.model.pages import HUGETLB, THP
from hugewise.quantity import format_size

RULES: list[Rule] = []
_rule = collected(RULES)

_TUNED = "tuned.conf(5)"
_TMPFILES = "tmpfiles.d(5)"
_SYSCTL = "sysctl.d(5)"


def _told(wishes: list[RequestedValue]) -> str:
    return ", ".join(f"{one.by} says {one.value} ({one.where})" for one in wishes)


@_rule(
    "tuned-tmpfiles-conflict",
    "warning",
    "tuned and tmpfiles.d set the same knob to different values",
    why="tmpfiles.d writes at boot, tuned when it starts and whenever a profile is chosen: the later one is"
    " in force, and"
    " `systemd-tmpfiles --create` of a package's installation turns it back.",
    sources=(_TUNED, _TMPFILES),
    cure="keep it in one place: in a profile of your own with include=, or in tmpfiles.d with tuned's line taken out",
)
def _(facts: HostFacts) -> Iterator[Hit]:
    for path in facts.tmpfiles.keys() & facts.tuned.keys():
        key = path.removeprefix(f"{THP}/")
        wishes = [one for one in knob_wishes(facts, key) if one.by != "boot"]
        if len({one.value for one in wishes}) > 1:
            yield Hit(f"{key}: {_told(wishes)}; in force: {facts.thp.get(key, 'unknown')}")


@_rule(
    "pool-asked-twice",
    "warning",
    "two places ask for different numbers of hugetlb pages",
    why="Whatever is applied later decides; a pool that is made smaller under a server may leave it without its pages.",
    sources=(_TUNED, _SYSCTL, "Linux: Documentation/admin-guide/mm/hugetlbpage.rst"),
    cure="keep the number in one place",
)
def _(facts: HostFacts) -> Iterator[Hit]:
    for pool in facts.pools:
        wishes = pool_wishes(facts, pool.size)
        if len({one.value for one in wishes}) > 1:
            yield Hit(f"pages of {format_size(pool.size)}: {_told(wishes)}; in force: {pool.lasting}")


@_rule(
    "boot-value-overwritten",
    "note",
    "the kernel's command line says one thing, and what is applied later another",
    why="transparent_hugepage= holds only until tmpfiles.d or tuned writes; who reads the command line is misled.",
    sources=("Linux: Documentation/admin-guide/kernel-parameters.txt", _TMPFILES),
    cure="take one of the two out",
)
def _(facts: HostFacts) -> Iterator[Hit]:
    wishes = knob_wishes(facts, "enabled")
    if len(wishes) > 1 and wishes[0].by == "boot" and any(one.value != wishes[0].value for one in wishes[1:]):
        yield Hit(f"enabled: {_told(wishes)}; in force: {facts.top}")


@_rule(
    "setting-not-in-force",
    "warning",
    "a file sets a knob, and the host has another value",
    why="It was changed by hand or by a program since, the file was not applied yet, or the value was refused.",
    sources=(_TMPFILES, _TUNED),
    cure="apply it (systemd-tmpfiles --create FILE, tuned-adm profile NAME), or take the file out if the host is right",
)
def _(facts: HostFacts) -> Iterator[Hit]:
    for key, value in facts.thp.items():
        wishes = knob_wishes(facts, key)
        if wishes and len({one.value for one in wishes}) == 1 and wishes[-1].value != value:
            yield Hit(f"{key}: {_told(wishes)}; in force: {value}")


@_rule(
    "tuned-profile-missing",
    "error",
    "the active profile of tuned is not there",
    why="tuned starts without a profile, and nothing that it was to set is set.",
    sources=("tuned-adm(8)",),
    cure="tuned-adm profile NAME with one of: tuned-adm list",
)
def _(facts: HostFacts) -> Iterator[Hit]:
    if facts.lost_profiles:
        yield Hit(f"{', '.join(facts.lost_profiles)}: neither in /etc/tuned nor in /usr/lib/tuned")


def _defaults(facts: HostFacts) -> Iterator[tuple[str, str]]:
    """Knobs with the value that the kernel gives them at boot, as far as that is known."""
    if facts.config is not None:
        yield "enabled", facts.config
    yield "defrag", "madvise"
    yield "khugepaged/max_ptes_none", str(facts.most_none)
    for key in facts.thp:
        if key.startswith("hugepages-") and key.endswith("/enabled"):
            yield key, "inherit" if key == f"hugepages-{facts.pmd >> 10}kB/enabled" else "never"


@_rule(
    "thp-lost-at-boot",
    "warning",
    "knobs of huge pages were turned by hand and will be lost at the next boot",
    why="sysfs forgets. Nothing that is read at boot sets these: no tmpfiles.d, no tuned profile, no service, no"
    " word of the command line.",
    sources=("Linux: Documentation/admin-guide/mm/transhuge.rst", _TMPFILES),
    cure="a line of tmpfiles.d for each: w /sys/kernel/mm/transparent_hugepage/KNOB - - - - VALUE",
)
def _(facts: HostFacts) -> Iterator[Hit]:
    lost = []
    sized = any(word.startswith("thp_anon=") for word in facts.boot)
    for key, default in _defaults(facts):
        value = facts.thp.get(key)
        at_boot = knob_wishes(facts, key) or turned(facts, f"{THP}/{key}") or (sized and key.startswith("hugepages-"))
        if value not in (None, default) and not at_boot:
            lost.append(f"{key} = {value} (the kernel's own: {default})")
    if lost:
        yield Hit(", ".join(lost))


@_rule(
    "pool-lost-at-boot",
    "warning",
    "a pool of hugetlb pages was made by hand and will not be there after the next boot",
    why="nr_hugepages forgets, and later the memory may be too fragmented to make it again.",
    sources=("Linux: Documentation/admin-guide/mm/hugetlbpage.rst", _SYSCTL),
    cure="vm.nr_hugepages in sysctl.d for the default size, or hugepagesz= and hugepages= on the kernel's command line",
)
def _(facts: HostFacts) -> Iterator[Hit]:
    for pool in facts.pools:
        kept = pool.lasting - pool.surplus
        path = f"{HUGETLB}/hugepages-{pool.size >> 10}kB/nr_hugepages"
        wishes = pool_wishes(facts, pool.size)
        most = max((int(one.value) for one in wishes if one.value.isdecimal()), default=0)
        if kept > most and not turned(facts, path):
            asked = _told(wishes) or "nobody asks for any at boot"
            yield Hit(f"{kept} pages of {format_size(pool.size)}; {asked}")
