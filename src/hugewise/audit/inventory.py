"""Settings in force: sections of name, value, place, and the label that runs here give each. Pure.

Runs compare policies for a program. So labels belong to the pages that a program gets here, and to the host's own mode
and pools by the programs that they affect; a knob that no policy varies is *not tested here*.

A run counts where its machine and kernel are this host's, and its program is the very file that runs here: the same
path, and not changed since the run began (its ctime, which an upgrade sets). Interpreters and shells do not count: the
script decides. Runs in guests count for guests alone.

A setting is *contradicted here* where the newest run that decided between it and another policy found the other one
better; *supported here* where runs decided and none did (better, or equivalent within the margin); else *not tested
here*. Each pair of policies is judged by its newest decided run: an older run is never chosen for its result.

A claim of a program's maker says that one set of policies (`hugewise list policies`) serves it better than another;
claims are the data of `published.claims`. Claims about the programs that the audit finds are shown;
docs/reference/audit.md lists all.
"""

from __future__ import annotations

import fnmatch
import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Literal

import msgspec

from hugewise.audit.boot import misread, pool_words
from hugewise.audit.demand import POSTGRESQL_SIZES
from hugewise.audit.facts import NOT_KNOWN, Carrier, HostFacts, Placed, RunningProcess, tunables
from hugewise.audit.root import Root
from hugewise.audit.running import server_kind
from hugewise.errors import UserError
from hugewise.model.pages import HUGETLB, THP
from hugewise.model.results import DECIDED, VERDICTS, CellResult, Comparison, Results, Verdict
from hugewise.model.workload import ParameterValue
from hugewise.published import CommonClaim, claims
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


HUGETLB_POOLS = ("hugetlb-2m", "hugetlb-1g", "hugetlb-32m", "hugetlb-512m", "hugetlb-16g")

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


State = Literal["supported here", "contradicted here", "not tested here"]

_MOST_RUNS = 40
_SEARCHED = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_INTERPRETERS = ("python", "perl", "ruby", "node", "java", "bash", "sh", "dash", "php", "lua", "guile", "Rscript")
_SERVERS = {"redis": "redis-server", "memcached": "memcached", "mysql-ro": "mariadbd", "pgbench": "postgres"}
_POSTGRES = "/usr/lib/postgresql"
_OPPOSITE: dict[Verdict, Verdict] = {"better": "worse", "worse": "better"}


class Label(msgspec.Struct, frozen=True):
    """Evidence of runs about a setting: in words, and the folders of the runs, the newest first."""

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
    """Contents of the results folder: comparisons that count; runs of this machine and kernel of other programs; those
    of another machine or kernel; folders that cannot be read; runs left out because there were too many.
    """

    tried: tuple[Tried, ...] = ()
    runs: int = 0
    of_others: int = 0
    elsewhere: int = 0
    unread: int = 0
    left_out: int = 0


def search(results: Path, facts: HostFacts, root: Root, programs: Iterable[str]) -> Searched:
    """Return the comparisons of `programs` (paths without links) in the runs below `results`."""
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
    """Return the resolved path of a cell's program, where it is still the file that was measured."""
    named = _named(root, cell.workload, cell.values)
    if not named:
        return None
    if "/" in named:
        candidates = [named if named.startswith("/") else f"{opened.cwd}/{named}"]
    else:
        here = os.environ.get("PATH", "") if root.folder == Path("/") else ""
        candidates = [f"{folder}/{named}" for folder in f"{here}:{_SEARCHED}".split(":") if folder.startswith("/")]
    path = next((real for candidate in candidates if (real := root.real(candidate)) is not None), None)
    status = None if path is None else root.status(path)
    if path is None or status is None or status.st_ctime > opened.t:
        return None
    return None if PurePosixPath(path).name.rstrip("0123456789.") in _INTERPRETERS else path


def _named(root: Root, workload: str, values: dict[str, ParameterValue] | object) -> str | None:
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
            for comparison in cell.comparisons:
                yield _of(results, cell, comparison, cells[cell.cell])


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
    """Return what the comparisons of `programs` show of `policies` against `others` (None: against any other).

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
        if verdict not in DECIDED:
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
    relation = VERDICTS[verdict].relation.removeprefix("is ")
    change = "" if one.ratio is None else f" ({one.metric}, {one.arm}/{one.baseline} {one.ratio:.3f})"
    return f"{own} was {relation} {other}{change}"


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
    """Return the policies (`hugewise list policies`) that a process runs under here, and the same in words."""
    if process.thp_enabled is False:
        return ("base",), "base pages: THP is disabled for it"
    huge = tuple(f"hugetlb-{format_size(pool.size)}" for pool in facts.pools if pool.total)
    if "thp" in facts.hidden:
        return (), f"{NOT_KNOWN}: the host's settings are not in this folder"
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
        none = "not there: this kernel has none, or hides them"
        value = f"{NOT_KNOWN}: it is not in this folder" if "thp" in facts.hidden else none
        yield SettingShown(section=section, name="enabled", value=value)
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
    """Return the label of the host's own THP mode, from the programs that it affects."""
    labels = []
    for program in {each.program for each in facts.processes if each.thp_enabled is not False}:
        process = next(each for each in facts.processes if each.program == program)
        policies, _ = program_policies(facts, process)
        if not any(name.startswith("hugetlb") for name in policies):
            labels.append(judge(searched.tried, [program], policies))
    return _together(labels)


def _together(labels: Iterable[Label]) -> Label:
    """Return one label of several programs: contradicted where one of them is."""
    sides = list(labels)
    for state in ("contradicted here", "supported here"):
        if of_state := [label for label in sides if label.state == state]:
            runs = tuple(dict.fromkeys(run for label in of_state for run in label.runs))
            return Label(of_state[0].state, "; ".join(label.said for label in of_state[:3]), runs)
    return Label()


def _pools(facts: HostFacts, searched: Searched) -> Iterator[SettingShown]:
    section = "hugetlb pools"
    if not facts.pools:
        value = f"{NOT_KNOWN}: they are not in this folder" if "pools" in facts.hidden else "none"
        yield SettingShown(section=section, name="pools", value=value)
    users = [process.program for process in facts.processes if process.shared_huge]
    for pool in facts.pools:
        value = (
            f"{pool.total} pages: {pool.free} free, {pool.reserved} reserved, {pool.surplus} surplus, "
            f"{pool.stranded} stranded"
        )
        value += f" ({readable_size(pool.stranded * pool.size)})" if pool.stranded else ""
        value += f"; {pool.own} of a run of hugewise" if pool.own else ""
        value += f"; may grow by {pool.overcommit}" if pool.overcommit else ""
        where = ", ".join(f"{wish.by}: {wish.value}" for wish in pool_wishes(facts, pool.size))
        policy = f"hugetlb-{format_size(pool.size)}"
        label = judge(searched.tried, users, [policy]) if pool.total and policy in HUGETLB_POOLS else Label()
        yield SettingShown(section=section, name=format_size(pool.size), value=value, where=where, label=label)


def _groups(facts: HostFacts) -> Iterator[SettingShown]:
    for group in facts.hugetlb_groups:
        limit, reserved = ("none" if at is None else readable_size(at) for at in (group.limit, group.reserved_limit))
        yield SettingShown(
            section="cgroup limits on hugetlb pages",
            name=f"{group.group}, {format_size(group.size)}",
            value=f"limit {limit}, of reservations {reserved}",
            where=f"cgroup version {group.version}",
        )


def _files(facts: HostFacts) -> Iterator[SettingShown]:
    if "cmdline" not in facts.hidden:
        for word in facts.boot:
            name, _, value = word.partition("=")
            yield SettingShown(section="kernel command line", name=name, value=value)
    for line in facts.boot_lines:
        for word in line.words:
            name, _, value = word.partition("=")
            section = f"tuned ({' '.join(facts.profile)})" if line.by == "tuned" else "files of the boot loader"
            name = f"boot:{name}" if line.by == "tuned" else name
            yield SettingShown(section=section, name=name, value=value, where=line.where)
    for section, held in (
        ("sysctl.d", facts.sysctl),
        ("tmpfiles.d", facts.tmpfiles),
        (f"tuned ({' '.join(facts.profile)})", facts.tuned),
    ):
        for key, one in held.items():
            yield SettingShown(section=section, name=key, value=one.value, where=one.where)
    if facts.profile and not facts.tuned and not any(line.by == "tuned" for line in facts.boot_lines):
        yield SettingShown(section="tuned", name="profile", value=f"{' '.join(facts.profile)}: nothing about pages")
    written = {one.key: one for one in facts.written}
    for path in facts.scripts:
        said = written.get(path, Placed(path, "written", ""))
        yield SettingShown(section="scripts at boot", name=path, value=said.value, where=said.where)


def _label(facts: HostFacts, searched: Searched, process: RunningProcess | None) -> Label:
    """Return the label of the pages that a process gets, and so of the settings that give them; a service that does not
    run has none.
    """
    return Label() if process is None else judge(searched.tried, [process.program], program_policies(facts, process)[0])


def _units(facts: HostFacts, searched: Searched) -> Iterator[SettingShown]:
    for default in facts.defaults:
        name = f"every service: {default.key}"
        yield SettingShown(section="services", name=name, value=default.value, where=default.where)
    running = {process.unit: process for process in reversed(facts.processes) if process.unit is not None}
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
        written = {one.key: one for one in unit.writes}
        for path in unit.turned:
            said = written.get(path, Placed(path, "", unit.path))
            value, where = f"{path} = {said.value}" if said.value else path, said.where
            yield SettingShown(
                section="services", name=f"{unit.name}: writes", value=value, where=where, unit=unit.name
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
    """Yield the pages that programs get: one line for all processes of a program with the same pages."""
    lines: dict[tuple[str, str, str | None, tuple[str, ...]], list[RunningProcess]] = {}
    for each in facts.processes:
        policies, words = program_policies(facts, each)
        lines.setdefault((each.program, words, each.unit, policies), []).append(each)
    for (program, words, unit, policies), several in lines.items():
        label = judge(searched.tried, [program], policies)
        pids = ", ".join(str(each.pid) for each in several[:4]) + (", ..." if len(several) > 4 else "")
        said = sorted({f"{one.key}={one.value}" for each in several for one in each.environment})
        libraries = sorted({one for each in several for one in each.libraries or ()} - {"glibc", "jvm"})
        value = "; ".join([words, *said, *(f"with {library}" for library in libraries)])
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
    running = {process.pid: process for process in facts.processes}
    for server in facts.servers:
        label = _label(facts, searched, running.get(server.pid or -1))
        for setting in (one for key, one in server.settings.items() if key not in POSTGRESQL_SIZES):
            name = f"{server.what}: {setting.key}"
            yield SettingShown(
                section="settings of servers",
                name=name,
                value=setting.value,
                where=setting.where,
                unit=server.unit,
                label=label if setting.key in _OF_PAGES else Label(),
            )
