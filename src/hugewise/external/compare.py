"""An arm against the baseline of measurements made elsewhere, as far as their layout carries it.

Randomised blocks, declared as such, are judged by the same functions as a study's: the sequential sign-flip test and
its interval, which hold however often somebody looked. Everything else gets Welch's comparison (or Student's on pairs)
with its assumptions by name, and at most a suggestion: never a verdict.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from hugewise.errors import UserError
from hugewise.external.caveats import Caveat, DataLayout, Paired, examine, pair
from hugewise.external.reader import Series
from hugewise.external.types import AnalysisPlan, ArmFigures, ExternalComparison, Suggestion, TierLine
from hugewise.model.metric import Metric
from hugewise.model.results import Verdict
from hugewise.stats.classical import chance_of_medians
from hugewise.stats.numbers import Integers, Numbers

__all__ = ["compare", "effective", "grouped", "usable"]

_Sides = tuple[Series, Series]

_FEWEST_FOR_ORDER = 50  # values below which an autocorrelation is noise
_MOST_INVERTED = 30_000  # pairs up to which the interval by inversion is a matter of seconds


def compare(
    arm: Series, base: Series, known: tuple[ArmFigures, ArmFigures], plan: AnalysisPlan, alpha: float
) -> ExternalComparison:
    """The comparison at error rate `alpha`, its share of the plan's. Raises UserError for what was declared wrongly."""
    paired = pair(arm, base)
    same = arm.source == base.source or arm.own_arm
    layout = examine(arm, base, paired, randomised=plan.randomised, same_source=same)
    if layout.kind == "unpaired":
        layout = msgspec.structs.replace(layout, caveats=(*layout.caveats, *_dependent(known)))
    if plan.randomised and (paired is None or not len(paired.differences)):
        no_pairs = "--randomised says that a coin chose the order within blocks, but no block holds both arms"
        raise UserError(f"{no_pairs}: {arm.arm} against {base.arm}", hint="name the column of blocks with --block")
    if paired is not None and len(paired.differences):
        method = _exact if plan.randomised else _student
        found = method((arm, base), paired, layout, plan, alpha)
    else:
        found = _welch(known, arm.metric, layout, plan, alpha)
    return msgspec.structs.replace(found, medians=_medians(arm, base))


def effective(one: ArmFigures) -> float:
    """How many independent values the mean of an arm is worth, by its autocorrelation; n where it cannot be told."""
    told = one.figures.dependence
    return float(one.figures.n) if told is None or one.figures.n < _FEWEST_FOR_ORDER else told.effective


def _dependent(known: Sequence[ArmFigures]) -> Iterator[Caveat]:
    for one in known:
        n, worth = one.figures.n, effective(one)
        if worth < 0.8 * n:
            yield Caveat(
                "replication",
                f"The {n:,} values of {one.arm} depend on those before them: for the mean they are worth "
                f"{worth:,.0f} independent ones, which makes its margin of error {math.sqrt(n / worth):.1f} times what "
                "n suggests.",
            )


def _medians(arm: Series, base: Series) -> dict[str, float]:
    first, second = (np.sort(one.values[usable(one)]) for one in (arm, base))
    return {str(k): chance_of_medians(first, second, k) for k in (3, 5)}


def _exact(
    sides: tuple[Series, Series], paired: Paired, layout: DataLayout, plan: AnalysisPlan, alpha: float
) -> ExternalComparison:
    """The sequential sign-flip test, with its interval and the tiers, as for a study's pairs."""
    from hugewise.stats import campaign, inversion, sessions, signflip  # noqa: PLC0415

    arm, base = sides
    differences = paired.differences
    n = len(differences)
    budget = plan.budget
    if budget is not None and n > budget:
        raise UserError(
            f"--budget {budget}: there are {n} pairs of {arm.arm} and {base.arm}",
            hint="the budget is what was declared before the first pair; leave it out if nothing was",
        )
    sign = signflip.verdict(differences, alpha, budget)
    if n <= _MOST_INVERTED:
        low, high = inversion.interval(differences, alpha, budget)
    else:
        low, high = -math.inf, math.inf
    centre = inversion.point(differences)
    finite = differences[np.isfinite(differences)]
    average = campaign.interval(differences, alpha)
    failures = paired.failures_arm + paired.failures_baseline
    margin = math.log1p(plan.margin)
    contradicted = average is not None and ((sign > 0 and average[1] < 0) or (sign < 0 and average[0] > 0))
    verdict: Verdict
    if not layout.carries_verdict:
        verdict, reason = "none", _why_not(layout)
    elif arm.metric.better == "neutral":
        verdict, reason = "none", "Nothing says whether lower or higher is better: give --better"
    elif sign and not contradicted:
        verdict = "better" if (sign > 0) == (arm.metric.better == "higher") else "worse"
        reason = "The exact test crossed its boundary" + (" in this campaign" if n < campaign.FEWEST else "")
    elif sign:
        verdict, reason = "undecided", "The exact test says one direction and the campaign average the other"
    elif -margin < low and high < margin and not failures:
        verdict, reason = "equivalent", f"The whole interval lies within the margin of {plan.margin:.3g}"
    else:
        verdict, reason = "undecided", f"The exact test has not crossed its boundary in {n:,} pairs"
    means = _session_means(paired)
    beyond = sessions.interval(means, alpha) if means else None
    tiers = (
        TierLine(
            "this campaign",
            _exp(low),
            _exp(high),
            f"exact, by the coin alone: {('no difference shown', 'arm larger', 'arm smaller')[sign]}",
        ),
        TierLine(
            "campaign average",
            None if average is None else math.exp(average[0]),
            None if average is None else math.exp(average[1]),
            _average_reason(finite, failures, alpha) or "average effect over the pairs that were run",
        ),
        TierLine(
            "beyond these sessions",
            None if beyond is None else math.exp(beyond[0]),
            None if beyond is None else math.exp(beyond[1]),
            sessions.reason(means, alpha)
            if means and beyond is None
            else "mean over sessions like these"
            if means
            else "sessions are not told apart (--session), so nothing can be said beyond them",
        ),
    )
    return ExternalComparison(
        arm=str(arm.arm),
        baseline=str(base.arm),
        method="sequential sign-flip test on randomised blocks",
        estimand="typical ratio of a pair (Hodges and Lehmann)",
        n=n,
        ratio=_exp(centre),
        low=_exp(low),
        high=_exp(high),
        confidence=1 - alpha,
        p=None,
        verdict=verdict,
        suggestion="nothing" if verdict != "none" or layout.fatal else _suggest(low, high, plan.margin, arm.metric),
        reason=reason,
        assumptions=(
            "a fair coin chose the order (and the slot) in each block, as was declared",
            "blocks stand in the order in which they were run",
            "open-ended: holds however often one looked and whenever one stopped"
            if budget is None
            else f"a budget of {budget:,} pairs was declared before the first; holds however often one looked",
        ),
        layout=layout,
        tiers=tiers,
        shared=_shared(paired),
        failures_arm=paired.failures_arm,
        failures_baseline=paired.failures_baseline,
    )


def _average_reason(finite: Numbers, failures: int, alpha: float) -> str:
    from hugewise.stats.campaign import Campaign  # noqa: PLC0415

    told = Campaign(alpha)
    for value in finite:
        told.add(float(value))
    return f"{failures} attempts failed, so that there is no average" if failures else told.reason()


def _session_means(paired: Paired) -> list[float]:
    if paired.sessions is None:
        return []
    return [float(group.mean()) for group in grouped(paired.sessions, paired.differences)]


def _student(
    sides: tuple[Series, Series], paired: Paired, layout: DataLayout, plan: AnalysisPlan, alpha: float
) -> ExternalComparison:
    """Student's t on the log-ratios of pairs that no coin is known to have ordered: a suggestion at most."""
    from hugewise.stats.paired import paired as tests_of  # noqa: PLC0415

    arm, base = sides
    finite = paired.differences[np.isfinite(paired.differences)]
    tests = tests_of(finite.tolist())
    interval = tests.interval(alpha) if tests is not None and len(finite) > 1 else None
    low, high = interval or (-math.inf, math.inf)
    centre = None if tests is None else tests.centre
    failures = paired.failures_arm + paired.failures_baseline
    return ExternalComparison(
        arm=str(arm.arm),
        baseline=str(base.arm),
        method="Student's t on pairs, at this fixed n",
        estimand="ratio of geometric means",
        n=len(finite),
        ratio=None if centre is None else math.exp(centre),
        low=_exp(low),
        high=_exp(high),
        confidence=1 - alpha,
        p=tests.p_difference() if tests is not None and len(finite) > 1 else None,
        verdict="none",
        suggestion="nothing" if layout.fatal or failures else _suggest(low, high, plan.margin, arm.metric),
        reason=_why_not(layout),
        assumptions=(
            "differences of pairs are independent of each other and their mean is near normal",
            "nothing but the arm goes with the order within the pairs",
            "the number of pairs was chosen before looking: no guarantee for anybody who looked and stopped",
        ),
        layout=layout,
        shared=_shared(paired),
        failures_arm=paired.failures_arm,
        failures_baseline=paired.failures_baseline,
    )


def _welch(
    known: tuple[ArmFigures, ArmFigures], metric: Metric, layout: DataLayout, plan: AnalysisPlan, alpha: float
) -> ExternalComparison:
    """Welch on what replicates: means of runs where values are parts of runs, else values at their effective n."""
    from hugewise.stats.welch import SampleMean, welch  # noqa: PLC0415

    samples, counted = [], []
    for one in known:
        if one.run_means is not None and one.run_means.sd is not None:
            samples.append(SampleMean(one.run_means.mean, one.run_means.sd, one.run_means.n))
            counted.append(f"{one.run_means.n:,} runs of {one.arm}, each by its mean")
            continue
        shown = one.figures
        n = effective(one)
        samples.append(SampleMean(shown.mean, shown.sd or 0.0, n))
        told = f"{shown.n:,} values of {one.arm}"
        if n < 0.95 * shown.n:
            told += f", worth {n:,.0f} independent ones by their autocorrelation"
        counted.append(told)
    single = [one.arm for one in known if one.runs == 1 or one.figures.n < 2]
    ratio = None if single else welch(samples[0], samples[1], 1 - alpha)
    plain = samples[0].mean / samples[1].mean if min(samples[0].mean, samples[1].mean) > 0 else None
    low, high = (ratio.low, ratio.high) if ratio is not None else (None, None)
    unknown = [one.arm for one in known if not one.order_known]
    return ExternalComparison(
        arm=known[0].arm,
        baseline=known[1].arm,
        method="Welch's t, at this fixed n",
        estimand="ratio of arithmetic means",
        n=min(sample.n for sample in samples),
        ratio=plain,
        low=low,
        high=high,
        confidence=1 - alpha,
        p=None if ratio is None else ratio.p,
        verdict="none",
        suggestion="nothing"
        if layout.fatal or low is None or high is None
        else _suggest(math.log(low), math.log(high), plan.margin, metric),
        reason=_why_not(layout),
        assumptions=(
            f"what is counted: {counted[0]}; {counted[1]}",
            "these are independent, within each arm and between the arms"
            + (
                f" (of {' and '.join(unknown)} the order in time is not known, so it cannot be checked)"
                if unknown
                else ""
            ),
            "nothing but the arm differs between the two sets of runs",
            "their number was chosen before looking: no guarantee for anybody who looked and stopped",
        ),
        layout=layout,
    )


def _suggest(low: float, high: float, margin: float, metric: Metric) -> Suggestion:
    bound = math.log1p(margin)
    if -bound < low and high < bound:
        return "equivalent"
    if low <= 0 <= high:
        return "nothing"
    if metric.better == "neutral":
        return "larger" if low > 0 else "smaller"
    return "better" if (low > 0) == (metric.better == "higher") else "worse"


def _why_not(layout: DataLayout) -> str:
    fatal = layout.fatal
    chosen: Caveat | None = fatal or (layout.caveats[0] if layout.caveats else None)
    return chosen.sentence if chosen is not None else "No coin is known to have chosen the order"


def _shared(paired: Paired) -> float | None:
    good = np.isfinite(paired.arm) & np.isfinite(paired.baseline)
    if int(good.sum()) < 10:
        return None
    first, second = np.log(paired.arm[good]), np.log(paired.baseline[good])
    if not (first.std() > 0 and second.std() > 0):
        return None
    return float(np.corrcoef(first, second)[0, 1])


def _exp(value: float) -> float | None:
    """A ratio from its logarithm; None where it is not bounded."""
    return math.exp(value) if math.isfinite(value) and abs(value) < 700 else None


def usable(series: Series) -> NDArray[np.bool_]:
    """Which values stand for a successful run."""
    good = np.isfinite(series.values)
    return good if series.failed is None else good & ~series.failed


def grouped(labels: Integers, values: Numbers) -> list[Numbers]:
    """The values of each label, in the order of the labels."""
    order = np.argsort(labels, kind="stable")
    cuts = np.flatnonzero(np.diff(labels[order])) + 1
    return np.split(values[order], cuts)
