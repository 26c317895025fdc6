"""What a host's run brings to its fleet, small: a fleet's report reads these, and no attempt again.

It is made once of a run that was read under its hash chain: a run of tens of thousands of attempts takes seconds, and a
fleet has hundreds of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from hugewise.analysis import analysis, combining
from hugewise.model.arm_level import ArmLevel
from hugewise.model.metric import Metric
from hugewise.model.results import CellResult, Comparison, LeftOut, Results
from hugewise.stats.evidence import RunEvidence
from hugewise.stats.host_estimate import estimate_of
from hugewise.stats.method import Method
from hugewise.stats.pooling import HostEstimate
from hugewise.store.folder import RunFolder
from hugewise.store.records import Run

__all__ = ["FORMAT", "HostCell", "HostComparison", "HostSummary", "summarised", "summary_of"]

FORMAT = 1
"""Rises when what is in it is made in another way: one that was kept is then made anew."""


class HostComparison(msgspec.Struct, frozen=True, kw_only=True):
    """One comparison of the typical ratio: what the host says by itself, and its estimate for the fleet.

    estimate   in the logarithm, with what pooling asks; None with the reason in `absent`
    """

    cell: str
    found: Comparison
    estimate: HostEstimate | None
    absent: str = ""


class HostCell(msgspec.Struct, frozen=True, kw_only=True):
    """A cell as the host measured it: its levels by arm."""

    cell: str
    workload: str
    metric: Metric
    baseline: str
    levels: tuple[ArmLevel, ...]


class HostSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a host. `hash` is its last running hash, `study_digest` that of its study.

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
    """Of the run in the folder `path`, which is read whole. Raises RunError, UserError."""
    return summary_of(RunFolder(path).read())


def summary_of(run: Run) -> HostSummary:
    """Of a run that was read. Raises RunError, UserError."""
    found = analysis.judged(run)
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
        evidence=_evidence(run, results),
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
    if isinstance(estimate, str):
        return HostComparison(cell=cell.cell, found=one, estimate=None, absent=estimate)
    return HostComparison(cell=cell.cell, found=one, estimate=estimate)


def _evidence(run: Run, results: Results) -> RunEvidence | None:
    """Of each cell's own metric."""
    if run.study.method != "sequential":
        return None
    own = {(cell.id, cell.metric.name) for cell in run.opened.cells}
    found = combining.carried(run, results)
    kept = tuple(one for one in found.comparisons if (one.cell, one.metric) in own)
    return msgspec.structs.replace(found, comparisons=kept)
