"""Reports of `hugewise analyze`: what the data say, what their layout cannot support, and all figures.

Sentences say whether a sample is normal, whether outliers invalidate the margin of error, and which part of the spread
is outliers, drift, sessions or the machine's common state.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from hugewise.external.compare import ArmFigures, ExternalComparison, ExternalResults, MetricResults, effective
from hugewise.report import document as doc
from hugewise.report import numbers, reasons
from hugewise.report.document import Table, file_name, table
from hugewise.report.figures.distribution import in_time_order, qq_plot, sample_histogram
from hugewise.report.figures.theme import palette
from hugewise.report.numbers import NOTHING, Scale
from hugewise.report.sentences import EXACT_LEGEND, LEGEND_TITLE, better_direction, interval_words, tier_name
from hugewise.report.write import write_document
from hugewise.stats.classical import Figures
from hugewise.visible import printable

QUESTIONS = (
    "Are the values normally distributed?",
    "Do the outliers invalidate the margin of error?",
    "Why is the spread what it is?",
)

_FEW = 20  # values below which a test of normality finds only gross departures
_MANY = 2000  # values above which it finds departures that no mean would feel
_STRAIGHT = 0.99  # correlation of a Q-Q plot that looks straight


def normality_answer(arm: ArmFigures) -> Iterator[str]:
    """Yield whether the arm's values are normal, how sure the tests can be, and whether it matters for the mean."""
    shown, told = arm.figures, arm.figures.normality
    if told is None:
        yield f"{arm.arm}: {shown.n} values, too few or too equal to tell."
        return
    rejected = told.anderson_p < 0.01
    straight = told.correlation >= _STRAIGHT
    answer = "not normal" if rejected and not straight else "near normal" if straight else "cannot be told"
    if not rejected and not straight:
        answer = "no departure shown"
    p = "p < 1e-9" if told.anderson_p < 1e-9 else f"p = {told.anderson_p:.2g}"
    yield (
        f"{arm.arm}: {answer}. Anderson-Darling A² = {told.anderson:.3g} ({p}), Shapiro-Wilk W = {told.shapiro:.4f}"
        + (f" on {told.shapiro_n:,} of the {told.n:,} order statistics" if told.shapiro_n < told.n else "")
        + f"; skewness {_signed(shown.skewness)}, excess kurtosis {_signed(shown.kurtosis)} (normal: 0 and 0); "
        f"correlation of the Q-Q plot {told.correlation:.4f} (normal: 1)."
    )
    if told.n < _FEW:
        yield f"With {told.n} values such a test finds only gross departures: passing it shows little."
    elif told.n >= _MANY and rejected:
        yield (
            f"With {told.n:,} values such a test rejects for departures that no mean would feel, so the size matters "
            f"more than the p value: {_bulk(shown)}."
        )
    yield from _mean_is_normal(shown)


def _bulk(shown: Figures) -> str:
    told = shown.normality
    bulk = shown.beyond[0].correlation if shown.beyond else None
    if told is None or bulk is None:
        return "see the Q-Q plot"
    if bulk >= _STRAIGHT > told.correlation:
        return (
            f"without the {shown.beyond[0].count} values beyond 3 standard deviations the Q-Q plot is straight "
            f"(correlation {bulk:.4f}): a normal bulk with a tail that is not"
        )
    if bulk >= _STRAIGHT:
        return f"the Q-Q plot is straight with its outliers ({told.correlation:.4f}) and without ({bulk:.4f})"
    return f"the bulk itself is not normal (correlation {bulk:.4f} without what lies beyond 3 standard deviations)"


def _mean_is_normal(shown: Figures) -> Iterator[str]:
    if shown.misses is None or shown.skewness is None:
        return
    nominal = (1 - shown.confidence) / 2
    below, above = shown.misses
    of_mean = abs(shown.skewness) / math.sqrt(shown.n)
    level = numbers.percent(shown.confidence)
    if min(below, above) <= 0 or max(below, above) > 3 * nominal:
        yield (
            f"An interval needs a normal mean, not normal values. Here the skewness of the mean "
            f"({of_mean:.2g}) is still so large that the {level} interval cannot be trusted at its ends: take a lower "
            "confidence, or more values."
        )
        return
    if max(below, above) < 1.05 * nominal:
        yield (
            f"An interval needs a normal mean, not normal values: with a skewness of {of_mean:.2g} the "
            f"mean of {shown.n:,} is as normal as the {level} interval needs."
        )
        return
    yield (
        f"An interval needs a normal mean, not normal values: the skewness of the mean of {shown.n:,} "
        f"is {of_mean:.2g}. By it the {level} interval lies wholly below the true mean with chance {below:.2g} "
        f"and wholly above it with {above:.2g}, instead of {nominal:.2g} each; together that is the nominal "
        f"{2 * nominal:.2g}, if the values are independent."
    )


def outlier_answer(arm: ArmFigures, unit: Scale, effective: float) -> Iterator[str]:
    """Yield how many outliers there are, their share, the margin with and without them, and greater threats to it."""
    shown = arm.figures
    if not shown.beyond or shown.margin is None:
        yield f"{arm.arm}: {shown.n} values, too few or too equal to tell."
        return
    three, six = shown.beyond
    level = numbers.percent(shown.confidence)
    yield (
        f"{arm.arm}: {three.count:,} of {shown.n:,} values lie beyond 3 standard deviations (a normal sample has "
        f"{_expected(three.expected)}) and {six.count:,} beyond 6 ({_expected(six.expected)})."
    )
    if three.count == 0:
        yield f"There is none to weigh: the {level} margin of error is ±{unit.text(shown.margin, shown.margin)}."
    else:
        yield from _with_and_without(shown, unit)
    yield from _independence(arm, unit, effective)


def _with_and_without(shown: Figures, unit: Scale) -> Iterator[str]:
    three, six = shown.beyond
    level, margin = numbers.percent(shown.confidence), shown.margin or 0.0
    without = three.margin or 0.0
    shift = shown.mean - three.mean
    yield (
        f"Values beyond 3 carry {numbers.share(three.variance_share)} of the variance, those beyond 6 "
        f"{numbers.share(six.variance_share)}. With all values the {level} margin of error is "
        f"±{unit.text(margin, margin)}, without those beyond 3 ±{unit.text(without, without)}: they make it "
        f"{margin / without:.2f} times as wide, and move the mean by {unit.text(shift, margin)} "
        f"({abs(shift) / margin:.2f} margins)."
        if without > 0
        else f"Without those beyond 3 nothing varies; they carry {numbers.share(three.variance_share)} of the variance."
    )
    if three.largest_share > 0.25:
        yield (
            f"One value alone carries {numbers.share(three.largest_share)} of the variance: mean and margin hang on "
            "whether such a value happened to fall into this sample. The margin does not hold; compare medians or "
            "quantiles, or take far more values."
        )
    else:
        yield (
            "Such outliers widen the margin of error rather than invalidate it: a t interval counts them through the "
            "standard deviation. Outliers belong to the measurement; a mean without them answers another question."
        )


def _independence(arm: ArmFigures, unit: Scale, effective: float) -> Iterator[str]:
    shown = arm.figures
    told, margin = shown.dependence, shown.margin or 0.0
    if not arm.order_known:
        yield (
            "Dependence threatens a margin of error more: the margin takes all values as independent. The order of the "
            "values in time is not known here, so independence cannot be checked."
        )
        return
    if told is None or shown.n < 50:
        yield "Whether values depend on those before them cannot be seen from so few; the margin takes them not to."
        return
    if effective >= 0.8 * shown.n:
        yield (
            f"The margin also takes values as independent; their autocorrelation agrees (lag 1: {told.lags[0]:+.2f}; "
            f"worth {effective:,.0f} independent values)."
        )
        return
    factor = math.sqrt(shown.n / effective)
    yield (
        f"Dependence invalidates the margin: values follow those before them (autocorrelation at lag 1: "
        f"{told.lags[0]:+.2f}), and for the mean are worth {effective:,.0f} independent ones. The honest margin is "
        f"±{unit.text(margin * factor, margin * factor)}, {factor:.1f} times as wide"
        + ("." if told.complete else ", and more: the correlation reaches beyond the longest lag.")
    )


def spread_answer(arm: ArmFigures, comparisons: Sequence[ExternalComparison]) -> Iterator[str]:
    """Yield the parts of the variance that the data tell apart, and the causes that they cannot name."""
    shown = arm.figures
    if shown.sd is None or not shown.sd > 0 or not shown.beyond:
        yield f"{arm.arm}: there is no spread to explain."
        return
    bulk = f"; the bulk alone {shown.robust_sd / abs(shown.mean):.1%}" if shown.mean else ""
    variation = f"{shown.sd / abs(shown.mean):.1%} of the mean" if shown.mean else "of a mean of 0"
    extremes = f", slowest to fastest {shown.spread:.3g} to 1" if shown.spread is not None else ""
    yield f"{arm.arm}: the standard deviation is {variation}{bulk}{extremes}."
    parts = [
        f"{numbers.share(shown.beyond[0].variance_share)} of the variance is {shown.beyond[0].count} values beyond 3 sd"
    ]
    if shown.slow_share is not None:
        parts.append(f"{numbers.share(shown.slow_share)} is slow drift, between stretches of adjacent values")
    if arm.session_share is not None:
        parts.append(f"{numbers.share(arm.session_share)} lies between sessions")
    shared = [comparison.shared for comparison in comparisons if comparison.shared is not None]
    if shared:
        parts.append(
            f"within blocks the arms move together (correlation {shared[0]:+.2f}): "
            + (
                f"about {max(0.0, shared[0]):.0%} is the common state of the machine, which pairs take out"
                if shared[0] > 0.05
                else "hardly anything is the common state of the machine"
            )
        )
    yield "Of it (parts overlap): " + "; ".join(parts) + "."
    if shown.modes is not None and shown.modes > 1:
        yield (
            f"The density has {shown.modes} separate peaks: the program has more than one speed (placement, frequency, "
            "pages delivered or not), and mean and sd describe none of them."
        )
    unknown = [
        what
        for what, known in (
            ("drift (no --order)", shown.slow_share is not None),
            ("sessions (no --session)", arm.session_share is not None),
            ("the machine's common state (no --block)", bool(shared)),
        )
        if not known
    ]
    if unknown:
        yield f"Not told apart here: {', '.join(unknown)}."
    yield (
        "Causes have no names in such data: frequency boost, waits on other processes and background tasks show only "
        "where clock frequency, pressure and steal time were recorded with each run, as hugewise run does."
    )


def _signed(value: float | None) -> str:
    return numbers.given(value, "+.2f").replace("-", numbers.MINUS)


def _expected(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}" if value >= 0.05 else "none"


def unit_of(metric: MetricResults) -> Scale:
    """Return the unit in which the values of a metric are shown."""
    return numbers.scale(metric.metric.unit, [arm.figures.mean for arm in metric.arms])


def figures_table(metric: MetricResults, unit: Scale) -> Table:
    """Location, spread and shape of each arm."""
    head = ("arm", "n", "mean", "margin", "sd", "median", "min", "max", "max/min", "skewness", "excess kurtosis")
    level = numbers.percent(metric.arms[0].figures.confidence)

    def row(arm: str, figures: Figures) -> list[str]:
        margin = figures.margin
        return [
            *(arm, f"{figures.n:,}", unit.number(figures.mean, margin)),
            NOTHING if margin is None else f"±{unit.number(margin, margin)}",
            *(unit.number(value, margin) for value in (figures.sd, figures.median, figures.min, figures.max)),
            numbers.given(figures.spread, ".3g"),
            *(numbers.given(value, "+.2f") for value in (figures.skewness, figures.kurtosis)),
        ]

    caption = f"successful runs, in {unit.unit or 'their own unit'}; margin of error at {level}, as if independent"
    return table(caption, head, [row(arm.arm, arm.figures) for arm in metric.arms], turned=True)


def margins_table(metric: MetricResults, unit: Scale) -> Table:
    """Margins of error at several confidences, and what dependence leaves of them."""
    levels = list(metric.arms[0].figures.margins)
    worth_head = ("effective n", "honest margin", "runs", "failed", "missing")
    head = ("arm", *(numbers.percent(float(level)) for level in levels), *worth_head)
    rows = []
    for arm in metric.arms:
        shown, worth = arm.figures, effective(arm)
        honest = None if shown.margin is None or worth <= 1 else shown.margin * (shown.n / worth) ** 0.5
        known = arm.order_known and shown.n >= 50
        rows.append(
            (
                arm.arm,
                *(unit.number(shown.margins.get(level), shown.margins.get(level)) for level in levels),
                f"{worth:,.0f}" if known else "not known",
                NOTHING if honest is None or not known else unit.number(honest, honest),
                *(numbers.given(count, ",") for count in (arm.runs, arm.failed, arm.missing)),
            )
        )
    return table("margin of error by confidence; what the order in time makes of it", head, rows, turned=True)


def quantiles_table(metric: MetricResults, unit: Scale) -> Table:
    """Quantiles of each arm."""
    probabilities = list(metric.arms[0].figures.quantiles)
    rows = [
        (arm.arm, *(unit.number(arm.figures.quantiles[p], arm.figures.margin) for p in probabilities))
        for arm in metric.arms
    ]
    return table("quantiles", ("arm", *(numbers.percent(float(p)) for p in probabilities)), rows)


def outliers_table(metric: MetricResults, unit: Scale) -> Table:
    """Return the values beyond 3 and 6 standard deviations, and the figures without them."""
    head = ["arm, beyond", "below", "above", "normal has", "share of variance"]
    head += [f"{name} without" for name in ("mean", "sd", "margin")]
    rows = [
        (
            *(f"{arm.arm}, {group.k} sd", f"{group.below:,}", f"{group.above:,}", f"{group.expected:,.2g}"),
            numbers.share(group.variance_share),
            *(unit.number(value, group.margin) for value in (group.mean, group.sd, group.margin)),
        )
        for arm in metric.arms
        for group in arm.figures.beyond
    ]
    return table("values far from the mean", head, rows)


def sentence(comparison: ExternalComparison, metric: MetricResults, margin: float) -> str:
    """Return the result, or the estimate and why there is no verdict."""
    arm, base, name = (printable(text) for text in (comparison.arm, comparison.baseline, metric.metric.name))
    effect = "has no ratio"
    if comparison.ratio is not None:
        span = interval_words(
            comparison.ratio, comparison.low, comparison.high, comparison.confidence, comparison.verdict
        )
        effect = f"{numbers.point(comparison.ratio, comparison.low, comparison.high)} ({span})"
    reason = reasons.sentence(comparison.reason)
    match comparison.verdict:
        case "better" | "worse":
            said = f"{arm} is {comparison.verdict} than {base}: {name} {effect}, from {comparison.n:,.0f} pairs."
        case "equivalent":
            said = f"{arm} is equivalent to {base} within ±{numbers.percent(margin)}: {name} {effect}."
        case "undecided":
            said = f"{arm} against {base} is undecided: {name} {effect}, from {comparison.n:,.0f} pairs."
        case _:
            told = "Nothing follows from the numbers" if comparison.layout.fatal else "The numbers are an estimate"
            said = f"No verdict on {arm} against {base}. {told}: {name} {effect}."
    return f"{said} {reason}"


def report(results: ExternalResults) -> doc.Document:
    """Return the report's sections, in the order in which a reader needs them."""
    arms = list(dict.fromkeys(arm.arm for metric in results.metrics for arm in metric.arms))
    more = f" and {len(results.files) - 6} more" if len(results.files) > 6 else ""
    files = f"{', '.join(results.files[:6])}{more} ({', '.join(results.formats)})"
    sections = [
        section for number, metric in enumerate(results.metrics, 1) for section in _sections(results, metric, number)
    ]
    if any(comparison.tiers for metric in results.metrics for comparison in metric.comparisons):
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
    judged = tuple(
        doc.Verdict(comparison.verdict, sentence(comparison, metric, results.margin))
        for comparison in metric.comparisons
    )
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
    tables = (quantiles_table(metric, unit), outliers_table(metric, unit))
    yield doc.Section(f"{prefix}Shape, outliers and order", (*_drawings(metric, number), *tables))


def _caveats(metric: MetricResults) -> tuple[str, ...]:
    found = [caveat.sentence for comparison in metric.comparisons for caveat in comparison.layout.caveats]
    found += [note for arm in metric.arms for note in arm.notes]
    return tuple(dict.fromkeys(found))


def _questions(metric: MetricResults, unit: Scale) -> Iterator[doc.Block]:
    asked = (
        [tuple(normality_answer(arm)) for arm in metric.arms],
        [tuple(outlier_answer(arm, unit, effective(arm))) for arm in metric.arms],
        [
            tuple(
                spread_answer(
                    arm,
                    [
                        comparison
                        for comparison in metric.comparisons
                        if arm.arm in (comparison.arm, comparison.baseline)
                    ],
                )
            )
            for arm in metric.arms
        ],
    )
    for question, told in zip(QUESTIONS, asked, strict=True):
        yield from (doc.Heading(question), doc.Points(_once(told)))


def _once(told: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    common = [line for line in told[0] if len(told) > 1 and all(line in other for other in told[1:])]
    own = (" ".join(line for line in lines if line not in common) for lines in told)
    return tuple(filter(None, (*own, " ".join(common))))


def _comparisons(metric: MetricResults, results: ExternalResults) -> Iterator[doc.Block]:
    for comparison in metric.comparisons:
        counted = "on the smaller side" if comparison.layout.kind == "unpaired" else "pairs"
        rows = [
            ("method", comparison.method),
            ("estimand", comparison.estimand),
            ("what counts", f"{comparison.n:,.0f} {counted}"),
            (
                f"{comparison.arm}/{comparison.baseline}",
                numbers.ratio(comparison.ratio, comparison.low, comparison.high),
            ),
            ("confidence of the interval", numbers.percent(comparison.confidence)),
            ("failed runs", f"{comparison.failures_arm} and {comparison.failures_baseline}"),
            ("correlation within blocks", numbers.given(comparison.shared, "+.2f")),
        ]
        yield doc.table(f"{comparison.arm} against {comparison.baseline}", ("", ""), rows, 2)
        yield doc.Line("The interval takes for granted:")
        yield doc.Points(comparison.assumptions)
        if comparison.tiers:
            tiers = [
                (tier_name(tier.name), _range(tier.low, tier.high), reasons.in_words(tier.sentence))
                for tier in comparison.tiers
            ]
            yield doc.table("how far it reaches", ("tier", "arm/baseline", ""), tiers, 3)
    if len(metric.comparisons) > 1 or len(results.metrics) > 1:
        judged = sum(len(metric.comparisons) for metric in results.metrics)
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
            sample_histogram(metric.arms, colour, unit, name),
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
    }
    stem = file_name(number, metric.metric.name)
    for kind, (spec, text) in found.items():
        if spec is not None:
            yield doc.Figure(f"{number}-{kind}", f"{stem}_{kind}", text, spec)


def json_of(results: ExternalResults) -> bytes:
    """Return the results as indented JSON. A value that is not there is null."""

    def plain(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return value.tolist()
        if isinstance(value, np.generic):
            return value.item()
        raise NotImplementedError(type(value))

    told: bytes = msgspec.json.format(msgspec.json.encode(reasons.worded(results, plain)), indent=1)
    return told + b"\n"


def write(results: ExternalResults, document: doc.Document, folder: Path | str) -> dict[str, Path]:
    """Write the report's files into `folder`, each whole or not at all. Raises StorageError, UserError."""
    return write_document(document, folder, {"json": ("report.json", (json_of(results),))})
