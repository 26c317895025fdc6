"""One more host: a short run of the fleet's arms there, and what it makes of the fleet's verdicts.

The run is an ordinary one, of the same study with the arms that have a verdict, conducted as a fleet of one host: so it
is placed, watched, shipped and kept as any other, and its verdicts are exact by themselves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from hugewise.analysis.host_summary import HostComparison, HostSummary, summarised
from hugewise.errors import HugewiseError, UserError
from hugewise.fleet import conduct
from hugewise.fleet.engines import engine_of
from hugewise.fleet.folder import FleetFolder
from hugewise.fleet.inventory import Inventory
from hugewise.fleet.orders import FleetQuestion
from hugewise.fleet.pooled import pooled
from hugewise.fleet.question import asked
from hugewise.fleet.state import FleetState
from hugewise.fleet.strata import Stratum, stratum
from hugewise.fleet.summaries import summary
from hugewise.model.fleet import PooledEffect, TransferredVerdict
from hugewise.model.results import Verdict
from hugewise.stats import confirming, pooling
from hugewise.stats.confirming import Own, Prior
from hugewise.stats.heterogeneity import TypicalEffect
from hugewise.stats.pairs import ratio_of

__all__ = ["Known", "confirmed", "known_of", "measured_on", "transferred"]

_Z = 1.959964
_DECIDED = ("better", "worse", "equivalent")
_Key = tuple[str, str, str, str]
_Priors = dict[_Key, tuple[Prior, tuple[float, float] | None]]


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """What is known before: the question that was asked, and by class and comparison what its hosts have shown.

    of_host    the interval at 95% of the next host's effect (log-ratios), where there is one
    """

    question: FleetQuestion
    by_class: dict[str, _Priors]
    names: dict[str, str]
    """Of classes, by their keys."""


def known_of(path: Path) -> Known:
    """Of a fleet's folder, or of the folder of one run. Raises RunError, UserError."""
    if (path / "run.jsonl").exists() and not (path / "log.jsonl").exists():
        return _of_run(path)
    found = pooled(path)
    opened = FleetState.of(FleetFolder(path).records()).opened
    by_class: dict[str, _Priors] = {}
    keys = {one.name: one.key for one in found.strata}
    for one in found.comparisons:
        key = one.cell, one.arm, one.baseline, one.metric.name
        for each in one.strata:
            if (prior := _prior(each)) is not None:
                by_class.setdefault(keys[each.stratum], {})[key] = prior
    return Known(question=opened.question, by_class=by_class, names={key: name for name, key in keys.items()})


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
    return Known(
        question=FleetQuestion(text=text), by_class={key: priors}, names={key: name if isinstance(name, str) else key}
    )


def _alone(one: HostComparison) -> Prior:
    assert one.estimate is not None  # the caller has looked
    hosts = pooling.pooled([one.estimate])
    typical = TypicalEffect(float(hosts.estimates[0]), float(hosts.errors[0]), max(1, one.estimate.pairs - 1))
    return Prior(one.found.verdict, typical, None, 1)


def confirmed(  # noqa: PLR0917
    known: Known,
    host: str,
    hosts: Inventory,
    hosts_toml: str,
    results: Path,
    say: Callable[[str], None],
    *,
    time_: str | None = None,
    connect: conduct.Connect = engine_of,
) -> tuple[Path, tuple[TransferredVerdict, ...]]:
    """Run the arms with a verdict on `host` of the inventory, and say what it makes of them; the new folder first.

    Raises UserError where nothing was decided, HugewiseError where the run does not come back.
    """
    arms = sorted(
        {key[1] for each in known.by_class.values() for key, one in each.items() if one[0].verdict in _DECIDED}
    )
    if not arms:
        raise UserError(
            "nothing was decided before, so that nothing can be confirmed", hint="run the study on more hosts first"
        )
    entry = hosts.entry(host)
    question = msgspec.structs.replace(known.question, arms=",".join(arms), time=time_ or known.question.time)
    wanted = conduct.Asked(question, asked(question, "study.toml"))
    one = msgspec.structs.replace(hosts, host=(entry,))
    folder, state = conduct.begin(wanted, one, hosts_toml, results, say, connect=connect)
    if folder is None or state is None or not (path := measured_on(folder.path, state)):
        raise HugewiseError(f"{host}: its run did not come back", hint="look at it: hugewise fleet status FLEET")
    own = summary(folder.path, path)
    greeted = state.hosts[host].greeted
    assert greeted is not None  # it was begun there
    return folder.path, tuple(transferred(known, host, greeted.stratum, own))


def measured_on(folder: Path, state: FleetState) -> Path | None:
    """The folder of the run of a fleet of one host, once it is there."""
    for work in state.counted():
        if work.shipped is not None:
            return folder / work.shipped.folder
    return None


def transferred(known: Known, host: str, of: Stratum, own: HostSummary) -> Iterator[TransferredVerdict]:
    """What the run `own` on a host of the class `of` makes of each verdict that it has an arm of."""
    key, name = _class(known, of)
    priors = known.by_class.get(key, {})
    for one in own.comparisons:
        found = one.found
        prior, next_ = priors.get((one.cell, found.arm, found.baseline, found.metric), (None, None))
        if prior is None:
            prior = Prior("none", TypicalEffect(0.0, 0.0, 1), None, 0)
        said = confirming.confirm(prior, _own(one))
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
