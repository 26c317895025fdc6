"""Sentences on the results of a comparison, and how to read them; the same words in every report. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

from hugewise.model.metric import Metric
from hugewise.model.results import (
    DECIDED,
    DIRECTIONS,
    VERDICTS,
    ArmSummary,
    CellResult,
    Comparison,
    Integrity,
    Reach,
    Results,
)
from hugewise.report import numbers, reasons
from hugewise.visible import printable

LEGEND_TITLE = "How a verdict is read"
# What the exact test says and what it does not; once in a report, where its verdicts are read.
EXACT_LEGEND = (
    "Better and worse: in each block a coin drew which policy came first. If the policies made no difference at all, "
    "pairs as consistent as these would come up with a chance of at most the study's error rate, whenever one looks; "
    "nothing else is assumed.",
    "How large it is, and its interval, are those of an effect that is the same in every pair, or varies evenly to "
    "both sides of it.",
)
# Of counts of guests that are the same in every boot.
COUNTS_LEGEND = (
    "Counts that are the same in every boot are judged by that: boots differ in their seed and in nothing else but the "
    "policy, so that a difference between two counts of which each is repeated is the policy's.",
)
# Where the tables of a report have tiers beyond the run itself.
TIER_LEGEND = (
    "The campaign average, over all pairs of the run, is of the logarithms, so that its ratio is one of geometric "
    "means.",
    "The tiers “campaign average” and “beyond these sessions” have an error of their own each, at the comparison's "
    "alpha and outside the study's split.",
)
_FIXED_LEGEND = (
    "Under fixed n, direction and interval rest on logarithms of the pairs' ratios that are near normal and "
    "independent between blocks; the ratio is one of geometric means.",
)
_TIERS: dict[Reach, str] = {
    "this campaign": "this campaign (typical ratio)",
    "campaign average": "campaign average (ratio of geometric means)",
    "beyond these sessions": "beyond these sessions (ratio of geometric means)",
}


class Judgement(Protocol):
    """Effect in any holder: a comparison, a change of a metric, the measured side of a published figure."""

    @property
    def n(self) -> int: ...
    @property
    def ratio(self) -> float | None: ...
    @property
    def low(self) -> float | None: ...
    @property
    def high(self) -> float | None: ...
    @property
    def verdict(self) -> str | None: ...
    @property
    def constant(self) -> bool: ...
    @property
    def provisional(self) -> tuple[float, float] | None: ...


class Finding(NamedTuple):
    """Finding of its own beside a verdict; it `leads` where the verdict leaves the question open."""

    text: str
    leads: bool


def marked(verdict: str) -> str:
    """`▲ better`: a verdict with its symbol."""
    return f"{VERDICTS[verdict].symbol} {verdict}"


def listed(names: Sequence[str]) -> str:
    """Return one name or more, as in a sentence: `a, b and c`."""
    *before, last = names
    return f"{', '.join(before)} and {last}" if before else last


def arm_of(cell: CellResult, name: str) -> ArmSummary | None:
    """Return the summary of the arm `name`, or None when nothing of it was kept."""
    return next((arm for arm in cell.arms if arm.arm == name), None)


def better_direction(metric: Metric) -> str:
    """`lower is better`, or its opposite."""
    return "not judged" if metric.better == "neutral" else f"{metric.better} is better"


def metric_line(metric: Metric) -> str:
    """`latency_ns (ns, lower is better): time of one dependent load`."""
    return printable(f"{metric.name} ({metric.unit}, {better_direction(metric)}): {metric.description}")


def sentence(comparison: Comparison, metric: Metric, margin: float) -> str:
    """Return which policy is better or worse by how much, the interval, the blocks and the confidence; else why not."""
    arm, base, name = (printable(text) for text in (comparison.arm, comparison.baseline, metric.name))
    blocks = _blocks(comparison)
    match comparison.verdict:
        case "better" | "worse":
            how = ", the same in all" if comparison.constant else f" ({_span(comparison)}), from"
            text = f"{arm} is {comparison.verdict} than {base}: {name} {_distance(comparison)}{how} {blocks}."
        case "equivalent":
            text = (
                f"{arm} is equivalent to {base} within ±{numbers.percent(margin)}: {name} "
                f"{_effect(comparison, blocks)}."
            )
        case "undecided":
            text = f"{arm} against {base} is undecided: {name} {_effect(comparison, blocks)}."
        case _:
            text = f"No verdict on {arm} against {base}."
    return " ".join([text, *_reasons(comparison)])


def findings(comparison: Comparison) -> Iterator[Finding]:
    """Yield further findings of the pairs: that the arm's values spread more or less widely than the baseline's."""
    spread = comparison.spread
    if spread is None or spread.shown is None:
        return
    arm, base = printable(comparison.arm), printable(comparison.baseline)
    at = "" if spread.pairs is None else f" from pair {spread.pairs} on"
    # The test and the ratio look at different things: where they disagree, the test is what was found.
    agree = spread.ratio is not None and (spread.ratio > 1) == (spread.shown == "wider") and spread.ratio > 0
    how = f"{numbers.times(spread.ratio)} times as" if agree and spread.ratio else _SPREADS[spread.shown]
    widely = f"spread {how} widely {'as' if agree else 'than'} the baseline's (too consistently for chance{at})."
    match comparison.verdict:
        case "undecided":
            place = "not shown in place"
        case "equivalent":
            place = "not in place, where they are equivalent"
        case _:
            yield Finding(f"Spread: the values of {arm} {widely}", leads=False)
            return
    yield Finding(
        f"{arm} differs from {base} in spread, {place}: for a latency budget this is the answer. Its values {widely}",
        leads=True,
    )


_SPREADS = {"wider": "more", "narrower": "less"}


def legend(results: Results) -> tuple[str, ...]:
    """Return what the verdicts of this run do and do not say, by the methods that gave them."""
    every = [comparison for cell in results.cells for comparison in cell.comparisons]
    methods = {one.method for one in every}
    exact: tuple[str, ...] = EXACT_LEGEND if "sequential" in methods else ()
    exact += COUNTS_LEGEND if "exact" in methods else ()
    if any(tier.supported and tier.name != "this campaign" for each in every for tier in each.tiers):
        exact += TIER_LEGEND
    return (*exact, *(_FIXED_LEGEND if methods - {"sequential", "exact", "screening", "unjudged"} else ()))


def tier_name(name: Reach) -> str:
    """Return the reach of a claim, and the subject of its ratio."""
    return _TIERS[name]


def records(results: Results) -> Iterator[str]:
    """Yield whether the run's folder is intact; nothing for results that are not from one."""
    match results.integrity:
        case None:
            return
        case Integrity(state="no running hash"):
            yield "The records cannot be checked: the hugewise that wrote them stored nothing to check them by."
        case Integrity(state="unaltered", hash=known):
            yield f"The records are unaltered: the last hash is the expected {known}."
        case Integrity(hash=known):
            yield f"The records are consistent; the last hash is {known}."
            if results.state == "interrupted":  # without a last record any place looks like their end
                yield (
                    "The run was interrupted, or it ended and lost its last records: only the last hash, noted at its"
                    " end, tells these apart (hugewise report --expect HASH)."
                )


def _blocks(comparison: Comparison) -> str:
    n = f"{comparison.n} block{'' if comparison.n == 1 else 's'}"
    return n if comparison.final else f"{n} of {comparison.planned} planned"


def effect_of(effect: Judgement) -> str:
    """Return the change with its interval, or that there is none; of counts that do not vary, that they do not."""
    if (
        effect.provisional is not None
        and (span := numbers.interval(effect.ratio, *effect.provisional))
        and not effect.constant
    ):
        return f"{numbers.point(effect.ratio, *effect.provisional)} (provisional: {span})"
    shown = numbers.effect(effect.ratio, effect.low, effect.high, effect.n if effect.constant else None)
    if effect.ratio is None or effect.constant or effect.verdict not in (*DECIDED, "undecided"):
        return shown
    if numbers.interval(effect.ratio, effect.low, effect.high):
        return shown
    return f"{shown} (no interval{_yet(effect.verdict)})"


def change_of(ratio: float | None, low: float | None, high: float | None) -> str:
    """Return the change with its interval, or that there is none, of what has no verdict."""
    shown = numbers.effect(ratio, low, high)
    return shown if ratio is None or numbers.interval(ratio, low, high) else f"{shown} (no interval)"


def interval_words(ratio: float | None, low: float | None, high: float | None, confidence: float, verdict: str) -> str:
    """`99% interval −25.5% to −24.9%`, `99% interval: at least 30% lower`, `no 99% interval yet`."""
    level = numbers.percent(confidence)
    if words := numbers.bound(ratio, low, high):
        return f"{level} interval: {words}"
    if shown := numbers.interval(ratio, low, high):
        return f"{level} interval {shown}"
    return f"no {level} interval{_yet(verdict)}"


def _yet(verdict: str | None) -> str:
    return " yet" if verdict == "undecided" else ""


def _span(comparison: Comparison) -> str:
    one = comparison
    if one.provisional is not None and (shown := numbers.interval(one.ratio, *one.provisional)):
        return f"provisional {numbers.percent(one.confidence)} interval {shown}"
    return interval_words(one.ratio, one.low, one.high, one.confidence, one.verdict)


def _distance(comparison: Comparison) -> str:
    ratio = comparison.ratio
    if ratio is None:
        return "changed"
    if (size := size_of(comparison)) is None:
        return f"has {numbers.point(ratio, comparison.low, comparison.high)}"
    return size


def size_of(comparison: Comparison) -> str | None:
    """Return the effect in words: `25.2% lower`, `200% higher (a factor of 3)`; None where there is no finite one."""
    ratio = comparison.ratio
    if ratio is None or ratio == 0 or math.isinf(ratio):
        return None
    size = numbers.exact(ratio) if comparison.constant else numbers.point(ratio, comparison.low, comparison.high)
    text = f"{size.lstrip('+' + numbers.MINUS)} {'higher' if ratio > 1 else 'lower'}"
    factor = max(ratio, 1 / ratio)
    return f"{text} (a factor of {factor:.3g})" if factor >= 2 else text


def _effect(comparison: Comparison, blocks: str) -> str:
    ratio = comparison.ratio
    if ratio is None:
        return f"has no estimate, from {blocks}"
    if comparison.constant:
        return f"{numbers.exact(ratio)}, the same in all {blocks}"
    has = "has " if ratio == 0 or math.isinf(ratio) else ""
    ends = comparison.provisional or (comparison.low, comparison.high)
    return f"{has}{numbers.point(ratio, *ends)} ({_span(comparison)}), from {blocks}"


def _reasons(comparison: Comparison) -> Iterator[str]:
    if comparison.judged == "setting":
        yield f"Judges the setting of {printable(comparison.arm)}: {_backed(comparison.delivered_share)}."
    if comparison.baseline_judged == "setting":
        yield f"Held against the setting of {printable(comparison.baseline)}: {_backed(comparison.baseline_share)}."
    if not comparison.final and comparison.verdict in DECIDED:
        yield "Provisional until the planned number of blocks is reached."
    if comparison.reason:
        yield printable(reasons.sentence(comparison.reason))
    both = comparison.corrected, comparison.ratio
    if None not in both and comparison.verdict in DIRECTIONS:
        about, seen = (
            numbers.like(value, comparison.ratio, comparison.low, comparison.high)
            for value in both
            if value is not None
        )
        if about != seen:
            yield f"Corrected for stopping early: about {about} (a `width` in the study's budget makes it sharper)."
    if comparison.verdict not in DECIDED and numbers.bounded(comparison.change):
        yield f"The largest effect still possible is {numbers.largest(comparison.change)}."
    if comparison.n_all > comparison.n and comparison.verdict != "none" and comparison.ratio is not None:
        kept = "" if comparison.verdict == "undecided" else "; the verdict also holds with the others kept in"
        yield f"Estimate and interval are of the {comparison.n} usable pairs of {comparison.n_all}{kept}."
    yield from _unstarted(comparison.arm, comparison.unstarted_arm)
    yield from _unstarted(comparison.baseline, comparison.unstarted_baseline)
    if comparison.failures_arm or comparison.failures_baseline:
        yield (
            f"Failures: {comparison.failures_arm} of {printable(comparison.arm)}, "
            f"{comparison.failures_baseline} of {printable(comparison.baseline)}."
        )
    for warning in filter(None, map(reasons.sentence, comparison.warnings)):
        yield printable(warning)


def _unstarted(side: str, blocks: int) -> Iterator[str]:
    if blocks:
        many = f"{blocks} block{'' if blocks == 1 else 's'}"
        yield f"{printable(side)} could not be started in {many} (counted as failures)."


def _backed(share: float | None) -> str:
    if share is None:
        return "no share at a promised page size is known"
    return f"{numbers.share(share)} of the named memory was backed as promised"


def run_line(results: Results) -> str:
    """Return a sentence on the run: its state, blocks and mechanism."""
    return (
        f"{results.state[:1].upper()}{results.state[1:]}: {results.blocks_complete} blocks complete, "
        f"{results.blocks_incomplete} incomplete, {results.blocks_disturbed} disturbed; "
        f"policies set by {_mechanism(results)}."
    )


def _mechanism(results: Results) -> str:
    if results.guests is not None:
        return "settings of the whole system in their guests"
    return {
        "system": "settings of the whole system (as root)",
        "process": "settings of each program (without root)",
    }[results.mechanism]


def winners(results: Results) -> Iterable[tuple[CellResult, Comparison, ArmSummary]]:
    """Yield each arm that beat its baseline, with its cell."""
    for cell in results.cells:
        for comparison in cell.comparisons:
            arm = arm_of(cell, comparison.arm)
            if comparison.verdict == "better" and arm is not None:
                yield cell, comparison, arm


def strength(comparison: Comparison) -> float:
    """Return the distance of the two sides, whichever is larger: a ratio of at least 1."""
    ratio = comparison.ratio
    return 1.0 if ratio is None or ratio <= 0 else max(ratio, 1 / ratio)
