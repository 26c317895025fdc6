"""Rules on settings made at boot against those in force now, and on surfaces that overwrite each other."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hugewise.audit.boot import differing, misread
from hugewise.audit.facts import NOT_KNOWN, BootLine, HostFacts
from hugewise.audit.inventory import RequestedValue, knob_wishes, pool_wishes, turned, written_at_boot
from hugewise.audit.rules import Hit, rule
from hugewise.model.pages import HUGETLB, THP
from hugewise.quantity import format_size

_TUNED = "tuned.conf(5)"
_TMPFILES = "tmpfiles.d(5)"
_SYSCTL = "sysctl.d(5)"
_POOL = re.compile(rf"{HUGETLB}/hugepages-(\d{{1,12}})kB/nr_hugepages")


def _told(wishes: list[RequestedValue]) -> str:
    return ", ".join(f"{wish.by} says {wish.value} ({wish.where})" for wish in wishes)


@rule(
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
        if len({wish.value for wish in wishes}) > 1:
            yield Hit(f"{key}: {_told(wishes)}; in force: {facts.thp.get(key, NOT_KNOWN)}")


@rule(
    "services-write-differently",
    "warning",
    "a service or a script writes a knob at boot, and another place writes another value to it",
    why="What runs later decides, and units without an order between them run as they come: the next boot may end with"
    " the other value. An old unit often stays beside the one that was to replace it.",
    sources=("systemd.unit(5), Before=", "https://github.com/ansible-collections/community.mongodb/pull/697"),
    cure="keep one of the places: systemctl disable --now UNIT and remove its file, or take the line out of the script",
)
def _(facts: HostFacts) -> Iterator[Hit]:
    for path, wishes in written_at_boot(facts).items():
        if len({wish.value for wish in wishes}) > 1:
            key = path.removeprefix(f"{THP}/")
            yield Hit(f"{key}: {_told(wishes)}; in force: {_in_force(facts, key)}")


def _in_force(facts: HostFacts, key: str) -> str:
    """Return the value of a knob of THP, or how many pages a pool has."""
    size = facts.default_huge_size if key == "vm.nr_hugepages" else 0
    if match := _POOL.fullmatch(key):
        size = int(match[1]) << 10
    pool = facts.pool(size)
    return facts.thp.get(key, NOT_KNOWN if pool is None else str(pool.lasting))


@rule(
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
        if len({wish.value for wish in wishes}) > 1:
            yield Hit(f"pages of {format_size(pool.size)}: {_told(wishes)}; in force: {pool.lasting}")


@rule(
    "boot-value-overwritten",
    "note",
    "the kernel's command line says one thing, and what is applied later another",
    why="transparent_hugepage= holds only until tmpfiles.d or tuned writes; who reads the command line is misled.",
    sources=("Linux: Documentation/admin-guide/kernel-parameters.txt", _TMPFILES),
    cure="take one of the two out",
)
def _(facts: HostFacts) -> Iterator[Hit]:
    wishes = knob_wishes(facts, "enabled")
    if len(wishes) > 1 and wishes[0].by == "boot" and any(wish.value != wishes[0].value for wish in wishes[1:]):
        yield Hit(f"enabled: {_told(wishes)}; in force: {facts.top}")


@rule(
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
        if wishes and len({wish.value for wish in wishes}) == 1 and wishes[-1].value != value:
            yield Hit(f"{key}: {_told(wishes)}; in force: {value}")


@rule(
    "boot-word-unknown",
    "error",
    "a word about pages on the kernel's command line does nothing: the kernel does not know it, or its value",
    why="The kernel passes a word that it does not know on to init, and logs a value that it cannot read; in both cases"
    " it boots as if the word were not there. It is transparent_hugepage= without an s, and values are in lower case.",
    sources=(
        "Linux: Documentation/admin-guide/kernel-parameters.txt",
        "Linux: Documentation/admin-guide/mm/transhuge.rst",
        "https://github.com/p2pool-starter-stack/pithead/issues/176",
    ),
    cure="write the name and the value as kernel-parameters.txt has them, and boot again; what the kernel did not know:"
    " dmesg | grep -i 'unknown kernel command line\\|cannot parse'",
)
def _(facts: HostFacts) -> Iterator[Hit]:
    places: dict[str, list[str]] = {}
    for line in (BootLine(by="", where=facts.boot_from, words=facts.boot), *facts.boot_lines):
        for word in line.words:
            places.setdefault(word, []).append(line.where)
    for word, where in places.items():
        if why := misread(word):
            yield Hit(f"{word} ({', '.join(dict.fromkeys(where))}): {why}")


@rule(
    "boot-file-not-in-force",
    "warning",
    "a file of the boot loader asks for pages, and the kernel was booted without that",
    why="/etc/default/grub is what a boot menu is made from: until it is made anew, and the host is booted, it does"
    " nothing. Where entries follow the Boot Loader Specification (Fedora, RHEL), making grub.cfg anew leaves them as"
    " they are.",
    sources=(
        "https://www.gnu.org/software/grub/manual/grub/html_node/Simple-configuration.html",
        "https://uapi-group.org/specifications/specs/boot_loader_specification/",
        "grubby(8)",
        "https://github.com/sap-linuxlab/community.sap_install/issues/148",
    ),
    cure="Debian, Ubuntu: update-grub; Fedora, RHEL: grubby --update-kernel=ALL --args='WORDS' (or grub2-mkconfig -o"
    " /boot/grub2/grub.cfg --update-bls-cmdline); SUSE: grub2-mkconfig -o /boot/grub2/grub.cfg; then boot again; or"
    " take the words out of the file",
)
def _(facts: HostFacts) -> Iterator[Hit]:
    booted = "cmdline" not in facts.hidden
    for line in facts.boot_lines:
        # Of an image only what entries are made from differs from what it is booted with.
        if line.where == facts.boot_from or (not booted and line.by not in ("GRUB", "tuned")):
            continue
        if not booted and not any(one.by in ("boot entry", "grub.cfg") for one in facts.boot_lines):
            continue
        if line.release is not None and line.release != facts.kernel:
            continue  # of another kernel
        for name, value, now in differing(line, facts):
            if not misread(f"{name}={value}") or name.startswith("hugepages of "):
                there = "booted without it" if now is None else f"booted with {now}"
                yield Hit(f"{line.by} says {name} = {value} ({line.where}); {there}")


@rule(
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
    """Yield knobs with the value that the kernel gives them at boot, as far as known."""
    if facts.config is not None:
        yield "enabled", facts.config
    yield "defrag", "madvise"
    yield "khugepaged/max_ptes_none", str(facts.most_none)
    for key in facts.thp:
        if key.startswith("hugepages-") and key.endswith("/enabled"):
            yield key, "inherit" if key == f"hugepages-{facts.pmd >> 10}kB/enabled" else "never"


@rule(
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


@rule(
    "knobs-of-a-run",
    "note",
    "knobs of huge pages have values of a run of hugewise, which puts them back when it ends",
    why="A run turns the knobs that its arms need, and notes in root's journal what they were before it does. The"
    " report shows and judges the values from before the run.",
    sources=("Linux: Documentation/admin-guide/mm/transhuge.rst",),
    cure="wait for the end of the run; where it was killed: sudo hugewise restore",
)
def _(facts: HostFacts) -> Iterator[Hit]:
    run = facts.run
    if run is not None and run.turned:
        values = (f"{key} = {value} (before: {facts.thp[key]})" for key, value in run.turned.items())
        yield Hit(f"{', '.join(values)}, by {run.told}")


@rule(
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
        most = max((int(wish.value) for wish in wishes if wish.value.isdecimal()), default=0)
        if kept > most and not turned(facts, path):
            asked = _told(wishes) or "nobody asks for any at boot"
            yield Hit(f"{kept} pages of {format_size(pool.size)}; {asked}")
