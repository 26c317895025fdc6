"""The settings in force, as they are shown: sections of name, value, place, and what runs here say of each. Pure.

Runs compare policies for a program. So what is labelled by them are the pages that a program gets here, and the host's
own mode and pools by the programs that they hold for; of a knob that no policy varies the label is *not tested here*.

Which surfaces of a host ask for what: a knob's value, and the pages of each pool. Pure.

What makers of programs say of page sizes: claims that a run on this host can support.

A claim says that one set of policies (`hugewise list policies`) serves a program better than another; they are the data
of `published.folklore`. The audit shows those about the programs that it finds, and what this host's own runs say of
each; docs/reference/audit.md lists all.

What this host's own runs say of a setting: for the same program, on the same machine, under the same kernel.

A run counts where its machine and kernel are this host's, and what it measured is the very file that runs here: the
same path, and not changed since the run began (its ctime, which an upgrade sets). Interpreters and shells are no such
file: what they run decides. Runs in guests speak for guests.

A setting is *contradicted here* where the newest run that decided between it and another policy found the other one
better; *supported here* where runs decided and none did (better, or equivalent within the margin); else *not tested
here*. Each pair of policies is judged by its newest decided run: an older one is never chosen for what it says.
"""

from __future__ import annotations

import fnmatch
import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Literal

import msgspec

from hugewise.audit.facts import Carrier, HostFacts, Placed, RunningProcess, boot_size, tunables
from hugewise.audit.root import Root
from hugewise.audit.running import server_kind
from hugewise.errors import UserError
from hugewise.model.pages import HUGETLB, THP
from hugewise.model.results import CellResult, Comparison, Results, Verdict
from hugewise.model.workload import ParameterValue
from hugewise.published.folklore import CommonClaim, claims
from hugewise.quantity import format_size, readable_size
from hugewise.store.folder import RunFolder
from hugewise.store.records import CellRecord, Opened

_SYSCTL = "vm.nr_hugepages"
_NODES = "/sys/devices/system/node/"


class RequestedValue(msgspec.Struct, frozen=True):
    """Somebody asks for a value: `by` is the surface (boot, tmpfiles.d, tuned, sysctl.d), `where` the place in it."""

    by: str
    value: str
    where: str


def knob_wishes(facts: HostFacts, key: str) -> list[RequestedValue]:
    """Who asks for the knob `key` below transparent_hugepage, the earliest first."""
    path = f"{THP}/{key}"
    found = []
    if key == "enabled":
        said = [word.partition("=")[2] for word in facts.boot if word.startswith("transparent_hugepage=")]
        found += [RequestedValue("boot", value, "the kernel's command line") for value in said[-1:]]
    for by, held in (("tmpfiles.d", facts.tmpfiles), ("tuned", facts.tuned)):
        if path in held:
            found.append(RequestedValue(by, held[path].value, held[path].where))
    return found


def turned(facts: HostFacts, path: str) -> bool:
    """Whether a service or a script at boot writes the file, or what does the same: with what value is not known."""
    patterns = [each for unit in facts.units if not unit.masked for each in unit.turned]
    patterns += [*facts.scripts, *(each for each in (*facts.tmpfiles, *facts.tuned) if each.startswith(_NODES))]
    default = path == f"{HUGETLB}/hugepages-{facts.default_huge_size >> 10}kB/nr_hugepages"
    if default and _SYSCTL in patterns:
        return True
    # The pool of a node is a part of the pool.
    whole = (f"{HUGETLB}/{each.partition('/hugepages/')[2]}" for each in patterns if each.startswith(_NODES))
    return any(fnmatch.fnmatchcase(path, each) for each in (*patterns, *whole))


def boot_pools(facts: HostFacts) -> Iterator[tuple[int | None, int | None]]:
    """Page size and pages of each pool on the kernel's command line: `hugepagesz=` and the `hugepages=` behind it.

    None for a size that is none, and for a `hugepagesz=` without pages.
    """
    size: int | None = facts.default_huge_size
    open_ = False
    for word in facts.boot:
        key, _, value = word.partition("=")
        if key == "hugepagesz":
            if open_:
                yield size, None
            size, open_ = boot_size(value), True
        elif key == "hugepages":
            yield size, _pages(value)
            open_ = False
    if open_:
        yield size, None


def _pages(value: str) -> int | None:
    """A number, or the sum over nodes: `0:2,1:2`."""
    parts = [part.rpartition(":")[2] for part in value.split(",")]
    return sum(map(int, parts)) if all(part.isdecimal() and len(part) < 12 for part in parts) else None


def pool_wishes(facts: HostFacts, size: int) -> list[RequestedValue]:
    """Who asks for how many pages of the pool of that size, the earliest first."""
    found = [
        RequestedValue("boot", str(n), "the kernel's command line") for at, n in boot_pools(facts) if at == size and n
    ]
    path = f"{HUGETLB}/hugepages-{size >> 10}kB/nr_hugepages"
    default = size == facts.default_huge_size
    for by, held in (("sysctl.d", facts.sysctl), ("tmpfiles.d", facts.tmpfiles), ("tuned", facts.tuned)):
        for key in (path, *((_SYSCTL, f"/proc/sys/{_SYSCTL.replace('.', '/')}") if default else ())):
            found += [RequestedValue(by, held[key].value, held[key].where)] if key in held else []
    return found


HUGETLB_POOLS = ("hugetlb-2m", "hugetlb-1g", "hugetlb-32m", "hugetlb-512m", "hugetlb-16g")

CLAIMS = tuple(claim for claim in claims() if claim.programs)


def about(facts: HostFacts) -> Iterator[tuple[CommonClaim, RunningProcess]]:
    """The claims about each program that runs, for each program once."""
    seen = set()
    for each in facts.processes:
        names = {each.name, server_kind(each.name, each.program), *(f"lib:{one}" for one in each.libraries or ())}
        for claim in CLAIMS:
            if not names.isdisjoint(claim.programs) and (claim.id, each.program, each.unit) not in seen:
                seen.add((claim.id, each.program, each.unit))
                yield claim, each


State = Literal["supported here", "contradicted here", "not tested here"]

_MOST_RUNS = 40
_SEARCHED = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_INTERPRETERS = ("python", "perl", "ruby", "node", "java", "bash", "sh", "dash", "php", "lua", "guile", "Rscript")
_SERVERS = {"redis": "redis-server", "memcached": "memcached", "mysql-ro": "mariadbd", "pgbench": "postgres"}
_POSTGRES = "/usr/lib/postgresql"
_OPPOSITE: dict[Verdict, Verdict] = {"better": "worse", "worse": "better"}


class Label(msgspec.Struct, frozen=True):
    """What runs say of a setting: in words, and the folders of the runs that say so, the newest first."""

    state: State = "not tested here"
    said: str = ""
    runs: tuple[str, ...] = ()


class Tried(msgspec.Struct, frozen=True, kw_only=True):
    """One comparison of a run that counts here: `arm` and `baseline` are policies; ratios are arm/baseline."""

    program: str
    run: str
    started: float
    cell: str
    metric: str
    arm: str
    baseline: str
    verdict: Verdict
    ratio: float | None


class Searched(msgspec.Struct, frozen=True, kw_only=True):
    """What the results folder held: comparisons that count; runs of this machine and kernel of other programs; those of
    another machine or kernel; folders that cannot be read; runs left out because there were too many.
    """

    tried: tuple[Tried, ...] = ()
    runs: int = 0
    of_others: int = 0
    elsewhere: int = 0
    unread: int = 0
    left_out: int = 0


def search(results: Path, facts: HostFacts, root: Root, programs: Iterable[str]) -> Searched:
    """The comparisons of `programs` (paths without links) in the runs below `results`."""
    wanted = set(programs)
    counting: list[tuple[Opened, RunFolder, dict[str, str]]] = []
    of_others = elsewhere = unread = 0
    for place in _folders(results):
        folder = RunFolder(place)
        try:
            (place / "run.jsonl").lstat()
            opened = folder.opened()
        except (FileNotFoundError, NotADirectoryError):
            continue  # no run
        except (OSError, UserError):
            unread += 1
            continue
        if not _same_host(opened, facts):
            elsewhere += 1
        elif cells := {cell.id: path for cell in opened.cells if (path := _program(root, opened, cell)) in wanted}:
            counting.append((opened, folder, cells))
        else:
            of_others += 1
    counting.sort(key=lambda each: each[0].t, reverse=True)
    tried: list[Tried] = []
    if counting:
        from hugewise.analysis import analysis  # noqa: PLC0415  (with the tests behind it: most audits need none)
    for _, folder, cells in counting[:_MOST_RUNS]:
        try:
            tried += _tried(analysis.analyze(folder.path), cells)
        except (OSError, UserError):
            unread += 1
    return Searched(
        tried=tuple(tried),
        runs=len(counting),
        of_others=of_others,
        elsewhere=elsewhere,
        unread=unread,
        left_out=max(0, len(counting) - _MOST_RUNS),
    )


def _folders(results: Path) -> Iterator[Path]:
    try:
        studies = sorted(results.iterdir())
    except OSError:
        return
    for study in studies:
        try:
            yield from sorted(study.iterdir())
        except OSError:
            continue


def _same_host(opened: Opened, facts: HostFacts) -> bool:
    kernel = opened.host.get("kernel")
    release = kernel.get("release") if isinstance(kernel, dict) else None
    here = facts.machine is not None and opened.host.get("machine") == facts.machine and release == facts.kernel
    return here and opened.guests is None


def _program(root: Root, opened: Opened, cell: CellRecord) -> str | None:
    """The path without links of what a cell measured, where it is still the file that was measured."""
    named = _named(root, cell.workload, cell.values)
    if not named:
        return None
    if "/" in named:
        candidates = [named if named.startswith("/") else f"{opened.cwd}/{named}"]
    else:
        here = os.environ.get("PATH", "") if root.folder == Path("/") else ""
        candidates = [f"{folder}/{named}" for folder in f"{here}:{_SEARCHED}".split(":") if folder.startswith("/")]
    found = next((real for each in candidates if (real := root.real(each)) is not None), None)
    status = None if found is None else root.status(found)
    if found is None or status is None or status.st_ctime > opened.t:
        return None
    return None if PurePosixPath(found).name.rstrip("0123456789.") in _INTERPRETERS else found


def _named(root: Root, workload: str, values: dict[str, ParameterValue] | object) -> str | None:
    """The program of a workload as its parameters name it."""
    told = values if isinstance(values, dict) else {}
    if workload in ("command", "service"):
        argv = told.get("argv" if workload == "command" else "server")
        return str(argv[0]) if isinstance(argv, list | tuple) and argv else None
    if workload == "redis" and told.get("allocator", "jemalloc") != "jemalloc":
        return None
    server = _SERVERS.get(workload)
    if workload == "tpcc":
        server = "postgres" if told.get("server", "postgres") == "postgres" else "mariadbd"
    folder = told.get({"pgbench": "postgres", "mysql-ro": "mariadb", "tpcc": "folder"}.get(workload, ""), "")
    if server == "postgres" and not folder:
        versions = [name for name in root.names(_POSTGRES) if root.real(f"{_POSTGRES}/{name}/bin/postgres")]
        return f"{_POSTGRES}/{versions[0]}/bin/postgres" if len(versions) == 1 else None
    return f"{folder}/{server}" if folder and server else server


def _tried(results: Results, cells: dict[str, str]) -> Iterator[Tried]:
    for cell in results.cells:
        if cell.cell in cells:
            for one in cell.comparisons:
                yield _of(results, cell, one, cells[cell.cell])


def _of(results: Results, cell: CellResult, one: Comparison, program: str) -> Tried:
    policies = {arm.arm: arm.policy for arm in cell.arms}
    return Tried(
        program=program,
        run=results.folder,
        started=results.started,
        cell=cell.cell,
        metric=one.metric,
        arm=policies.get(one.arm, one.arm),
        baseline=policies.get(one.baseline, one.baseline),
        verdict=one.verdict,
        ratio=one.ratio,
    )


def judge(
    tried: Iterable[Tried], programs: Iterable[str], policies: Sequence[str], others: Sequence[str] | None = None
) -> Label:
    """What the comparisons of `programs` say of `policies` against `others` (None: against any other).

    See the head of this file. Comparisons of different cells or metrics are different questions: each has its newest.
    """
    wanted = set(programs)
    newest: dict[tuple[str, ...], tuple[Tried, str, Verdict]] = {}
    undecided: list[Tried] = []
    for one in sorted(tried, key=lambda each: each.started, reverse=True):
        inverse = one.baseline in policies
        other = one.arm if inverse else one.baseline
        if one.program not in wanted or inverse == (one.arm in policies):
            continue
        if others is not None and other not in others:
            continue
        verdict = _OPPOSITE.get(one.verdict, one.verdict) if inverse else one.verdict
        if verdict in ("undecided", "none"):
            undecided.append(one)
        else:
            newest.setdefault((one.program, one.cell, one.metric, other), (one, other, verdict))
    against = [each for each in newest.values() if each[2] == "worse"]
    chosen = against or list(newest.values())
    if not chosen:
        said = f"no verdict in {len(undecided)} comparison{'s' if len(undecided) > 1 else ''}" if undecided else ""
        return Label("not tested here", said, tuple(dict.fromkeys(one.run for one in undecided)))
    said = "; ".join(dict.fromkeys(_words(*each) for each in chosen[:3]))
    runs = tuple(dict.fromkeys(one.run for one, _, _ in chosen))
    return Label("contradicted here" if against else "supported here", said, runs)


def _words(one: Tried, other: str, verdict: Verdict) -> str:
    own = one.arm if one.baseline == other else one.baseline
    found = {"better": "better than", "worse": "worse than", "equivalent": "equivalent to"}.get(verdict, verdict)
    change = "" if one.ratio is None else f" ({one.metric}, {one.arm}/{one.baseline} {one.ratio:.3f})"
    return f"{own} was {found} {other}{change}"


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
