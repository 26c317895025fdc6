"""More hosts: a short run of the fleet's arms there, and what it makes of the fleet's verdicts.

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
from hugewise.fleet.folder import FleetFolder
from hugewise.fleet.gathering import GatheredHost
from hugewise.fleet.inventory import Inventory, Stratum, differences, stratum
from hugewise.fleet.pooled import pooled, summary
from hugewise.fleet.protocol import FleetQuestion, study_of_question
from hugewise.fleet.records import FleetState
from hugewise.model.fleet import PooledEffect, TransferredVerdict
from hugewise.model.results import Verdict
from hugewise.stats import heterogeneity, pooling
from hugewise.stats.heterogeneity import Own, Prior, TypicalEffect
from hugewise.stats.pairs import ratio_of
from hugewise.store.folder import RunFolder
from hugewise.study.keys import near
from hugewise.study.workload import SMALL, cell_of

_Z = 1.959964
_DECIDED = ("better", "worse", "equivalent")
_Key = tuple[str, str, str, str]
_Priors = dict[_Key, tuple[Prior, tuple[float, float] | None]]


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """What is known before: the question that was asked, and by class and comparison what its hosts have shown.

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


class HostJudged(NamedTuple):
    """What the run of a host makes of each verdict; `lost`: why there is none."""

    host: str
    verdicts: tuple[TransferredVerdict, ...]
    lost: str = ""


def known_of(path: Path) -> Known:
    """Of a fleet's folder, or of the folder of one run. Raises RunError, UserError."""
    if (path / "run.jsonl").exists() and not (path / "log.jsonl").exists():
        return _of_run(path)
    found = pooled(path)
    state = FleetState.of(FleetFolder(path).records())
    by_class: dict[str, _Priors] = {}
    keys = {one.name: one.key for one in found.strata}
    for one in found.comparisons:
        key = one.cell, one.arm, one.baseline, one.metric.name
        for each in one.strata:
            if (prior := _prior(each)) is not None:
                by_class.setdefault(keys[each.stratum], {})[key] = prior
    greeted = [host.greeted.stratum for host in state.hosts.values() if host.greeted is not None]
    return Known(
        question=state.opened.question,
        by_class=by_class,
        names={key: name for name, key in keys.items()},
        measured=_machines(state, {one.host for one in found.hosts}),
        runs=frozenset(one.run for one in found.hosts),
        strata=tuple(sorted({each for each in greeted if each.key in by_class})),
    )


def _prior(each: PooledEffect) -> tuple[Prior, tuple[float, float] | None] | None:
    if each.ratio is None or each.error is None or not each.ratio > 0:
        return None
    next_ = None
    if each.next_low and each.next_high:
        next_ = math.log(each.next_low), math.log(each.next_high)
    typical = TypicalEffect(math.log(each.ratio), each.error, max(1, each.hosts - 1))
    return Prior(each.verdict, typical, each.spread, each.hosts), next_


def _of_run(path: Path) -> Known:
    """One run: its host is all that is known of its class, and of the spread within it nothing."""
    found = summarised(path)
    key = stratum(found.host, {}, None).key
    priors: _Priors = {
        (one.cell, one.found.arm, one.found.baseline, one.found.metric): (_alone(one), None)
        for one in found.comparisons
        if one.estimate is not None
    }
    try:
        text = (path / "study.toml").read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise UserError(
            f"{path}: its study.toml cannot be read: {error}", hint="name a run that was made of a study file"
        ) from None
    name = found.host.get("name")
    folder = RunFolder(path)
    study = folder.study(folder.opened())
    scale = study.scale
    labels = [use.called for use in study.workload]
    only = [name for label in labels for name in _named(label, labels, study.cells)]
    return Known(
        question=FleetQuestion(
            text=text, scale=None if scale == SMALL else scale, only=",".join(only) if study.cells else None
        ),
        by_class={key: priors},
        names={key: name if isinstance(name, str) else key},
        measured=frozenset(machine for machine in [found.host.get("machine")] if isinstance(machine, str)),
        runs=frozenset({found.run}),
    )


def _named(label: str, labels: Sequence[str], cells: Collection[str]) -> list[str]:
    """The cells of a workload that were asked for by name, or itself where none was."""
    return _cells_of(label, labels, cells) or [label]


def _cells_of(label: str, labels: Sequence[str], cells: Collection[str]) -> list[str]:
    """Those of the cells that are the workload's: one label may be the beginning of another."""
    return [cell for cell in cells if (n := cell_of(labels, cell)) is not None and labels[n] == label]


def _machines(state: FleetState, hosts: Collection[str]) -> frozenset[str]:
    """Those hosts by name, and by machine."""
    greeted = (state.hosts[name].greeted for name in hosts)
    return frozenset(hosts) | {each.machine for each in greeted if each is not None and each.machine is not None}


def _alone(one: HostComparison) -> Prior:
    assert one.estimate is not None  # the caller has looked
    hosts = pooling.pooled([one.estimate])
    typical = TypicalEffect(float(hosts.estimates[0]), float(hosts.errors[0]), max(1, one.estimate.pairs - 1))
    return Prior(one.found.verdict, typical, None, 1)


def asked_of(known: Known, time_: str | None = None) -> conduct.Asked:
    """The question of a confirmation: the arms that have a verdict, on the workloads on which they have one; `time_` in
    place of the study's time budget. Raises UserError where nothing was decided.
    """
    decided = [key for each in known.by_class.values() for key, (prior, _) in each.items() if prior.verdict in _DECIDED]
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
    return conduct.Asked(question, study_of_question(question, "study.toml"))


def _decided_of(label: str, labels: Sequence[str], asked: Collection[str], decided: Collection[str]) -> list[str]:
    """What a confirmation asks of a workload: those of its cells that were asked for by name and are decided; itself,
    where none was named and one is decided.
    """
    if named := _cells_of(label, labels, asked):
        return [cell for cell in named if cell in decided]
    return [label] if _cells_of(label, labels, decided) else []


def chosen(known: Known, hosts: Inventory, names: Sequence[str]) -> Inventory:
    """The inventory with the hosts of these names; without any, those that have not measured. Raises UserError."""
    there = [host.name for host in hosts.host]
    for name in names:
        if name not in there:
            raise UserError(f"{hosts.file} has no host {name!r}", hint=near(name, there, what="hosts"))
    wanted = names or [name for name in there if name not in known.measured]
    if not wanted:
        raise UserError(f"all hosts of {hosts.file} have measured already", hint="name one of them: --host NAME")
    return msgspec.structs.replace(hosts, host=tuple(host for host in hosts.host if host.name in wanted))


def remarks(known: Known, there: Sequence[GatheredHost]) -> Iterator[str]:
    """Before hours are spent: hosts of a class that none was measured of, and in what it differs from the nearest."""
    for each in there:
        if each.greeting.fingerprint.get("machine") in known.measured:
            yield f"{each.host} has a part in what is known: its run is no other host's, and repeats it at best"
        if _class(known, each.stratum)[1]:
            continue
        nearest = min((differences(one, each.stratum) for one in known.strata), key=len, default=[])
        told = f" ({'; '.join(nearest)})" if nearest else ""
        yield f"{each.host} is of a class that was never measured{told}: only what its own run shows will be said"


def judge_hosts(known: Known, path: Path) -> Iterator[HostJudged]:
    """Of each host of the fleet in the folder `path` what its run makes of the verdicts before. Raises RunError, and
    UserError where that fleet was asked something else.
    """
    state = FleetState.of(FleetFolder(path).records())
    if _bare_question(state.opened.question) != _bare_question(known.question):
        raise UserError(
            f"{path} was asked another study, or another scale of it, than what is to be confirmed",
            hint="name the fleet that fleet confirm made",
        )
    works = {work.assigned.host: work for work in state.counted()}
    for name, host in state.hosts.items():
        work = works.get(name)
        if work is None or work.shipped is None or host.greeted is None:
            why = host.quarantined or (host.out.reason if host.out is not None else "its run has not come back")
            yield HostJudged(name, (), why)
            continue
        own = summary(path, path / work.shipped.folder)
        if own.run in known.runs:
            yield HostJudged(name, (), "its run is one of those that are to be confirmed: it cannot confirm itself")
            continue
        yield HostJudged(name, tuple(transferred(known, name, host.greeted.stratum, own)))


def _bare_question(question: FleetQuestion) -> tuple[str, str]:
    return question.text, question.scale or SMALL


def transferred(known: Known, host: str, of: Stratum, own: HostSummary) -> Iterator[TransferredVerdict]:
    """What the run `own` on a host of the class `of` makes of each verdict that it has an arm of."""
    key, name = _class(known, of)
    priors = known.by_class.get(key, {})
    for one in own.comparisons:
        found = one.found
        prior, next_ = priors.get((one.cell, found.arm, found.baseline, found.metric), (None, None))
        if prior is None:
            prior = Prior("none", TypicalEffect(0.0, 0.0, 1), None, 0)
        said = heterogeneity.confirm(prior, _own(one))
        reason = said.reason if name else "no host of its class was measured: its own run is all that is known of it"
        low = high = None
        if said.centre is not None and said.error is not None:
            low, high = ratio_of(said.centre - _Z * said.error), ratio_of(said.centre + _Z * said.error)
        yield TransferredVerdict(
            host=host,
            stratum=name,
            cell=one.cell,
            arm=found.arm,
            baseline=found.baseline,
            metric=found.metric,
            state=said.state,
            reason=reason,
            confidence=found.confidence,
            prior_verdict=prior.verdict,
            prior_ratio=ratio_of(prior.typical.centre) if prior.hosts else None,
            prior_low=None if next_ is None else ratio_of(next_[0]),
            prior_high=None if next_ is None else ratio_of(next_[1]),
            prior_hosts=prior.hosts,
            own_verdict=found.verdict,
            own_ratio=found.ratio,
            own_low=found.low,
            own_high=found.high,
            pairs=found.n,
            ratio=None if said.centre is None else ratio_of(said.centre),
            low=low,
            high=high,
        )


def _class(known: Known, of: Stratum) -> tuple[str, str]:
    """The class of the host, by key and name; empty where there is none like it. Of a run the state of its free memory
    and its page settings before it are not known, and are left out of account.
    """
    for key in (of.key, _bare(of).key):
        if key in known.names:
            return key, known.names[key]
    return "", ""


def _bare(of: Stratum) -> Stratum:
    pages = of.pages.split("; ", maxsplit=1)[0]
    return msgspec.structs.replace(of, pages=f"{pages}; THP not known", memory=stratum({}, {}, None).memory)


def _own(one: HostComparison) -> Own:
    verdict: Verdict = one.found.verdict
    if one.estimate is None:
        return Own(verdict, None, None)
    hosts = pooling.pooled([one.estimate])
    return Own(verdict, float(hosts.estimates[0]), float(hosts.errors[0]))
