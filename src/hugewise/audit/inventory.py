"""Settings in force: sections of name, value and place. Pure.

A claim of a program's maker says that one set of policies (`hugewise list policies`) serves it better than another;
claims are the data of `published.claims`. Claims about the programs that the audit finds are shown;
docs/reference/audit.md lists all.
"""

from __future__ import annotations

import fnmatch
import itertools
from collections.abc import Iterator, Sequence

import msgspec

from hugewise.audit.boot import misread, pool_words
from hugewise.audit.demand import POSTGRESQL_SIZES
from hugewise.audit.facts import NOT_KNOWN, Carrier, HostFacts, Placed, RunningProcess, tunables
from hugewise.audit.running import server_kind
from hugewise.model.pages import HUGETLB, THP
from hugewise.published import CommonClaim, claims
from hugewise.quantity import format_size, readable_size

_SYSCTL = "vm.nr_hugepages"
_NODES = "/sys/devices/system/node/"


class RequestedValue(msgspec.Struct, frozen=True):
    """Somebody asks for a value: `by` is the surface (boot, tmpfiles.d, tuned, sysctl.d), `where` the place in it."""

    by: str
    value: str
    where: str


def knob_wishes(facts: HostFacts, key: str) -> list[RequestedValue]:
    """Return the requests for the knob `key` below transparent_hugepage, the earliest first."""
    path = f"{THP}/{key}"
    wishes = []
    if key == "enabled":
        words = [word for word in facts.boot if word.startswith("transparent_hugepage=") and not misread(word)]
        said = [word.partition("=")[2] for word in words]
        wishes += [RequestedValue("boot", value, facts.boot_from) for value in said[-1:]]
    for by, held in (("tmpfiles.d", facts.tmpfiles), ("tuned", facts.tuned)):
        if path in held:
            wishes.append(RequestedValue(by, held[path].value, held[path].where))
    return wishes


def written_at_boot(facts: HostFacts) -> dict[str, list[RequestedValue]]:
    """Return the values that services, scripts, tmpfiles.d and tuned write at boot, by knob, where they are known."""
    found: dict[str, list[RequestedValue]] = {}
    for unit in facts.units:
        for one in unit.writes if not unit.masked and not unit.disabled else ():
            if one.value:
                found.setdefault(one.key, []).append(RequestedValue(unit.name, one.value, one.where))
    for one in facts.written:
        found.setdefault(one.key, []).append(RequestedValue("a script at boot", one.value, one.where))
    for by, held in (("tmpfiles.d", facts.tmpfiles), ("tuned", facts.tuned), ("sysctl.d", facts.sysctl)):
        for key, one in held.items():
            if key in found:
                found[key].append(RequestedValue(by, one.value, one.where))
    return found


def turned(facts: HostFacts, path: str) -> bool:
    """Return whether a service or a script at boot writes the file, or an equivalent one; the value is unknown."""
    patterns = [each for unit in facts.units if not unit.masked for each in unit.turned]
    patterns += [*facts.scripts, *(each for each in (*facts.tmpfiles, *facts.tuned) if each.startswith(_NODES))]
    default = path == f"{HUGETLB}/hugepages-{facts.default_huge_size >> 10}kB/nr_hugepages"
    if default and _SYSCTL in patterns:
        return True
    # The pool of a node is a part of the pool.
    whole = (f"{HUGETLB}/{pattern.partition('/hugepages/')[2]}" for pattern in patterns if pattern.startswith(_NODES))
    return any(fnmatch.fnmatchcase(path, each) for each in (*patterns, *whole))


def pool_wishes(facts: HostFacts, size: int) -> list[RequestedValue]:
    """Return the requests for pages of the pool of that size, the earliest first."""
    wishes = [
        RequestedValue("boot", str(one.pages), facts.boot_from)
        for one in pool_words(facts.boot, facts.default_huge_size)
        if one.size == size and one.pages and not one.why
    ]
    path = f"{HUGETLB}/hugepages-{size >> 10}kB/nr_hugepages"
    default = size == facts.default_huge_size
    for by, held in (("sysctl.d", facts.sysctl), ("tmpfiles.d", facts.tmpfiles), ("tuned", facts.tuned)):
        for key in (path, *((_SYSCTL, f"/proc/sys/{_SYSCTL.replace('.', '/')}") if default else ())):
            wishes += [RequestedValue(by, held[key].value, held[key].where)] if key in held else []
    return wishes


CLAIMS = tuple(claim for claim in claims() if claim.programs)


def about(facts: HostFacts) -> Iterator[tuple[CommonClaim, RunningProcess]]:
    """Yield the claims about each program that runs, for each program once."""
    seen = set()
    for process in facts.processes:
        names = {
            process.name,
            server_kind(process.name, process.program),
            *(f"lib:{library}" for library in process.libraries or ()),
        }
        for claim in CLAIMS:
            if not names.isdisjoint(claim.programs) and (claim.id, process.program, process.unit) not in seen:
                seen.add((claim.id, process.program, process.unit))
                yield claim, process


_COUNTERS = ("khugepaged/full_scans", "khugepaged/pages_collapsed")
_SHRINKERS = ("shrink_underused", "shrink_underused_thp", "split_underused_thp")


class SettingShown(msgspec.Struct, frozen=True):
    """A setting in force: its section, name and value, where it stands, whose service it is (null: the host's)."""

    section: str
    name: str
    value: str
    where: str = ""
    unit: str | None = None


def _pages_of(facts: HostFacts, process: RunningProcess) -> str:
    """Return the pages that a process gets here."""
    if process.thp_enabled is False:
        return "base pages: THP is disabled for it"
    if "thp" in facts.hidden:
        return f"{NOT_KNOWN}: the host's settings are not in this folder"
    if process.shared_huge:
        return "hugetlb pages for its shared memory"
    modes = {size: value for size, value in facts.sizes.items() if value != "never"}
    if modes.get(facts.pmd) == "always":
        return "THP wherever it fits (always)"
    smaller = ", ".join(f"mthp-{format_size(size)}" for size, value in modes.items() if value == "always")
    if smaller:
        return f"mTHP: {smaller}"
    if "madvise" in modes.values():
        advised = ", and malloc advises" if _advises(facts, process.carrier) else ""
        return f"THP where it is advised{advised}"
    return "base pages"


def _advises(facts: HostFacts, carrier: Carrier) -> bool:
    heeded = not carrier.secure and not carrier.static
    return heeded and facts.top == "madvise" and tunables(carrier.environment).get("glibc.malloc.hugetlb") == "1"


def inventory(facts: HostFacts) -> tuple[SettingShown, ...]:
    """Everything that was found, in the order in which it is shown."""
    return tuple(
        itertools.chain(
            _thp(facts),
            _pools(facts),
            _groups(facts),
            _files(facts),
            _units(facts),
            _programs(facts),
            _servers(facts),
        )
    )


def _thp(facts: HostFacts) -> Iterator[SettingShown]:
    section = "transparent huge pages"
    if not facts.thp:
        none = "not there: this kernel has none, or hides them"
        value = f"{NOT_KNOWN}: it is not in this folder" if "thp" in facts.hidden else none
        yield SettingShown(section, "enabled", value)
        return
    yield SettingShown(section, "enabled", facts.top)
    for own in ("enabled", "shmem_enabled"):
        by_value: dict[str, list[int]] = {}
        for key, value in facts.thp.items():
            if key.startswith("hugepages-") and key.endswith(f"/{own}"):
                by_value.setdefault(value, []).append(int(key.removeprefix("hugepages-").split("kB")[0]) << 10)
        for value, sizes in sorted(by_value.items(), key=lambda each: min(each[1])):
            name = f"{'anonymous' if own == 'enabled' else 'shared'}, {', '.join(map(format_size, sorted(sizes)))}"
            yield SettingShown(section, name, value)
    rest = [key for key in facts.thp if "/" not in key and key not in ("enabled", "hpage_pmd_size", *_SHRINKERS)]
    for key in rest:
        yield SettingShown(section, key, facts.thp[key])
    for key, value in facts.thp.items():
        if key.startswith("khugepaged/") and key not in _COUNTERS:
            yield SettingShown("khugepaged", key.removeprefix("khugepaged/"), value)
    for key in _SHRINKERS:
        if key in facts.thp:
            yield SettingShown("shrinker of underused huge pages", key, facts.thp[key])


def _pools(facts: HostFacts) -> Iterator[SettingShown]:
    section = "hugetlb pools"
    if not facts.pools:
        value = f"{NOT_KNOWN}: they are not in this folder" if "pools" in facts.hidden else "none"
        yield SettingShown(section, "pools", value)
    for pool in facts.pools:
        value = (
            f"{pool.total} pages: {pool.free} free, {pool.reserved} reserved, {pool.surplus} surplus, "
            f"{pool.stranded} stranded"
        )
        value += f" ({readable_size(pool.stranded * pool.size)})" if pool.stranded else ""
        value += f"; {pool.own} of a run of hugewise" if pool.own else ""
        value += f"; may grow by {pool.overcommit}" if pool.overcommit else ""
        where = ", ".join(f"{wish.by}: {wish.value}" for wish in pool_wishes(facts, pool.size))
        yield SettingShown(section, format_size(pool.size), value, where)


def _groups(facts: HostFacts) -> Iterator[SettingShown]:
    for group in facts.hugetlb_groups:
        limit, reserved = ("none" if at is None else readable_size(at) for at in (group.limit, group.reserved_limit))
        yield SettingShown(
            "cgroup limits on hugetlb pages",
            f"{group.group}, {format_size(group.size)}",
            f"limit {limit}, of reservations {reserved}",
            f"cgroup version {group.version}",
        )


def _files(facts: HostFacts) -> Iterator[SettingShown]:
    if "cmdline" not in facts.hidden:
        for word in facts.boot:
            name, _, value = word.partition("=")
            yield SettingShown("kernel command line", name, value)
    for line in facts.boot_lines:
        for word in line.words:
            name, _, value = word.partition("=")
            section = f"tuned ({' '.join(facts.profile)})" if line.by == "tuned" else "files of the boot loader"
            name = f"boot:{name}" if line.by == "tuned" else name
            yield SettingShown(section, name, value, line.where)
    for section, held in (
        ("sysctl.d", facts.sysctl),
        ("tmpfiles.d", facts.tmpfiles),
        (f"tuned ({' '.join(facts.profile)})", facts.tuned),
    ):
        for key, one in held.items():
            yield SettingShown(section, key, one.value, one.where)
    if facts.profile and not facts.tuned and not any(line.by == "tuned" for line in facts.boot_lines):
        yield SettingShown("tuned", "profile", f"{' '.join(facts.profile)}: nothing about pages")
    written = {one.key: one for one in facts.written}
    for path in facts.scripts:
        said = written.get(path, Placed(path, "written", ""))
        yield SettingShown("scripts at boot", path, said.value, said.where)


def _units(facts: HostFacts) -> Iterator[SettingShown]:
    for default in facts.defaults:
        name = f"every service: {default.key}"
        yield SettingShown("services", name, default.value, default.where)
    for unit in facts.units:
        placed: Sequence[Placed] = [*([unit.memory_thp] if unit.memory_thp else []), *unit.environment, *unit.invented]
        for one in placed:
            yield SettingShown("services", f"{unit.name}: {one.key}", one.value, one.where, unit.name)
        written = {one.key: one for one in unit.writes}
        for path in unit.turned:
            said = written.get(path, Placed(path, "", unit.path))
            value, where = f"{path} = {said.value}" if said.value else path, said.where
            yield SettingShown("services", f"{unit.name}: writes", value, where, unit.name)
        for command in unit.commands:
            if command.wrappers:
                value = f"{' '.join(command.wrappers)} before {command.program}"
                yield SettingShown("services", f"{unit.name}: ExecStart", value, command.where, unit.name)


def _programs(facts: HostFacts) -> Iterator[SettingShown]:
    """Yield the pages that programs get: one line for all processes of a program with the same pages."""
    lines: dict[tuple[str, str, str | None], list[RunningProcess]] = {}
    for process in facts.processes:
        lines.setdefault((process.program, _pages_of(facts, process), process.unit), []).append(process)
    for (_, pages, unit), several in lines.items():
        pids = ", ".join(str(each.pid) for each in several[:4]) + (", ..." if len(several) > 4 else "")
        said = sorted({f"{one.key}={one.value}" for each in several for one in each.environment})
        libraries = sorted({one for each in several for one in each.libraries or ()} - {"glibc", "jvm"})
        value = "; ".join([pages, *said, *(f"with {library}" for library in libraries)])
        yield SettingShown("programs that run", several[0].name, value, f"process {pids}", unit)
    for claim, process in about(facts):
        yield SettingShown("what their makers say", process.name, claim.says, claim.sources[0], process.unit)


def _servers(facts: HostFacts) -> Iterator[SettingShown]:
    for server in facts.servers:
        for setting in (one for key, one in server.settings.items() if key not in POSTGRESQL_SIZES):
            name = f"{server.what}: {setting.key}"
            yield SettingShown("settings of servers", name, setting.value, setting.where, server.unit)
