"""What a study will need: pairs, hours, and the smallest effect that its budget can show, from measured pairs.

    forecast(study, runs, effect=0.01)   from past runs or pilots of the same study
    pilot(study, blocks, results)        a short run for nothing but this
    missing(study, cells, results)       what to do when there is neither

The spread of a comparison's pairs is taken from the runs; the power is that of the study's own method at its own share
of the error rate, averaged over what the runs leave open (`stats.assurance`; end points: `stats.end_power`). Pairs are
forecast from `stats.spread.scale`; their range carries the relative interval of the standard deviation over to it. A
pilot says how noisy pairs are here, today: no more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from hugewise.analysis import pilots
from hugewise.analysis.earlier import of_study
from hugewise.analysis.forecast_rows import CHANCE, FEWEST, TYPICAL, Planner, Row, made
from hugewise.analysis.pilots import Pilot
from hugewise.errors import UserError
from hugewise.stats import power
from hugewise.stats.family import ComparedCell
from hugewise.store.folder import RunFolder
from hugewise.study.study import Study

__all__ = ["CHANCE", "FEWEST", "TYPICAL", "Forecast", "Row", "forecast", "missing", "past_runs", "pilot", "pilot_name"]


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
    session_cost: float
    seconds: float | None
    rows: tuple[Row, ...]


def forecast(
    study: Study, runs: Sequence[Path], *, effect: float | None = None, session_cost: float = 60.0
) -> Forecast:
    """The forecast of `study` from `runs` of it, for an `effect` as |ratio - 1| (default: the margin).

    `session_cost` is what a new statistical session takes, in seconds. Raises UserError where a run is another study's,
    there are too few pairs, or the method makes no verdict; RunError where it cannot be read.
    """
    if study.method == "screening":
        raise UserError(
            f"method = 'screening' of {study.name}: it makes no verdict that could be planned",
            hint="plan what is to confirm its choice, a study with method = 'sequential'; a screening ends by itself",
        )
    effect = study.margin if effect is None else effect
    known = pilots.read(study, runs)
    judged = pilots.judged(study, [pilot.record for pilot in known.values()])
    share = level(study, len(judged))
    room = pilots.room(study, known.values())
    planner = Planner(
        method=study.method,
        level=share,
        declared=study.budget.blocks,
        budget=min(study.budget.blocks, room) if room is not None else study.budget.blocks,
        effect=effect,
        end_points=study.end_points,
        session_cost=session_cost,
    )
    rows = tuple(row for contrast in judged for row in made(contrast, known[contrast.cell], planner))
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
        least=power.least_pairs(share, study.budget.blocks) if study.method != "fixed-n" else study.budget.blocks,
        session_cost=session_cost,
        seconds=_whole(rows, known),
        rows=rows,
    )


def pilot(study: Study, blocks: int, results: Path, *, run: Callable[[Study, Path], RunFolder]) -> Path:
    """Run `blocks` blocks of every cell of `study`, in a folder of its own below `results`; the run's folder.

    Nothing is judged early, so that every comparison has all of its pairs. `run` is `hugewise.session.session.run`.
    """
    from hugewise.study.load import with_budget  # noqa: PLC0415  (only here)

    short = with_budget(study, blocks, None)
    short = msgspec.structs.replace(short, name=pilot_name(study.name), method="fixed-n", end_points=())
    return run(short, results).path


def pilot_name(study: str) -> str:
    """How pilots of the study of this name are called."""
    return f"{study[:58]}-pilot"


def missing(study: Study, cells: Sequence[ComparedCell], results: Path) -> UserError:
    """What is missing to plan `study` when neither a run nor a pilot is named, and what is known without one."""
    judged = len(pilots.judged(study, cells))
    share = level(study, judged)
    blocks, floor = study.budget.blocks, ""
    if study.method != "fixed-n":
        least = power.least_pairs(share, blocks)
        floor = f"; {blocks} declared blocks decide none" if least is None else f"; none is decided before pair {least}"
    known = past_runs(study, results)
    cure = f"hugewise plan {study.file or 'STUDY'} " + (f"--from {known[0]}" if known else "--pilot 20")
    return UserError(
        f"no measured pairs to plan {study.name} from: how much pairs differ on this machine is unknown"
        f" (known: {judged} comparison{'' if judged == 1 else 's'} at an error of {share:.3g} each{floor})",
        hint=f"{'a past run of it' if known else 'a short pilot'}: {cure}",
    )


def past_runs(study: Study, results: Path) -> list[Path]:
    """Runs and pilots of `study` below the folder `results`, the newest first."""
    found = []
    for _, folder in of_study(study, results):
        with suppress(UserError):
            if any(block.state == "complete" for block in folder.read().blocks):
                found.append(folder.path)
    return found


def level(study: Study, comparisons: int) -> float:
    """The share of one comparison's typical ratio: what `stats.family` gives it (at Holm's first step for fixed n)."""
    return (1 - study.confidence) / (max(1, comparisons) * (1 + len(study.end_points)))


def _whole(rows: Sequence[Row], known: Mapping[str, Pilot]) -> float | None:
    """Seconds of the study at the pairs needed: each arm until its own pairs are there, the baseline to the last.

    Those of the typical ratio, by which a study stops.
    """
    typical = [row for row in rows if row.end_point == TYPICAL]
    if any(row.needed is None for row in typical):
        return None
    total = 0.0
    for name, pilot in known.items():
        needed: dict[str, int] = {}  # an arm goes on until each of its metrics has its pairs
        for row in typical:
            if row.cell == name:
                needed[row.arm] = max(needed.get(row.arm, 0), row.needed or 0)
        total += sum(pairs * pilot.cost(arm) for arm, pairs in needed.items())
        total += max(needed.values(), default=0) * pilot.cost(pilot.record.baseline)
    return total
