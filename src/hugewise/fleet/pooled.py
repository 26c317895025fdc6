"""From a fleet's folder to what it found: the runs that were brought, judged together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
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


def pooled(
    path: Path, shares: Mapping[str, float] | None = None, *, told: Callable[[int, int], object] | None = None
) -> FleetResults:
    """What the fleet in the folder `path` has found so far.

    `shares`: how much of the fleet each stratum is (by name or key, in any unit), where that is not as many of it as
    its hosts that answered are. `told` hears how many runs were read for the first time. Raises RunError where there
    is no fleet, UserError where none of its runs can be read, or of strata that it does not have.
    """
    state = FleetState.of(FleetFolder(path).records())
    works = state.counted()
    folders = {work.number: path / work.shipped.folder for work in works if work.shipped is not None}
    read = dict(zip(folders, summaries(path, list(folders.values()), told=told), strict=True))
    left_out = list(_left_out(state))
    usable: list[tuple[FleetWork, HostSummary]] = []
    for work in works:
        found = read[work.number]
        if isinstance(found, HugewiseError):
            left_out.append(LeftOutHost(host=work.assigned.host, why="unreadable", reason=found.message))
        elif found.study_digest != state.opened.digest:
            why = "its run is of another study"
            left_out.append(LeftOutHost(host=work.assigned.host, why="unreadable", reason=why, run=found.run))
        else:
            usable.append((work, found))
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
        comparisons=compared(measured, weights, first.confidence, first.margin),
        levels=tuple(levels(measured)),
        warnings=tuple(_warnings(measured, names, weights)),
    )


def _left_out(state: FleetState) -> Iterator[LeftOutHost]:
    """Hosts, and runs of hosts, that have no part in it; of each host the gravest reason."""
    counted = {work.assigned.host for work in state.counted()}
    for host in state.hosts.values():
        if host.name in counted:
            continue
        work = next((one for one in reversed(state.of_host(host.name)) if one.assigned.purpose == "study"), None)
        if host.quarantined is not None:
            yield LeftOutHost(host=host.name, why="quarantined", reason=host.quarantined)
        elif work is not None and work.given_up is not None:
            yield LeftOutHost(host=host.name, why="lost", reason=work.given_up.reason)
        elif host.out is not None:
            yield LeftOutHost(host=host.name, why="lost", reason=host.out.reason)
        elif work is not None and work.shipped is None:
            yield LeftOutHost(host=host.name, why="not measured", reason="its run has not come back yet")
        elif work is None:
            why = "it did not answer yet" if host.greeted is None else "it stands by"
            yield LeftOutHost(host=host.name, why="not measured", reason=why)
    for work in state.works.values():
        if work.shipped is not None and work.assigned.purpose == "study" and not work.counted:
            why = "another host had taken its place when its run came"
            run = work.shipped.folder.rpartition("/")[2]
            yield LeftOutHost(host=work.assigned.host, why="late", reason=why, run=run)


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
    measured: Sequence[MeasuredHost], names: Mapping[str, Stratum], weights: Mapping[str, float]
) -> Iterator[str]:
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
