"""Life of a fleet: its hosts are examined, it is begun, conducted, and resumed by any later process.

Before a run is begun anywhere, every host is asked who it is (`greet_hosts`), and all `problems` are told at once.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import msgspec

from hugewise import reading, workloads
from hugewise.errors import HugewiseError, StudyError, UserError
from hugewise.files import storing, write_whole
from hugewise.fleet import inventory
from hugewise.fleet.coordinator import Coordinator, rules_of
from hugewise.fleet.engine import Engine, SshEngine, ask, call_all
from hugewise.fleet.folder import RESUME, FleetFolder
from hugewise.fleet.inventory import Inventory, Stratum
from hugewise.fleet.protocol import (
    FleetQuestion,
    Greeting,
    HelloOrder,
    Installed,
    difference,
    installed,
    study_of_question,
)
from hugewise.fleet.records import FleetOpened, FleetState, HostGreeted
from hugewise.plan.cells import resolve
from hugewise.quantity import format_duration
from hugewise.study import load
from hugewise.study.study import Study
from hugewise.visible import printable


def engine_of(inventory: Inventory, fleet: str, tell: Callable[[str], None]) -> Engine:
    """Not connected yet; `fleet` is the identity of the fleet, and `tell` hears what a person should know."""
    if inventory.fleet.engine == "ssh":
        return SshEngine(inventory)
    if inventory.fleet.engine == "dask":
        from hugewise.fleet.dask.engine import (  # noqa: PLC0415  (only where it is asked for)
            DaskEngine,
            ssh_worker_starter,
        )

        return DaskEngine(inventory, fleet, ssh_worker_starter(inventory), tell)
    from hugewise.fleet.slurm import SlurmEngine  # noqa: PLC0415

    return SlurmEngine(inventory)


HELLO_S = 120.0
_MOST_TOLD = 20
_MOST_LEFT_OUT, _LONGEST, _LONGEST_LINE = 100, 300, 2000


class GatheredHost(msgspec.Struct, frozen=True):
    """A host that has answered, in its stratum."""

    host: str
    greeting: Greeting
    stratum: Stratum

    def record(self, t: float) -> HostGreeted:
        greeting = self.greeting
        return HostGreeted(
            t=t,
            host=self.host,
            stratum=self.stratum,
            machine=_text(greeting.fingerprint.get("machine")),
            name=_text(greeting.fingerprint.get("name")) or self.host,
            root=greeting.root,
            installed=greeting.installed,
            left_out=tuple(printable(line)[:_LONGEST] for line in greeting.examined.left_out[:_MOST_LEFT_OUT]),
        )


class HostProblem(msgspec.Struct, frozen=True):
    """Reason why a host cannot take part, and the cure."""

    host: str
    why: str
    cure: str | None = None

    @property
    def line(self) -> str:
        cure = f" (cure: {self.cure})" if self.cure else ""
        return printable(f"{self.host}: {self.why}{cure}")[:_LONGEST_LINE]


def _text(value: object) -> str | None:
    return printable(value)[:_LONGEST] if isinstance(value, str) else None


def greet_hosts(engine: Engine, hosts: Mapping[str, FleetQuestion | None]) -> dict[str, GatheredHost | HostProblem]:
    """Return each host's answer to Hello and its question, or the reason for none. No single host can raise."""

    def hello(host: str) -> Greeting:
        answer = ask(engine, host, HelloOrder(question=hosts[host]), HELLO_S)
        if not isinstance(answer, Greeting):
            raise HugewiseError(f"{host} answered something else than who it is")
        return answer

    hosts_or_problems: dict[str, GatheredHost | HostProblem] = {}
    for host, came in call_all(hello, hosts).items():
        if isinstance(came, Greeting):
            stratum = inventory.stratum(came.fingerprint, came.thp, came.memory_age)
            hosts_or_problems[host] = GatheredHost(host, came, stratum)
        elif isinstance(came, HugewiseError):
            hosts_or_problems[host] = HostProblem(host, came.message, came.hint)
        else:
            raise came
    return {host: hosts_or_problems[host] for host in hosts}


def problems(
    gathered: Mapping[str, GatheredHost | HostProblem], inventory: Inventory, here: Installed, *, question: bool
) -> list[HostProblem]:
    """Return why hosts cannot take part; with a `question`, also where cells differ or nothing can run."""
    refusals = [entry for entry in gathered.values() if isinstance(entry, HostProblem)]
    there = [entry for entry in gathered.values() if isinstance(entry, GatheredHost)]
    refusals += [problem for entry in there for problem in _host_problems(entry, inventory, here, question=question)]
    refusals += _different_probes(there)
    refusals += _same_machines(there)
    if question:
        refusals += _different_cells(there)
    return refusals


def _host_problems(
    gathered: GatheredHost, inventory: Inventory, here: Installed, *, question: bool
) -> list[HostProblem]:
    host, greeting, refusals = gathered.host, gathered.greeting, []
    if (why := difference(here, greeting.installed)) is not None:
        refusals.append(HostProblem(host, why, "install this one there: hugewise fleet provision"))
    if inventory.entry(host).root and not greeting.root:
        cure = (
            "let sudo call it without a password, which makes that account root there, or log in as root, or write"
            " root = false"
        )
        refusals.append(HostProblem(host, f"it is to run as root, and runs as {greeting.account}", cure))
    examined = greeting.examined
    if examined.error is not None:
        refusals.append(HostProblem(host, examined.error, "see there: hugewise doctor"))
    elif question and not examined.cells:
        reasons = "; ".join(examined.left_out[:3]) or "hugewise doctor there does not say why"
        refusals.append(HostProblem(host, f"nothing of the study can run there: {reasons}", examined.install))
    return refusals


def _different_probes(there: Sequence[GatheredHost]) -> list[HostProblem]:
    # times that the probe takes are compared between hosts of one architecture
    kinds: defaultdict[str, list[GatheredHost]] = defaultdict(list)
    for host in there:
        if host.greeting.installed.probe is not None:
            kinds[host.greeting.installed.machine].append(host)
    refusals = []
    for machine, several in kinds.items():
        usual = Counter(host.greeting.installed.probe for host in several).most_common(1)[0][0]
        for host in several:
            if (probe := host.greeting.installed.probe) != usual:
                hashes = f"{str(probe)[:12]}, {str(usual)[:12]}"
                why = f"its probe is another one than on the other hosts of {machine} ({hashes})"
                refusals.append(HostProblem(host.host, why, "install one wheel on all: hugewise fleet provision"))
    return refusals


def _same_machines(there: Sequence[GatheredHost]) -> list[HostProblem]:
    refusals: list[HostProblem] = []
    known: dict[str, str] = {}
    for host in there:
        machine = _text(host.greeting.fingerprint.get("machine"))
        if machine is not None and known.setdefault(machine, host.host) != host.host:
            why = f"it is the same machine as {known[machine]}: one machine is one host of the sample"
            refusals.append(HostProblem(host.host, why, "take it out of the inventory"))
    return refusals


def _different_cells(there: Sequence[GatheredHost]) -> list[HostProblem]:
    known = [host for host in there if host.greeting.examined.cells]
    if not known:
        return []
    usual = Counter((host.greeting.examined.mechanism, host.greeting.examined.cells) for host in known)
    (mechanism, cells), _ = max(usual.items(), key=lambda item: (item[1], len(item[0][1] or ())))
    refusals = []
    for host in known:
        examined = host.greeting.examined
        if examined.mechanism != mechanism:
            ways = {"system": "as root", "process": "as an ordinary user"}
            own, others = (
                ways.get(examined.mechanism or "", "in another way"),
                ways.get(mechanism or "", "in another way"),
            )
            why = f"policies work {own} there, and {others} on other hosts: they do not measure the same"
            refusals.append(HostProblem(host.host, why, "write root = true for all hosts, or for none"))
        elif examined.cells != cells:
            without = [cell for cell in cells or () if cell not in (examined.cells or ())]
            reasons = "; ".join(examined.left_out[:3])
            why = (
                f"other cells can run there than on other hosts; not there: {'; '.join(without) or 'none'} ({reasons})"
            )
            cure = examined.install or "leave the host out, or choose what all have with --only and --arms"
            refusals.append(HostProblem(host.host, why, cure))
    return refusals


def refuse_problems(refusals: Sequence[HostProblem], hosts: int) -> None:
    """Raise UserError with all of them, where there are any."""
    if not refusals:
        return
    lines = [problem.line for problem in refusals[:_MOST_TOLD]]
    more = [f"and {len(refusals) - _MOST_TOLD} more"] if len(refusals) > _MOST_TOLD else []
    named = len({problem.host for problem in refusals})
    message = "\n  ".join([f"{named} of {hosts} hosts cannot take part; nothing was begun", *lines, *more])
    raise UserError(
        message, hint="cure that, or take them out of the inventory; see: hugewise fleet doctor --hosts FILE"
    )


Say = Callable[[str], None]
Connect = Callable[[Inventory, str, Say], Engine]
"""Makes the engine of an inventory, for the fleet of that identity; it tells what a person should know."""

_MOST_STUDY = 1 << 20


class AskedStudy(NamedTuple):
    """A question as it was asked: what hosts are told, and the study that it is."""

    question: FleetQuestion
    study: Study


def question_of(path: Path, *, scale: str | None, only: str | None, arms: str | None, time_: str | None) -> AskedStudy:
    """Return the question from a study file or packaged study. Raises StudyError, and UserError for an unknown cell."""
    named = path if path.exists() else load.shipped_study(path) or path
    try:
        text = reading.text(reading.content(named, _MOST_STUDY))
    except reading.AbsentError:
        raise StudyError("no such file", file=str(path), hint="see: hugewise list studies") from None
    except reading.UnreadableError as error:
        raise StudyError(error.reason, file=str(path), hint="save it as UTF-8 text that you can read") from None
    question = FleetQuestion(text=text, scale=scale, only=only, arms=arms, time=time_)
    study = study_of_question(question, str(path))
    known = workloads.discover()
    # Hosts may have workloads that are not installed here; of these they say themselves which cells there are.
    if study.cells and all(use.name in known for use in study.workload):
        resolve(study, known)
    return AskedStudy(question, study)


def examine_hosts(
    engine: Engine, hosts: Inventory, wanted: AskedStudy | None
) -> tuple[list[GatheredHost], list[HostProblem]]:
    """Return the hosts that have answered, and all that keeps hosts from taking part."""
    question = None if wanted is None else wanted.question
    asked = {
        host.name: None if question is None else msgspec.structs.replace(question, directory=host.directory)
        for host in hosts.host
    }
    gathered = greet_hosts(engine, asked)
    refusals = problems(gathered, hosts, installed(), question=question is not None)
    there = [entry for entry in gathered.values() if isinstance(entry, GatheredHost)]
    return there, refusals


def begin(
    wanted: AskedStudy,
    hosts: Inventory,
    hosts_toml: str,
    results: Path,
    say: Say,
    *,
    connect: Connect = engine_of,
    dry_run: bool = False,
    begun: Callable[[Path], None] = lambda _: None,
) -> tuple[FleetFolder | None, FleetState | None]:
    """Begin a fleet and conduct it, unless `dry_run`; `begun` is told its folder. Raises UserError, HugewiseError."""
    folder = FleetFolder.new(results, wanted.study.name)
    with connect(hosts, folder.fleet, say) as engine:
        there, refusals = examine_hosts(engine, hosts, wanted)
        refuse_problems(refusals, len(hosts.host))
        for line in plan_lines(there, wanted.study, hosts):
            say(printable(line))
        if dry_run:
            return None, None
        folder.make(study_toml=wanted.question.text, hosts_toml=hosts_toml)
        with closing(folder):
            folder.hold()
            _write_down(folder, wanted, hosts, there)
            say(f"fleet {folder.fleet} in {folder.path}")
            begun(folder.path)
            return folder, Coordinator(folder, engine, hosts, rules_of(hosts), say).conduct()


def _write_down(folder: FleetFolder, wanted: AskedStudy, hosts: Inventory, there: Sequence[GatheredHost]) -> None:
    folder.append(
        FleetOpened(
            t=time.time(),
            fleet=folder.fleet,
            study=wanted.study.name,
            digest=wanted.study.digest,
            question=wanted.question,
            hosts=tuple(host.name for host in hosts.host),
            installed=installed(),
        )
    )
    for gathered in there:
        folder.append(gathered.record(time.time()))


def go_on(
    path: Path,
    say: Say,
    *,
    hosts: Path | None = None,
    ending: bool = False,
    begun: Callable[[Path], None] = lambda _: None,
) -> FleetState:
    """Resume the fleet in `path`; `ending`: only end what runs; `hosts`: its inventory anew. Raises HugewiseError."""
    folder = FleetFolder(path)
    with closing(folder):
        folder.hold()
        begun(path)
        state = FleetState.of(folder.records())
        if (here := installed()).package != state.opened.installed.package:
            before = state.opened.installed
            raise UserError(
                f"{path} was begun by hugewise {before.version} ({before.package[:12]}), and this is"
                f" {here.version} ({here.package[:12]})",
                hint="resume it with that one: its hosts have it as well",
            )
        kept = inventory.load(hosts or path / "hosts.toml")
        if absent := [name for name in state.opened.hosts if name not in {host.name for host in kept.host}]:
            raise UserError(
                f"{kept.file} has no host {absent[0]}, which {path} was begun with",
                hint="give each host the name that it had when it was begun",
            )
        kept = msgspec.structs.replace(
            kept, host=tuple(entry for entry in kept.host if entry.name in state.opened.hosts)
        )
        if hosts is not None:
            with storing(str(path / "hosts.toml"), RESUME):
                write_whole(path / "hosts.toml", reading.content(hosts))
        if any(host.greeted is None for host in state.hosts.values()):
            raise UserError(f"{path}: the fleet was broken off before any host was told", hint="hugewise fleet run")
        with engine_of(kept, state.opened.fleet, say) as engine:
            return Coordinator(folder, engine, kept, rules_of(kept, ending=ending), say).conduct()


def plan_lines(there: Sequence[GatheredHost], study: Study, hosts: Inventory) -> Iterator[str]:
    """Yield lines with the cost of a fleet: strata with their hosts and differences, hosts and hours."""
    names = inventory.strata_names(gathered.stratum for gathered in there)
    by_stratum: Mapping[inventory.Stratum, list[str]] = {
        stratum: [gathered.host for gathered in there if gathered.stratum == stratum] for stratum in names
    }
    first = next(iter(names), None)
    yield f"{len(there)} hosts in {len(names)} {'stratum' if len(names) == 1 else 'strata'}"
    for stratum, name in names.items():
        yield f"  {name}: {', '.join(by_stratum[stratum])}"
        if first is not None and stratum != first:
            yield from (f"    {line}" for line in inventory.differences(first, stratum))
    budget, count = study.budget.time, len(there)
    check = f", after a check of {hosts.fleet.check} blocks on each host" if hosts.fleet.check else ""
    if budget is None:
        yield f"{count} hosts measure, each until the study is decided: it has no time budget{check}"
    else:
        hours = count * budget / 3600
        yield f"{count} hosts x {format_duration(budget)} at most = {hours:.2g} host-hours{check}"
    left_out = sorted({line for gathered in there for line in gathered.greeting.examined.left_out})
    yield from (printable(f"left out on all hosts: {line}") for line in left_out)


_FREE = 1 << 30


def print_examination(
    hosts: Inventory, wanted: AskedStudy | None, say: Callable[[str], None], *, connect: Connect = engine_of
) -> bool:
    """Ask all hosts, and say what came of it; whether each of them can take part. Raises UserError."""
    with connect(hosts, "doctor", say) as engine:
        there, problems = examine_hosts(engine, hosts, wanted)

    def tell(line: str) -> None:
        say(printable(line))

    names = inventory.strata_names(host.stratum for host in there)
    for host in there:
        greeting = host.greeting
        who = "root" if greeting.root else greeting.account
        tell(f"{host.host}: hugewise {greeting.installed.version} as {who}; {names[host.stratum]}")
        for cell in greeting.examined.cells or ():
            tell(f"  runs      {cell}")
        for line in greeting.examined.left_out:
            tell(f"  left out  {line}")
        if wanted is None:
            for check in greeting.examined.checks:
                if check.state != "ok":
                    cure = f" (cure: {check.cure})" if check.cure else ""
                    tell(f"  {check.state:8}  {check.section}, {check.name}: {check.finding}{cure}")
        if greeting.spool_free is not None and greeting.spool_free < _FREE:
            tell(f"  limited   room for runs: {greeting.spool_free >> 20} MiB are free in its spool")
    for problem in problems:
        tell(problem.line)
    tell(f"{len(hosts.host) - len({problem.host for problem in problems})} of {len(hosts.host)} hosts can take part")
    return not problems
