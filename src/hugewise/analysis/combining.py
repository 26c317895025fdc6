"""The runs of one question, on several hosts or at several times, judged together.

What their comparisons carry is read from the folders and put together by `hugewise.stats.evidence`. The end points that
the studies declared (mean, slow, p99) are comparisons beside the typical ratio, and share the error rate with it.
Nothing but e-values is combined: a common effect or interval would need a model of how hosts and sessions differ, which
runs like these do not give.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from hugewise.analysis import analysis
from hugewise.analysis.calibration import identity
from hugewise.errors import UserError
from hugewise.model.guest_results import Guests
from hugewise.model.results import Comparison, Results
from hugewise.model.workload import without_defaults
from hugewise.stats import evidence
from hugewise.stats.end_points import END_POINTS
from hugewise.stats.evidence import TYPICAL, Carried, Combined, RunEvidence
from hugewise.store.folder import RunFolder
from hugewise.store.records import CellRecord, Opened, Run
from hugewise.study.tables import Design

__all__ = ["Combination", "answer", "carried", "combined", "end_point", "identities"]


class Combination(msgspec.Struct, frozen=True, kw_only=True):
    """What several runs say together; `alone` names the comparisons that only one of them has."""

    format: int = 1
    runs: tuple[str, ...]
    confidence: float
    comparisons: tuple[Combined, ...]
    alone: tuple[str, ...]


def answer(runs: Sequence[Path], confidence: float | None = None) -> Combination:
    """The runs in these folders, judged together at `confidence` (default: that of their studies). Raises UserError."""
    if len(runs) < 2:
        raise UserError("one run alone has nothing to be combined with", hint="hugewise combine RUN RUN...")
    read = [RunFolder(path).read() for path in runs]
    _alike_enough(read)
    chosen = _level(read) if confidence is None else confidence
    return combined([carried(run, analysis.results_of(run)) for run in read], chosen)


def combined(sources: Sequence[RunEvidence], confidence: float) -> Combination:
    """What several runs carry, judged together at `confidence`. Raises UserError where nothing can be put together."""
    found = evidence.combine(sources, 1 - confidence)
    if not found:
        raise UserError(
            "the runs have no comparison in common (cell, arm, baseline, metric and end point)",
            hint="combine runs of one study; see the comparisons of each: hugewise report RUN",
        )
    if all(one.direction == "refused" for one in found):
        one = found[0]
        raise UserError(
            f"nothing can be put together: {one.arm} against {one.baseline} on {one.cell}: {one.reason}",
            hint="combine runs of the same study, with the same design and treatments",
        )
    shared = {one.key for one in found}
    alone = [
        f"{one.arm} against {one.baseline} on {one.cell}, {one.metric}, {one.end_point}: only in {source.run}"
        for source in sources
        for one in source.comparisons
        if one.key not in shared
    ]
    return Combination(
        runs=tuple(source.run for source in sources), confidence=confidence, comparisons=found, alone=tuple(alone)
    )


def _alike_enough(runs: Sequence[Run]) -> None:
    """Raises UserError where the runs cannot be put together, whatever they found."""
    for run in runs:
        if (method := run.study.method) != "sequential":
            raise UserError(
                f"{run.path}: the method {method} gives no e-values", hint='combine runs with method = "sequential"'
            )
    opened = [run.opened for run in runs]
    if (same := evidence.not_separate([_unread(first) for first in opened])) is not None:
        raise UserError(same, hint="each run needs coins of its own: name different runs, made without --seed")
    if len({first.mechanism for first in opened}) > 1:
        told = ", ".join(f"{first.run} is by {first.mechanism}" for first in opened)
        raise UserError(
            f"different mechanisms are never merged: {told}", hint="combine the runs of each mechanism by themselves"
        )


def _level(runs: Sequence[Run]) -> float:
    """The confidence that all studies have. Raises UserError where they differ."""
    levels = sorted({run.study.confidence for run in runs})
    if len(levels) > 1:
        raise UserError(
            f"the studies have different confidences: {', '.join(f'{level:.6g}' for level in levels)}",
            hint=f"choose one, such as --confidence {levels[-1]:.6g}",
        )
    return levels[0]


def _unread(opened: Opened) -> RunEvidence:
    name = opened.host.get("name")
    host = name if isinstance(name, str) else ""
    return RunEvidence(run=opened.run, seed_hash=opened.seed_hash, host=host, comparisons=())


def carried(run: Run, results: Results) -> RunEvidence:
    """What a run brings to a combination. Raises UserError for counts of guests whose agent is not known."""
    guests = results.guests
    if guests is not None and guests.counting and any(arm.attempts and not arm.initramfs for arm in guests.arms):
        raise UserError(
            f"{run.path}: which agent its guests had was not kept, and a count is of one agent",
            hint="run its study again, or leave it out",
        )
    cells = {cell.id: cell for cell in run.opened.cells}
    comparisons = [
        _carried(cells[cell.cell], one, run.study.design, guests)
        for cell in results.cells
        for one in cell.judged
        if cell.metric_named(one.metric).better != "neutral"
    ]
    return msgspec.structs.replace(_unread(run.opened), comparisons=tuple(comparisons))


def _carried(cell: CellRecord, one: Comparison, design: Design, guests: Guests | None) -> Carried:
    judged, metric = one.verdict != "none", cell.metric_named(one.metric)
    absent = "" if judged else one.reason
    if judged and (one.evidence_larger is None or one.evidence_smaller is None):
        absent = f"none was kept of its {end_point(one)}"
    return Carried(
        cell=cell.id,
        arm=one.arm,
        baseline=one.baseline,
        metric=one.metric,
        higher_is_better=metric.better == "higher",
        identity=identities(cell, one, design) | ({} if guests is None else _machines(guests, one)),
        pairs=one.n,
        larger=one.evidence_larger if judged else None,
        smaller=one.evidence_smaller if judged else None,
        absent=absent,
        end_point=end_point(one),
    )


def identities(cell: CellRecord, one: Comparison, design: Design) -> dict[str, str]:
    """What must be the same where two runs are asked one question, by its name in words; guests apart."""
    metric = cell.metric_named(one.metric)
    arms = {arm.name: arm.treatment for arm in cell.arms}
    rules = {arm.name: cell.delivery.of(arm.judged) for arm in cell.arms}
    return {
        "workload": cell.workload,
        "parameters": _exactly(without_defaults(cell.values)),
        "metric": _exactly([metric.unit, metric.better]),
        "delivery rule": _exactly([rules[one.arm], rules[one.baseline]]),
        "treatment of the arm": identity(arms[one.arm]),
        "treatment of the baseline": identity(arms[one.baseline]),
        "design": f"{design.kind} {design.turns}" if design.kind == "crossover" else design.kind,
        "estimand": one.estimand,
        "client": "on a host of its own" if cell.apart else "beside its servers",
    }


def end_point(one: Comparison) -> str:
    """What is judged of the metric, as the study names it. An estimand begins with it; the design may add to that."""
    for name, kind in END_POINTS.items():
        if one.estimand.startswith(kind.estimand):
            return name
    return TYPICAL


def _machines(guests: Guests, one: Comparison) -> dict[str, str]:
    """The guests of both sides: another accelerator, kernel, backing or size makes another question.

    Where they count, so do another QEMU and another agent.
    """
    known = {arm.arm: arm for arm in guests.arms}
    origins = {kernel.name: kernel.origin for kernel in guests.kernels}

    def machine(name: str) -> str:
        arm = known[name]
        kernel = origins.get(arm.kernel, arm.sha256)
        return _exactly([kernel, arm.backing, arm.cpu_model, arm.cpus, arm.memory, arm.qemu if guests.counting else ""])

    agents = [known[name].initramfs for name in (one.arm, one.baseline)] if guests.counting else []
    return {
        "accelerator": guests.accelerator or "",
        "agent of the counts": _exactly(agents),
        "guest of the arm": machine(one.arm),
        "guest of the baseline": machine(one.baseline),
    }


def _exactly(value: object) -> str:
    return msgspec.json.encode(value, order="deterministic").decode()
