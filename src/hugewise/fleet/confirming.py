"""Confirmation on more hosts: a short run of the fleet's arms there, and its result for the fleet's verdicts.

The run is an ordinary one, of the same study with the arms that have a verdict, conducted as a fleet of those hosts: so
it is placed, watched, shipped, resumed and kept as any other, and its verdicts are exact by themselves.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from hugewise.analysis.pooling import HostComparison, HostSummary, summarised
from hugewise.errors import UserError
from hugewise.fleet import conduct
from hugewise.fleet.conduct import GatheredHost
from hugewise.fleet.folder import FleetFolder
from hugewise.fleet.inventory import Inventory, Stratum, differences, stratum
from hugewise.fleet.pooled import pooled_results, summary
from hugewise.fleet.protocol import FleetQuestion, study_of_question
from hugewise.fleet.records import FleetState
from hugewise.model.fleet import PooledEffect, TransferredVerdict
from hugewise.model.results import DECIDED, Verdict
from hugewise.stats import heterogeneity, pooling
from hugewise.stats.heterogeneity import Own, Prior, TypicalEffect
from hugewise.stats.pairs import ratio_of
from hugewise.store.folder import RunFolder
from hugewise.study.keys import near
from hugewise.study.workload import SMALL, cell_of

_Z = 1.959964
_Key = tuple[str, str, str, str]
_Priors = dict[_Key, tuple[Prior, tuple[float, float] | None]]


class PriorResults(msgspec.Struct, frozen=True, kw_only=True):
    """Results known before: the question that was asked, and by class and comparison what its hosts have shown.

    by_class   by the key of a class; with each prior the interval at 95% of the next host's effect (log-ratios), where
               there is one
    names      of classes, by their keys
    measured   the hosts that have a part in it, by name and by machine
    runs       their runs
    strata     the classes of a fleet
    """

    question: FleetQuestion
    by_class: dict[str, _Priors]
    names: dict[str, str]
    measured: frozenset[str] = frozenset()
    runs: frozenset[str] = frozenset()
    strata: tuple[Stratum, ...] = ()


class HostConfirmation(NamedTuple):
    """Result of a host's run for each verdict; `lost`: why there is none."""

    host: str
    verdicts: tuple[TransferredVerdict, ...]
    lost: str = ""


def prior_results(path: Path) -> PriorResults:
    """Read the results in a fleet's folder, or in the folder of one run. Raises RunError, UserError."""
    if (path / "run.jsonl").exists() and not (path / "log.jsonl").exists():
        return _of_run(path)
    results = pooled_results(path)
    state = FleetState.of(FleetFolder(path).records())
    by_class: dict[str, _Priors] = {}
    keys = {entry.name: entry.key for entry in results.strata}
    for entry in results.comparisons:
        key = entry.cell, entry.arm, entry.baseline, entry.metric.name
        for effect in entry.strata:
            if (prior := _prior(effect)) is not None:
                by_class.setdefault(keys[effect.stratum], {})[key] = prior
    greeted = [host.greeted.stratum for host in state.hosts.values() if host.greeted is not None]
    return PriorResults(
        question=state.opened.question,
        by_class=by_class,
        names={key: name for name, key in keys.items()},
        measured=_machines(state, {entry.host for entry in results.hosts}),
        runs=frozenset(entry.run for entry in results.hosts),
        strata=tuple(sorted({effect for effect in greeted if effect.key in by_class})),
    )


def _prior(effect: PooledEffect) -> tuple[Prior, tuple[float, float] | None] | None:
    if effect.ratio is None or effect.error is None or not effect.ratio > 0:
        return None
    next_ = None
    if effect.next_low and effect.next_high:
        next_ = math.log(effect.next_low), math.log(effect.next_high)
    typical = TypicalEffect(math.log(effect.ratio), effect.error, max(1, effect.hosts - 1))
    return Prior(effect.verdict, typical, effect.spread, effect.hosts), next_


def _of_run(path: Path) -> PriorResults:
    run_summary = summarised(path)
    key = stratum(run_summary.host, {}, None).key
    priors: _Priors = {
        (comparison.cell, comparison.found.arm, comparison.found.baseline, comparison.found.metric): (
            _single_host_prior(comparison),
            None,
        )
        for comparison in run_summary.comparisons
        if comparison.estimate is not None
    }
    try:
        text = (path / "study.toml").read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise UserError(
            f"{path}: its study.toml cannot be read: {error}", hint="name a run that was made of a study file"
        ) from None
    name = run_summary.host.get("name")
    folder = RunFolder(path)
    study = folder.study(folder.opened())
    scale = study.scale
    labels = [use.called for use in study.workload]
    only = [name for label in labels for name in _named(label, labels, study.cells)]
    return PriorResults(
        question=FleetQuestion(
            text=text, scale=None if scale == SMALL else scale, only=",".join(only) if study.cells else None
        ),
        by_class={key: priors},
        names={key: name if isinstance(name, str) else key},
        measured=frozenset(machine for machine in [run_summary.host.get("machine")] if isinstance(machine, str)),
        runs=frozenset({run_summary.run}),
    )


def _named(label: str, labels: Sequence[str], cells: Collection[str]) -> list[str]:
    return _cells_of(label, labels, cells) or [label]


def _cells_of(label: str, labels: Sequence[str], cells: Collection[str]) -> list[str]:
    return [cell for cell in cells if (n := cell_of(labels, cell)) is not None and labels[n] == label]


def _machines(state: FleetState, hosts: Collection[str]) -> frozenset[str]:
    greeted = (state.hosts[name].greeted for name in hosts)
    return frozenset(hosts) | {host.machine for host in greeted if host is not None and host.machine is not None}


def _single_host_prior(comparison: HostComparison) -> Prior:
    assert comparison.estimate is not None  # the caller has looked
    hosts = pooling.pooled([comparison.estimate])
    typical = TypicalEffect(float(hosts.estimates[0]), float(hosts.errors[0]), max(1, comparison.estimate.pairs - 1))
    return Prior(comparison.found.verdict, typical, None, 1)


def confirmation_question(known: PriorResults, time_: str | None = None) -> conduct.AskedStudy:
    """Return the question of a confirmation: the decided arms and workloads, in the time `time_`. Raises UserError."""
    decided = [
        key for priors in known.by_class.values() for key, (prior, _) in priors.items() if prior.verdict in DECIDED
    ]
    if not decided:
        raise UserError(
            "nothing was decided before, so that nothing can be confirmed", hint="run the study on more hosts first"
        )
    question = known.question
    study = study_of_question(question, "study.toml")
    cells, labels = {cell for cell, *_ in decided}, [use.called for use in study.workload]
    only = [name for label in labels for name in _decided_of(label, labels, study.cells, cells)]
    question = msgspec.structs.replace(
        question,
        arms=",".join(sorted({arm for _, arm, *_ in decided})),
        only=",".join(only) if only and (study.cells or len(only) < len(study.workload)) else question.only,
        time=time_ or question.time,
    )
    return conduct.AskedStudy(question, study_of_question(question, "study.toml"))


def _decided_of(label: str, labels: Sequence[str], asked: Collection[str], decided: Collection[str]) -> list[str]:
    if named := _cells_of(label, labels, asked):
        return [cell for cell in named if cell in decided]
    return [label] if _cells_of(label, labels, decided) else []


def choose_hosts(known: PriorResults, hosts: Inventory, names: Sequence[str]) -> Inventory:
    """Return the inventory with the named hosts; without names, those that have not measured. Raises UserError."""
    there = [host.name for host in hosts.host]
    for name in names:
        if name not in there:
            raise UserError(f"{hosts.file} has no host {name!r}", hint=near(name, there, what="hosts"))
    wanted = names or [name for name in there if name not in known.measured]
    if not wanted:
        raise UserError(f"all hosts of {hosts.file} have measured already", hint="name one of them: --host NAME")
    return msgspec.structs.replace(hosts, host=tuple(host for host in hosts.host if host.name in wanted))


def remarks(known: PriorResults, there: Sequence[GatheredHost]) -> Iterator[str]:
    """Yield notes before hours are spent: hosts of an unmeasured class, with their difference from the nearest."""
    for host in there:
        if host.greeting.fingerprint.get("machine") in known.measured:
            yield f"{host.host} has a part in what is known: its run is no other host's, and repeats it at best"
        if _class(known, host.stratum)[1]:
            continue
        nearest = min((differences(measured, host.stratum) for measured in known.strata), key=len, default=[])
        difference = f" ({'; '.join(nearest)})" if nearest else ""
        yield f"{host.host} is of a class that was never measured{difference}: only what its own run shows will be said"


def judge_hosts(known: PriorResults, path: Path) -> Iterator[HostConfirmation]:
    """Yield the result of each host of the fleet in `path` for the verdicts before. Raises RunError, UserError."""
    state = FleetState.of(FleetFolder(path).records())
    if _bare_question(state.opened.question) != _bare_question(known.question):
        raise UserError(
            f"{path} was asked another study, or another scale of it, than what is to be confirmed",
            hint="name the fleet that fleet confirm made",
        )
    assignments = {work.assigned.host: work for work in state.counted()}
    for name, host in state.hosts.items():
        work = assignments.get(name)
        if work is None or work.shipped is None or host.greeted is None:
            why = host.quarantined or (host.out.reason if host.out is not None else "its run has not come back")
            yield HostConfirmation(name, (), why)
            continue
        own = summary(path, path / work.shipped.folder)
        if own.run in known.runs:
            yield HostConfirmation(
                name, (), "its run is one of those that are to be confirmed: it cannot confirm itself"
            )
            continue
        yield HostConfirmation(name, tuple(transferred(known, name, host.greeted.stratum, own)))


def _bare_question(question: FleetQuestion) -> tuple[str, str]:
    return question.text, question.scale or SMALL


def transferred(known: PriorResults, host: str, of: Stratum, own: HostSummary) -> Iterator[TransferredVerdict]:
    """Yield the result of the run `own`, on a host of the class `of`, for each verdict whose arm it has."""
    key, name = _class(known, of)
    priors = known.by_class.get(key, {})
    for comparison in own.comparisons:
        result = comparison.found
        prior, next_ = priors.get((comparison.cell, result.arm, result.baseline, result.metric), (None, None))
        if prior is None:
            prior = Prior("none", TypicalEffect(0.0, 0.0, 1), None, 0)
        confirmed = heterogeneity.confirm(prior, _own_effect(comparison))
        reason = (
            confirmed.reason if name else "no host of its class was measured: its own run is all that is known of it"
        )
        low = high = None
        if confirmed.centre is not None and confirmed.error is not None:
            low, high = (
                ratio_of(confirmed.centre - _Z * confirmed.error),
                ratio_of(confirmed.centre + _Z * confirmed.error),
            )
        yield TransferredVerdict(
            host=host,
            stratum=name,
            cell=comparison.cell,
            arm=result.arm,
            baseline=result.baseline,
            metric=result.metric,
            state=confirmed.state,
            reason=reason,
            confidence=result.confidence,
            prior_verdict=prior.verdict,
            prior_ratio=ratio_of(prior.typical.centre) if prior.hosts else None,
            prior_low=None if next_ is None else ratio_of(next_[0]),
            prior_high=None if next_ is None else ratio_of(next_[1]),
            prior_hosts=prior.hosts,
            own_verdict=result.verdict,
            own_ratio=result.ratio,
            own_low=result.low,
            own_high=result.high,
            pairs=result.n,
            ratio=None if confirmed.centre is None else ratio_of(confirmed.centre),
            low=low,
            high=high,
        )


def _class(known: PriorResults, of: Stratum) -> tuple[str, str]:
    # Of a run, the state of free memory and the page settings before it are not known, and are ignored.
    for key in (of.key, _bare(of).key):
        if key in known.names:
            return key, known.names[key]
    return "", ""


def _bare(of: Stratum) -> Stratum:
    pages = of.pages.split("; ", maxsplit=1)[0]
    return msgspec.structs.replace(of, pages=f"{pages}; THP not known", memory=stratum({}, {}, None).memory)


def _own_effect(comparison: HostComparison) -> Own:
    verdict: Verdict = comparison.found.verdict
    if comparison.estimate is None:
        return Own(verdict, None, None)
    hosts = pooling.pooled([comparison.estimate])
    return Own(verdict, float(hosts.estimates[0]), float(hosts.errors[0]))
