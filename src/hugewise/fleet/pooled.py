"""From a fleet's folder to what it found: the runs that were brought, judged together.

The summaries of a fleet's runs, kept beside them: made once of each run, and used while its files stay.

    <fleet>/summaries/<digest>.json    a line with the SHA-256 of the next, and the summary

The digest is over the bytes of all that a summary is made from, and over the source of this hugewise: a run that was
changed, or another version, has another name there. So a report hashes files and reads small ones; only what is new is
read whole, under its hash chain.

The summaries of a fleet's runs, made as soon as each run is there: so that its report has only to read them.

A process of its own makes them, at the least priority: the coordinator is never held up, and what one of them costs in
memory is gone with it. It is told of runs on its standard input, a path a line, and ends when that does. Nothing rests
on it: what it has not made when it ends, or is killed, a report makes.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import multiprocessing
import os
import select
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

import hugewise
from hugewise import reading
from hugewise.analysis.pooling import FORMAT, HostSummary, MeasuredHost, compared, levels, summarised
from hugewise.errors import HugewiseError, RunError, StorageError, UserError
from hugewise.files import made_folder, own, storing, write_whole
from hugewise.fleet.folder import FleetFolder
from hugewise.fleet.installation import THIS, package_digest
from hugewise.fleet.inventory import Stratum, strata_names
from hugewise.fleet.records import FleetState, FleetWork, RunSettled
from hugewise.model.fleet import FleetHost, FleetResults, FleetStratum, LeftOutHost
from hugewise.processes import die_with_parent, spawning
from hugewise.stats.pooling import shares as shares_of

_FILES = ("run.jsonl", "study.json", "guests.json", "attempts.parquet")
_SUMMARY = msgspec.json.Decoder(HostSummary)
_MANY = 4  # runs from which processes of their own are worth their start


def summary(fleet: Path, run: Path) -> HostSummary:
    """That of the run's folder, kept in the fleet's. Raises RunError, UserError."""
    (found,) = summaries(fleet, [run], jobs=1)
    if isinstance(found, HugewiseError):
        raise found
    return found


def summaries(
    fleet: Path, runs: Sequence[Path], *, jobs: int | None = None, told: Callable[[int, int], object] | None = None
) -> list[HostSummary | HugewiseError]:
    """Of each run its summary, or why there is none. What was not kept is made in `jobs` processes (one a CPU).

    `told` hears how many of those that have to be made are there.
    """
    jobs = jobs or os.cpu_count() or 1
    with ThreadPoolExecutor(jobs) as pool:  # hashing lets go of the interpreter
        places = list(pool.map(functools.partial(place_of, fleet), runs))
    found = [one if isinstance(one, HugewiseError) else _kept(one) for one in places]
    missing = [at for at, one in enumerate(found) if one is None]
    made = _made(fleet, [runs[at] for at in missing], jobs, told)
    for at, one in zip(missing, made, strict=True):
        found[at] = one
    return [one for one in found if one is not None]


def place_of(fleet: Path, run: Path) -> Path | HugewiseError:
    """Where the summary of what now stands in the run's folder is."""
    running = hashlib.sha256(f"{FORMAT} {_source()}\n".encode())
    try:
        loose = sorted((run / "attempts").glob("*/attempt.json"))
        for path in (*(run / name for name in _FILES), *loose):
            if digest := _hashed(path):
                running.update(f"{path.relative_to(run)} {digest}\n".encode())
    except (OSError, reading.UnreadableError) as error:
        return RunError(f"{run}: {error}", hint="put a copy of it back")
    return fleet / "summaries" / f"{running.hexdigest()}.json"


@functools.cache
def _source() -> str:
    return package_digest(Path(hugewise.__file__).parent)


def _hashed(path: Path) -> str | None:
    """SHA-256 of a file's bytes; None where there is none. Raises OSError, UnreadableError."""
    try:
        with reading.opened(path) as file:
            return reading.digest(file)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _kept(place: Path) -> HostSummary | None:
    """None where there is none, or not what was written: it is made anew."""
    try:
        digest, _, text = reading.kept(place).partition(b"\n")
        if digest != hashlib.sha256(text).hexdigest().encode():
            return None
        return reading.decoded(_SUMMARY, text)
    except (OSError, reading.UnreadableError):
        return None


def keep_summary(place: Path, summary: HostSummary) -> None:
    """On disk, where that can be: without it the next report takes longer."""
    with contextlib.suppress(StorageError), storing(str(place)):
        own(place.parent.parent, f"the fleet in {place.parent.parent}")
        made_folder(place.parent)
        text = msgspec.json.encode(summary)
        write_whole(place, hashlib.sha256(text).hexdigest().encode() + b"\n" + text)


def _made(
    fleet: Path, runs: Sequence[Path], jobs: int, told: Callable[[int, int], object] | None
) -> list[HostSummary | HugewiseError]:
    found: list[HostSummary | HugewiseError] = []
    tell = told or (lambda _, __: None)
    one = functools.partial(_one, fleet)
    if len(runs) < _MANY or jobs < 2:
        for run in runs:
            found.append(one(run))
            tell(len(found), len(runs))
        return found
    try:
        spawn = multiprocessing.get_context("spawn")
        with (
            spawning(),
            ProcessPoolExecutor(
                min(jobs, len(runs)), mp_context=spawn, initializer=die_with_parent, initargs=(signal.SIGKILL,)
            ) as pool,
        ):
            for made in pool.map(one, runs):
                found.append(made)
                tell(len(found), len(runs))
    except BrokenProcessPool:
        raise HugewiseError(
            f"a process that was to read {runs[len(found)]} was killed",
            hint="free some memory, and ask again: what was read is kept",
        ) from None
    return found


def _one(fleet: Path, run: Path) -> HostSummary | HugewiseError:
    """Made, and kept where nothing was changed meanwhile."""
    try:
        before, made = place_of(fleet, run), summarised(run)
    except HugewiseError as error:
        return error
    if isinstance(before, Path) and before == place_of(fleet, run):
        keep_summary(before, made)
    return made


_WITHOUT_ROOT = "without root"
_MOST_LOST = 0.1  # of the hosts that were begun


def pooled(
    path: Path, shares: Mapping[str, float] | None = None, *, told: Callable[[int, int], object] | None = None
) -> FleetResults:
    """What the fleet in the folder `path` has found so far.

    `shares`: how much of the fleet each stratum is (by name or key, in any unit), where that is not as many of it as
    its hosts that answered are. `told` hears how many runs were read for the first time. Raises RunError where there
    is no fleet, UserError where none of its runs can be read, or of strata that it does not have.
    """
    state = FleetState.of(FleetFolder(path).records())
    works = _brought(state)
    folders = {work.number: path / work.shipped.folder for work in works if work.shipped is not None}
    read = dict(zip(folders, summaries(path, list(folders.values()), told=told), strict=True))
    left_out: list[LeftOutHost] = []
    usable: list[tuple[FleetWork, HostSummary]] = []
    for work in works:
        found = read[work.number]
        if isinstance(found, HugewiseError):
            left_out.append(LeftOutHost(host=work.assigned.host, why="unreadable", reason=found.message))
        elif found.study_digest != state.opened.digest:
            why = "its run is of another study"
            left_out.append(LeftOutHost(host=work.assigned.host, why="unreadable", reason=why, run=found.run))
        elif why := _copied(state, work, found, usable):
            left_out.append(LeftOutHost(host=work.assigned.host, why="copy", reason=why, run=found.run))
        else:
            usable.append((work, found))
    told_of = {work.assigned.host for work in works}
    left_out = [*(one for one in _left_out(state) if one.host not in told_of), *left_out]
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
    lost = _lost(state, {one.host for one in measured} | {one.host for one in left_out if one.why == "copy"})
    withheld = _withheld(state, len(measured), len(lost))
    present = {one.stratum for one in measured}
    part = shares_of(weights, sorted(present)) if any(weights.get(name) for name in present) else {}
    return FleetResults(
        fleet=state.opened.fleet,
        study=state.opened.study,
        question=first.question,
        folder=str(path),
        confidence=first.confidence,
        margin=first.margin,
        composition=composition,
        hosts=tuple(_host(state, work, of_host[work.assigned.host], summary) for work, summary in usable),
        strata=tuple(
            FleetStratum(
                name=name,
                key=stratum.key,
                facts=_facts(stratum),
                measured=sum(one.stratum == name for one in measured),
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
            lost=Counter(of_host[one] for one in lost),
        ),
        levels=tuple(levels(measured)),
        warnings=tuple(_warnings(state, measured, names, weights)),
        withheld=withheld,
    )


def _left_out(state: FleetState) -> Iterator[LeftOutHost]:
    """Of each host of which no run is here the gravest reason."""
    for host in state.hosts.values():
        work = next((one for one in reversed(state.of_host(host.name)) if one.assigned.purpose == "study"), None)
        if host.quarantined is not None:
            yield LeftOutHost(host=host.name, why="quarantined", reason=host.quarantined)
        elif work is not None and work.given_up is not None:
            yield LeftOutHost(host=host.name, why="lost", reason=work.given_up.reason)
        elif host.out is not None:
            yield LeftOutHost(host=host.name, why="lost", reason=host.out.reason)
        elif work is not None:
            yield LeftOutHost(host=host.name, why="not measured", reason="its run has not come back yet")
        else:
            why = "it did not answer yet" if host.greeted is None else "it stands by"
            yield LeftOutHost(host=host.name, why="not measured", reason=why)


def _brought(state: FleetState) -> list[FleetWork]:
    """The runs of the study that are here, each host once; also of hosts whose place another had taken meanwhile.

    Who is late took long, which is to say that its effect is small: a fleet without those reads too large.
    """
    found: dict[str, FleetWork] = {}
    for work in state.works.values():
        if work.assigned.purpose == "study" and work.shipped is not None and work.shipped.foreign is None:
            before = found.get(work.assigned.host)
            if before is None or (work.counted and not before.counted):
                found[work.assigned.host] = work
    return sorted(found.values(), key=lambda work: work.number)


def _copied(
    state: FleetState, work: FleetWork, found: HostSummary, usable: Sequence[tuple[FleetWork, HostSummary]]
) -> str:
    """Why this is no host of its own; empty where it is."""
    for other, known in usable:
        name = other.assigned.host
        if found.run == known.run or found.seed_hash == known.seed_hash:
            return f"it is the run of {name}: the same coins"
        machines = _machines(state, work, found) & _machines(state, other, known)
        if machines:
            return f"it is the machine of {name} under another name"
    return ""


def _machines(state: FleetState, work: FleetWork, found: HostSummary) -> set[str]:
    """What is known of which machine it is, by its greeting and by its run."""
    greeted = state.hosts[work.assigned.host].greeted
    known = (None if greeted is None else greeted.machine), found.host.get("machine")
    return {one for one in known if isinstance(one, str) and one}


def _lost(state: FleetState, there: Collection[str]) -> list[str]:
    """Hosts that were begun and of which there is no run that has part."""
    begun = dict.fromkeys(work.assigned.host for work in state.works.values() if work.assigned.purpose == "study")
    return [host for host in begun if host not in there]


def _withheld(state: FleetState, measured: int, lost: int) -> str:
    """Why nothing is claimed over hosts, in words; empty where something may be. See `stats.pooling`."""
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
    state: FleetState, usable: Sequence[tuple[FleetWork, HostSummary]]
) -> tuple[dict[str, Stratum], dict[str, str]]:
    """The strata by their names, and the name of that of each host that answered.

    Runs with root and without set pages by other means: no stratum has both.
    """
    greeted = {host.name: host.greeted for host in state.hosts.values() if host.greeted is not None}
    called = strata_names(one.stratum for one in greeted.values())
    mechanisms = {work.assigned.host: summary.mechanism for work, summary in usable}
    mixed = len(set(mechanisms.values())) > 1
    names: dict[str, Stratum] = {}
    of_host: dict[str, str] = {}
    for host, one in greeted.items():
        mechanism = mechanisms.get(host, "system" if one.root else "process")
        name = called[one.stratum]
        if mixed and mechanism == "process":
            name = f"{name}, {_WITHOUT_ROOT}"
        names[name], of_host[host] = one.stratum, name
    return dict(sorted(names.items())), of_host


def _weights(
    names: Mapping[str, Stratum], known: Mapping[str, int], given: Mapping[str, float] | None
) -> tuple[dict[str, float], str]:
    if given is None:
        return {name: float(known[name]) for name in names}, "the hosts that answered"
    found: dict[str, float] = {}
    for called, share in given.items():
        fitting = [name for name, one in names.items() if called in (name, one.key)]
        if len(fitting) != 1:
            raise UserError(
                f"--share {called}: no stratum of this fleet" if not fitting else f"--share {called}: several strata",
                hint=f"one of: {'; '.join(f'{one.key} ({name})' for name, one in names.items())}",
            )
        found[fitting[0]] = share
    return found, "as given"


def _host(state: FleetState, work: FleetWork, stratum: str, summary: HostSummary) -> FleetHost:
    greeted = state.hosts[work.assigned.host].greeted
    settled = work.settled or RunSettled(t=0.0, number=work.number, state="ended", run=None)
    assert work.shipped is not None  # it is counted
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
        labels={} if greeted is None else greeted.labels,
        worker_share=settled.cost.share,
        worker_stopped=settled.cost.stopped,
        orders_s=settled.cost.orders_s,
        restarts=settled.restarts,
    )


def _facts(stratum: Stratum) -> dict[str, str]:
    return {name: getattr(stratum, name) for name in stratum.__struct_fields__}


def _warnings(
    state: FleetState, measured: Sequence[MeasuredHost], names: Mapping[str, Stratum], weights: Mapping[str, float]
) -> Iterator[str]:
    if late := [work.assigned.host for work in _brought(state) if not work.counted]:
        yield f"another host had taken the place of {', '.join(late)}, and both have part"
    if unfit := sum(host.quarantined is not None for host in state.hosts.values()):
        hosts = "1 host was" if unfit == 1 else f"{unfit} hosts were"
        yield f"{hosts} not fit to measure: what is said of the next host speaks of hosts that are"
    present = {one.stratum for one in measured}
    absent = [name for name in names if weights.get(name) and name not in present]
    whole = sum(weights.values())
    if absent and whole:
        share = sum(weights[name] for name in absent) / whole
        yield f"nothing was measured on {share:.0%} of the fleet: {'; '.join(absent)}"
    if len({one.summary.mechanism for one in measured}) > 1:
        yield "some hosts set pages as root and others without: they are classes of their own"
    if unended := [one.host for one in measured if one.summary.state not in ("finished", "time is up")]:
        yield f"runs that did not come to their end have part with what they measured: {', '.join(sorted(unended))}"


_LEAST = 19  # nice(2)
_CHUNK = 1 << 16
_PIPE_BUF = 4096  # what is not longer is written whole or not at all: pipe(7)


class Summarising:
    """Meanwhile, `add` has the summary of a run made, and returns at once. At the end the last ones are waited for, and
    `say` hears how many; an interrupt leaves them to the report.
    """

    def __init__(self, fleet: Path, say: Callable[[str], None], command: Sequence[str] = THIS) -> None:
        self._fleet, self._say, self._command = fleet, say, command
        self._child: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def add(self, run: Path) -> None:
        """Have it made."""
        if self._child is None:
            self._child = self._started()
        assert self._child.stdin is not None
        line = os.fsencode(run.absolute()) + b"\n"
        if len(line) <= _PIPE_BUF:
            with suppress(OSError):  # it was killed, or has much to do: a report will make it
                self._child.stdin.write(line)

    def _started(self) -> subprocess.Popen[bytes]:
        child = subprocess.Popen(
            [*self._command, "fleet", "summarise", str(self._fleet.absolute())],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            start_new_session=True,  # Ctrl-C is the coordinator's
        )
        assert child.stdin is not None
        os.set_blocking(child.stdin.fileno(), False)  # 64 KiB of paths wait in the pipe; more are left to the report
        return child

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        assert child.stdin is not None
        try:
            child.stdin.close()
            if kind is None:
                try:
                    child.wait(1.0)
                except subprocess.TimeoutExpired:
                    self._say("the last runs are being summarised for the report (Ctrl-C leaves that to it)")
                    child.wait()
        except KeyboardInterrupt:
            pass
        finally:
            with suppress(OSError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()


def main(fleet: Path) -> None:
    """`hugewise fleet summarise FLEET`: what standard input names. One after another while more may come, so that the
    coordinator has its processor; then the rest at once.
    """
    die_with_parent(signal.SIGKILL)
    os.nice(_LEAST)
    left: list[Path] = []
    rest, over = b"", False
    os.set_blocking(0, False)
    while not over or left:
        if not over:
            more, over = _said(wait=not left)
            *lines, rest = (rest + more).split(b"\n")
            left += [Path(os.fsdecode(line)) for line in lines]
        now, left = (left, []) if over else (left[:1], left[1:])
        if now:
            summaries(fleet, now, jobs=None if over else 1)


def _said(*, wait: bool) -> tuple[bytes, bool]:
    """What standard input has, and whether that was all."""
    found = b""
    while True:
        if wait and not found:
            select.select([0], [], [])
        try:
            more = os.read(0, _CHUNK)
        except BlockingIOError:
            return found, False
        if not more:
            return found, True
        found += more
