"""An advice for a run that exists: what its verdicts say is to be set, and what it cannot answer. Nothing is run."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

import msgspec

from hugewise.analysis.analysis import analyze
from hugewise.analysis.forecast import TYPICAL, Row, forecast
from hugewise.errors import HugewiseError
from hugewise.model.answer import CellAnswer
from hugewise.model.results import Results
from hugewise.quantity import format_duration
from hugewise.report import numbers
from hugewise.report.cell_answers import answers, joint_confidence, not_compared, price, selection, separately
from hugewise.store.folder import RunFolder

_AS_IS, _GENERAL = "as-is", ("base", "thp")
_SPARE = 1.2  # of the time that a forecast says, for a budget


class RunAdvice(msgspec.Struct, frozen=True, kw_only=True):
    """What a run says is to be set, by cell. `together`: how sure all answers are together; `selection`: what choosing
    among its arms does to what is said of the chosen one; `unanswered`: what it cannot say.
    """

    format: int = 1
    run: str
    study: str
    state: str
    answers: tuple[CellAnswer, ...]
    together: str = ""
    selection: str = ""
    unanswered: tuple[str, ...] = ()


def advice_of_run(folder: Path) -> tuple[RunAdvice, Results]:
    """The advice of the run in `folder`, and its results. Raises RunError where it is none, or is damaged."""
    results = analyze(folder)
    found = answers(results)
    chosen = any(one.state in ("set", "weigh") for one in found)
    told = RunAdvice(
        run=str(folder),
        study=results.study,
        state=results.state,
        answers=found,
        together=joint_confidence(results),
        selection=selection(results) if chosen else "",
        unanswered=tuple(_unanswered(results, found, folder)),
    )
    return told, results


def sentences(found: RunAdvice) -> Iterator[str]:
    """One sentence for each cell."""
    alone = len(found.answers) == 1
    for one in found.answers:
        yield one.text if alone else f"{one.cell}: {one.text}"
    if not found.answers:
        yield "No answer: no cell was measured."


def details(found: RunAdvice) -> Iterator[str]:
    """What stands behind the answers, line by line."""
    alone = len(found.answers) == 1
    for one in found.answers:
        for said in filter(None, (price(one), not_compared(one))):
            text = said if said.endswith(".") else f"{said}."
            yield f"{text[0].upper()}{text[1:]}" if alone else f"{one.cell}: {text}"
    yield from filter(None, (found.together, found.selection))
    yield from (f"Not answered: {said}." for said in found.unanswered)


def _unanswered(results: Results, found: tuple[CellAnswer, ...], folder: Path) -> Iterator[str]:
    """What a reader might take for answered: arms that it did not have, cells that are open."""
    policies = {arm.policy for cell in results.cells for arm in cell.arms}
    if results.cells and _AS_IS not in policies:
        bases = separately(dict.fromkeys(cell.baseline for cell in results.cells))
        yield (
            f"what a setting gains over how the machine stands: `{_AS_IS}` was no arm, and changes are against {bases}"
            " (a run has it by --policy as-is,...)"
        )
    if absent := [name for name in _GENERAL if name not in policies]:
        yield f"{separately(absent)}: {'it was no arm' if len(absent) == 1 else 'they were no arms'} of this run"
    for left in results.left_out:
        yield f"{left.what}: it was left out, as {left.reason.rstrip('.')}"
    opened = [one for one in found if one.open]
    if opened:
        rows = _forecast(folder)
        for one in opened:
            yield from (_undecided(one, arm, rows, results, folder) for arm in one.open)


def _forecast(folder: Path) -> dict[tuple[str, str], Row] | str:
    """What each comparison of a cell's own metric needs, by cell and arm, or why that cannot be said."""
    try:
        held = RunFolder(folder)
        opened = held.opened()
        made = forecast(held.study(opened), [folder])
    except HugewiseError as error:
        return error.message
    own = {(cell.id, cell.metric.name) for cell in opened.cells}
    typical = [row for row in made.rows if row.end_point == TYPICAL]
    return {(row.cell, row.arm): row for row in typical if (row.cell, row.metric) in own}


def _undecided(
    one: CellAnswer, arm: str, rows: dict[tuple[str, str], Row] | str, results: Results, folder: Path
) -> str:
    """How much more an undecided comparison needs, and how to have it."""
    said = f"whether `{arm}` is better on {one.cell}"
    row = rows if isinstance(rows, str) else rows.get((one.cell, arm))
    needed = row.needed if isinstance(row, Row) else None
    if isinstance(row, Row) and needed is not None:
        margin = numbers.percent(results.margin)
        said += f": some {needed} pairs show a change of {margin} nine times in ten, and it has {row.pairs}"
        if row.seconds is not None:
            said += f"; that many take about {format_duration(round(needed * row.seconds))}"
    else:
        why = row if isinstance(row, str) else row.reason if row is not None else None
        said += f": how many more pairs it needs is not known{f' ({why})' if why else ''}"
    where = shlex.quote(str(folder))
    if results.state == "running":
        return f"{said}. It goes on: ask again when it has ended"
    if results.state == "interrupted":
        return f"{said}. It was interrupted: hugewise resume {where} goes on to the end of its own budget"
    budget = ""
    if isinstance(row, Row) and needed is not None and row.seconds is not None:
        budget = f" --blocks {needed} --time {max(1, round(_SPARE * needed * row.seconds))}s"
    return (
        f"{said}. It has ended, and no run goes on behind its end: a new one of its study with a larger budget"
        f" (hugewise run STUDY{budget}), judged with this one by hugewise combine"
    )
