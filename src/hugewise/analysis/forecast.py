"""Forecast of pairs, hours and the smallest detectable effect of a study, from measured pairs.

The spread of pairs is taken from the study's runs (`forecast`) or a short one (`pilot`); the power is that of its own
method at its own share of the error rate, averaged over what the runs leave open (`stats.power`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import stdev

import msgspec

from hugewise.analysis import earlier
from hugewise.analysis.earlier import Pilot, of_study
from hugewise.errors import UserError
from hugewise.model.reason import FewToPlan, Reason
from hugewise.stats import paired, power, signflip
from hugewise.stats.family import ComparedCell
from hugewise.stats.method import Contrast
from hugewise.stats.pairs import Pair, Pairs
from hugewise.store.folder import RunFolder
from hugewise.study.study import Study

CHANCE = 0.9
"""The chance of a verdict that pairs and smallest effects are given for."""
FEWEST = 6
"""Fewer pairs have no spread worth planning with."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """The typical ratio of one comparison, which decides when to stop. Spreads are of the log-ratio of a pair (0.01 is
    about 1%), effects |ratio - 1|.

    pairs, failures             what the runs have of it
    sd, sd_low, sd_high         standard deviation of the pair difference, with its 95% interval
    scale                       the deviation that the test sees (outliers count less)
    correlation (low, high)     within pairs, of the logarithms of the two sides, with its 95% interval
    needed                      pairs for the asked effect at 90%, averaged over what the pilot leaves open: of the
                                declared ones where these are enough, else the fewest to declare
    needed_low, needed_high     what would do if the spread were known to be at an end of the sd's interval
    typical                     pairs after which half of such campaigns have ended
    seconds                     of a pair, hugewise's own share included
    budget                      pairs that the declared blocks and time have room for
    smallest                    the effect that these show with 90%
    hidden                      the effect that they show with 10% only: one as small is missed nine times in ten
    reason                      why there is no forecast, or None
    """

    cell: str
    arm: str
    baseline: str
    metric: str
    pairs: int
    failures: int
    sd: float | None = None
    sd_low: float | None = None
    sd_high: float | None = None
    scale: float | None = None
    correlation: float | None = None
    correlation_low: float | None = None
    correlation_high: float | None = None
    needed: int | None = None
    needed_low: int | None = None
    needed_high: int | None = None
    typical: int | None = None
    seconds: float | None = None
    budget: int | None = None
    smallest: float | None = None
    hidden: float | None = None
    reason: Reason | None = None


@dataclass(frozen=True)
class Planner:
    """Pairs and effects at the `level` of a comparison, for an `effect` as |ratio - 1|.

    declared      the study's blocks
    copies        attempts of each arm in a block
    budget        those of them that its time has room for
    """

    method: str
    level: float
    declared: int
    budget: int
    effect: float
    copies: int = 1

    def needed(self, shift: float, freedom: float) -> int | None:
        """Return pairs of the declared ones where these are enough, else the fewest to declare."""
        if self.method == "fixed-n":
            return power.student_needed(shift, freedom, self.level, chance=CHANCE)
        within = power.pairs_for_assurance(
            shift, freedom, self.level, chance=CHANCE, budget=self.declared, copies=self.copies
        )
        return within or power.pairs_for_assurance(shift, freedom, self.level, chance=CHANCE, copies=self.copies)

    def known(self, shift: float) -> int | None:
        """Return the same if the spread were known."""
        return self.needed(shift, power.KNOWN)

    def typical(self, shift: float, freedom: float, needed: int | None) -> int | None:
        """Return pairs after which half have ended."""
        if needed is None or self.method == "fixed-n":
            return needed
        budget = max(needed, self.declared)
        return power.pairs_for_assurance(shift, freedom, self.level, chance=0.5, budget=budget, copies=self.copies)

    def shown(self, freedom: float, chance: float) -> float | None:
        """Return the shift that the budget shows with this chance."""
        if self.method == "fixed-n":
            return power.student_shift(self.budget, freedom, self.level, chance=chance)
        if self.budget <= 0:
            return None
        return power.shift_shown(self.budget, freedom, self.level, chance=chance, copies=self.copies)


def made(contrast: Contrast, pilot: Pilot, planner: Planner) -> Row:
    """Return the row of a comparison."""
    planner = replace(planner, copies=contrast.copies)
    key = contrast.arm, contrast.metric.name
    known = pilot.pairs.get(key) or Pairs(contrast)
    empty = Row(
        cell=contrast.cell,
        arm=contrast.arm,
        baseline=contrast.baseline,
        metric=contrast.metric.name,
        pairs=len(known.usable),
        failures=known.failures,
        seconds=pilot.cost(contrast.arm) + pilot.cost(contrast.baseline) or None,
        budget=planner.budget,
    )
    higher = contrast.metric.better == "higher"
    finite = [pair for pair in known.usable if pair.log_ratio is not None]
    differences = [pair.difference(higher_is_better=higher) for pair in known.usable]
    scale = paired.scale(differences)
    reason = known.refusal(known.seen)
    if reason is None and (scale is None or len(finite) < FEWEST):
        reason = FewToPlan(empty.pairs, empty.failures, FEWEST)
    if reason is not None or scale is None:
        return msgspec.structs.replace(empty, reason=reason)
    return _pairs(_spreads(empty, finite, scale), planner, paired.freedom(len(differences)))


def _spreads(row: Row, finite: Sequence[Pair], scale: float) -> Row:
    logs = [pair.log_ratio for pair in finite if pair.log_ratio is not None]
    arm = [math.log(pair.arm) for pair in finite if pair.arm is not None]
    baseline = [math.log(pair.baseline) for pair in finite if pair.baseline is not None]
    low, high = paired.deviation_interval(logs) or (None, None)
    together = paired.correlated(arm, baseline)
    return msgspec.structs.replace(
        row,
        sd=stdev(logs),
        sd_low=low,
        sd_high=high,
        scale=scale,
        correlation=together[0] if together else None,
        correlation_low=together[1] if together else None,
        correlation_high=together[2] if together else None,
    )


def _pairs(row: Row, planner: Planner, freedom: float) -> Row:
    assert row.scale is not None and row.sd is not None
    if row.scale <= 0 or row.sd <= 0:
        return msgspec.structs.replace(row, reason="all pairs have the same ratio: any number of them will do")
    shift = math.log1p(planner.effect) / row.scale
    needed = planner.needed(shift, freedom)
    low = None if not row.sd_low else planner.known(shift * row.sd / row.sd_low)
    high = None if not row.sd_high else planner.known(shift * row.sd / row.sd_high)
    return msgspec.structs.replace(
        row,
        needed=needed,
        needed_low=low,
        needed_high=high,
        typical=planner.typical(shift, freedom, needed),
        smallest=_effect(planner.shown(freedom, CHANCE), row.scale),
        hidden=_effect(planner.shown(freedom, 1 - CHANCE), row.scale),
    )


def _effect(shift: float | None, scale: float) -> float | None:
    return None if shift is None else math.expm1(min(700.0, shift * scale))


class Forecast(msgspec.Struct, frozen=True, kw_only=True):
    """A study's forecast. `level` is each comparison's share of the error rate `alpha`; `least` the fewest pairs after
    which any verdict is possible within the declared `blocks`; `seconds` the whole study's at the pairs needed, None
    where a comparison has none; `time_blocks` the blocks of each cell that its time budget has room for.
    """

    format: int = 1
    study: str
    method: str
    runs: tuple[str, ...]
    effect: float
    margin: float
    chance: float
    alpha: float
    level: float
    comparisons: int
    blocks: int
    time: float | None
    time_blocks: int | None
    least: int | None
    seconds: float | None
    rows: tuple[Row, ...]


def forecast(study: Study, runs: Sequence[Path], *, effect: float | None = None) -> Forecast:
    """Return the forecast from `runs` of `study`, for an `effect` |ratio - 1| (default: the margin). Raises UserError
    for another study's run, too few pairs, or no verdict; RunError.
    """
    if study.method == "screening":
        raise UserError(
            f"method = 'screening' of {study.name}: it makes no verdict that could be planned",
            hint="plan what is to confirm its choice, a study with method = 'sequential'; a screening ends by itself",
        )
    effect = study.margin if effect is None else effect
    known = earlier.read(study, runs)
    cells = [pilot.record for pilot in known.values()]
    judged, claims = earlier.judged_comparisons(study, cells), earlier.claims(study, cells)
    share = level(study, claims)
    room = earlier.room(study, known.values())
    planner = Planner(
        method=study.method,
        level=share,
        declared=study.budget.blocks,
        budget=min(study.budget.blocks, room) if room is not None else study.budget.blocks,
        effect=effect,
    )
    rows = tuple(made(contrast, known[contrast.cell], planner) for contrast in judged)
    if not any(row.pairs >= FEWEST for row in rows):
        most = max((row.pairs for row in rows), default=0)
        raise UserError(
            f"too few pairs to plan with: {most} of a comparison, and {FEWEST} are the least",
            hint=f"a fresh pilot: hugewise plan {study.file or 'STUDY'} --pilot 20",
        )
    return Forecast(
        study=study.name,
        method=study.method,
        runs=tuple(str(run) for run in runs),
        effect=effect,
        margin=study.margin,
        chance=CHANCE,
        alpha=1 - study.confidence,
        level=share,
        comparisons=len(judged),
        blocks=study.budget.blocks,
        time=study.budget.time,
        time_blocks=room,
        least=least_blocks(study, claims, study.budget.blocks, most_copies(cells)),
        seconds=_whole(rows, known),
        rows=rows,
    )


def pilot(study: Study, blocks: int, results: Path, *, run: Callable[[Study, Path], RunFolder]) -> Path:
    """Run `blocks` blocks of every cell, judging nothing early; return the run's folder."""
    from hugewise.study.load import with_budget  # noqa: PLC0415  (only here)

    short = with_budget(study, blocks, None)
    short = msgspec.structs.replace(short, name=pilot_name(study.name), method="fixed-n", end_points=())
    return run(short, results).path


def pilot_name(study: str) -> str:
    """Return the name of a study's pilots."""
    return f"{study[:58]}-pilot"


def missing(study: Study, cells: Sequence[ComparedCell], results: Path) -> UserError:
    """Return what is missing to plan `study` when neither a run nor a pilot is named, and what is known without one."""
    judged, claims = len(earlier.judged_comparisons(study, cells)), earlier.claims(study, cells)
    share = level(study, claims)
    blocks, floor = study.budget.blocks, ""
    if study.method != "fixed-n":
        least = least_blocks(study, claims, blocks, most_copies(cells))
        floor = f"; {blocks} declared blocks decide none" if least is None else f"; none is decided before pair {least}"
    known = past_runs(study, results)
    cure = f"hugewise plan {study.file or 'STUDY'} " + (f"--from {known[0]}" if known else "--pilot 20")
    return UserError(
        f"no measured pairs to plan {study.name} from: how much pairs differ on this machine is unknown"
        f" (known: {judged} comparison{'' if judged == 1 else 's'} at an error of {share:.3g} each{floor})",
        hint=f"{'a past run of it' if known else 'a short pilot'}: {cure}",
    )


def past_runs(study: Study, results: Path) -> list[Path]:
    """Return runs and pilots of `study` below the folder `results`, the newest first."""
    found = []
    for _, folder in of_study(study, results):
        with suppress(UserError):
            if any(block.state == "complete" for block in folder.read().blocks):
                found.append(folder.path)
    return found


def level(study: Study, claims: int) -> float:
    """Return the share of one comparison's typical ratio by `stats.family` (at Holm's first step for fixed n)."""
    return (1 - study.confidence) / max(1, claims)


def most_copies(cells: Iterable[ComparedCell]) -> int:
    """Return the most attempts of an arm in a block of any of these cells; 1 without cells."""
    return max((cell.copies for cell in cells), default=1)


def least_blocks(study: Study, claims: int, blocks: int, copies: int) -> int | None:
    """Return the block, of so many that are declared, before which no comparison is decided; None where none is."""
    share = level(study, claims)
    if study.method == "fixed-n":
        return blocks if blocks >= signflip.first_crossing(share) else None
    return power.least_pairs(share, blocks, copies)


def _whole(rows: Sequence[Row], known: Mapping[str, Pilot]) -> float | None:
    """Return seconds of the study at the pairs needed: each arm until its own pairs are there, the baseline to the
    last.
    """
    if any(row.needed is None for row in rows):
        return None
    total = 0.0
    for name, pilot in known.items():
        needed: dict[str, int] = {}  # an arm goes on until each of its metrics has its pairs
        for row in rows:
            if row.cell == name:
                needed[row.arm] = max(needed.get(row.arm, 0), row.needed or 0)
        total += sum(pairs * pilot.cost(arm) for arm, pairs in needed.items())
        total += max(needed.values(), default=0) * pilot.cost(pilot.record.baseline)
    return total
