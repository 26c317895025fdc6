"""The end of a run on a terminal: the answer, one table, the noise, what to know, where the report is, what next."""

from __future__ import annotations

import io
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from statistics import median, stdev

from hugewise.console import TextConsole
from hugewise.model.results import DECIDED, CellResult, Comparison, Results
from hugewise.model.trial import Attempt, pairs_of
from hugewise.quantity import format_duration
from hugewise.report import numbers
from hugewise.report.cell_answers import SameAnswer, also_judged, answers, claims, joined, price, ranked, resting
from hugewise.report.document import Block, Document, Headline, Line, Note, Section, table
from hugewise.report.reasons import in_words
from hugewise.report.remarks import control_of, differing_controls, earlier, time_short
from hugewise.report.sections import guests
from hugewise.report.sections.answer import MARKS
from hugewise.report.sections.beside import judged
from hugewise.report.sentences import effect_of, findings, marked, records
from hugewise.report.terminal import show
from hugewise.stats.pairs import log_ratio
from hugewise.visible import printable

_LINES, _COLUMNS = 25, 80
_PATH = 2  # lines for the path of the report
_ROWS, _ANSWERS, _NOTES = 9, 4, 3
_FITS = (
    (_ROWS, _ANSWERS, _NOTES),
    *((rows, _ANSWERS, 2) for rows in range(_ROWS, 2, -1)),
    *((3, few, 2) for few in (2, 1)),
    *((rows, 1, 2) for rows in (2, 1)),
)
"""Rows of the table, answers and notes: the first that fit are shown."""
_LONG = 152  # characters of an answer or a note: two lines
_NAME = 28  # characters of the name of a cell: two lines of its column
_ARM = 14
_NAMES = 3  # cells that are named in a line


def summary(results: Results) -> Document:
    """Return a summary of up to 25 lines of 80 columns, with the line that names the report, which has the rest."""
    notes = tuple(_notes(results))
    end = (*_sure(results), *_noise(results), *_control(results))
    for rows, few, several in _FITS:
        shown = Document(
            title=_title(results),
            lead=(
                *map(Note, differing_controls(results)),
                *map(Note, time_short(results)),
                *map(Line, _integrity(results)),
            ),
            sections=(
                Section("", tuple(_answers(results, few))),
                Section("", (_table(results, rows), *map(Line, (*end, *_first(notes, several), _next(results))))),
            ),
        )
        if _lines(shown) <= _LINES - _PATH:
            break
    return shown


def _lines(document: Document) -> int:
    out = io.StringIO()
    show(document, console=TextConsole(out), width=_COLUMNS)
    return out.getvalue().count("\n")


def _first(notes: Sequence[str], several: int) -> Iterator[str]:
    left = len(notes) - several
    more = f" (and {left} more note{'' if left == 1 else 's'}, in the report)" if left > 0 else ""
    for place, note in enumerate(notes[:several], 1):
        end = more if place == several else ""
        yield _short(note, _LONG - len(end)) + end


def _title(results: Results) -> str:
    """`demo: 7 of 8 comparisons decided in 3 min 40 s (time is up)`."""
    claimed = _claimed(results)
    decided = sum(claim.verdict in DECIDED for claim in claimed)
    took = format_duration(max(results.ended - results.started, 0.0))
    if not claimed:
        return printable(f"{numbers.shortened(results.study, _NAME)}: {results.state} after {took}")
    many = f"{len(claimed)} comparison{'' if len(claimed) == 1 else 's'}"
    return printable(
        f"{numbers.shortened(results.study, _NAME)}: {decided} of {many} decided in {took} ({results.state})"
    )


def _claimed(results: Results) -> list[Comparison]:
    return [comparison for cell in results.cells for comparison in cell.judged if claims(cell, comparison)]


def _integrity(results: Results) -> Iterator[str]:
    known, said = results.integrity, list(records(results))
    if known is not None and known.state == "consistent":
        yield f"Last hash: {known.hash}"
        yield from said[1:]
    else:
        yield from said[:1]
        more = f" (and {len(said) - 2} more)" if len(said) > 2 else ""
        yield from (f"{_short(one)}{more}" for one in said[1:2])


def _answers(results: Results, few: int) -> Iterator[Block]:
    several = list(joined(answers(results)))
    for same in several[:few]:
        yield Headline(MARKS[same.state], _short(_answer(same, _names(results))))
    if len(several) > few:
        left = len(several) - few
        yield Line(f"and {left} more answer{'' if left == 1 else 's'}, in the report")


def _answer(same: SameAnswer, names: Mapping[str, str]) -> str:
    """`Set `thp` for far, fresh`, with what it costs where that is to be weighed."""
    one = same.answers[0]
    if same.state == "none":
        return one.text if len(names) == 1 else f"No answer for {_named(same, names)}: {one.found}."
    cost = price(one) if same.state == "weigh" and len(same.answers) == 1 else ""
    text = same.heading if len(names) == 1 else f"{same.heading}, for {_named(same, names)}"
    return f"{text} ({cost})" if cost else text


def _named(same: SameAnswer, names: Mapping[str, str]) -> str:
    told = [names[answer.cell] for answer in same.answers]
    more = f" and {len(told) - _NAMES} more" if len(told) > _NAMES else ""
    return ", ".join(told[:_NAMES]) + more


def _names(results: Results) -> Mapping[str, str]:
    words = {cell.cell: cell.cell.split() for cell in results.cells}
    shared = set.intersection(*map(set, words.values())) if len(words) > 1 else set()
    return {
        cell: numbers.shortened(printable(" ".join((first, *(word for word in others if word not in shared)))), _NAME)
        for cell, (first, *others) in words.items()
    }


def _table(results: Results, most: int) -> Block:
    every = [
        (cell, one, of)
        for cell in results.cells
        for one, of in (
            *((comparison, "") for comparison in ranked(cell)),
            *((also.comparison, f", {also.end_point or also.name}") for also in also_judged(cell)),
        )
    ]
    rows = sorted(every, key=lambda row: row[1] is not resting(row[0]))[:most] if len(every) > most else every
    told, before = [], ""
    for cell, one, of in (row for row in every if row in rows):
        name = "" if cell.cell == before else _names(results)[cell.cell]
        before = cell.cell
        arm = numbers.shortened(printable(f"{one.arm}{of}"), _ARM)
        told.append((name, arm, _effect(one), str(one.n), marked(one.verdict)))
    caption = f"{len(told)} of {len(every)} comparisons; the others are in the report" if len(told) < len(every) else ""
    return table(caption, ("cell", "policy", "change (interval)", "pairs", "verdict"), told, 2)


def _effect(comparison: Comparison) -> str:
    return numbers.exact(comparison.ratio) if comparison.constant else effect_of(comparison)


def _sure(results: Results) -> Iterator[str]:
    metrics = dict.fromkeys(f"{cell.metric.name} against {cell.baseline}" for cell in results.cells)
    if _claimed(results):
        wrong = numbers.percent(1 - results.confidence)
        designs = {one.design for cell in results.cells for one in cell.comparisons}
        turns = ", of arms side by side in turns" if designs == {"interleaved"} else ""
        shown = f" Change of {printable(next(iter(metrics)))}{turns}." if len(metrics) == 1 else ""
        yield _short(f"The chance that any of these verdicts is wrong is at most {wrong}.{shown}")


def _noise(results: Results) -> Iterator[str]:
    noise = {cell.cell: sd for cell in results.cells if (sd := pair_deviation(results, cell))}
    told = {cell: f"{_names(results)[cell]} {numbers.times(100 * sd)}%" for cell, sd in noise.items()}
    if not told:
        return
    text = f"Noise (standard deviation of a pair): {', '.join(told.values())}."
    if len(text) > _LONG:
        least, most = min(noise, key=noise.__getitem__), max(noise, key=noise.__getitem__)
        text = f"Noise (standard deviation of a pair): {told[least]} to {told[most]}."
    yield text


def _control(results: Results) -> Iterator[str]:
    known = [(cell, told) for cell in results.cells if (told := control_of(cell)) is not None]
    if not known:
        return
    cell, told = max(known, key=lambda one: abs(math.log(one[0].control.ratio)) if one[0].control else 0.0)
    where = "" if len(known) == 1 else f", the most of {len(known)} cells ({_names(results)[cell.cell]})"
    yield _short(f"Control: {told}{where}.")


def pair_deviation(results: Results, cell: CellResult) -> float | None:
    """Return the median over arms of a pair's standard deviation of the log-ratio; None without two pairs."""
    blocks: defaultdict[int, list[Attempt]] = defaultdict(list)
    for attempt in results.attempts:
        if attempt.cell == cell.cell and (attempt.metrics.get(cell.metric.name) or 0) > 0:
            blocks[attempt.block].append(attempt)
    pairs: defaultdict[str, list[float]] = defaultdict(list)
    for attempts in blocks.values():
        for arm in dict.fromkeys(attempt.arm for attempt in attempts if attempt.arm != cell.baseline):
            for mine, other in pairs_of(attempts, arm, cell.baseline):
                value, base = mine.metrics[cell.metric.name], other.metrics[cell.metric.name]
                assert value is not None and base is not None
                pairs[arm].append(log_ratio(value, base))
    found = [stdev(several) for several in pairs.values() if len(several) > 1]
    return median(found) if found else None


def _notes(results: Results) -> Iterator[str]:
    if results.earlier or results.earlier_unread:
        yield earlier(results, 1)
    names = _names(results)
    failed = Counter((a.arm, a.cell, printable(a.reason)) for a in results.attempts if a.state == "failed")
    for (arm, where, reason), count in failed.most_common(1):
        several = f"{count} attempt{'' if count == 1 else 's'}"
        yield f"Failed: {several} of {arm} on {names.get(where, where)}: {reason}{_more(len(failed) - 1)}"
    yield from _without_verdict(results)
    for cell in results.cells:
        for comparison in cell.comparisons:
            yield from (finding.text for finding in findings(comparison) if finding.leads)
    if results.guests is not None and (how := guests.accelerated(results.guests)):
        yield f"{how[0].upper()}{how[1:]}."
    if results.left_out:
        yield f"Left out: {results.left_out[0].what}: {results.left_out[0].reason}{_more(len(results.left_out) - 1)}"
    if results.disturbances:
        yield f"Noticed: {results.disturbances[0]}{_more(len(results.disturbances) - 1)}"
    if results.beside is not None and (known := list(judged(results.beside))):
        yield f"Beside the published figures: {known[0]}{_more(len(known) - 1)}"


def _without_verdict(results: Results) -> Iterator[str]:
    where: defaultdict[str, list[str]] = defaultdict(list)
    for cell, answer in zip(results.cells, answers(results), strict=True):
        for one in cell.comparisons:
            if one.verdict == "none" and one.reason and answer.state != "none" and claims(cell, one):
                where[printable(in_words(one.reason))].append(f"{one.arm} in {cell.cell}")
    for reason, names in where.items():
        more = f" and {len(names) - _NAMES} more" if len(names) > _NAMES else ""
        yield f"No verdict on {', '.join(names[:_NAMES])}{more}: {reason}"


def _short(text: str, most: int = _LONG) -> str:
    rest = " ... (in the report)"
    return text if len(text) <= most else f"{text[: most - len(rest)].rstrip()}{rest}"


def _more(others: int) -> str:
    return f" (and {others} more, in the report)" if others else ""


def _next(results: Results) -> str:
    set_ = any(answer.state in ("set", "weigh") for answer in answers(results))
    if results.state == "interrupted":
        return f"To go on: hugewise resume {printable(results.folder)}"
    if results.study == "demo":
        return "Next, for your own program: hugewise advise -- ./your-program"
    if set_:
        return f"To set it: hugewise report {printable(results.folder)} --output deploy"
    if results.state == "time is up" and any(comparison.verdict == "undecided" for comparison in _claimed(results)):
        return "More time decides more: --time. How each figure was measured is in the report."
    return "How each figure was measured is in the report."
