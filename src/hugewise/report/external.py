"""The reports of `hugewise analyze`: what the data say, what their layout cannot support, and all figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from hugewise.external.compare import effective
from hugewise.external.types import ExternalComparison, ExternalResults, MetricResults, encode
from hugewise.report import answers, numbers
from hugewise.report import document as doc
from hugewise.report.external_tables import (
    figures_table,
    margins_table,
    medians_table,
    outliers_table,
    quantiles_table,
    unit_of,
)
from hugewise.report.figures.sample import autocorrelations, histogram, in_time_order, qq_plot
from hugewise.report.figures.theme import palette
from hugewise.report.names import file_name
from hugewise.report.numbers import NOTHING, Scale
from hugewise.report.plain import plain
from hugewise.report.sentences import EXACT_LEGEND, LEGEND_TITLE, better_direction, interval_words, tier_name
from hugewise.report.write import write_document
from hugewise.visible import printable

__all__ = ["report", "sentence", "write"]


def sentence(one: ExternalComparison, metric: MetricResults, margin: float) -> str:
    """What was found, or what the numbers suggest and why that is no verdict."""
    arm, base, name = (printable(text) for text in (one.arm, one.baseline, metric.metric.name))
    effect = "has no ratio"
    if one.ratio is not None:
        span = interval_words(one.ratio, one.low, one.high, one.confidence, one.verdict)
        effect = f"{numbers.point(one.ratio, one.low, one.high)} ({span})"
    reason = f"{plain(one.reason).rstrip('.')}."
    match one.verdict:
        case "better" | "worse":
            said = f"{arm} is {one.verdict} than {base}: {name} {effect}, from {one.n:,.0f} pairs."
        case "equivalent":
            said = f"{arm} is equivalent to {base} within ±{numbers.percent(margin)}: {name} {effect}."
        case "undecided":
            said = f"{arm} against {base} is undecided: {name} {effect}, from {one.n:,.0f} pairs."
        case _:
            said = f"No verdict on {arm} against {base}. {_suggested(one, arm, base, margin)}: {name} {effect}."
    return f"{said} {reason}"


def _suggested(one: ExternalComparison, arm: str, base: str, margin: float) -> str:
    if one.layout.fatal is not None:
        return "Nothing follows from the numbers"
    match one.suggestion:
        case "better" | "worse" | "larger" | "smaller":
            return f"The numbers suggest that {arm} is {one.suggestion} than {base}"
        case "equivalent":
            return f"The numbers suggest that {arm} and {base} differ by less than {numbers.percent(margin)}"
        case _:
            return (
                "The numbers suggest nothing"
                if numbers.interval(one.ratio, one.low, one.high)
                else "The numbers have no interval"
            )


def report(results: ExternalResults) -> doc.Document:
    """The report's sections, in the order in which a reader needs them."""
    arms = list(dict.fromkeys(arm.arm for metric in results.metrics for arm in metric.arms))
    more = f" and {len(results.files) - 6} more" if len(results.files) > 6 else ""
    files = f"{', '.join(results.files[:6])}{more} ({', '.join(results.formats)})"
    sections = [
        section for number, metric in enumerate(results.metrics, 1) for section in _sections(results, metric, number)
    ]
    if any(one.tiers for metric in results.metrics for one in metric.comparisons):
        sections.append(doc.Section(LEGEND_TITLE, (doc.Points(EXACT_LEGEND),), brief=True))
    return doc.Document(
        title=f"{' against '.join(arms[:4])}{' ...' if len(arms) > 4 else ''}",
        lead=(doc.Line(f"Measurements made elsewhere, from {files}."),),
        sections=(*sections, _about(results)),
        about="analyze",
    )


def _sections(results: ExternalResults, metric: MetricResults, number: int) -> Iterator[doc.Section]:
    prefix = f"{number}. {metric.metric.name}: " if len(results.metrics) > 1 else ""
    unit = unit_of(metric)
    line = f"{metric.metric.name} ({metric.metric.unit or 'no unit'}, {better_direction(metric.metric)})"
    judged = tuple(doc.Verdict(one.verdict, sentence(one, metric, results.margin)) for one in metric.comparisons)
    said: list[doc.Block] = [doc.Line(f"{line}: {metric.metric.description}.")]
    said.append(
        doc.Bundle("card", (doc.Verdicts(judged),)) if judged else doc.Line("There is one arm: nothing is compared.")
    )
    if caveats := _caveats(metric):
        said += [doc.Heading(f"{prefix}What this layout cannot support"), doc.Points(caveats)]
    yield doc.Section(f"{prefix}What the data say", tuple(said), brief=True)
    yield doc.Section(f"{prefix}Figures", (figures_table(metric, unit), margins_table(metric, unit)), brief=True)
    yield doc.Section(f"{prefix}Three questions", tuple(_questions(metric, unit)), brief=True)
    yield doc.Section(f"{prefix}Comparisons", tuple(_comparisons(metric, results)))
    tables = (quantiles_table(metric, unit), outliers_table(metric, unit), medians_table(metric, unit))
    yield doc.Section(f"{prefix}Shape, outliers and order", (*_drawings(metric, number), *tables))


def _caveats(metric: MetricResults) -> tuple[str, ...]:
    found = [caveat.sentence for one in metric.comparisons for caveat in one.layout.caveats]
    found += [note for arm in metric.arms for note in arm.notes]
    return tuple(dict.fromkeys(found))


def _questions(metric: MetricResults, unit: Scale) -> Iterator[doc.Block]:
    asked = (
        [tuple(answers.normal(arm)) for arm in metric.arms],
        [tuple(answers.outliers(arm, unit, effective(arm))) for arm in metric.arms],
        [
            tuple(answers.spread(arm, [one for one in metric.comparisons if arm.arm in (one.arm, one.baseline)]))
            for arm in metric.arms
        ],
    )
    for question, told in zip(answers.QUESTIONS, asked, strict=True):
        yield from (doc.Heading(question), doc.Points(_once(told)))


def _once(told: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """A line for each arm; sentences that are the same for every arm are said once, at the end."""
    common = [line for line in told[0] if len(told) > 1 and all(line in other for other in told[1:])]
    own = (" ".join(line for line in lines if line not in common) for lines in told)
    return tuple(filter(None, (*own, " ".join(common))))


def _comparisons(metric: MetricResults, results: ExternalResults) -> Iterator[doc.Block]:
    for one in metric.comparisons:
        counted = "on the smaller side" if one.layout.kind == "unpaired" else "pairs"
        rows = [
            ("method", one.method),
            ("estimand", one.estimand),
            ("what counts", f"{one.n:,.0f} {counted}"),
            (f"{one.arm}/{one.baseline}", numbers.ratio(one.ratio, one.low, one.high)),
            ("confidence of the interval", numbers.percent(one.confidence)),
            ("p of no difference, at this fixed n", numbers.given(one.p, ".2g")),
            ("failed runs", f"{one.failures_arm} and {one.failures_baseline}"),
            ("correlation within blocks", numbers.given(one.shared, "+.2f")),
        ]
        yield doc.table(f"{one.arm} against {one.baseline}", ("", ""), rows, 2)
        yield doc.Line("It takes for granted:")
        yield doc.Points(one.assumptions)
        if one.tiers:
            tiers = [(tier_name(tier.name), _range(tier.low, tier.high), tier.sentence) for tier in one.tiers]
            yield doc.table("how far it reaches", ("tier", "arm/baseline", ""), tiers, 3)
        for k, chance in one.medians.items():
            side = "higher" if metric.metric.better == "higher" else "lower"
            value = 1 - chance if side == "higher" else chance
            yield doc.Line(
                f"The median of {k} runs of {one.arm} would come out {side} than that of {k} of {one.baseline} in "
                f"{numbers.share(value)} of cases, if runs were independent draws from these values: so much does a "
                f"comparison of medians of {k} say."
            )
    if len(metric.comparisons) > 1 or len(results.metrics) > 1:
        judged = sum(len(one.comparisons) for one in results.metrics)
        yield doc.Line(
            f"{judged} comparisons share the error rate of {1 - results.confidence:.4g} equally (Bonferroni)."
        )


def _range(low: float | None, high: float | None) -> str:
    low, high = numbers.ends(low, high)
    if low is None or high is None:
        known = high if low is None else low
        return NOTHING if known is None else f"at {'most' if low is None else 'least'} {known:.4f}"
    return f"{low:.4f} to {high:.4f}"


def _about(results: ExternalResults) -> doc.Section:
    budget = "none" if results.budget is None else f"{results.budget:,} pairs"
    declared = f"blocks in an order chosen by a coin, budget {budget}" if results.randomised else "nothing"
    rows = [
        ("files", ", ".join(results.files)),
        ("formats", ", ".join(results.formats)),
        ("confidence", numbers.percent(results.confidence)),
        ("margin of equivalence", f"±{numbers.percent(results.margin)}"),
        ("declared", declared),
        ("other metrics in the files", ", ".join(results.others) or "none"),
    ]
    return doc.Section("About this analysis", (doc.table("as asked", ("", ""), rows, 2),))


def _drawings(metric: MetricResults, number: int) -> Iterator[doc.Figure]:
    colour, unit, name = palette({arm.arm for arm in metric.arms}), unit_of(metric), printable(metric.metric.name)
    found = {
        "histogram": (
            histogram(metric.arms, colour, unit, name),
            f"Histogram of {name}. Points stand for values beyond 3 standard deviations of the mean.",
        ),
        "qq": (
            qq_plot(metric.arms, colour, unit, name),
            f"Normal Q-Q plot of {name}: a normal sample lies on the dashed line, which is drawn through the bulk.",
        ),
        "time-order": (
            in_time_order(metric.arms, colour, unit, name),
            f"{name} in the order in which it was measured.",
        ),
        "autocorrelation": (
            autocorrelations(metric.arms, colour),
            "How values depend on those before them, by distance.",
        ),
    }
    stem = file_name(number, metric.metric.name)
    for kind, (spec, text) in found.items():
        if spec is not None:
            yield doc.Figure(f"{number}-{kind}", f"{stem}_{kind}", text, spec)


def write(results: ExternalResults, told: doc.Document, folder: Path | str) -> dict[str, Path]:
    """Write report.html, report.md, report.json and figures/ into `folder`, each whole or not at all.

    Raises StorageError, UserError.
    """
    return write_document(told, folder, {"json": ("report.json", (encode(results),))})
