"""What became of the cells that were to be measured first, over all runs of a page. Pure.

What is to be measured first: the list `cells.toml` beside the pages of results, a cell for each published claim.

    format = 1
    pairs = 12            # that each comparison gets at least

    [[cell]]
    study = "redhat-2021"
    only = ["iperf3"]     # labels of workloads, or cells
    arms = ["base"]       # beside the baseline; left out: all that the cell has
    claims = ["iperf3"]   # entries of the publication that it answers

The order is that of measuring. A page has its own study's part of the list in its data (`First`).

Cells of a study that a run of a part of it (`--only`) left unmeasured, and what a verdict may take there. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import msgspec

from hugewise import reading, workloads
from hugewise.analysis import budget
from hugewise.analysis.forecast import FEWEST, TYPICAL, Row
from hugewise.errors import StudyError
from hugewise.model.procedure import Staged
from hugewise.model.results import Comparison, Results, Verdict
from hugewise.model.workload import Workload
from hugewise.plan.cells import Resolved, resolve
from hugewise.plan.plan import EVERY
from hugewise.quantity import format_duration
from hugewise.report import remarks
from hugewise.report.document import Block, Line, Section, table
from hugewise.report.numbers import NOTHING
from hugewise.report.sentences import SYMBOLS
from hugewise.study import keys
from hugewise.study.keys import Key, Name, Place
from hugewise.study.study import Study
from hugewise.study.workload import SMALL

NAME = "cells.toml"
_MOST = 1 << 20  # bytes


class Listed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An entry of the list."""

    study: Annotated[Name, Key("The study.", 'study = "redhat-2021"')]
    scale: Annotated[Name, Key("Its scale.", 'scale = "sure"')] = SMALL
    only: Annotated[
        tuple[str, ...], keys.listing(keys.text()), Key("Labels of its workloads, or cells.", 'only = ["iperf3"]')
    ]
    arms: Annotated[
        tuple[str, ...],
        keys.listing(keys.name()),
        Key("Policies beside the baseline.", 'arms = ["thp"]', default="all that the cell has"),
    ] = ()
    claims: Annotated[
        tuple[str, ...],
        keys.listing(keys.text(), least=0),
        Key("Entries of the publication that it answers.", 'claims = ["iperf3"]', default="none: beyond it"),
    ] = ()


class CellList(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The list; `file` is where it came from, and no key."""

    format: Annotated[int, keys.integer(1, 1), Key("The version of this format: 1.", "format = 1")]
    pairs: Annotated[int, keys.integer(1), Key("Pairs that each comparison gets at least.", "pairs = 12")]
    cell: Annotated[tuple[Listed, ...], keys.listing(keys.table(Listed)), Key("Entries, first first.", "[[cell]]")]
    file: str = ""


class First(msgspec.Struct, frozen=True, kw_only=True):
    """A cell that was to be measured first: `arms` beside its baseline, in at least so many `pairs`, for the published
    entries `claims`.
    """

    cell: str
    arms: tuple[str, ...]
    claims: tuple[str, ...]
    pairs: int


def beside(page: Path) -> CellList | None:
    """The list in the folder of a page; None where there is none. Raises StudyError."""
    path = page.parent / NAME
    return read_cell_list(path) if path.exists() else None


def read_cell_list(path: Path) -> CellList:
    """The list in the file at `path`. Raises StudyError, which names file, key, value and cure."""
    try:
        data = reading.toml(reading.text(reading.content(path, _MOST)))
    except reading.UnreadableError as error:
        raise StudyError(error.reason, file=str(path), hint="see https://toml.io for the syntax") from None
    return keys.read_table(CellList, data, Place(str(path)), file=str(path))


def of_study(listed: CellList, whole: Study) -> tuple[First, ...]:
    """What the list has of the study, at its scale. Raises StudyError where it names what the study has not."""
    return tuple(
        first
        for place, entry in Place(listed.file).items("cell", listed.cell)
        if (entry.study, entry.scale) == (whole.name, whole.scale)
        for first in _cells(entry, place, whole, listed.pairs)
    )


def _cells(entry: Listed, place: Place, whole: Study, pairs: int) -> Iterator[First]:
    cells = resolve(whole, workloads.discover())
    for here, name in place.items("only", entry.only):
        chosen = [cell for cell in cells if name in {cell.id, cell.used.called}]
        if not chosen:
            known = [cell.id for cell in cells]
            raise here.wrong(f"is no label and no cell of {whole.name}", name, hint=keys.near(name, known))
        for cell in chosen:
            yield First(cell=cell.id, arms=_arms(entry, place, whole, cell), claims=entry.claims, pairs=pairs)


def _arms(entry: Listed, place: Place, whole: Study, cell: Resolved) -> tuple[str, ...]:
    own = cell.used.policies or [use.name for use in whole.policies]
    known = [name for name in own if name != whole.compared_with and name not in whole.unjudged]
    for here, name in place.items("arms", entry.arms):
        if name not in known:
            raise here.wrong(f"is not judged in {cell.id} of {whole.name}", name, hint=keys.near(name, known))
    return entry.arms or tuple(known)


class Unmeasured(msgspec.Struct, frozen=True, kw_only=True):
    """A cell that was not run.

    neighbour  a measured cell by whose forecast the others are; null where none has one, and `reason` says why
    other      it is one of another workload: nothing nearer has a forecast
    arm        that arm of the neighbour of which a verdict takes longest
    pairs      that its verdict takes for a change as large as the study's margin
    seconds    that these take, the baseline's part included
    floor      they are the leads and measured parts of the cell itself, which is the least that pairs take
    spread     the neighbour's, where so few pairs tell it that its interval belongs to every figure; else empty
    """

    cell: str
    neighbour: str | None = None
    arm: str | None = None
    pairs: int | None = None
    seconds: float | None = None
    other: bool = False
    floor: bool = False
    spread: str = ""
    reason: str = ""


def unmeasured(whole: Study, measured: Mapping[str, Sequence[Row]]) -> tuple[Unmeasured, ...]:
    """The cells of the `whole` study that are not among those `measured`, by their forecasts; in its order.

    The neighbour is a cell of the same table of the study where one has a forecast, else one of the same workload, else
    one of another: first of those that judge the same metric, then of servers for servers and commands for commands.
    """
    cells = resolve(whole, workloads.discover())
    there = [cell for cell in cells if cell.id in measured]
    return tuple(_by_neighbour(cell, there, measured) for cell in cells if cell.id not in measured)


def _by_neighbour(cell: Resolved, there: Sequence[Resolved], measured: Mapping[str, Sequence[Row]]) -> Unmeasured:
    reasons: list[str] = []
    for one in sorted(there, key=lambda one: _distance(cell, one)):
        rows = [row for row in measured[one.id] if row.end_point == TYPICAL]
        told = [(row.needed * row.seconds, row) for row in rows if row.needed is not None and row.seconds is not None]
        if told:
            _, row = max(told, key=lambda pair: pair[0])
            return _like(cell, one, row)
        reasons += [f"{one.id}, {row.arm}: {remarks.pairs(row)}" for row in rows]
    why = reasons[0] if reasons else "none was measured in pairs"
    return Unmeasured(cell=cell.id, reason=f"no cell of the study has a forecast ({why})")


def _distance(cell: Resolved, one: Resolved) -> tuple[bool, ...]:
    return (
        one.workload.name != cell.workload.name,
        one.used.called != cell.used.called,
        one.metric.name != cell.metric.name,
        _serves(one.workload) != _serves(cell.workload),
    )


def _serves(workload: Workload) -> bool:
    return isinstance(workload, Staged) and (workload.clients or workload.ports > 0)


def _like(cell: Resolved, one: Resolved, row: Row) -> Unmeasured:
    """The cell by the forecast of another. Of another workload the time is not its own, where that can be told."""
    assert row.needed is not None and row.seconds is not None
    other = one.workload.name != cell.workload.name
    own = 2 * budget.timed(cell.values) if other else 0.0
    return Unmeasured(
        cell=cell.id,
        neighbour=one.id,
        arm=row.arm,
        pairs=row.needed,
        seconds=row.needed * (own or row.seconds),
        other=other,
        floor=own > 0,
        spread=remarks.spread(row) if row.pairs < FEWEST else "",
    )


def missed(cells: Sequence[Unmeasured]) -> Iterator[Block]:
    """The table of them."""
    if cells:
        head = ("cell", "if it is as noisy as", "pairs for a change as large as the margin", "time")
        rows = [(one.cell, similar_cells(one), pairs(one), hours(one)) for one in cells]
        yield table("cells of the study that no run was asked for", head, rows, 2)


def similar_cells(one: Unmeasured) -> str:
    """Whose forecast it is, or why there is none."""
    if one.neighbour is None:
        return one.reason or "no cell of its workload has a forecast"
    told = f"{one.neighbour}, {one.arm}{', of another workload' if one.other else ''}"
    return f"{told}; few pairs tell its spread, {one.spread}" if one.spread else told


def pairs(one: Unmeasured) -> str:
    """How many it takes."""
    return remarks.UNKNOWN if one.pairs is None else f"{one.pairs:,}"


def hours(one: Unmeasured) -> str:
    """How long they take."""
    if one.seconds is None:
        return remarks.UNKNOWN
    return f"{'at least ' if one.floor else ''}{format_duration(one.seconds)}"


TITLE = "What was to be measured first"
_DECIDED = {"better", "worse", "equivalent"}

CellArm = tuple[str, str, str]
"""A cell, an arm and a metric."""


def first_cells_section(
    listed: Sequence[First],
    runs: Sequence[Results],
    together: Mapping[CellArm, Verdict],
    planned: Mapping[CellArm, Row],
    others: Sequence[Unmeasured],
) -> Iterator[Section]:
    """The section, where anything is listed.

    runs      the newest first
    together  what they say together, where several have a comparison
    planned   what a verdict takes
    others    the cells that none was asked for
    """
    if not listed:
        return
    not_run = {one.cell: one for one in others}
    rows = [
        (first.cell, arm, ", ".join(first.claims) or NOTHING, *told)
        for first in listed
        for arm in first.arms
        for told in _told(first, arm, runs, together, planned, not_run.get(first.cell))
    ]
    least = max(first.pairs for first in listed)
    head = (
        "cell",
        "policy",
        "for the published",
        "metric",
        "pairs of all runs",
        f"{least} pairs",
        "verdict, or what it needs",
    )
    said = f"A cell for each published claim came first, in this order; each was to have {least} pairs at least."
    yield Section(TITLE, (Line(said), table("the list", head, rows, 4)))


def _told(  # noqa: PLR0917
    first: First,
    arm: str,
    runs: Sequence[Results],
    together: Mapping[CellArm, Verdict],
    planned: Mapping[CellArm, Row],
    other: Unmeasured | None,
) -> Iterator[tuple[str, str, str, str]]:
    """Of each metric: its name, pairs, whether they are enough, and the verdict or what it needs."""
    every = [one for run in runs for one in _compared(run, first.cell, arm)]
    if not every:
        yield NOTHING, "0", "no", f"not run: {_why_not(first.cell, arm, runs, planned, other)}"
    for metric in dict.fromkeys(one.metric for one in every):
        found, key = [one for one in every if one.metric == metric], (first.cell, arm, metric)
        pairs = sum(one.n for one in found)
        enough = "yes" if pairs >= first.pairs else _fewer(first.cell, pairs, runs, found)
        yield metric, f"{pairs:,}", enough, _verdict(found, together.get(key), planned.get(key))


def _fewer(cell: str, pairs: int, runs: Sequence[Results], found: Sequence[Comparison]) -> str:
    """Fewer are no run that ended early where one decided before, or is judged once, after its planned blocks."""
    for run in runs:
        blocks = (run.options.get("budget") or {}).get("blocks")
        if run.options.get("method") == "fixed-n" and blocks == pairs and any(one.cell == cell for one in run.cells):
            return f"no: {pairs:,} were planned"
    return f"decided after {pairs:,}" if any(one.verdict in _DECIDED for one in found) else "no"


def _compared(run: Results, cell: str, arm: str) -> Iterator[Comparison]:
    for one in run.cells:
        if one.cell == cell:
            yield from (each for each in (*one.comparisons, *one.declared) if each.arm == arm)


def _verdict(found: Sequence[Comparison], together: Verdict | None, row: Row | None) -> str:
    """The verdict of all runs, of one of them, or what it takes. Runs that disagree have none."""
    if together in _DECIDED:
        return _word(together)
    words = list(dict.fromkeys(one.verdict for one in found if one.verdict in _DECIDED))
    if len(words) > 1:
        return f"the runs disagree: {', '.join(words)}"
    if words:
        return _word(words[0])
    newest = found[0]
    if newest.verdict == "none" and newest.reason:
        return f"{_word(newest.verdict)}: {newest.reason}"
    return f"{_word(newest.verdict)}; pairs: {remarks.pairs(row)}; time: {remarks.hours(row)}"


def _word(verdict: Verdict) -> str:
    return f"{SYMBOLS[verdict]} {verdict}"


def _why_not(
    cell: str, arm: str, runs: Sequence[Results], planned: Mapping[CellArm, Row], other: Unmeasured | None
) -> str:
    """The reason that a run had for leaving it out, or what it would take by a neighbour."""
    if other is not None:
        like = similar_cells(other)
        return like if other.neighbour is None else _as_noisy(like, pairs(other), hours(other))
    for left in (left for run in runs for left in run.left_out):
        if left.cell in {cell, EVERY} and left.policy in {arm, EVERY}:
            return left.reason
    near = [row for (name, *_), row in planned.items() if name == cell and row.needed is not None and row.seconds]
    if near:
        row = max(near, key=lambda row: (row.needed or 0) * (row.seconds or 0.0))
        return _as_noisy(f"{row.arm} there", remarks.pairs(row), remarks.hours(row))
    return "no run was asked for it, and its cell has no forecast"


def _as_noisy(like: str, pairs: str, hours: str) -> str:
    return f"if as noisy as {like}: {pairs} pairs, {hours}"
