"""A fleet from beginning to end: gathered, begun, conducted; taken up again by whoever comes next.

begin(...)   a new fleet of a study on the hosts of an inventory
go_on(...)   the fleet in a folder, from its log
examine(...) what every host says of itself, and what of a study can run there; begins nothing

How many hosts of a class the question of a study takes, said before hours are spent.

Nothing is measured yet, so all is said in parts of the effect. A host that ends by its own verdict knows its effect to
about a third of it (`ERROR`: simulated, 0.24 to 0.5 from large effects to small ones; `stats.pooling`); by how much
hosts of a class differ is a guess (`stats.heterogeneity.TAUS`) until the first fleet has shown it.

`hugewise fleet doctor`: what every host says of itself, in lines.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import msgspec

from hugewise import reading, workloads
from hugewise.errors import StudyError, UserError
from hugewise.files import storing, write_whole
from hugewise.fleet import gathering, inventory
from hugewise.fleet.coordinator import Coordinator, rules_of
from hugewise.fleet.decision import FleetRules
from hugewise.fleet.engine import Engine
from hugewise.fleet.engines import engine_of
from hugewise.fleet.folder import RESUME, FleetFolder
from hugewise.fleet.gathering import GatheredHost, HostProblem
from hugewise.fleet.installation import installed
from hugewise.fleet.inventory import HostEntry, Inventory
from hugewise.fleet.pooled import Summarising
from hugewise.fleet.protocol import FleetQuestion, study_of_question
from hugewise.fleet.records import FleetOpened, FleetState, QueueStatus
from hugewise.plan.cells import resolve
from hugewise.quantity import format_duration
from hugewise.stats import heterogeneity
from hugewise.stats.heterogeneity import FEWEST
from hugewise.study import load
from hugewise.study.study import Study
from hugewise.visible import printable

ERROR = 0.35
"""Of a host that ended by its own verdict, as a part of the effect."""


def needed(study: Study, classes: int, comparisons: int) -> Iterator[str]:
    """Lines on what each of so many classes takes, with so many comparisons of the study on each."""
    level = (1 - study.confidence) / max(1, classes * comparisons)
    low, high = (heterogeneity.hosts_for_verdict(1.0, tau, ERROR, level) for tau in heterogeneity.TAUS)
    spread = heterogeneity.hosts_for_spread(heterogeneity.TAUS[1], ERROR)
    if low is None or high is None or spread is None:
        return
    shares = " to ".join(f"{tau:.0%}" for tau in heterogeneity.TAUS)
    hours = ""
    if (budget := study.budget.time) is not None:
        hours = f" ({low * budget / 3600:.2g} to {high * budget / 3600:.2g} host-hours at most)"
    yield (
        f"a verdict on a class at {100 * study.confidence:.6g}% takes {low} to {high} of its hosts{hours}, "
        f"if they differ by {shares} of the effect"
    )
    yield (
        f"the next host of a class is spoken of from {FEWEST} hosts on; how far they differ is known to within twice "
        f"from {spread} on"
    )


Say = Callable[[str], None]
Connect = Callable[[Inventory, str, Say], Engine]
"""Makes the engine of an inventory, for the fleet of that identity; it tells what a person should know."""

_MOST_STUDY = 1 << 20


class Asked(NamedTuple):
    """A question as it was asked: what hosts are told, and the study that it is."""

    question: FleetQuestion
    study: Study


def question_of(path: Path, *, scale: str | None, only: str | None, arms: str | None, time_: str | None) -> Asked:
    """From a study file, or the name of a study that comes with hugewise. Raises StudyError, UserError, also where a
    cell is chosen that the study does not have: hosts are not asked for it.
    """
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
    return Asked(question, study)


def examine_hosts(
    engine: Engine, hosts: Inventory, wanted: Asked | None, say: Say
) -> tuple[dict[str, GatheredHost | HostProblem], list[HostProblem]]:
    """What every host says, and all that keeps hosts from taking part."""
    question = None if wanted is None else wanted.question
    found = gathering.greeted(engine, {host.name: _on(host, question) for host in hosts.host})
    told = gathering.problems(found, hosts, installed(), question=question is not None)
    there = [each for each in found.values() if isinstance(each, GatheredHost)]
    for line in gathering.remarks(there, time.time()):
        say(line)
    return found, told


def _on(host: HostEntry, question: FleetQuestion | None) -> FleetQuestion | None:
    """The question as that host is asked it."""
    return None if question is None else msgspec.structs.replace(question, directory=host.directory)


def begin(
    wanted: Asked,
    hosts: Inventory,
    hosts_toml: str,
    results: Path,
    say: Say,
    *,
    connect: Connect = engine_of,
    dry_run: bool = False,
    begun: Callable[[Path], None] = lambda _: None,
    remarks: Callable[[Sequence[GatheredHost]], Iterable[str]] = lambda _: (),
) -> tuple[FleetFolder | None, FleetState | None]:
    """Begin a fleet and conduct it; nothing of it where `dry_run`. `begun` is told its folder as soon as it is one;
    `remarks` of the hosts are said before that.

    Raises UserError before anything has begun where a host cannot take part; HugewiseError.
    """
    folder = FleetFolder.new(results, wanted.study.name)
    with connect(hosts, folder.fleet, say) as engine:
        found, told = examine_hosts(engine, hosts, wanted, say)
        gathering.must_fit(told, len(hosts.host))
        there = [each for each in found.values() if isinstance(each, GatheredHost)]
        stood = gathering.placed(there, hosts.fleet.hosts_per_stratum, time.time(), secrets.token_hex(8))
        for line in (*planned(there, stood, wanted.study, hosts), *remarks(there)):
            say(printable(line))
        if dry_run:
            return None, None
        folder.make(study_toml=wanted.question.text, hosts_toml=hosts_toml)
        with closing(folder):
            folder.hold()
            _write_down(folder, wanted, hosts, there, stood)
            say(f"fleet {folder.fleet} in {folder.path}")
            begun(folder.path)
            return folder, _conducted(folder, engine, hosts, rules_of(hosts), say)


def _write_down(
    folder: FleetFolder, wanted: Asked, hosts: Inventory, there: Sequence[GatheredHost], stood: QueueStatus
) -> None:
    """What the fleet is, as its first records."""
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
    for each in there:
        folder.append(each.record(time.time(), hosts.entry(each.host).labels))
    folder.append(stood)


def go_on(
    path: Path,
    say: Say,
    *,
    hosts: Path | None = None,
    ending: bool = False,
    connect: Connect = engine_of,
    begun: Callable[[Path], None] = lambda _: None,
) -> FleetState:
    """Take up the fleet in the folder `path`; `ending`: end what runs, bring it, and begin nothing. `hosts`: its
    inventory anew, with the same names; others in it have no part. Raises HugewiseError.
    """
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
        kept = msgspec.structs.replace(kept, host=tuple(one for one in kept.host if one.name in state.opened.hosts))
        if hosts is not None:
            with storing(str(path / "hosts.toml"), RESUME):
                write_whole(path / "hosts.toml", reading.content(hosts))
        if state.stood is None:
            raise UserError(f"{path}: the fleet was broken off before any host was told", hint="hugewise fleet run")
        with connect(kept, state.opened.fleet, say) as engine:
            return _conducted(folder, engine, kept, rules_of(kept, ending=ending), say)


def _conducted(folder: FleetFolder, engine: Engine, hosts: Inventory, rules: FleetRules, say: Say) -> FleetState:
    """By a coordinator, with what the report needs of each run made meanwhile."""
    with Summarising(folder.path, say) as summarising:
        return Coordinator(folder, engine, hosts, rules, say, shipped=summarising.add).conduct()


def planned(there: Sequence[GatheredHost], stood: QueueStatus, study: Study, hosts: Inventory) -> Iterator[str]:
    """What is about to be spent, in lines: strata with their hosts and differences, hosts and hours."""
    names = inventory.strata_names(each.stratum for each in there)
    by_stratum: Mapping[inventory.Stratum, list[str]] = {
        stratum: [each.host for each in there if each.stratum == stratum] for stratum in names
    }
    first = next(iter(names), None)
    yield f"{len(there)} hosts in {len(names)} {'stratum' if len(names) == 1 else 'strata'}"
    for stratum, name in names.items():
        members = by_stratum[stratum]
        measuring = [host for host in members if host in stood.measuring]
        spare = len(members) - len(measuring)
        yield f"  {name}: {', '.join(measuring)}{f' ({spare} more stand by)' if spare else ''}"
        if first is not None and stratum != first:
            yield from (f"    {line}" for line in inventory.differences(first, stratum))
    budget, count = study.budget.time, len(stood.measuring)
    check = f", after a check of {hosts.fleet.check} blocks on each host" if hosts.fleet.check else ""
    if budget is None:
        yield f"{count} hosts measure, each until the study is decided: it has no time budget{check}"
    else:
        hours = count * budget / 3600
        yield f"{count} hosts x {format_duration(budget)} at most = {hours:.2g} host-hours{check}"
    if count > 1:
        cells = max((len(each.greeting.examined.cells or ()) for each in there), default=0) or len(study.workload)
        yield from needed(study, len(names), cells * (len(study.policies) - 1))
    left_out = sorted({line for each in there for line in each.greeting.examined.left_out})
    yield from (printable(f"left out on all hosts: {line}") for line in left_out)


_FREE = 1 << 30


def print_examination(
    hosts: Inventory, wanted: Asked | None, say: Callable[[str], None], *, connect: Connect = engine_of
) -> bool:
    """Ask all hosts, and say what came of it; whether each of them can take part. Raises UserError."""
    with connect(hosts, "doctor", say) as engine:
        found, problems = examine_hosts(engine, hosts, wanted, say)

    def tell(line: str) -> None:
        say(printable(line))

    there = [each for each in found.values() if isinstance(each, GatheredHost)]
    names = inventory.strata_names(each.stratum for each in there)
    for each in there:
        greeting = each.greeting
        who = "root" if greeting.root else greeting.account
        tell(f"{each.host}: hugewise {greeting.installed.version} as {who}; {names[each.stratum]}")
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
