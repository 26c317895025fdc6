"""The end of a run on a terminal: the answer, one table, the noise, what to know, where the report is, what next."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from statistics import median, stdev

from hugewise.model.results import CellResult, Comparison, Results
from hugewise.quantity import format_duration
from hugewise.report import numbers
from hugewise.report.cell_answers import SameAnswer, answers, claims, joined, price, ranked, resting
from hugewise.report.document import Block, Document, Headline, Line, Note, Section, table
from hugewise.report.earlier import earlier
from hugewise.report.plain import plain
from hugewise.report.sections import guests
from hugewise.report.sections.answer import MARKS
from hugewise.report.sections.beside import judged
from hugewise.report.sentences import SYMBOLS, effect_of, findings, records
from hugewise.report.time_short import time_short
from hugewise.stats.pairs import log_ratio
from hugewise.visible import printable

__all__ = ["summary"]

_ROWS = 9  # of the table
_ANSWERS = 4
_NOTES = 3
_LONG = 210  # characters of a note
_NAMES = 3  # cells that are named in a line
_DECIDED = ("better", "worse", "equivalent")


def summary(results: Results) -> Document:
    """At most 25 lines of 80 columns as a rule; the report has the rest."""
    notes = list(_notes(results))
    if len(notes) > _NOTES:
        notes[_NOTES - 1 :] = [f"And {len(notes) - _NOTES + 1} more notes, in the report."]
    return Document(
        title=_title(results),
        lead=(*map(Note, time_short(results)), *map(Line, _integrity(results))),
        sections=(
            Section("", tuple(_answers(results))),
            Section("", (_table(results), *map(Line, (*_sure(results), *map(_short, notes), _next(results))))),
        ),
    )


def _title(results: Results) -> str:
    """`demo: 7 of 8 comparisons decided in 3 min 40 s (time is up)`."""
    claimed = _claimed(results)
    decided = sum(one.verdict in _DECIDED for one in claimed)
    took = format_duration(max(results.ended - results.started, 0.0))
    many = f"{len(claimed)} comparison{'' if len(claimed) == 1 else 's'}"
    return printable(f"{results.study}: {decided} of {many} decided in {took} ({results.state})")


def _claimed(results: Results) -> list[Comparison]:
    return [one for cell in results.cells for one in cell.judged if claims(cell, one)]


def _integrity(results: Results) -> Iterator[str]:
    """The last hash of the records; all that is to be said where they are not what was written."""
    known = results.integrity
    if known is not None and known.state == "consistent" and results.state != "interrupted":
        yield f"Last hash: {known.hash}"
    else:
        yield from records(results)


def _answers(results: Results) -> Iterator[Block]:
    several = list(joined(answers(results)))
    for same in several[:_ANSWERS]:
        yield Headline(MARKS[same.state], _short(_answer(same, len(results.cells))))
    if len(several) > _ANSWERS:
        yield Line(f"and {len(several) - _ANSWERS} more answers, in the report")


def _answer(same: SameAnswer, cells: int) -> str:
    """`Set `thp` for far, fresh`, with what it costs where that is to be weighed."""
    one = same.answers[0]
    if same.state == "none":
        return one.text if cells == 1 else f"No answer for {_named(same)}: {one.found}."
    cost = price(one) if same.state == "weigh" and len(same.answers) == 1 else ""
    said = same.heading if cells == 1 else f"{same.heading}, for {_named(same)}"
    return f"{said} ({cost})" if cost else said


def _named(same: SameAnswer) -> str:
    names = [printable(one.cell) for one in same.answers]
    more = f" and {len(names) - _NAMES} more" if len(names) > _NAMES else ""
    return ", ".join(names[:_NAMES]) + more


def _table(results: Results) -> Block:
    """A row for each comparison; where they are too many, for the one that each answer rests on."""
    rows = [(cell, one) for cell in results.cells for one in ranked(cell)]
    whole = len(rows)
    if whole > _ROWS:
        rows = [(cell, one) for cell in results.cells if (one := resting(cell)) is not None]
    told, before = [], ""
    for cell, one in rows[:_ROWS]:
        name = "" if cell.cell == before else cell.cell
        before = cell.cell
        told.append((name, one.arm, _effect(one), str(one.n), f"{SYMBOLS[one.verdict]} {one.verdict}"))
    caption = f"{len(told)} of {whole} comparisons; the others are in the report" if len(told) < whole else ""
    return table(caption, ("cell", "policy", "change (interval)", "pairs", "verdict"), told, 2)


def _effect(one: Comparison) -> str:
    return numbers.exact(one.ratio) if one.constant else effect_of(one)


def _sure(results: Results) -> Iterator[str]:
    """What all comparisons share, and how much pairs vary."""
    cells = results.cells
    metrics = dict.fromkeys(f"{cell.metric.name} against {cell.baseline}" for cell in cells)
    if _claimed(results):
        wrong = numbers.percent(1 - results.confidence)
        shown = f" Change of {printable(next(iter(metrics)))}." if len(metrics) == 1 else ""
        yield f"The chance that any of these verdicts is wrong is at most {wrong}.{shown}"
    noise = [
        f"{printable(cell.cell)} {100 * sd:.2g}%" for cell in cells[:_ROWS] if (sd := pair_deviation(results, cell))
    ]
    if noise:
        yield f"Noise (standard deviation of a pair): {', '.join(noise)}."


def pair_deviation(results: Results, cell: CellResult) -> float | None:
    """The standard deviation of a pair's log-ratio in the cell's metric: the median over its arms; None where no arm
    has two pairs.
    """
    blocks: defaultdict[int, dict[str, float]] = defaultdict(dict)
    for attempt in results.attempts:
        value = attempt.metrics.get(cell.metric.name)
        if attempt.cell == cell.cell and attempt.state == "accepted" and value is not None and value > 0:
            blocks[attempt.block][attempt.arm] = value
    pairs: defaultdict[str, list[float]] = defaultdict(list)
    for values in blocks.values():
        if (base := values.get(cell.baseline)) is not None:
            for arm, value in values.items():
                if arm != cell.baseline:
                    pairs[arm].append(log_ratio(value, base))
    found = [stdev(several) for several in pairs.values() if len(several) > 1]
    return median(found) if found else None


def _notes(results: Results) -> Iterator[str]:
    """What a reader has to know before believing the table: the gravest first."""
    if results.earlier or results.earlier_unread:
        yield earlier(results, 1)
    failed = Counter((a.arm, a.cell, printable(a.reason)) for a in results.attempts if a.state == "failed")
    for (arm, where, reason), count in failed.most_common(1):
        several = f"{count} attempt{'' if count == 1 else 's'}"
        yield f"Failed: {several} of {arm} on {where}: {reason}{_more(len(failed) - 1)}"
    for cell, answer in zip(results.cells, answers(results), strict=True):
        for one in cell.comparisons:
            if one.verdict == "none" and one.reason and answer.state != "none":
                yield f"No verdict on {one.arm} in {cell.cell}: {plain(printable(one.reason))}"
            yield from (found.text for found in findings(one) if found.leads)
    if results.guests is not None and (how := guests.accelerated(results.guests)):
        yield f"{how[0].upper()}{how[1:]}."
    if results.left_out:
        yield f"Left out: {results.left_out[0].what}: {results.left_out[0].reason}{_more(len(results.left_out) - 1)}"
    if results.disturbances:
        yield f"Noticed: {results.disturbances[0]}{_more(len(results.disturbances) - 1)}"
    if results.beside is not None and (known := list(judged(results.beside))):
        yield f"Beside the published figures: {known[0]}{_more(len(known) - 1)}"


def _short(text: str) -> str:
    return text if len(text) <= _LONG else f"{text[:_LONG].rstrip()} ... (in the report)"


def _more(others: int) -> str:
    return f" (and {others} more, in the report)" if others else ""


def _next(results: Results) -> str:
    """The command that a reader of the answer needs."""
    set_ = any(one.state in ("set", "weigh") for one in answers(results))
    if results.study == "demo":
        return "Next, for your own program: hugewise advise -- ./your-program"
    if set_:
        return f"Files that set it: hugewise report {printable(results.folder)} --output deploy"
    return "More time decides more: --time. How each figure was measured is in the report."
