"""The verdicts, first in every report: a sentence per comparison, how they are read, and all effects in one figure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from hugewise.model.results import ArmSummary, CellResult, Comparison, Results
from hugewise.report import document as doc
from hugewise.report import numbers
from hugewise.report.figures.effects import overview
from hugewise.report.figures.theme import colours
from hugewise.report.sections import within
from hugewise.report.sections.programs import programs_table
from hugewise.report.sections.values import unit_of
from hugewise.report.sentences import (
    LEGEND_TITLE,
    SYMBOLS,
    arm_of,
    better_direction,
    effect_of,
    findings,
    legend,
    metric_line,
    sentence,
)

__all__ = ["brief", "brief_legend", "tally", "verdicts"]


def tally(results: Results) -> tuple[tuple[str, int], ...]:
    """How often each verdict was given."""
    counts: Counter[str] = Counter(one.verdict for cell in results.cells for one in cell.comparisons)
    return tuple((verdict, counts[verdict]) for verdict in SYMBOLS if verdict in counts)


def verdicts(results: Results) -> doc.Section:
    """A card for each cell, what its verdicts do and do not say, and every effect of the run."""
    nothing = doc.Verdicts((doc.Verdict("none", "Nothing was compared in this cell."),))
    blocks: list[doc.Block] = [
        doc.Bundle(
            "card",
            (
                doc.Heading(f"{number}. {cell.cell}", link=f"cell-{number}"),
                doc.Line(metric_line(cell.metric), quiet=True),
                _verdicts(results, cell) if cell.comparisons else doc.Only("html", (nothing,)),
                *map(doc.Note, within.remarks(cell)),
            ),
        )
        for number, cell in enumerate(results.cells, 1)
    ]
    if not results.cells:
        blocks.append(doc.Only("html", (doc.Line("No cell was measured."),)))
    if lines := legend(results):
        blocks.append(doc.Bundle("legend", (doc.Heading(LEGEND_TITLE), doc.Points(lines))))
    return doc.Section("Verdicts", (*blocks, *doc.some(_overview(results), programs_table(results))), key="verdicts")


def brief(results: Results) -> Iterator[doc.Section]:
    """For a terminal: a section for each cell, with a table of its arms."""
    for number, cell in enumerate(results.cells, 1):
        line = f"{cell.metric.name} in {unit_of(cell).unit}, {better_direction(cell.metric)}"
        others = [
            doc.Verdict(one.verdict, f"{one.estimand}: {sentence(one, cell.metric, results.margin)}")
            for one in cell.end_points
        ]
        told: tuple[doc.Block, ...] = (
            doc.Line(f"{line}; change against {cell.baseline}"),
            _arms_table(cell),
            doc.Verdicts((*_verdicts(results, cell).verdicts, *others)),
            *map(doc.Note, within.remarks(cell)),
        )
        yield doc.Section(f"{number}. {cell.cell}", told)


def brief_legend(results: Results) -> Iterator[doc.Section]:
    """How the verdicts are read, where there are some."""
    if lines := legend(results):
        yield doc.Section(LEGEND_TITLE, tuple(doc.Line(line, quiet=True) for line in lines))


def _verdicts(results: Results, cell: CellResult) -> doc.Verdicts:
    return doc.Verdicts(
        tuple(
            doc.Verdict(
                one.verdict,
                sentence(one, cell.metric, results.margin),
                arm=one.arm,
                findings=tuple(findings(one)),
                facts=_memory(arm_of(cell, one.arm), arm_of(cell, one.baseline)),
            )
            for one in cell.comparisons
        )
    )


def _memory(arm: ArmSummary | None, base: ArmSummary | None) -> tuple[tuple[str, str], ...]:
    """Peak memory and pool memory reserved of the arm, each against the baseline's."""
    return tuple(
        (name, f"{numbers.size(getattr(arm, key, None))} (baseline {numbers.size(getattr(base, key, None))})")
        for name, key in (("peak memory", "peak_bytes"), ("pool reserved", "pool_bytes"))
    )


def _overview(results: Results) -> doc.Figure | None:
    spec = overview(results, colours(results))
    caption = (
        "Every effect: the policy's value divided by its baseline's, as a change; the grey band is the margin of "
        "equivalence. The mark's shape tells the verdict."
    )
    text = "Every effect of the run with its interval and the margin band."
    return doc.Figure("overview", "overview", text, spec, caption) if spec else None


def _arms_table(cell: CellResult) -> doc.Table:
    unit = unit_of(cell)
    compared = {one.arm: one for one in cell.comparisons}
    rows = [
        [
            *(arm.arm, unit.number(arm.mean, arm.margin), *_effect(cell, arm, compared.get(arm.arm))),
            *(numbers.share(arm.delivered_share), numbers.size(arm.peak_bytes)),
        ]
        for arm in cell.arms
    ]
    return doc.table("", ("policy", "mean", "change (interval)", "verdict", "deliv.", "peak"), rows)


def _effect(cell: CellResult, arm: ArmSummary, one: Comparison | None) -> tuple[str, str]:
    if one is None:
        return ("baseline" if arm.arm == cell.baseline else numbers.NOTHING), ""
    return numbers.exact(one.ratio) if one.constant else effect_of(one), f"{SYMBOLS[one.verdict]} {one.verdict}"
