"""What runs have measured of a study's comparisons: the pairs of each, its sessions, and the seconds of an attempt.

A forecast is made from these (`forecast`). Runs can be put together where they measured the same on one machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

from hugewise.analysis.earlier import comparable, unlike
from hugewise.errors import UserError
from hugewise.model.trial import Block
from hugewise.stats.family import ComparedCell, methods_for
from hugewise.stats.method import Contrast
from hugewise.stats.pairs import Pairs
from hugewise.store.folder import RunFolder
from hugewise.store.records import BlockClosed, BlockOpened, CellRecord, Opened, Resumed, Run
from hugewise.study.study import Study

__all__ = ["Pilot", "judged", "read", "room"]


@dataclass
class Pilot:
    """What the runs have measured of one cell; pairs and their groups by arm and metric."""

    record: CellRecord
    pairs: dict[tuple[str, str], Pairs] = field(default_factory=dict)
    groups: dict[tuple[str, str], dict[tuple[int, int], list[float]]] = field(default_factory=dict)
    spans: float = 0.0  # seconds of complete blocks, from opened to closed
    busy: float = 0.0  # seconds of their attempts
    seconds: dict[str, list[float]] = field(default_factory=dict)  # of attempts, by arm

    def cost(self, arm: str) -> float:
        """Seconds of an attempt of `arm`, with its part of what a block takes beyond its attempts."""
        return fmean(self.seconds[arm]) * self.spans / self.busy if self.seconds.get(arm) and self.busy else 0.0


def judged(study: Study, cells: Sequence[ComparedCell]) -> list[Contrast]:
    """The comparisons that share the error rate, each once: its end points are judged on the same pairs."""
    contrasts = dict.fromkeys(method.contrast for method in methods_for(study, cells))
    claimed = [contrast for contrast in contrasts if contrast.arm not in study.unjudged]
    return [contrast for contrast in claimed if contrast.metric.better != "neutral"]


def read(study: Study, runs: Sequence[Path]) -> dict[str, Pilot]:
    """The pairs of all runs, by cell. Raises UserError, RunError."""
    pilots: dict[str, Pilot] = {}
    first: Opened | None = None
    for number, path in enumerate(runs):
        run = RunFolder(path).read()
        key = comparable(study, run.study)
        if key is not None:
            raise UserError(
                f"{path} measured another study: `{key}` differs from {study.name}'s",
                hint=f"a fresh pilot: hugewise plan {study.file or 'STUDY'} --pilot 20",
            )
        first = first or run.opened
        if (difference := unlike(run.opened, first)) is not None:
            raise UserError(
                f"{path} ran on another machine than {runs[0]}: {difference}",
                hint="plan from each by itself: pairs of different machines have no spread in common",
            )
        for cell in run.opened.cells:
            if pilots.setdefault(cell.id, Pilot(cell)).record.kind != cell.kind:  # as a calibration had let it be
                raise UserError(
                    f"{path} measured {cell.id} in another design than {runs[0]}",
                    hint="plan from each by itself: pairs of different designs have no spread in common",
                )
        spans = _spans(run)
        contrasts = judged(study, run.opened.cells)
        for block in run.blocks:
            if block.state == "complete" and block.cell in pilots:
                _take(pilots[block.cell], block, spans.get(block.number), contrasts, number)
    if not any(pilot.spans for pilot in pilots.values()):
        raise UserError("the runs have no complete block", hint="resume them, or: hugewise plan STUDY --pilot 20")
    return pilots


def _take(pilot: Pilot, block: Block, span: float | None, contrasts: Iterable[Contrast], run: int) -> None:
    for contrast in contrasts:
        if contrast.cell == block.cell:
            key = contrast.arm, contrast.metric.name
            pairs = pilot.pairs.setdefault(key, Pairs(contrast))
            pair = pairs.take(block)
            if pair is not None and pair.log_ratio is not None:
                groups = pilot.groups.setdefault(key, {})
                groups.setdefault((run, pair.session), []).append(pair.log_ratio)
    busy = 0.0
    for attempt in block.attempts:
        pilot.seconds.setdefault(attempt.arm, []).append(attempt.ended - attempt.started)
        busy += attempt.ended - attempt.started
    pilot.busy += busy
    pilot.spans += span if span is not None else _extent(block)


def _extent(block: Block) -> float:
    return max(attempt.ended for attempt in block.attempts) - min(attempt.started for attempt in block.attempts)


def _spans(run: Run) -> dict[int, float]:
    """Seconds from a block's opening to its close; not of a block that a resumed run went on with after a pause."""
    opened: dict[int, float] = {}
    found: dict[int, float] = {}
    for record in run.records:
        if isinstance(record, BlockOpened):
            opened = {record.block: record.t}
        elif isinstance(record, BlockClosed):
            if record.block in opened:
                found[record.block] = record.t - opened[record.block]
        elif isinstance(record, Resumed):
            opened = {}
    return found


def room(study: Study, pilots: Iterable[Pilot]) -> int | None:
    """Blocks of each cell that the time budget has room for."""
    round_ = sum(pilot.cost(arm.name) for pilot in pilots for arm in pilot.record.arms)
    return None if study.budget.time is None or not round_ else int(study.budget.time / round_)
