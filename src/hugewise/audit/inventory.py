"""The settings in force, as they are shown: sections of name, value, place, and what runs here say of each. Pure.

Runs compare policies for a program. So what is labelled by them are the pages that a program gets here, and the host's
own mode and pools by the programs that they hold for; of a knob that no policy varies the label is *not tested here*.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from hugewise.audit.asked import pool_wishes
from hugewise.audit.claims import HUGETLB_POOLS, about
from hugewise.audit.evidence import Label, Searched, judge
from hugewise.audit.facts import Carrier, HostFacts, Placed, RunningProcess, tunables
from hugewise.quantity import format_size, readable_size

__all__ = ["SettingShown", "inventory", "program_policies"]

_COUNTERS = ("khugepaged/full_scans", "khugepaged/pages_collapsed")
# Settings of servers that decide which pages they get.
_OF_PAGES = {"huge_pages", "large_pages", "disable-thp", "large-pages", "UseTransparentHugePages", "UseLargePages"}
_SHRINKERS = ("shrink_underused", "shrink_underused_thp", "split_underused_thp")


class SettingShown(msgspec.Struct, frozen=True, kw_only=True):
    """A setting in force: its section, name and value, where it stands, whose service it is (null: the host's).

    label   what the runs of this host say of it
    """

    section: str
    name: str
    value: str
    where: str = ""
    unit: str | None = None
    label: Label = Label()


def program_policies(facts: HostFacts, process: RunningProcess) -> tuple[tuple[str, ...], str]:
    """The policies (`hugewise list policies`) that a process runs under here, and the same in words."""
    if process.thp_enabled is False:
        return ("base",), "base pages: THP is disabled for it"
    huge = tuple(f"hugetlb-{format_size(pool.size)}" for pool in facts.pools if pool.total)
    if process.shared_huge:
        return huge, "hugetlb pages for its shared memory"
    advised = _advises(facts, process.carrier)
    modes = {size: value for size, value in facts.sizes.items() if value != "never"}
    if modes.get(facts.pmd) == "always":
        return ("thp",), "THP wherever it fits (always)"
    smaller = tuple(f"mthp-{format_size(size)}" for size, value in modes.items() if value == "always")
    if smaller:
        return smaller, f"mTHP: {', '.join(smaller)}"
    if "madvise" in modes.values():
        return ("thp-advised", "madvise") if advised else ("madvise",), (
            "THP where it is advised" + (", and malloc advises" if advised else "")
        )
    return ("base",), "base pages"


def _advises(facts: HostFacts, carrier: Carrier) -> bool:
    heeded = not carrier.secure and not carrier.static
    return heeded and facts.top == "madvise" and tunables(carrier.environment).get("glibc.malloc.hugetlb") == "1"


def inventory(facts: HostFacts, searched: Searched) -> tuple[SettingShown, ...]:
    """Everything that was found, in the order in which it is shown."""
    return tuple(
        itertools.chain(
            _thp(facts, searched),
            _pools(facts, searched),
            _groups(facts),
            _files(facts),
            _units(facts, searched),
            _programs(facts, searched),
            _servers(facts, searched),
        )
    )


def _thp(facts: HostFacts, searched: Searched) -> Iterator[SettingShown]:
    section = "transparent huge pages"
    if not facts.thp:
        yield SettingShown(section=section, name="enabled", value="not there: this kernel has none, or hides them")
        return
    host_wide = _host_label(facts, searched)
    yield SettingShown(section=section, name="enabled", value=facts.top, label=host_wide)
    for own in ("enabled", "shmem_enabled"):
        by_value: dict[str, list[int]] = {}
        for key, value in facts.thp.items():
            if key.startswith("hugepages-") and key.endswith(f"/{own}"):
                by_value.setdefault(value, []).append(int(key.removeprefix("hugepages-").split("kB")[0]) << 10)
        for value, sizes in sorted(by_value.items(), key=lambda each: min(each[1])):
            name = f"{'anonymous' if own == 'enabled' else 'shared'}, {', '.join(map(format_size, sorted(sizes)))}"
            label = host_wide if own == "enabled" else Label()
            yield SettingShown(section=section, name=name, value=value, label=label)
    rest = [key for key in facts.thp if "/" not in key and key not in ("enabled", "hpage_pmd_size", *_SHRINKERS)]
    for key in rest:
        yield SettingShown(section=section, name=key, value=facts.thp[key])
    for key, value in facts.thp.items():
        if key.startswith("khugepaged/") and key not in _COUNTERS:
            yield SettingShown(section="khugepaged", name=key.removeprefix("khugepaged/"), value=value)
    for key in _SHRINKERS:
        if key in facts.thp:
            yield SettingShown(section="shrinker of underused huge pages", name=key, value=facts.thp[key])


def _host_label(facts: HostFacts, searched: Searched) -> Label:
    """Of the host's own THP mode: by the programs that it holds for."""
    labels = []
    for program in {each.program for each in facts.processes if each.thp_enabled is not False}:
        process = next(each for each in facts.processes if each.program == program)
        policies, _ = program_policies(facts, process)
        if not any(name.startswith("hugetlb") for name in policies):
            labels.append(judge(searched.tried, [program], policies))
    return _together(labels)


def _together(labels: Iterable[Label]) -> Label:
    """One label of several programs: contradicted where one of them is."""
    found = list(labels)
    for state in ("contradicted here", "supported here"):
        if of_state := [label for label in found if label.state == state]:
            runs = tuple(dict.fromkeys(run for label in of_state for run in label.runs))
            return Label(of_state[0].state, "; ".join(label.said for label in of_state[:3]), runs)
    return Label()


def _pools(facts: HostFacts, searched: Searched) -> Iterator[SettingShown]:
    section = "hugetlb pools"
    if not facts.pools:
        yield SettingShown(section=section, name="pools", value="none")
    users = [each.program for each in facts.processes if each.shared_huge]
    for pool in facts.pools:
        value = (
            f"{pool.total} pages: {pool.free} free, {pool.reserved} reserved, {pool.surplus} surplus, "
            f"{pool.stranded} stranded"
        )
        value += f" ({readable_size(pool.stranded * pool.size)})" if pool.stranded else ""
        value += f"; {pool.own} of a run of hugewise" if pool.own else ""
        value += f"; may grow by {pool.overcommit}" if pool.overcommit else ""
        where = ", ".join(f"{one.by}: {one.value}" for one in pool_wishes(facts, pool.size))
        policy = f"hugetlb-{format_size(pool.size)}"
        label = judge(searched.tried, users, [policy]) if pool.total and policy in HUGETLB_POOLS else Label()
        yield SettingShown(section=section, name=format_size(pool.size), value=value, where=where, label=label)


def _groups(facts: HostFacts) -> Iterator[SettingShown]:
    for each in facts.hugetlb_groups:
        limit, reserved = ("none" if at is None else readable_size(at) for at in (each.limit, each.reserved_limit))
        yield SettingShown(
            section="cgroup limits on hugetlb pages",
            name=f"{each.group}, {format_size(each.size)}",
            value=f"limit {limit}, of reservations {reserved}",
            where=f"cgroup version {each.version}",
        )


def _files(facts: HostFacts) -> Iterator[SettingShown]:
    for word in facts.boot:
        name, _, value = word.partition("=")
        yield SettingShown(section="kernel command line", name=name, value=value)
    for section, held in (
        ("sysctl.d", facts.sysctl),
        ("tmpfiles.d", facts.tmpfiles),
        (f"tuned ({' '.join(facts.profile)})", facts.tuned),
    ):
        for key, one in held.items():
            yield SettingShown(section=section, name=key, value=one.value, where=one.where)
    if facts.profile and not facts.tuned:
        yield SettingShown(section="tuned", name="profile", value=f"{' '.join(facts.profile)}: nothing about pages")
    for path in facts.scripts:
        yield SettingShown(section="scripts at boot", name=path, value="written")


def _label(facts: HostFacts, searched: Searched, process: RunningProcess | None) -> Label:
    """Of the pages that a process gets, and so of the settings that give them; a service that does not run has none."""
    return Label() if process is None else judge(searched.tried, [process.program], program_policies(facts, process)[0])


def _units(facts: HostFacts, searched: Searched) -> Iterator[SettingShown]:
    for one in facts.defaults:
        name = f"every service: {one.key}"
        yield SettingShown(section="services", name=name, value=one.value, where=one.where)
    running = {each.unit: each for each in reversed(facts.processes) if each.unit is not None}
    for unit in facts.units:
        label = _label(facts, searched, running.get(unit.name))
        placed: Sequence[Placed] = [*([unit.memory_thp] if unit.memory_thp else []), *unit.environment, *unit.invented]
        for one in placed:
            yield SettingShown(
                section="services",
                name=f"{unit.name}: {one.key}",
                value=one.value,
                where=one.where,
                unit=unit.name,
                label=label,
            )
        for path in unit.turned:
            yield SettingShown(
                section="services", name=f"{unit.name}: writes", value=path, where=unit.path, unit=unit.name
            )
        for command in unit.commands:
            if command.wrappers:
                value = f"{' '.join(command.wrappers)} before {command.program}"
                yield SettingShown(
                    section="services",
                    name=f"{unit.name}: ExecStart",
                    value=value,
                    where=command.where,
                    unit=unit.name,
                    label=label,
                )


def _programs(facts: HostFacts, searched: Searched) -> Iterator[SettingShown]:
    """The pages that programs get: one line for all processes of a program that are the same in this."""
    lines: dict[tuple[str, str, str | None, tuple[str, ...]], list[RunningProcess]] = {}
    for each in facts.processes:
        policies, words = program_policies(facts, each)
        lines.setdefault((each.program, words, each.unit, policies), []).append(each)
    for (program, words, unit, policies), several in lines.items():
        label = judge(searched.tried, [program], policies)
        pids = ", ".join(str(each.pid) for each in several[:4]) + (", ..." if len(several) > 4 else "")
        said = sorted({f"{one.key}={one.value}" for each in several for one in each.environment})
        libraries = sorted({one for each in several for one in each.libraries or ()} - {"glibc", "jvm"})
        value = "; ".join([words, *said, *(f"with {one}" for one in libraries)])
        yield SettingShown(
            section="programs that run",
            name=several[0].name,
            value=value,
            where=f"process {pids}",
            unit=unit,
            label=label,
        )
    for claim, process in about(facts):
        label = judge(searched.tried, [process.program], claim.better, claim.worse)
        yield SettingShown(
            section="what their makers say",
            name=process.name,
            value=claim.says,
            where=claim.sources[0],
            unit=process.unit,
            label=label,
        )


def _servers(facts: HostFacts, searched: Searched) -> Iterator[SettingShown]:
    running = {each.pid: each for each in facts.processes}
    for each in facts.servers:
        label = _label(facts, searched, running.get(each.pid or -1))
        for one in each.settings.values():
            name = f"{each.what}: {one.key}"
            yield SettingShown(
                section="settings of servers",
                name=name,
                value=one.value,
                where=one.where,
                unit=each.unit,
                label=label if one.key in _OF_PAGES else Label(),
            )
