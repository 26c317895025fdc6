"""Advice from an existing run: settings that its verdicts support, and open questions. Nothing is run."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

import msgspec

from hugewise.analysis.analysis import analyze
from hugewise.analysis.forecast import TYPICAL, Row, forecast
from hugewise.errors import HugewiseError
from hugewise.model.cause import CellAnswer
from hugewise.model.results import Results
from hugewise.quantity import format_duration
from hugewise.report import numbers
from hugewise.report.cell_answers import answers, joint_confidence, not_compared, price, selection, separately
from hugewise.report.reasons import in_words
from hugewise.store.folder import RunFolder

_AS_IS, _GENERAL = "as-is", ("base", "thp")
_SPARE = 1.2  # factor on the forecast time, for a budget


class RunAdvice(msgspec.Struct, frozen=True, kw_only=True):
    """Settings that a run recommends, by cell. `together`: the confidence of all answers together; `selection`: the
    effect that choosing among its arms has on the statement about the chosen one; `unanswered`: questions that the run
    leaves open; `decide`: how to decide them.
    """

    format: int = 1
    run: str
    study: str
    state: str
    answers: tuple[CellAnswer, ...]
    together: str = ""
    selection: str = ""
    unanswered: tuple[str, ...] = ()
    decide: str = ""


def advice_of_run(folder: Path) -> tuple[RunAdvice, Results]:
    """Return the advice of the run in `folder`, and its results. Raises RunError where it is none, or is damaged."""
    results = analyze(folder)
    found = answers(results)
    chosen = any(one.state in ("set", "weigh") for one in found)
    rows = _forecast(folder) if any(one.open for one in found) else {}
    told = RunAdvice(
        run=str(folder),
        study=results.study,
        state=results.state,
        answers=found,
        together=joint_confidence(results),
        selection=selection(results) if chosen else "",
        unanswered=tuple(_unanswered(results, found, rows)),
        decide=_more(found, rows, results, folder),
    )
    return told, results


def sentences(found: RunAdvice) -> Iterator[str]:
    """Yield one sentence for each cell."""
    alone = len(found.answers) == 1
    for one in found.answers:
        yield one.text if alone else f"{one.cell}: {one.text}"
    if not found.answers:
        yield "No answer: no cell was measured."


def details(found: RunAdvice) -> Iterator[str]:
    """Yield the details behind the answers, line by line."""
    alone = len(found.answers) == 1
    for one in found.answers:
        paid = price(one)
        for text in filter(None, (f"{paid}." if paid else "", not_compared(one))):
            yield f"{text[0].upper()}{text[1:]}" if alone else f"{one.cell}: {text}"
    yield from filter(None, (found.together, found.selection))
    yield from unanswered(found)


def unanswered(found: RunAdvice) -> Iterator[str]:
    """Yield the questions that the run leaves open, and how to answer them, in sentences."""
    if found.decide:
        yield f"To decide what is open: {found.decide}."
    yield from (f"Not answered: {said}." for said in found.unanswered)


_Needed = dict[tuple[str, str], Row] | str


def _unanswered(results: Results, found: tuple[CellAnswer, ...], rows: _Needed) -> Iterator[str]:
    """Yield questions that a reader might take for answered: arms that the run did not have, cells that are open."""
    policies = {arm.policy for cell in results.cells for arm in cell.arms}
    if results.cells and _AS_IS not in policies:
        bases = separately(dict.fromkeys(cell.baseline for cell in results.cells))
        yield (
            f"the gain over the current settings: `{_AS_IS}` was no arm, and changes are against {bases}"
            " (add it: --policy as-is,...)"
        )
    if absent := [name for name in _GENERAL if name not in policies]:
        yield f"{separately(absent)}: {'it was no arm' if len(absent) == 1 else 'they were no arms'} of this run"
    for left in results.left_out:
        yield f"{left.what}: it was left out, as {left.reason.rstrip('.')}"
    for one in found:
        for arm in one.open:
            yield _needed(one, arm, rows if isinstance(rows, str) else rows.get((one.cell, arm)), results)


def _forecast(folder: Path) -> _Needed:
    """Return what each comparison of a cell's own metric needs, by cell and arm, or why that is unknown."""
    try:
        held = RunFolder(folder)
        opened = held.opened()
        made = forecast(held.study(opened), [folder])
    except HugewiseError as error:
        return error.message
    own = {(cell.id, cell.metric.name) for cell in opened.cells}
    typical = [row for row in made.rows if row.end_point == TYPICAL]
    return {(row.cell, row.arm): row for row in typical if (row.cell, row.metric) in own}


def _needed(one: CellAnswer, arm: str, row: Row | str | None, results: Results) -> str:
    """Return how many pairs an undecided comparison needs, and how long they take."""
    said = f"whether `{arm}` is better on {one.cell}"
    needed = row.needed if isinstance(row, Row) else None
    if isinstance(row, Row) and needed is not None:
        margin = numbers.percent(results.margin)
        said += f": some {needed} pairs show a change of {margin} nine times in ten, and it has {row.pairs}"
        time = "" if row.seconds is None else f"; that many take about {format_duration(round(needed * row.seconds))}"
        return said + time
    why = row if isinstance(row, str) else row.reason and in_words(row.reason) if row is not None else None
    return f"{said}: how many more pairs it needs is not known{f' ({why})' if why else ''}"


def _more(found: tuple[CellAnswer, ...], rows: _Needed, results: Results, folder: Path) -> str:
    """Return how to decide the open comparisons, with the largest budget that one needs; empty if none is open."""
    opened = [(one.cell, arm) for one in found for arm in one.open]
    if not opened:
        return ""
    if results.state == "running":
        return "the run goes on; ask again when it has ended"
    if results.state == "interrupted":
        resumed = f"hugewise resume {shlex.quote(str(folder))}"
        return f"{resumed} continues the run to the end of its own budget"
    known = [] if isinstance(rows, str) else [rows[one] for one in opened if one in rows]
    budgets = [
        (row.needed, row.needed * row.seconds) for row in known if row.needed is not None and row.seconds is not None
    ]
    budget = ""
    if budgets:
        pairs, seconds = max(pairs for pairs, _ in budgets), max(seconds for _, seconds in budgets)
        budget = f" --blocks {pairs} --time {max(1, round(_SPARE * seconds))}s"
    return (
        f"a new run of the study (hugewise run STUDY{budget}), judged with this one by hugewise combine. This run has"
        " ended and cannot be continued"
    )
