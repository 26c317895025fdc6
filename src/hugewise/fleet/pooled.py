"""Results of a fleet's folder: the runs that were brought, judged together.

Summaries of runs lie in <fleet>/summaries/<digest>.json. The digest is over all that a summary is made from, and over
the source of this hugewise: only what is new is read whole, under its hash chain.
"""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import os
import signal
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import msgspec

import hugewise
from hugewise import reading
from hugewise.analysis.pooling import FORMAT, HostSummary, MeasuredHost, compared, levels, summarised
from hugewise.errors import HugewiseError, RunError, StorageError, UserError
from hugewise.files import made_folder, own, storing, write_whole
from hugewise.fleet.folder import FleetFolder
from hugewise.fleet.inventory import Stratum, strata_names
from hugewise.fleet.protocol import package_digest
from hugewise.fleet.records import AssignmentState, FleetState
from hugewise.model.fleet import FleetHost, FleetResults, FleetStratum, LeftOutHost
from hugewise.processes import die_with_parent, spawning
from hugewise.stats.pooling import shares as shares_of

_FILES = ("run.jsonl", "study.json", "guests.json", "attempts.parquet")
_SUMMARY = msgspec.json.Decoder(HostSummary)
_MANY = 4  # runs from which processes of their own are worth their start


def summaries(
    fleet: Path, runs: Sequence[Path], *, jobs: int | None = None, progress: Callable[[int, int], object] | None = None
) -> list[HostSummary | HugewiseError]:
    """Return each run's summary, or why there is none; `jobs` processes make missing ones."""
    jobs = jobs or os.cpu_count() or 1
    with ThreadPoolExecutor(jobs) as pool:  # hashing lets go of the interpreter
        places = list(pool.map(functools.partial(summary_path, fleet), runs))
    results = [result if isinstance(result, HugewiseError) else _read_summary(result) for result in places]
    missing = [at for at, result in enumerate(results) if result is None]
    made = _make_summaries(fleet, [runs[at] for at in missing], jobs, progress)
    for at, result in zip(missing, made, strict=True):
        results[at] = result
    return [result for result in results if result is not None]


def summary_path(fleet: Path, run: Path) -> Path | HugewiseError:
    """Return the path of the summary of the present contents of the run's folder."""
    try:
        paths = [*(run / name for name in _FILES), *sorted((run / "attempts").glob("*/attempt.json"))]
        digests = {str(path.relative_to(run)): digest for path in paths if (digest := _digest_of(path))}
    except (OSError, reading.UnreadableError) as error:
        return RunError(f"{run}: {error}", hint="put a copy of it back")
    return fleet / "summaries" / f"{reading.tree_digest(digests, _made_by())}.json"


@functools.cache
def _made_by() -> str:
    return f"{FORMAT} {package_digest(Path(hugewise.__file__).parent)}\n"


def _digest_of(path: Path) -> str | None:
    try:
        with reading.opened(path) as file:
            return reading.digest(file)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _read_summary(place: Path) -> HostSummary | None:
    try:
        digest, _, text = reading.kept(place).partition(b"\n")
        if digest != reading.key_digest(text).encode():
            return None
        return reading.decoded(_SUMMARY, text)
    except (OSError, reading.UnreadableError):
        return None


def keep_summary(place: Path, summary: HostSummary) -> None:
    """Keep the summary on disk, if possible: without it the next report takes longer."""
    with contextlib.suppress(StorageError), storing(str(place)):
        own(place.parent.parent, f"the fleet in {place.parent.parent}")
        made_folder(place.parent)
        text = msgspec.json.encode(summary)
        write_whole(place, reading.key_digest(text).encode() + b"\n" + text)


def _make_summaries(
    fleet: Path, runs: Sequence[Path], jobs: int, progress: Callable[[int, int], object] | None
) -> list[HostSummary | HugewiseError]:
    results: list[HostSummary | HugewiseError] = []
    tell = progress or (lambda _, __: None)
    make = functools.partial(_make_summary, fleet)
    if len(runs) < _MANY or jobs < 2:
        for run in runs:
            results.append(make(run))
            tell(len(results), len(runs))
        return results
    try:
        spawn = multiprocessing.get_context("spawn")
        with (
            spawning(),
            ProcessPoolExecutor(
                min(jobs, len(runs)), mp_context=spawn, initializer=die_with_parent, initargs=(signal.SIGKILL,)
            ) as pool,
        ):
            for made in pool.map(make, runs):
                results.append(made)
                tell(len(results), len(runs))
    except BrokenProcessPool:
        raise HugewiseError(
            f"a process that was to read {runs[len(results)]} was killed",
            hint="free some memory, and ask again: what was read is kept",
        ) from None
    return results


def _make_summary(fleet: Path, run: Path) -> HostSummary | HugewiseError:
    try:
        before, made = summary_path(fleet, run), summarised(run)
    except HugewiseError as error:
        return error
    if isinstance(before, Path) and before == summary_path(fleet, run):
        keep_summary(before, made)
    return made


_WITHOUT_ROOT = "without root"
_MOST_LOST = 0.1  # share of the hosts that were begun


def pooled_results(
    path: Path, shares: Mapping[str, float] | None = None, *, progress: Callable[[int, int], object] | None = None
) -> FleetResults:
    """Return the results so far of the fleet in `path`; `shares`: how much of the fleet each stratum is (default: by
    the hosts that answered). Raises RunError without a fleet, UserError for unknown strata or no readable run.
    """
    state = FleetState.of(FleetFolder(path).records())
    assignments = _shipped(state)
    folders = {work.number: path / work.shipped.folder for work in assignments if work.shipped is not None}
    read = dict(zip(folders, summaries(path, list(folders.values()), progress=progress), strict=True))
    left_out: list[LeftOutHost] = []
    usable: list[tuple[AssignmentState, HostSummary]] = []
    for work in assignments:
        run_summary = read[work.number]
        if isinstance(run_summary, HugewiseError):
            left_out.append(LeftOutHost(host=work.assigned.host, why="unreadable", reason=run_summary.message))
        elif run_summary.study_digest != state.opened.digest:
            why = "its run is of another study"
            left_out.append(LeftOutHost(host=work.assigned.host, why="unreadable", reason=why, run=run_summary.run))
        elif why := _copied(state, work, run_summary, usable):
            left_out.append(LeftOutHost(host=work.assigned.host, why="copy", reason=why, run=run_summary.run))
        else:
            usable.append((work, run_summary))
    told_of = {work.assigned.host for work in assignments}
    left_out = [*(host for host in _left_out(state) if host.host not in told_of), *left_out]
    if not usable:
        why = left_out[0].reason if left_out else "nothing was brought back yet"
        raise UserError(
            f"{path}: no run of the fleet is there to be judged: {why}", hint="see: hugewise fleet status FLEET"
        )
    names, of_host = _strata(state, usable)
    measured = [MeasuredHost(work.assigned.host, of_host[work.assigned.host], summary) for work, summary in usable]
    known = Counter(of_host[name] for name in of_host)
    weights, composition = _weights(names, known, shares)
    first = usable[0][1]
    lost = _lost(state, {host.host for host in measured} | {host.host for host in left_out if host.why == "copy"})
    withheld = _withheld(state, len(measured), len(lost))
    present = {host.stratum for host in measured}
    part = shares_of(weights, sorted(present)) if any(weights.get(name) for name in present) else {}
    return FleetResults(
        fleet=state.opened.fleet,
        study=state.opened.study,
        question=first.question,
        folder=str(path),
        confidence=first.confidence,
        margin=first.margin,
        composition=composition,
        hosts=tuple(_host(work, of_host[work.assigned.host], summary) for work, summary in usable),
        strata=tuple(
            FleetStratum(
                name=name,
                key=stratum.key,
                facts=_facts(stratum),
                measured=sum(host.stratum == name for host in measured),
                known=known[name],
                share=part.get(name),
            )
            for name, stratum in names.items()
        ),
        left_out=tuple(left_out),
        comparisons=compared(
            measured,
            weights,
            first.confidence,
            first.margin,
            withheld=withheld,
            lost=Counter(of_host[host] for host in lost),
        ),
        levels=tuple(levels(measured)),
        warnings=tuple(_warnings(state, measured, names, weights)),
        withheld=withheld,
    )


def _left_out(state: FleetState) -> Iterator[LeftOutHost]:
    for host in state.hosts.values():
        work = next(
            (assignment for assignment in reversed(state.of_host(host.name)) if assignment.assigned.purpose == "study"),
            None,
        )
        if host.quarantined is not None:
            yield LeftOutHost(host=host.name, why="quarantined", reason=host.quarantined)
        elif work is not None and work.given_up is not None:
            yield LeftOutHost(host=host.name, why="lost", reason=work.given_up.reason)
        elif host.out is not None:
            yield LeftOutHost(host=host.name, why="lost", reason=host.out.reason)
        elif work is not None:
            yield LeftOutHost(host=host.name, why="not measured", reason="its run has not come back yet")
        else:
            why = "it did not answer yet" if host.greeted is None else "nothing was begun on it"
            yield LeftOutHost(host=host.name, why="not measured", reason=why)


def _shipped(state: FleetState) -> list[AssignmentState]:
    by_host: dict[str, AssignmentState] = {}
    for work in state.assignments.values():
        if work.assigned.purpose == "study" and work.shipped is not None and work.shipped.foreign is None:
            by_host.setdefault(work.assigned.host, work)
    return sorted(by_host.values(), key=lambda work: work.number)


def _copied(
    state: FleetState,
    work: AssignmentState,
    run_summary: HostSummary,
    usable: Sequence[tuple[AssignmentState, HostSummary]],
) -> str:
    for other, known in usable:
        name = other.assigned.host
        if run_summary.run == known.run or run_summary.seed_hash == known.seed_hash:
            return f"it is the run of {name}: the same coins"
        machines = _machines(state, work, run_summary) & _machines(state, other, known)
        if machines:
            return f"it is the machine of {name} under another name"
    return ""


def _machines(state: FleetState, work: AssignmentState, run_summary: HostSummary) -> set[str]:
    greeted = state.hosts[work.assigned.host].greeted
    known = (None if greeted is None else greeted.machine), run_summary.host.get("machine")
    return {machine for machine in known if isinstance(machine, str) and machine}


def _lost(state: FleetState, there: Collection[str]) -> list[str]:
    begun = dict.fromkeys(work.assigned.host for work in state.assignments.values() if work.assigned.purpose == "study")
    return [host for host in begun if host not in there]


def _withheld(state: FleetState, measured: int, lost: int) -> str:
    begun = measured + lost
    if state.closed is None:
        return (
            f"the fleet has not ended: {measured} of {begun} hosts that were begun are here, and those that come first "
            "have too large an effect"
        )
    if lost > _MOST_LOST * begun:
        return (
            f"{lost} of {begun} hosts that were begun have no run here, which is more than one in "
            f"{round(1 / _MOST_LOST)}: those that take long are lost more often, and their effects are small"
        )
    return ""


def _strata(
    state: FleetState, usable: Sequence[tuple[AssignmentState, HostSummary]]
) -> tuple[dict[str, Stratum], dict[str, str]]:
    # Runs with root and without set pages by other means: no stratum has both.
    greeted = {host.name: host.greeted for host in state.hosts.values() if host.greeted is not None}
    called = strata_names(greeting.stratum for greeting in greeted.values())
    mechanisms = {work.assigned.host: summary.mechanism for work, summary in usable}
    mixed = len(set(mechanisms.values())) > 1
    names: dict[str, Stratum] = {}
    of_host: dict[str, str] = {}
    for host, greeting in greeted.items():
        mechanism = mechanisms.get(host, "system" if greeting.root else "process")
        name = called[greeting.stratum]
        if mixed and mechanism == "process":
            name = f"{name}, {_WITHOUT_ROOT}"
        names[name], of_host[host] = greeting.stratum, name
    return dict(sorted(names.items())), of_host


def _weights(
    names: Mapping[str, Stratum], known: Mapping[str, int], given: Mapping[str, float] | None
) -> tuple[dict[str, float], str]:
    if given is None:
        return {name: float(known[name]) for name in names}, "the hosts that answered"
    weights: dict[str, float] = {}
    for called, share in given.items():
        fitting = [name for name, stratum in names.items() if called in (name, stratum.key)]
        if len(fitting) != 1:
            raise UserError(
                f"--share {called}: no stratum of this fleet" if not fitting else f"--share {called}: several strata",
                hint=f"one of: {'; '.join(f'{stratum.key} ({name})' for name, stratum in names.items())}",
            )
        weights[fitting[0]] = share
    return weights, "as given"


def _host(work: AssignmentState, stratum: str, summary: HostSummary) -> FleetHost:
    assert work.shipped is not None
    return FleetHost(
        host=work.assigned.host,
        stratum=stratum,
        run=summary.run,
        folder=work.shipped.folder,
        state=summary.state,
        attempts=summary.attempts,
        blocks=summary.blocks,
        started=summary.started,
        ended=summary.ended,
        mechanism=summary.mechanism,
        restarts=0 if work.settled is None else work.settled.restarts,
    )


def _facts(stratum: Stratum) -> dict[str, str]:
    return {name: getattr(stratum, name) for name in stratum.__struct_fields__}


def _warnings(
    state: FleetState, measured: Sequence[MeasuredHost], names: Mapping[str, Stratum], weights: Mapping[str, float]
) -> Iterator[str]:
    if unfit := sum(host.quarantined is not None for host in state.hosts.values()):
        hosts = "1 host was" if unfit == 1 else f"{unfit} hosts were"
        yield f"{hosts} not fit to measure: what is said of the next host speaks of hosts that are"
    present = {member.stratum for member in measured}
    absent = [name for name in names if weights.get(name) and name not in present]
    whole = sum(weights.values())
    if absent and whole:
        share = sum(weights[name] for name in absent) / whole
        yield f"nothing was measured on {share:.0%} of the fleet: {'; '.join(absent)}"
    if len({member.summary.mechanism for member in measured}) > 1:
        yield "some hosts set pages as root and others without: they are classes of their own"
    if unended := [member.host for member in measured if member.summary.state not in ("finished", "time is up")]:
        yield f"runs that did not come to their end have part with what they measured: {', '.join(sorted(unended))}"
