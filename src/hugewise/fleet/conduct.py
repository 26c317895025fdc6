"""A fleet from beginning to end: gathered, begun, conducted; taken up again by whoever comes next.

begin(...)   a new fleet of a study on the hosts of an inventory
go_on(...)   the fleet in a folder, from its log
examine(...) what every host says of itself, and what of a study can run there; begins nothing
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
from hugewise.fleet import gathering, inventory, strata
from hugewise.fleet.coordinator import Coordinator, rules_of
from hugewise.fleet.decision import FleetRules
from hugewise.fleet.engine import Engine
from hugewise.fleet.engines import engine_of
from hugewise.fleet.entries import HostEntry
from hugewise.fleet.folder import RESUME, FleetFolder
from hugewise.fleet.gathering import GatheredHost, HostProblem
from hugewise.fleet.installation import installed
from hugewise.fleet.inventory import Inventory
from hugewise.fleet.orders import FleetQuestion
from hugewise.fleet.planning import needed
from hugewise.fleet.question import asked
from hugewise.fleet.records import FleetOpened, Stood
from hugewise.fleet.state import FleetState
from hugewise.fleet.summarising import Summarising
from hugewise.plan.cells import resolve
from hugewise.quantity import format_duration
from hugewise.study import shipped
from hugewise.study.study import Study
from hugewise.visible import printable

__all__ = ["Asked", "begin", "examine", "go_on", "planned", "question_of"]

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
    named = path if path.exists() else shipped.named(path) or path
    try:
        text = reading.text(reading.content(named, _MOST_STUDY))
    except reading.AbsentError:
        raise StudyError("no such file", file=str(path), hint="see: hugewise list studies") from None
    except reading.UnreadableError as error:
        raise StudyError(error.reason, file=str(path), hint="save it as UTF-8 text that you can read") from None
    question = FleetQuestion(text=text, scale=scale, only=only, arms=arms, time=time_)
    study = asked(question, str(path))
    known = workloads.discover()
    # Hosts may have workloads that are not installed here; of these they say themselves which cells there are.
    if study.cells and all(use.name in known for use in study.workload):
        resolve(study, known)
    return Asked(question, study)


def examine(
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
        found, told = examine(engine, hosts, wanted, say)
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
    folder: FleetFolder, wanted: Asked, hosts: Inventory, there: Sequence[GatheredHost], stood: Stood
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


def planned(there: Sequence[GatheredHost], stood: Stood, study: Study, hosts: Inventory) -> Iterator[str]:
    """What is about to be spent, in lines: strata with their hosts and differences, hosts and hours."""
    names = strata.named(each.stratum for each in there)
    by_stratum: Mapping[strata.Stratum, list[str]] = {
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
            yield from (f"    {line}" for line in strata.differences(first, stratum))
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
