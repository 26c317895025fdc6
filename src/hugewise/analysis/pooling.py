"""Results of many hosts together: each host, each stratum (also the level of its values), and the fleet.

A run's summary is made once, under its hash chain: reading the attempts of hundreds of runs would take minutes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import msgspec

from hugewise.analysis import analysis, combining
from hugewise.errors import UserError
from hugewise.model.fleet import FleetComparison, HostEffect, PooledEffect, ProductOfEvidence, StratumLevel, WithoutHost
from hugewise.model.metric import Metric
from hugewise.model.reason import NotJudged, OverHosts, Reason, Together
from hugewise.model.results import CellResult, Comparison, LeftOut, Results, Verdict
from hugewise.model.two_runs import ArmLevel
from hugewise.stats import pooling
from hugewise.stats.evidence import ALL, Combined, RunEvidence, over_strata
from hugewise.stats.method import Method
from hugewise.stats.pairs import ratio_of
from hugewise.stats.pooling import Held, HostEstimate, Hosts, TypicalEffect, estimate_of
from hugewise.store.folder import RunFolder
from hugewise.store.records import Run

FORMAT = 1
"""Rises when what is in it is made in another way: one that was kept is then made anew."""


class HostComparison(msgspec.Struct, frozen=True, kw_only=True):
    """Comparison of the typical ratio: what the host says by itself, and its estimate for the fleet.

    estimate   in the logarithm, with what pooling asks; None with the reason in `absent`
    """

    cell: str
    found: Comparison
    estimate: HostEstimate | None
    absent: Reason = ""


class HostCell(msgspec.Struct, frozen=True, kw_only=True):
    """A cell as the host measured it: its levels by arm."""

    cell: str
    workload: str
    metric: Metric
    baseline: str
    levels: tuple[ArmLevel, ...]


class HostSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Run of a host. `hash` is its last running hash, `study_digest` that of its study.

    evidence   what its e-values are and what must be the same for them to be multiplied; None where its method has none
    """

    format: int = FORMAT
    run: str
    hash: str | None
    study: str
    question: str
    study_digest: str
    seed_hash: str
    mechanism: str
    method: str
    state: str
    started: float
    ended: float
    confidence: float
    margin: float
    blocks: int
    attempts: int
    host: Mapping[str, Any]
    left_out: tuple[LeftOut, ...]
    disturbances: int
    cells: tuple[HostCell, ...]
    comparisons: tuple[HostComparison, ...]
    evidence: RunEvidence | None


def summarised(path: Path) -> HostSummary:
    """Return the summary of the run in the folder `path`, which is read whole. Raises RunError, UserError."""
    return summary_of(RunFolder(path).read())


def summary_of(run: Run) -> HostSummary:
    """Return the summary of a run that was read. Raises RunError, UserError."""
    found = analysis.judge_run(run)
    results = analysis.results_of(run, found)
    own = {(cell.id, cell.metric.name) for cell in run.opened.cells}  # what is judged beside it is not pooled
    methods = {
        (method.contrast.cell, method.contrast.arm): method
        for method, _ in reversed(found)
        if (method.contrast.cell, method.contrast.metric.name) in own
    }
    return HostSummary(
        run=results.run,
        hash=run.hash,
        study=results.study,
        question=results.question,
        study_digest=run.opened.digest,
        seed_hash=results.seed_hash,
        mechanism=results.mechanism,
        method=run.study.method,
        state=results.state,
        started=results.started,
        ended=results.ended,
        confidence=results.confidence,
        margin=results.margin,
        blocks=results.blocks_complete,
        attempts=len(results.attempts),
        host=results.host,
        left_out=results.left_out,
        disturbances=len(results.disturbances),
        cells=tuple(map(_cell, results.cells)),
        comparisons=tuple(
            _comparison(cell, one, methods[cell.cell, one.arm]) for cell in results.cells for one in cell.comparisons
        ),
        evidence=_comparison_evidence(run, results),
    )


def _cell(cell: CellResult) -> HostCell:
    return HostCell(
        cell=cell.cell,
        workload=cell.workload,
        metric=cell.metric,
        baseline=cell.baseline,
        levels=tuple(map(ArmLevel.of, cell.arms)),
    )


def _comparison(cell: CellResult, one: Comparison, method: Method) -> HostComparison:
    estimate = estimate_of(method, refused=one.reason if one.verdict == "none" else "")
    if isinstance(estimate, HostEstimate):
        return HostComparison(cell=cell.cell, found=one, estimate=estimate)
    return HostComparison(cell=cell.cell, found=one, estimate=None, absent=estimate)


def _comparison_evidence(run: Run, results: Results) -> RunEvidence | None:
    if run.study.method != "sequential":
        return None
    own = {(cell.id, cell.metric.name) for cell in run.opened.cells}
    found = combining.carried(run, results)
    kept = tuple(one for one in found.comparisons if (one.cell, one.metric) in own)
    return msgspec.structs.replace(found, comparisons=kept)


Key = tuple[str, str, str, str]
"""Cell, arm, baseline, metric."""
_SHOWN = 3  # names in a sentence


class MeasuredHost(NamedTuple):
    """A host of the inventory, the name of its stratum, and what its run brought."""

    host: str
    stratum: str
    summary: HostSummary


class _Part(NamedTuple):
    """The hosts of a stratum that measured a comparison; `pooled`: of those with an estimate, in `having`."""

    stratum: str
    each: Sequence[tuple[MeasuredHost, HostComparison]]
    having: Sequence[str]
    pooled: Hosts | None
    typical: TypicalEffect | None
    withheld: str = ""
    lost: int = 0

    @property
    def estimates(self) -> list[float]:
        return [] if self.pooled is None else self.pooled.estimates.tolist()


class _Asked(NamedTuple):
    """A typical effect that is to be judged."""

    key: Key
    stratum: str
    effect: TypicalEffect


def compared(
    measured: Sequence[MeasuredHost],
    shares: Mapping[str, float],
    confidence: float,
    margin: float,
    *,
    withheld: str = "",
    lost: Mapping[str, int] | None = None,
) -> tuple[FleetComparison, ...]:
    """Return every measured comparison, judged over hosts at `confidence`. `shares`: of each stratum in the fleet;
    `withheld`: why only coins may claim; `lost`: hosts without a run, which count as without effect. Raises UserError
    for equal coins.
    """
    missing = lost or {}
    metrics: dict[Key, Metric] = {}
    found: dict[Key, dict[str, list[tuple[MeasuredHost, HostComparison]]]] = {}
    for host in measured:
        known = {cell.cell: cell.metric for cell in host.summary.cells}
        for one in host.summary.comparisons:
            key = one.cell, one.found.arm, one.found.baseline, one.found.metric
            metrics.setdefault(key, known[one.cell])
            found.setdefault(key, {}).setdefault(host.stratum, []).append((host, one))
    parts = {
        key: [_part(name, each, withheld, missing.get(name, 0)) for name, each in by.items()]
        for key, by in found.items()
    }
    fleet = {key: _fleet(each, shares) for key, each in parts.items()}
    asked = [one for key, each in parts.items() for one in _asked(key, metrics[key], each, fleet[key])]
    better = [metrics[one.key].better == "higher" for one in asked]
    estimates = {(key, part.stratum): part.estimates for key, each in parts.items() for part in each}
    estimates |= {(key, ALL): [one for part in each for one in part.estimates] for key, each in parts.items()}
    over = [pooling.OverHosts(one.effect, estimates[one.key, one.stratum]) for one in asked]
    held = pooling.held(over, better, 1 - confidence, margin)
    verdicts = {(one.key, one.stratum): each for one, each in zip(asked, held, strict=True)}
    evidence = _evidence(measured, 1 - confidence)
    return tuple(
        FleetComparison(
            cell=key[0],
            arm=key[1],
            baseline=key[2],
            metric=metrics[key],
            hosts=tuple(effect for part in each for effect in _hosts(part)),
            strata=tuple(
                _stratum(part, metrics[key], verdicts.get((key, part.stratum)), evidence.get((key, part.stratum), ()))
                for part in each
            ),
            fleet=_whole(each, fleet[key], metrics[key], verdicts.get((key, ALL)), evidence.get((key, ""), ())),
        )
        for key, each in parts.items()
    )


def _part(stratum: str, each: Sequence[tuple[MeasuredHost, HostComparison]], withheld: str, lost: int) -> _Part:
    estimates = [(host.host, one.estimate) for host, one in each if one.estimate is not None]
    if not estimates:
        return _Part(stratum, each, (), None, None, withheld, lost)
    hosts = pooling.pooled([one for _, one in estimates], lost if len(estimates) > 1 else 0)
    typical = None if withheld else hosts.typical()
    return _Part(stratum, each, [name for name, _ in estimates], hosts, typical, withheld, lost)


def _fleet(parts: Sequence[_Part], shares: Mapping[str, float]) -> TypicalEffect | str:
    of_fleet = [part for part in parts if shares.get(part.stratum, 0.0) > 0]
    typical = {part.stratum: part.typical for part in of_fleet if part.typical is not None}
    if withheld := next((part.withheld for part in parts if part.withheld), ""):
        return withheld
    if not typical:
        return "no stratum has two hosts with an estimate"
    if lacking := [part.stratum for part in of_fleet if part.stratum not in typical]:
        return f"no typical effect is known of {_several(lacking)}"
    return pooling.fleet_effect(typical, pooling.shares(shares, list(typical)))


def _asked(key: Key, metric: Metric, parts: Sequence[_Part], fleet: TypicalEffect | str) -> Iterator[_Asked]:
    if metric.better == "neutral":
        return
    for part in parts:
        if part.typical is not None and not _failing(part):
            yield _Asked(key, part.stratum, part.typical)
    if len(parts) > 1 and not isinstance(fleet, str) and not any(map(_failing, parts)):
        yield _Asked(key, ALL, fleet)


def _failing(part: _Part) -> list[str]:
    """Return hosts without an estimate since attempts failed, or could not be started, there: it is no typical effect
    that leaves them out.
    """
    return [
        host.host
        for host, one in part.each
        if one.estimate is None
        and one.found.failures_arm
        + one.found.failures_baseline
        + one.found.unstarted_arm
        + one.found.unstarted_baseline
    ]


def _hosts(part: _Part) -> Iterator[HostEffect]:
    values = {}
    if part.pooled is not None:
        of_lost_too = zip(part.pooled.estimates, part.pooled.errors, strict=True)
        values = dict(zip(part.having, of_lost_too, strict=False))
    for host, one in part.each:
        value = values.get(host.host)
        yield HostEffect(
            host=host.host,
            stratum=part.stratum,
            verdict=one.found.verdict,
            reason=one.found.reason,
            n=one.found.n,
            ratio=one.found.ratio,
            low=one.found.low,
            high=one.found.high,
            confidence=one.found.confidence,
            pooled_ratio=None if value is None else ratio_of(float(value[0])),
            error=None if value is None else float(value[1]),
            absent=one.absent,
        )


def _stratum(part: _Part, metric: Metric, held: Held | None, evidence: Sequence[ProductOfEvidence]) -> PooledEffect:
    hosts, typical = part.pooled, part.typical
    held = _with_lost(held, part.lost)
    failing = _failing(part)
    reason = _reason(held, metric, failing, "" if typical is not None else _too_few(part), len(part.estimates))
    if part.lost and typical is not None:
        reason = Together(
            (reason, f"{part.lost} that were begun have no run here, and count as hosts without any effect")
        )
    made = PooledEffect(
        stratum=part.stratum,
        asked=len(part.each),
        hosts=len(part.having),
        verdict=_verdict(held, metric, typical),
        reason=reason,
        evidence=tuple(evidence),
        lost=part.lost,
    )
    if hosts is None or typical is None:
        return made
    spread, next_ = hosts.tau_interval(), hosts.next_host()
    below = hosts.chance_below(0.0)
    low, high = _ends(held)
    return msgspec.structs.replace(
        made,
        ratio=ratio_of(typical.centre),
        low=low,
        high=high,
        confidence=None if held is None else held.confidence,
        p=None if held is None else held.p,
        p_signs=None if held is None else held.p_signs,
        error=typical.error,
        spread=hosts.tau(),
        spread_low=None if spread is None else spread[0],
        spread_high=None if spread is None else spread[1],
        next_low=None if next_ is None else ratio_of(next_[0]),
        next_high=None if next_ is None else ratio_of(next_[1]),
        next_good=_good(below, metric),
        without=tuple(_without(part, hosts)),
        outlying=tuple(part.having[place] for place in hosts.outlying() if place < len(part.having)),
    )


def _good(below: float | None, metric: Metric) -> float | None:
    if below is None or metric.better == "neutral":
        return None
    return 1 - below if metric.better == "higher" else below


def _without(part: _Part, hosts: Hosts) -> Iterator[WithoutHost]:
    if hosts.count > 2:
        for place, name in enumerate(part.having):
            left = hosts.without(place).typical()
            assert left is not None  # two hosts at least are left
            yield WithoutHost(name, ratio_of(left.centre))


def _whole(
    parts: Sequence[_Part],
    fleet: TypicalEffect | str,
    metric: Metric,
    held: Held | None,
    evidence: Sequence[ProductOfEvidence],
) -> PooledEffect | None:
    if len(parts) < 2:
        return None
    lost = sum(part.lost for part in parts)
    held = _with_lost(held, lost)
    known = None if isinstance(fleet, str) else fleet
    failing = [name for part in parts for name in _failing(part)]
    low, high = _ends(held)
    return PooledEffect(
        stratum="",
        asked=sum(len(part.each) for part in parts),
        hosts=sum(len(part.having) for part in parts),
        verdict=_verdict(held, metric, known),
        reason=_reason(
            held,
            metric,
            failing,
            fleet if isinstance(fleet, str) else "",
            sum(len(part.estimates) for part in parts),
        ),
        ratio=None if known is None else ratio_of(known.centre),
        low=low,
        high=high,
        confidence=None if held is None else held.confidence,
        p=None if held is None else held.p,
        p_signs=None if held is None else held.p_signs,
        error=None if known is None else known.error,
        evidence=tuple(evidence),
        lost=lost,
    )


def _verdict(held: Held | None, metric: Metric, typical: TypicalEffect | None) -> Verdict:
    if held is not None:
        return held.verdict
    return "none" if metric.better == "neutral" or typical is None else "undecided"


def _reason(held: Held | None, metric: Metric, failing: Sequence[str], absent: str, hosts: int) -> Reason:
    if metric.better == "neutral":
        return NotJudged(metric.name)
    if absent:
        return absent
    if failing:
        return f"attempts failed, or could not be started, on {_several(failing)}, so that there is no ratio there"
    assert held is not None
    return OverHosts(held.verdict, held.p, held.p_signs, held.fewest if hosts < held.fewest else 0)


def _with_lost(held: Held | None, lost: int) -> Held | None:
    return held._replace(verdict="undecided") if held is not None and lost and held.verdict == "equivalent" else held


def _too_few(part: _Part) -> str:
    if part.withheld:
        return part.withheld
    if len(part.each) == 1:
        return "one host speaks for itself: a typical effect takes two at least"
    return f"{len(part.having)} of {len(part.each)} hosts have an estimate, and a typical effect takes two"


def _ends(held: Held | None) -> tuple[float | None, float | None]:
    return (None, None) if held is None else (ratio_of(held.low), ratio_of(held.high))


def _evidence(measured: Sequence[MeasuredHost], alpha: float) -> dict[tuple[Key, str], list[ProductOfEvidence]]:
    sources: dict[str, list[RunEvidence]] = {}
    for host in measured:
        if host.summary.evidence is not None:
            sources.setdefault(host.stratum, []).append(host.summary.evidence)
    if not sources:
        return {}
    try:
        together = over_strata(sources, alpha)
    except ValueError as error:
        raise UserError(str(error), hint="each host needs coins of its own: take the copy out of the fleet") from None
    found: dict[tuple[Key, str], list[ProductOfEvidence]] = {}
    for name, each in together.items():
        for one in each:
            key = one.cell, one.arm, one.baseline, one.metric
            found.setdefault((key, name), []).append(_product(one))
    return found


def _product(one: Combined) -> ProductOfEvidence:
    return ProductOfEvidence(
        end_point=one.end_point,
        hosts=len(one.parts),
        larger=one.larger,
        smaller=one.smaller,
        adjusted=one.adjusted,
        direction=one.direction,
        verdict=one.verdict,
        reason=one.reason,
    )


def _several(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{', '.join(names[:_SHOWN])}{more}"


_Arm = tuple[str, str, str, str]  # stratum, cell, metric, arm


def levels(measured: Sequence[MeasuredHost]) -> Iterator[StratumLevel]:
    """Yield the levels of each stratum, cell and arm, in the order of the hosts."""
    found: dict[_Arm, list[ArmLevel]] = {}
    for host in measured:
        for each in host.summary.cells:
            for one in each.levels:
                found.setdefault((host.stratum, each.cell, each.metric.name, one.arm), []).append(one)
    for (stratum, cell, metric, arm), several in found.items():
        medians = [one.median for one in several if one.median is not None]
        yield StratumLevel(
            stratum=stratum,
            cell=cell,
            arm=arm,
            metric=metric,
            hosts=len(medians),
            n=sum(one.n for one in several),
            median=median(medians) if medians else None,
            least=min(medians, default=None),
            most=max(medians, default=None),
            low=_middle([one.low for one in several]),
            high=_middle([one.high for one in several]),
        )


def _middle(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None
