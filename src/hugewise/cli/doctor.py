"""Check of this machine: what it offers, what is missing, and the command that cures it.

`examine` judges what `facts` gathered, and is pure but for the files that it reads through `Host`; `render` shows it.
Some offers can be seen only by doing: asking the probe, trying privileges, watching for a moment.
"""

from __future__ import annotations

import itertools
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import msgspec
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from hugewise import policies, reading
from hugewise.console import TextConsole
from hugewise.errors import HugewiseError
from hugewise.host import cgroup
from hugewise.host.journal import JOURNAL, at_rest
from hugewise.host.ledger import JournalClosed, JournalOpened, JournalRecord
from hugewise.host.local_host import LocalHost
from hugewise.host.lock import locked
from hugewise.machine import fingerprint, noise, pmu, probe
from hugewise.machine.proc import start_time
from hugewise.model import policy
from hugewise.model.host import Check, Host
from hugewise.model.pages import HUGETLB, THP, PageSizes, page_flags_readable
from hugewise.model.policy import Mechanism, Treatment
from hugewise.model.results import LeftOut
from hugewise.plan.plan import EVERY, Plan
from hugewise.quantity import format_size, readable_size
from hugewise.visible import say_json

_OBSERVE_S = 0.25
_JOURNAL: msgspec.json.Decoder[JournalRecord] = msgspec.json.Decoder(JournalRecord)


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts found by trying rather than by reading files.

    counters        the probe's answer, or the error that it gave instead
    apt             whether packages are installed with apt here
    page_flags      whether physical page numbers and flags can be read, tried on a page of our own
    hierarchies     cgroup hierarchies: `2`, `memory`, `pids`, `freezer`
    cgroup_problem  why no cgroup can be made (tried), or None
    journal         what a run under way or a killed one left, with its cure, or None
    before, after   two snapshots, a quarter of a second apart
    """

    counters: Mapping[str, str | None] | HugewiseError
    page_flags: bool
    hierarchies: tuple[str, ...]
    cgroup_problem: HugewiseError | None
    journal: tuple[str, str] | None
    before: noise.Snapshot
    after: noise.Snapshot
    apt: bool = False


def gather(host: Host) -> Facts:
    """Ask the probe, look for programs, try the privileges, and watch the host for a quarter of a second."""
    before = noise.snapshot(host)
    time.sleep(_OBSERVE_S)
    return Facts(
        before=before,
        after=noise.snapshot(host),
        counters=_counters(),
        apt=shutil.which("apt-get") is not None,
        page_flags=page_flags_readable(),
        hierarchies=tuple(sorted(cgroup.find())),
        cgroup_problem=cgroup.unavailable(),
        journal=leftover(host, JOURNAL),
    )


def _counters() -> Mapping[str, str | None] | HugewiseError:
    try:
        found = probe.ask("counters")
    except HugewiseError as error:
        return error
    if isinstance(found, probe.Available):
        return found.counters
    return HugewiseError(f"the probe answered {type(found).__name__}")


def leftover(host: Host, path: Path) -> tuple[str, str] | None:
    """Return what the journal at `path` says is still changed on this host, and the cure; None when nothing is."""
    try:
        lines = path.read_bytes().split(b"\n")[:-1]
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}", "sudo hugewise restore"
    try:
        records = [reading.decoded(_JOURNAL, line) for line in lines]
    except reading.UnreadableError as error:
        return f"{path} is not a journal of this version ({error})", f"compare your settings, then: sudo rm {path}"
    owner = next((record for record in records if isinstance(record, JournalOpened)), None)
    if owner is None or any(isinstance(record, JournalClosed) for record in records):
        return None
    if start_time(host, owner.pid) == owner.pid_start:
        return f"{locked(host, owner.pid).message} (results: {owner.run})", f"wait for it, or: kill {owner.pid}"
    return f"a run was killed and left settings turned: {owner.run}", "sudo hugewise restore"


_STYLES = {"ok": "green", "limited": "yellow", "missing": "red"}


class PlannedCell(msgspec.Struct, frozen=True):
    """A cell of a study that can run here, with the arms that it can take."""

    cell: str
    baseline: str
    arms: tuple[str, ...]


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that was found; `cells` and `left_out` are of a study, if one was named, at the scale that was.

    `first` is what a run of it does before, on this host, and what that costs.
    `packages` are the Debian packages that the study lacks here, `install` the one line that installs them, or in
    words what to install on a system without apt. None of it is done.
    """

    format: int = 1
    host: str
    mechanism: Mechanism
    checks: tuple[Check, ...]
    cells: tuple[PlannedCell, ...] | None = None
    left_out: tuple[LeftOut, ...] = ()
    first: tuple[str, ...] = ()
    scale: str | None = None
    packages: tuple[str, ...] = ()
    install: str | None = None


def main(study: Path | None, scale: str | None = None, *, as_json: bool) -> int:
    """Run `hugewise doctor`: 0, or 1 when nothing of the study can run. Raises StudyError, UserError."""
    host = at_rest(LocalHost())
    plan, guests = (None, ()) if study is None else _plan(study, scale, host)
    report = examine(host, gather(host), plan, scale, guests)
    if as_json:
        say_json(report)
    else:
        console = TextConsole()
        console.print(render(report), width=min(console.width, 100), crop=False)
    return 1 if report.cells == () or any(check.state == "missing" for check in guests) else 0


def _plan(path: Path, scale: str | None, host: Host) -> tuple[Plan | None, tuple[Check, ...]]:
    from hugewise.session import feasibility  # noqa: PLC0415  (only with a STUDY)
    from hugewise.study.load import load  # noqa: PLC0415

    read = load(path, scale)
    if read.guest is None:
        return feasibility.make_plan(read, host), ()
    return None, feasibility.guest_checks(read)


def examine(
    host: Host,
    facts: Facts,
    plan: Plan | None = None,
    scale: str | None = None,
    guests: Iterable[Check] = (),
) -> Report:
    """Judge what was found on `host`, and what of a `plan` (with its `guests`' needs) can run here."""
    sizes = PageSizes.discover(host)
    mechanism = policy.mechanism(host)
    guests = tuple(guests)
    checks = itertools.chain(
        _pages(host, sizes),
        # Arms in guests have the policies and counters of their own machines.
        () if guests else _policies(host, sizes, mechanism),
        () if guests else _counted(host, facts.counters),
        _privileges(host, facts),
        _quiet(facts),
        guests,
    )
    left_out = () if plan is None else plan.left_out
    lacking = [part.packages for part in left_out] + [each.packages for each in guests]
    packages = tuple(sorted({name for several in lacking for name in several}))
    return Report(
        host=host.name,
        mechanism=mechanism,
        checks=tuple(checks),
        cells=None
        if plan is None
        else tuple(PlannedCell(cell.id, cell.baseline, tuple(arm.name for arm in cell.arms)) for cell in plan.cells),
        left_out=left_out,
        first=() if plan is None or guests else plan.first,
        scale=scale,
        packages=packages,
        install=_install(packages, apt=facts.apt, root=host.privileged()),
    )


def _install(packages: tuple[str, ...], *, apt: bool, root: bool) -> str | None:
    if not packages:
        return None
    if not apt:
        return f"with this system's package manager, what Debian calls {', '.join(packages)}"
    return f"{'' if root else 'sudo '}apt install {' '.join(packages)}"


def _pages(host: Host, sizes: PageSizes) -> Iterator[Check]:
    yield Check("pages", "base page", "ok", format_size(sizes.base))
    if sizes.pmd is None:
        cure = "boot a kernel with CONFIG_TRANSPARENT_HUGEPAGE"
        yield Check("pages", "THP", "missing", "this kernel has no transparent huge pages", cure)
    else:
        set_to = ", ".join(
            f"{name}={_chosen(host, f'{THP}/{name}')}" for name in ("enabled", "defrag", "shmem_enabled")
        )
        yield Check("pages", "THP", "ok", f"{format_size(sizes.pmd)} ({set_to})")
    if sizes.mthp:
        yield Check("pages", "mTHP", "ok", ", ".join(format_size(size) for size in sizes.mthp))
    else:
        cure = "boot Linux 6.8 or newer (Debian 12: sudo apt install -t bookworm-backports linux-image-amd64)"
        yield Check("pages", "mTHP", "missing", "this kernel knows one size of transparent huge pages", cure)
    if not sizes.hugetlb:
        yield Check("pages", "hugetlb", "missing", "this kernel has no hugetlb pages", "boot one with CONFIG_HUGETLBFS")
    for size in sizes.hugetlb:
        folder = f"{HUGETLB}/hugepages-{size >> 10}kB"
        total, free = (_number(host, f"{folder}/{name}_hugepages") for name in ("nr", "free"))
        finding = "cannot be read" if total is None or free is None else f"pool of {total} pages, {free} free"
        yield Check("pages", f"hugetlb {format_size(size)}", "ok" if free is not None else "limited", finding)


def _policies(host: Host, sizes: PageSizes, mechanism: Mechanism) -> Iterator[Check]:
    for name, offered in policies.discover(sizes).items():
        reason = offered.missing(host, sizes, mechanism)
        if reason is None:
            yield Check("policies", name, "ok", _means(offered.treatment(host, sizes, mechanism)))
        else:
            root_helps = mechanism == "process" and offered.missing(_AsRoot(host), sizes, "system") is None
            yield Check("policies", name, "missing", reason, "sudo hugewise run ..." if root_helps else None)


class _AsRoot:
    def __init__(self, host: Host) -> None:
        self.name = host.name
        self.read, self.write, self.writable, self.names = host.read, host.write, host.writable, host.names

    def privileged(self) -> bool:
        return True


def _means(treatment: Treatment) -> str:
    means = []
    if treatment.knobs:
        means.append(f"{len(treatment.knobs)} system-wide settings")
    if treatment.thp_disable != "none":
        means.append(f"prctl(PR_SET_THP_DISABLE, {treatment.thp_disable}) in the workload")
    if treatment.advice != "none":
        means.append(f"madvise({treatment.advice})")
    if treatment.map_hugetlb is not None:
        means.append("mmap(MAP_HUGETLB)")
    if treatment.layout:
        means.append(f"the layout library, {treatment.layout}")
    means += [f"{name}={value}" for name, value in treatment.environment.items()]
    return ", ".join(means) or "nothing to do: the machine as it is set"


def _counted(host: Host, counters: Mapping[str, str | None] | HugewiseError) -> Iterator[Check]:
    family = pmu.of(fingerprint.fingerprint(host)["cpu"])
    if family is not None:
        counted = ", ".join(family.events)
        yield Check("counters", "family", "ok", f"{family.name}; its own events, where the PMU takes them: {counted}")
    else:
        finding = "its processor is in no family whose events are known: perf's generic names alone"
        yield Check("counters", "family", "limited", finding)
    if isinstance(counters, HugewiseError):
        yield Check("counters", "all", "missing", counters.message, counters.hint)
        return
    there = [name for name, reason in counters.items() if reason is None]
    if there:
        yield Check("counters", "available", "ok", ", ".join(there))
    reasons = sorted({reason for reason in counters.values() if reason is not None})
    for reason in reasons:
        names = ", ".join(name for name, why in counters.items() if why == reason)
        if "paranoid" in reason:
            cure = "sudo sysctl kernel.perf_event_paranoid=1"
        elif "not offered" in reason:
            cure = "measure on bare metal, or give the guest a virtual PMU (QEMU: -cpu host,pmu=on)"
        else:
            cure = None
        yield Check("counters", "null", "limited" if there else "missing", f"{names}: {reason}", cure)


def _privileges(host: Host, facts: Facts) -> Iterator[Check]:
    if host.privileged():
        yield Check("privileges", "root", "ok", "system-wide settings can be turned")
    else:
        finding = "an ordinary user: policies by per-process means only"
        yield Check("privileges", "root", "limited", finding, "sudo hugewise ...")
    if facts.page_flags:
        yield Check("privileges", "page proof", "ok", "physical page flags: every page size can be told apart")
    else:
        finding = "smaps only: mTHP sizes cannot be told apart and are reported as unproven"
        cure = "sudo hugewise ..." if not host.privileged() else "give the container CAP_SYS_ADMIN"
        yield Check("privileges", "page proof", "limited", finding, cure)
    memory = "v1" if "memory" in facts.hierarchies else "v2" if "2" in facts.hierarchies else None
    if facts.cgroup_problem is not None:
        yield Check("privileges", "cgroup", "limited", facts.cgroup_problem.message, facts.cgroup_problem.hint)
    else:
        yield Check("privileges", "cgroup", "ok", f"a group for each attempt; memory cgroup {memory or 'not mounted'}")


def _quiet(facts: Facts) -> Iterator[Check]:
    if facts.journal is None:
        yield Check("host", "settings", "ok", "no run is under way, and none left settings turned")
    else:
        yield Check("host", "settings", "limited", *facts.journal)
    now, change = facts.after, noise.difference(facts.before, facts.after)
    capacity = change.elapsed_s * change.after.cpus
    if now.load is None:
        yield Check("host", "load", "limited", "unknown: /proc/loadavg cannot be read")
    else:
        busy = now.load > now.cpus
        finding = f"load average {now.load:.2f} on {now.cpus} CPUs"
        yield Check("host", "load", "limited" if busy else "ok", finding, "end other work (see: top)" if busy else None)
    stolen = change.steal_s / capacity if capacity > 0 else 0.0
    finding = f"{stolen:.1%} of CPU time given to other guests now"
    cure = "use a dedicated host, or fewer guests" if stolen > 0.05 else None
    yield Check("host", "steal", "limited" if cure else "ok", finding, cure)
    users = [f"{readable_size(size)} {_pages_named(kind)}" for kind, size in now.huge_in_use.items() if size]
    finding = ", ".join(users) or "nobody uses huge pages"
    yield Check("host", "huge pages in use", "ok", finding)
    yield Check("host", "clock", "ok" if now.clock_source else "limited", now.clock_source or "unknown")


def render(report: Report) -> RenderableType:
    """Return the report for a terminal of 80 columns or more."""
    parts: list[RenderableType] = [Text(f"{report.host} ({'root' if report.mechanism == 'system' else 'user'})")]
    for section, checks in itertools.groupby(report.checks, key=lambda check: check.section):
        table = _table(7, 17)
        for check in checks:
            said = Text(check.finding)
            if check.cure is not None:
                said.append(f"\ncure: {check.cure}", style="bold")
            table.add_row(Text(check.state, style=_STYLES[check.state]), Text(check.name), said)
        parts += [Text(f"\n{section}", style="bold"), Padding(table, (0, 0, 0, 2))]
    if report.cells is not None:
        table = _table(8)
        for cell in report.cells:
            others = ", ".join(arm for arm in cell.arms if arm != cell.baseline)
            table.add_row(Text("runs"), Text(f"{cell.cell}: {others} against {cell.baseline}"))
        for part in report.left_out:
            table.add_row(Text("left out"), Text(_left_out(part)))
        for line in report.first:
            table.add_row(Text("first"), Text(line))
        parts += [Text(f"\nthis study here{_at(report.scale)}", style="bold"), Padding(table, (0, 0, 0, 2))]
    if report.install is not None:
        # Never broken: it is there to be copied.
        parts += [Text("\nto install what it lacks", style="bold")]
        parts += [Text(f"  {report.install}", overflow="ignore", no_wrap=True)]
    counts = {state: sum(check.state == state for check in report.checks) for state in _STYLES}
    parts.append(Text("\n" + ", ".join(f"{count} {state}" for state, count in counts.items())))
    return Group(*parts)


def _table(*widths: int) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 1))
    for width in widths:
        table.add_column(width=width, overflow="fold")
    table.add_column(overflow="fold", ratio=1)
    return table


def _at(scale: str | None) -> str:
    return "" if scale is None else f", at the scale {scale}"


def _left_out(each: LeftOut) -> str:
    what = ", ".join(part for part in (each.cell, each.policy) if part != EVERY) or "everything"
    return f"{what}: {each.reason}"


def _pages_named(kind: str) -> str:
    name, _, size = kind.partition(":")
    return f"{name} in {format_size(int(size))}" if size else name


def _chosen(host: Host, path: str) -> str:
    try:
        text = host.read(path)
    except OSError:
        return "unknown"
    return text.split("[", 1)[1].split("]", 1)[0] if "[" in text else text


def _number(host: Host, path: str) -> int | None:
    try:
        return int(host.read(path))
    except (OSError, ValueError):
        return None
