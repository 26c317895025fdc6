"""The answer, first in every report: what to set for which cells, and a panel for each, its best setting first.

The geometric mean over the programs of a set, as a table: see `hugewise.analysis.changes`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from hugewise.analysis.changes import overall
from hugewise.model.answer import AnswerState, CellAnswer
from hugewise.model.results import ArmSummary, CellResult, Comparison, Results
from hugewise.report import document as doc
from hugewise.report import numbers
from hugewise.report.answer_text import caveats, details, headline, in_a_line, paragraph, terms
from hugewise.report.cell_answers import (
    SameAnswer,
    also_judged,
    answers,
    joined,
    joint_confidence,
    memory_of,
    not_compared,
    price,
    ranked,
    selection,
)
from hugewise.report.document import Table, table
from hugewise.report.figures.effects import overview
from hugewise.report.figures.theme import colours
from hugewise.report.numbers import NOTHING
from hugewise.report.sections import within
from hugewise.report.sentences import LEGEND_TITLE, SYMBOLS, arm_of, change_of, findings, legend, metric_line, sentence

CAPTION = "Over the programs of a set"


def programs_table(results: Results) -> Table | None:
    """Per set and arm: the mean ratio with its interval, the programs in it and what is to be said; None without sets.

    It has no verdict: the error rate of the study is that of its programs.
    """
    rows = []
    for one in overall(results.cells):
        remarks = [one.reason] if one.reason else []
        if one.lacking:
            remarks.insert(0, f"without {', '.join(one.lacking)}, which cannot take the policy")
        row = (
            one.name,
            one.arm,
            f"{one.metric} against {one.baseline}",
            change_of(one.ratio, one.low, one.high),
            NOTHING if one.confidence is None else f"at least {numbers.percent(one.confidence)}",
            len(one.programs),
            "; ".join(remarks) or NOTHING,
        )
        rows.append(row)
    head = ("set", "policy", "metric", "change of the geometric mean (interval)", "confidence", "programs", "remark")
    return table(CAPTION, head, rows, 3) if rows else None


# How an answer is marked: never by its colour alone.
MARKS: dict[AnswerState, str] = {
    "set": "better",
    "weigh": "better",
    "leave": "equivalent",
    "undecided": "undecided",
    "none": "none",
}


def tally(results: Results) -> tuple[tuple[str, int], ...]:
    """How often each verdict was given, on all that was judged."""
    counts: Counter[str] = Counter(one.verdict for cell in results.cells for one in cell.judged)
    return tuple((verdict, counts[verdict]) for verdict in SYMBOLS if verdict in counts)


def top(results: Results) -> Iterator[doc.Block]:
    """What stands above all else of a report, in plain words; the same in exact ones behind a line."""
    found = answers(results)
    of = dict(zip((id(one) for one in found), results.cells, strict=True))
    for same in joined(found):
        if len(found) == 1:
            (only,) = same.answers
            lines = (*details(of[id(only)], only), *filter(None, (_capital(price(only)),)))
            yield doc.Headline(MARKS[same.state], headline(of[id(only)], only), lines)
        else:
            told = (
                f"{one.cell}: {'; '.join(filter(None, (in_a_line(of[id(one)], one), price(one))))}."
                for one in same.answers
            )
            yield doc.Headline(MARKS[same.state], _headed(same), tuple(told))
    meanings = terms(results) if len(found) > 1 else ()
    yield from (doc.Line(told, quiet=True) for told in (*meanings, *caveats(results)))
    exact = [one.text if len(found) == 1 else f"{one.cell}: {_of_cell(one)}" for one in found]
    if any(one.state != "none" for one in found):
        yield doc.Folded("The same in exact terms", (doc.Points(tuple(exact)), *_sure(results)), long=True)


def _headed(same: SameAnswer) -> str:
    many = len(same.answers)
    return f"{same.heading} ({many} cell{'' if many == 1 else 's'})"


def _of_cell(one: CellAnswer) -> str:
    """Of a cell, below what to set: the effect and the price; why there is nothing to set."""
    return f"{'; '.join(filter(None, (one.found, price(one))))}."


def _capital(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}." if text else ""


def answer(results: Results) -> doc.Section:
    """Every effect of the run, a panel for each cell, and what its verdicts do and do not say. `top` stands above."""
    found = answers(results)
    nothing = doc.Verdicts((doc.Verdict("none", "Nothing was compared in this cell."),))
    blocks: list[doc.Block] = [*doc.some(_overview(results))]
    blocks += [
        doc.Bundle(
            "card",
            (
                doc.Heading(f"{number}. {cell.cell}", link=f"cell-{number}"),
                doc.Line(metric_line(cell.metric), quiet=True),
                *(() if len(found) == 1 else (doc.Headline(MARKS[of.state], of.text),)),
                _verdicts(results, cell) if cell.comparisons else doc.Only("html", (nothing,)),
                *_judged_beside(results, cell),
                *_notes(of, cell),
            ),
        )
        for number, (of, cell) in enumerate(zip(found, results.cells, strict=True), 1)
    ]
    if not results.cells:
        blocks.append(doc.Only("html", (doc.Line("No cell was measured."),)))
    if lines := legend(results):
        blocks.append(doc.Bundle("legend", (doc.Heading(LEGEND_TITLE), doc.Points(lines))))
    shown = (*blocks, *doc.some(programs_table(results)))
    return doc.Section("The answer, cell by cell", shown, key="answer", nav="Answer")


def _sure(results: Results) -> Iterator[doc.Line]:
    """How sure all answers are together, and what the choice of an arm does to what is said of it."""
    chosen = any(one.state in ("set", "weigh") for one in answers(results))
    for told in filter(None, (joint_confidence(results), selection(results) if chosen else "")):
        yield doc.Line(told, quiet=True)


def _notes(of: CellAnswer, cell: CellResult) -> Iterator[doc.Note]:
    yield from map(doc.Note, filter(None, (not_compared(of),)))
    yield from map(doc.Note, (*within.ageing_remarks(cell), *within.remarks(cell)))


def _verdicts(results: Results, cell: CellResult) -> doc.Verdicts:
    return doc.Verdicts(
        tuple(
            doc.Verdict(
                one.verdict,
                sentence(one, cell.metric, results.margin),
                arm=one.arm,
                findings=tuple(findings(one)),
                facts=_memory(arm_of(cell, one.arm), arm_of(cell, one.baseline)),
                cause=_cause(cell, one),
            )
            for one in ranked(cell)
        )
    )


def _others(results: Results, cell: CellResult) -> Iterator[doc.Verdict]:
    """The verdicts on end points, and on metrics that were declared beside the cell's own."""
    for one in also_judged(cell):
        said = sentence(one.comparison, one.metric, results.margin)
        named = f"{one.end_point or one.name}: {said}"
        yield doc.Verdict(one.comparison.verdict, named, arm=one.comparison.arm)


def _judged_beside(results: Results, cell: CellResult) -> Iterator[doc.Block]:
    if found := tuple(_others(results, cell)):
        yield doc.Line("Declared before the run to be judged beside it, on the same attempts:", quiet=True)
        yield doc.Verdicts(found)


def _cause(cell: CellResult, one: Comparison) -> str:
    """What stands behind a verdict; nothing where there is none."""
    found = next((cause for cause in cell.causes if (cause.arm, cause.baseline) == (one.arm, one.baseline)), None)
    return "" if found is None or one.verdict == "none" else paragraph(found, one.verdict)


def _memory(arm: ArmSummary | None, base: ArmSummary | None) -> tuple[tuple[str, str], ...]:
    """Memory at its most with the pool, and the pool memory reserved of the arm, each against the baseline's."""
    kinds: tuple[tuple[str, Callable[[ArmSummary | None], int | None]], ...] = (("memory at most", memory_of),)
    if _pool(arm) or _pool(base):
        kinds = (("memory with pool", memory_of), ("of it a pool", _pool))
    sizes = ((name, of(arm), of(base)) for name, of in kinds)
    return tuple((name, f"{numbers.size(mine)} (baseline {numbers.size(its)})") for name, mine, its in sizes)


def _pool(arm: ArmSummary | None) -> int | None:
    return None if arm is None else arm.pool_bytes


def _overview(results: Results) -> doc.Figure | None:
    spec = overview(results, colours(results))
    caption = (
        "Every effect: how much each policy changes against its baseline. Mark: the best estimate, its shape tells the "
        "verdict; line: what the measurements leave room for; grey band: changes too small to matter by the study."
    )
    text = "Every effect of the run with its interval and the margin band."
    return doc.Figure("overview", "overview", text, spec, caption) if spec else None
