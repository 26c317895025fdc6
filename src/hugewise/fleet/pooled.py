"""From a fleet's folder to what it found: the runs that were brought, judged together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path

from hugewise.analysis.host_summary import HostSummary
from hugewise.analysis.pooling import MeasuredHost, compared
from hugewise.analysis.stratum_levels import levels
from hugewise.errors import HugewiseError, UserError
from hugewise.fleet.folder import FleetFolder
from hugewise.fleet.records import RunSettled
from hugewise.fleet.state import FleetState, FleetWork
from hugewise.fleet.strata import Stratum, named
from hugewise.fleet.summaries import summaries
from hugewise.model.fleet import FleetHost, FleetResults, FleetStratum, LeftOutHost
from hugewise.stats.pooling import shares as shares_of

__all__ = ["pooled"]

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
    called = named(one.stratum for one in greeted.values())
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
