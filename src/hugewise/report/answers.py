"""Three questions that every such sample raises, answered in sentences made from its figures.

Is it normal? Do the outliers invalidate the margin of error? Why is the spread so large? They were left open by the
study of 2021 on transparent against static huge pages in virtual machines; the figures of a sample answer the first
two, and of the third what the data can show: which part is outliers, drift, sessions or the machine's common state.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from hugewise.external.types import ArmFigures, ExternalComparison
from hugewise.report import numbers
from hugewise.report.numbers import Scale
from hugewise.stats.classical import Figures

__all__ = ["QUESTIONS", "normal", "outliers", "spread"]

QUESTIONS = (
    "Are the values normally distributed?",
    "Do the outliers invalidate the margin of error?",
    "Why is the spread what it is?",
)

_FEW = 20  # values below which a test of normality finds only gross departures
_MANY = 2000  # values above which it finds departures that no mean would feel
_STRAIGHT = 0.99  # correlation of a Q-Q plot that looks straight


def normal(arm: ArmFigures) -> Iterator[str]:
    """Whether the arm's values are normal, how sure the tests can be, and whether it matters for the mean."""
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
            f"What an interval needs is that the mean is normal, not the values. Here the skewness of the mean "
            f"({of_mean:.2g}) is still so large that the {level} interval cannot be trusted at its ends: take a lower "
            "confidence, or more values."
        )
        return
    if max(below, above) < 1.05 * nominal:
        yield (
            f"What an interval needs is that the mean is normal, not the values: with a skewness of {of_mean:.2g} the "
            f"mean of {shown.n:,} is as normal as the {level} interval needs."
        )
        return
    yield (
        f"What an interval needs is that the mean is normal, not the values: the skewness of the mean of {shown.n:,} "
        f"is {of_mean:.2g}. By it the {level} interval lies wholly below the true mean with chance {below:.2g} "
        f"and wholly above it with {above:.2g}, instead of {nominal:.2g} each; together that is the nominal "
        f"{2 * nominal:.2g}, if the values are independent."
    )


def outliers(arm: ArmFigures, unit: Scale, effective: float) -> Iterator[str]:
    """How many there are, what they carry, the margin with and without them, and what threatens it more."""
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
        f"Those beyond 3 carry {numbers.share(three.variance_share)} of the variance, those beyond 6 "
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
            "standard deviation. They belong to what was measured; a mean without them answers another question."
        )


def _independence(arm: ArmFigures, unit: Scale, effective: float) -> Iterator[str]:
    shown = arm.figures
    told, margin = shown.dependence, shown.margin or 0.0
    if not arm.order_known:
        yield (
            "What threatens a margin of error more is dependence: it takes all values as independent. Their order in "
            "time is not known here, so that cannot be checked."
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
        f"What invalidates the margin is dependence: values follow those before them (autocorrelation at lag 1: "
        f"{told.lags[0]:+.2f}), and for the mean are worth {effective:,.0f} independent ones. The honest margin is "
        f"±{unit.text(margin * factor, margin * factor)}, {factor:.1f} times as wide"
        + ("." if told.complete else ", and more: the correlation reaches beyond the longest lag.")
    )


def spread(arm: ArmFigures, comparisons: Sequence[ExternalComparison]) -> Iterator[str]:
    """Which parts of the variance the data tell apart, and which causes they cannot name."""
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
    shared = [one.shared for one in comparisons if one.shared is not None]
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
