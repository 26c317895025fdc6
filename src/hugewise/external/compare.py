"""An arm against the baseline of measurements made elsewhere, as far as their layout carries it.

Randomised blocks, declared as such, are judged by the same functions as a study's: the sequential sign-flip test and
its interval, which hold however often somebody looked. Everything else gets Welch's comparison (or Student's on pairs)
with its assumptions by name, and at most a suggestion: never a verdict.

What `hugewise analyze` finds: the documented JSON, and the only thing that its reports are made from.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from hugewise.errors import UserError
from hugewise.external.caveats import Caveat, DataLayout, Paired, examine, pair
from hugewise.external.reader import Series
from hugewise.model.metric import Metric
from hugewise.model.results import Reach, Verdict
from hugewise.stats.classical import Figures, chance_of_medians
from hugewise.stats.method import Integers, Numbers

Suggestion = Literal["better", "worse", "larger", "smaller", "equivalent", "nothing"]


@dataclass(frozen=True)
class AnalysisPlan:
    """What was decided about the analysis; `budget` is the number of pairs declared before the first one, or None."""

    confidence: float = 0.99
    margin: float = 0.005
    baseline: str | None = None
    randomised: bool = False
    budget: int | None = None
    metrics: tuple[str, ...] = ()


class TierLine(msgspec.Struct, frozen=True):
    """How far a statement reaches: its name, and what these data say on it. Ratios; None where they carry nothing."""

    name: Reach
    low: float | None
    high: float | None
    sentence: str


class ExternalComparison(msgspec.Struct, frozen=True, kw_only=True):
    """One arm against the baseline; all ratios are arm/baseline.

    n            replicates that the statistic counts: pairs, or (for Welch) the smaller side's effective number
    verdict      better, worse, equivalent, undecided; `none` where the layout carries no verdict
    suggestion   what the numbers suggest where there is no verdict, with `reason`; `nothing` if they do not
    medians      k -> chance that the median of k runs of the arm against the median of k of the baseline shows the arm
                 on the side of the lower values
    shared       correlation of the logarithms within pairs: what pairing takes out
    """

    arm: str
    baseline: str
    method: str
    estimand: str
    n: float
    ratio: float | None
    low: float | None
    high: float | None
    confidence: float
    p: float | None
    verdict: Verdict
    suggestion: Suggestion
    reason: str
    assumptions: tuple[str, ...]
    layout: DataLayout
    tiers: tuple[TierLine, ...] = ()
    medians: dict[str, float] = {}
    shared: float | None = None
    failures_arm: int = 0
    failures_baseline: int = 0


class ArmFigures(msgspec.Struct, frozen=True, kw_only=True):
    """One arm: its figures over successful runs, and what stands behind them.

    runs             distinct program runs that the values come from; None: each value is one
    run_means        figures of the runs' means, where values are parts of runs and there are two runs or more
    session_share    variance component between sessions, as a share; None where sessions are not known
    sampled          at most 1,500 values in time order, for drawing: (place, value)
    """

    arm: str
    sources: tuple[str, ...]
    missing: int
    failed: int
    order_known: bool
    runs: int | None
    figures: Figures
    run_means: Figures | None
    session_share: float | None
    sampled: tuple[tuple[int, float], ...]
    notes: tuple[str, ...]


class MetricResults(msgspec.Struct, frozen=True, kw_only=True):
    """Everything on one metric."""

    metric: Metric
    baseline: str
    arms: tuple[ArmFigures, ...]
    comparisons: tuple[ExternalComparison, ...]


class ExternalResults(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `hugewise analyze`: the documented JSON, and what its reports are made from."""

    format: int = 1
    files: tuple[str, ...]
    formats: tuple[str, ...]
    confidence: float
    margin: float
    randomised: bool
    budget: int | None
    metrics: tuple[MetricResults, ...]
    others: tuple[str, ...]  # metrics in the files that were not asked about


def encode(results: ExternalResults) -> bytes:
    """Indented JSON. A value that is not there is null."""

    def plain(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return value.tolist()
        if isinstance(value, np.generic):
            return value.item()
        raise NotImplementedError(type(value))

    return msgspec.json.format(msgspec.json.encode(results, enc_hook=plain), indent=1) + b"\n"


_FEWEST_FOR_ORDER = 50  # values below which an autocorrelation is noise
_SIGNS = ("no difference shown", "arm larger", "arm smaller")
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
        own = (_exact if plan.randomised else _student)((arm, base), paired, layout, plan, alpha)
        own |= {
            "shared": _shared(paired),
            "failures_arm": paired.failures_arm,
            "failures_baseline": paired.failures_baseline,
        }
    else:
        own = _welch(known, arm.metric, layout, plan, alpha)
    return ExternalComparison(
        arm=str(arm.arm),
        baseline=str(base.arm),
        confidence=1 - alpha,
        layout=layout,
        medians=_medians(arm, base),
        **own,
    )


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
) -> dict[str, Any]:
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
    averaged = campaign.Campaign(alpha)
    for difference in differences.tolist():
        averaged.add(difference)
    average = averaged.interval()
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
    why_no_average = f"{failures} attempts failed, so that there is no average" if failures else averaged.reason()
    why_not_beyond = "sessions are not told apart (--session), so nothing can be said beyond them"
    if means:
        why_not_beyond = sessions.reason(means, alpha)
    tiers = (
        _tier("this campaign", (low, high), f"exact, by the coin alone: {_SIGNS[sign]}"),
        _tier("campaign average", average, why_no_average or "average effect over the pairs that were run"),
        _tier("beyond these sessions", beyond, why_not_beyond or "mean over sessions like these"),
    )
    return {
        "method": "sequential sign-flip test on randomised blocks",
        "estimand": "typical ratio of a pair (Hodges and Lehmann)",
        "n": n,
        "ratio": _exp(inversion.point(differences)),
        "low": _exp(low),
        "high": _exp(high),
        "p": None,
        "verdict": verdict,
        "suggestion": "nothing" if verdict != "none" or layout.fatal else _suggest(low, high, plan.margin, arm.metric),
        "reason": reason,
        "assumptions": (
            "a fair coin chose the order (and the slot) in each block, as was declared",
            "blocks stand in the order in which they were run",
            "open-ended: holds however often one looked and whenever one stopped"
            if budget is None
            else f"a budget of {budget:,} pairs was declared before the first; holds however often one looked",
        ),
        "tiers": tiers,
    }


def _tier(name: Reach, ends: tuple[float, float] | None, sentence: str) -> TierLine:
    low, high = (None, None) if ends is None else map(_exp, ends)
    return TierLine(name, low, high, sentence)


def _session_means(paired: Paired) -> list[float]:
    if paired.sessions is None:
        return []
    return [float(group.mean()) for group in grouped(paired.sessions, paired.differences)]


def _student(
    sides: tuple[Series, Series], paired: Paired, layout: DataLayout, plan: AnalysisPlan, alpha: float
) -> dict[str, Any]:
    """Student's t on the log-ratios of pairs that no coin is known to have ordered: a suggestion at most."""
    from hugewise.stats.paired import paired as tests_of  # noqa: PLC0415

    finite = paired.differences[np.isfinite(paired.differences)]
    tests = tests_of(finite.tolist())
    interval = tests.interval(alpha) if tests is not None and len(finite) > 1 else None
    low, high = interval or (-math.inf, math.inf)
    centre = None if tests is None else tests.centre
    failures = paired.failures_arm + paired.failures_baseline
    return {
        "method": "Student's t on pairs, at this fixed n",
        "estimand": "ratio of geometric means",
        "n": len(finite),
        "ratio": None if centre is None else math.exp(centre),
        "low": _exp(low),
        "high": _exp(high),
        "p": tests.p_difference() if tests is not None and len(finite) > 1 else None,
        "verdict": "none",
        "suggestion": "nothing" if layout.fatal or failures else _suggest(low, high, plan.margin, sides[0].metric),
        "reason": _why_not(layout),
        "assumptions": (
            "differences of pairs are independent of each other and their mean is near normal",
            "nothing but the arm goes with the order within the pairs",
            "the number of pairs was chosen before looking: no guarantee for anybody who looked and stopped",
        ),
    }


def _welch(
    known: tuple[ArmFigures, ArmFigures], metric: Metric, layout: DataLayout, plan: AnalysisPlan, alpha: float
) -> dict[str, Any]:
    """Welch on what replicates: means of runs where values are parts of runs, else values at their effective n."""
    from hugewise.stats.paired import SampleMean, welch  # noqa: PLC0415

    samples, counted = [], []
    for one in known:
        if one.run_means is not None and one.run_means.sd is not None:
            samples.append(SampleMean(one.run_means.mean, one.run_means.sd, one.run_means.n))
            counted.append(f"{one.run_means.n:,} runs of {one.arm}, each by its mean")
            continue
        shown, n = one.figures, effective(one)
        worth = f", worth {n:,.0f} independent ones by their autocorrelation" if n < 0.95 * shown.n else ""
        samples.append(SampleMean(shown.mean, shown.sd or 0.0, n))
        counted.append(f"{shown.n:,} values of {one.arm}{worth}")
    single = [one.arm for one in known if one.runs == 1 or one.figures.n < 2]
    ratio = None if single else welch(samples[0], samples[1], 1 - alpha)
    suggestion: Suggestion = "nothing"
    if ratio is not None and not layout.fatal:
        suggestion = _suggest(math.log(ratio.low), math.log(ratio.high), plan.margin, metric)
    unknown = " and ".join(one.arm for one in known if not one.order_known)
    unchecked = f" (of {unknown} the order in time is not known, so it cannot be checked)" if unknown else ""
    return {
        "method": "Welch's t, at this fixed n",
        "estimand": "ratio of arithmetic means",
        "n": min(sample.n for sample in samples),
        "ratio": samples[0].mean / samples[1].mean if min(sample.mean for sample in samples) > 0 else None,
        "low": None if ratio is None else ratio.low,
        "high": None if ratio is None else ratio.high,
        "p": None if ratio is None else ratio.p,
        "verdict": "none",
        "suggestion": suggestion,
        "reason": _why_not(layout),
        "assumptions": (
            f"what is counted: {counted[0]}; {counted[1]}",
            f"these are independent, within each arm and between the arms{unchecked}",
            "nothing but the arm differs between the two sets of runs",
            "their number was chosen before looking: no guarantee for anybody who looked and stopped",
        ),
    }


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
    chosen = layout.fatal or next(iter(layout.caveats), None)
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
