"""Check of a study's budget before hours are spent: whether it can decide anything.

No comparison is decided before a number of pairs that follows from its share of the error rate alone (`stats.power`),
however large its effect is. How long a round of all cells takes is known from the newest run of the study that measured
each of its arms; else an attempt takes its lead and its measured part at least.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from hugewise.analysis import earlier, forecast
from hugewise.analysis.earlier import of_study
from hugewise.errors import HugewiseError
from hugewise.plan.plan import Cell
from hugewise.quantity import format_duration
from hugewise.stats import power
from hugewise.stats.family import ComparedCell
from hugewise.study.study import Study

_ROOM = 1.1  # times what the blocks so far have taken
_NEWEST = 3  # runs that are read wholly: a long campaign has hundreds


class Round(NamedTuple):
    """Seconds that one block of every cell takes at least, and how that is known."""

    seconds: float
    source: str


def too_small(study: Study, cells: Sequence[Cell], results: Path) -> str | None:
    """Return why the budget decides no comparison, and the cure; None where it may, and for methods without a verdict.
    `results`: the folder of earlier runs, which tell how long a block takes.
    """
    if study.method not in ("sequential", "fixed-n"):
        return None
    comparisons, claims = len(earlier.judged_comparisons(study, cells)), earlier.claims(study, cells)
    if not comparisons:
        return None
    least = forecast.least_blocks(study, claims, study.budget.blocks, forecast.most_copies(cells))
    if least is None:
        # Advice and pilots use fixed-n for estimates: no verdict is asked of their blocks.
        asks = study.method == "fixed-n" and (study.name.startswith("advise-") or study.name.endswith("-pilot"))
        return None if asks else _few_blocks(study, comparisons, claims, forecast.most_copies(cells))
    return _short(study, least, measured(study, cells, results) or declared(cells))


def measured(study: Study, cells: Sequence[ComparedCell], results: Path) -> Round | None:
    """Return the round of the newest run of the study below `results` that measured each of its arms, or None."""
    for _, run in of_study(study, results)[:_NEWEST]:
        with suppress(HugewiseError):
            known = earlier.read(study, [run.path])
            costs = [known[cell.id].cost(arm.name) if cell.id in known else 0.0 for cell in cells for arm in cell.arms]
            if all(costs):
                return Round(sum(costs), f"took {format_duration(sum(costs))} in {run.path}")
    return None


def declared(cells: Sequence[Cell]) -> Round:
    """Return the round from the parameters: lead and measured part of workloads of fixed time, arm after arm."""
    total = sum(timed(cell.given(arm)) for cell in cells if cell.kind == "sequential" for arm in cell.arms)
    return Round(total, f"takes {format_duration(total)} at least: the measured parts and their leads alone")


def timed(values: Mapping[str, object]) -> float:
    """Return seconds of the lead and the measured part; 0 where the work is given, not the time."""
    if values.get("operations") or values.get("transactions"):
        return 0.0
    parts = (values.get(name) for name in ("duration", "lead"))
    return sum(float(part) for part in parts if isinstance(part, int | float))


def _short(study: Study, least: int, round_: Round) -> str | None:
    time = study.budget.time
    if time is None or round_.seconds * least <= time:
        return None
    room = int(time / round_.seconds)
    has = f"has room for {room} block{'' if room == 1 else 's'} of each cell" if room else "ends within the first round"
    before = f"none of its comparisons is decided before block {least}"
    if study.method == "fixed-n":
        before = f"its method decides after all of its {least} blocks"
    needed = format_duration(math.ceil(round_.seconds * least / 60) * 60)
    return (
        f"the budget is too small to decide anything: its time of {format_duration(time)} {has}"
        f" (a round {round_.source}), and {before}: {needed} or more, or fewer cells and arms (--only, --arms)"
    )


def more_time(seconds: float, *, asked: bool) -> str:
    """Return the cure of a time below the `seconds` that a verdict takes; `asked`: of a command line."""
    minutes = math.ceil(_ROOM * seconds / 60)
    if not asked:
        return f"{format_duration(60 * minutes)} or more"
    return f"begin it anew with --time {minutes}m or more, or with fewer cells and arms (--only, --arms)"


def _few_blocks(study: Study, comparisons: int, claims: int, copies: int) -> str:
    every = range(study.budget.blocks + 1, power.WALKED)
    needed = next(n for n in every if forecast.least_blocks(study, claims, n, copies) is not None)
    several = f"{comparisons} comparison{'' if comparisons == 1 else 's'}"
    return (
        f"the budget is too small to decide anything: {study.budget.blocks} blocks cannot decide {several} at a"
        f" confidence of {study.confidence:g} together, however large an effect is: --blocks {needed} or more"
    )
