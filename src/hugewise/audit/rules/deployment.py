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

_POOL = re.compile(rf"{HUGETLB}/hugepages-(\d{{1,12}})kB/nr_hugepages")


def _told(wishes: list[RequestedValue]) -> str:
    return ", ".join(f"{wish.by} says {wish.value} ({wish.where})" for wish in wishes)


@rule("tuned-tmpfiles-conflict")
def _(facts: HostFacts) -> Iterator[Hit]:
    for path in facts.tmpfiles.keys() & facts.tuned.keys():
        key = path.removeprefix(f"{THP}/")
        wishes = [one for one in knob_wishes(facts, key) if one.by != "boot"]
        if len({wish.value for wish in wishes}) > 1:
            yield Hit(f"{key}: {_told(wishes)}; in force: {facts.thp.get(key, NOT_KNOWN)}")


@rule("services-write-differently")
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


@rule("pool-asked-twice")
def _(facts: HostFacts) -> Iterator[Hit]:
    for pool in facts.pools:
        wishes = pool_wishes(facts, pool.size)
        if len({wish.value for wish in wishes}) > 1:
            yield Hit(f"pages of {format_size(pool.size)}: {_told(wishes)}; in force: {pool.lasting}")


@rule("boot-value-overwritten")
def _(facts: HostFacts) -> Iterator[Hit]:
    wishes = knob_wishes(facts, "enabled")
    if len(wishes) > 1 and wishes[0].by == "boot" and any(wish.value != wishes[0].value for wish in wishes[1:]):
        yield Hit(f"enabled: {_told(wishes)}; in force: {facts.top}")


@rule("setting-not-in-force")
def _(facts: HostFacts) -> Iterator[Hit]:
    for key, value in facts.thp.items():
        wishes = knob_wishes(facts, key)
        if wishes and len({wish.value for wish in wishes}) == 1 and wishes[-1].value != value:
            yield Hit(f"{key}: {_told(wishes)}; in force: {value}")


@rule("boot-word-unknown")
def _(facts: HostFacts) -> Iterator[Hit]:
    places: dict[str, list[str]] = {}
    for line in (BootLine(by="", where=facts.boot_from, words=facts.boot), *facts.boot_lines):
        for word in line.words:
            places.setdefault(word, []).append(line.where)
    for word, where in places.items():
        if why := misread(word):
            yield Hit(f"{word} ({', '.join(dict.fromkeys(where))}): {why}")


@rule("boot-file-not-in-force")
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


@rule("tuned-profile-missing")
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


@rule("thp-lost-at-boot")
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


@rule("knobs-of-a-run")
def _(facts: HostFacts) -> Iterator[Hit]:
    run = facts.run
    if run is not None and run.turned:
        values = (f"{key} = {value} (before: {facts.thp[key]})" for key, value in run.turned.items())
        yield Hit(f"{', '.join(values)}, by {run.told}")


@rule("pool-lost-at-boot")
def _(facts: HostFacts) -> Iterator[Hit]:
    for pool in facts.pools:
        kept = pool.lasting - pool.surplus
        path = f"{HUGETLB}/hugepages-{pool.size >> 10}kB/nr_hugepages"
        wishes = pool_wishes(facts, pool.size)
        most = max((int(wish.value) for wish in wishes if wish.value.isdecimal()), default=0)
        if kept > most and not turned(facts, path):
            asked = _told(wishes) or "nobody asks for any at boot"
            yield Hit(f"{kept} pages of {format_size(pool.size)}; {asked}")
