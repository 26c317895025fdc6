"""What a comparison found, in sentences, and how they are read; the same words in every report.

What a method gives as its reason, in words for readers who know no test. `report.json` has the method's own. Pure.

A test that "has crossed" has seen pairs that chance alone would make with at most the comparison's share of the error
rate, whenever one looks: here that is "too consistent for chance". docs/concepts/sequential.md says it exactly.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

from hugewise.model.metric import Metric
from hugewise.model.results import ArmSummary, CellResult, Comparison, Integrity, Reach, Results
from hugewise.report import numbers
from hugewise.visible import printable

_END = r"(?=; |$)"  # what the design of the run adds comes after it

_SAID = tuple(
    (re.compile(pattern), words)
    for pattern, words in (
        (r"the exact test crossed at pair (\d+)", r"from pair \1 on the difference is too consistent for chance"),
        (
            r"; also with all pairs kept in((?: \(.{1,2000}\))?)",
            r", also with the pairs that had to be left out counted against it\1",
        ),
        (r": in this campaign" + _END, r". That is said of this run, not of other days"),
        (r", and the campaign average agrees" + _END, r". The average over the run agrees"),
        (r"; the campaign average does not contradict it" + _END, r". The average over the run does not contradict it"),
        (r", but the campaign average contradicts it" + _END, r", but the average over the run says the opposite"),
        (
            r"the whole interval lies within the margin of [\d.e-]+, the campaign average too",
            r"all that is still possible lies within the margin, for the typical pair and on average",
        ),
        (
            r"the campaign average is not known to lie within the margin, as the interval does",
            r"the typical pair differs by less than the margin, and of the average over the run that is not known yet",
        ),
        (
            r"the test has crossed, but with all pairs kept in it has not",
            r"the usable pairs differ, but not once those that had to be left out are counted against it",
        ),
        (r"the test has crossed, but ", r"the pairs differ too consistently for chance, but "),
        (
            r"the declared budget of pairs is used up and the test has not crossed",
            r"all planned pairs were run, and chance alone could have made what they show",
        ),
        (
            r"the estimate lies outside its interval: pairs share no one effect",
            r"the effect changed in the course of the run, so that no one figure stands for it",
        ),
        (
            r"(\d+) pairs; (\d+) declared ones can decide nothing at this error rate: declare more",
            r"even all \2 planned pairs could decide nothing at this confidence: plan more",
        ),
        (r"no verdict is possible before pair (\d+)", r"a verdict needs \1 pairs at least"),
        # of measurements that others made
        (
            r"The exact test crossed its boundary in this campaign",
            r"The difference is too consistent for chance. That is said of these measurements, not of other days",
        ),
        (r"The exact test crossed its boundary", r"The difference is too consistent for chance"),
        (r"The exact test has not crossed its boundary in ([\d,]+) pairs", r"\1 pairs show no difference"),
        (
            r"The exact test says one direction and the campaign average the other",
            r"The typical pair differs in one direction, and the average in the other",
        ),
        (r"The whole interval lies within the margin of", r"All that is still possible lies within the margin of"),
        (r"the exact test has crossed", r"the difference is too consistent for chance"),
        (r"the (?:exact )?test has not crossed", r"no difference is shown"),
    )
)


def plain(reason: str) -> str:
    """The reason in such words; what is in them already stays."""
    for pattern, words in _SAID:
        reason = pattern.sub(words, reason)
    return reason


def in_a_row(reason: str) -> str:
    """The same within a sentence or a cell of a table, where no other sentence begins."""
    said = plain(reason)
    for begun, going_on in ((". That is said", ", which is said"), (". The average", "; the average")):
        said = said.replace(begun, going_on)
    return said


# A verdict is never told by its colour alone.
SYMBOLS = {"better": "▲", "worse": "▼", "equivalent": "=", "undecided": "?", "none": "–"}

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
    """What is told of an effect, whatever holds it: a comparison, a change of a metric, the measured side of a figure
    that was published. A verdict that is none of a method's (not judged) says nothing of an interval.
    """

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
    """What stands beside a verdict as a finding of its own; it `leads` where the verdict leaves the question open."""

    text: str
    leads: bool


def listed(names: Sequence[str]) -> str:
    """One name or more, as in a sentence: `a, b and c`."""
    *before, last = names
    return f"{', '.join(before)} and {last}" if before else last


def arm_of(cell: CellResult, name: str) -> ArmSummary | None:
    """The summary of the arm `name`, or None when nothing of it was kept."""
    return next((arm for arm in cell.arms if arm.arm == name), None)


def better_direction(metric: Metric) -> str:
    """`lower is better`, or its opposite."""
    return "not judged" if metric.better == "neutral" else f"{metric.better} is better"


def metric_line(metric: Metric) -> str:
    """`latency_ns (ns, lower is better): time of one dependent load`."""
    return printable(f"{metric.name} ({metric.unit}, {better_direction(metric)}): {metric.description}")


def sentence(comparison: Comparison, metric: Metric, margin: float) -> str:
    """Which policy, better or worse by how much, the interval, the blocks and the confidence; else why not."""
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
    """What else the pairs show: that the arm's values spread more or less widely than the baseline's."""
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


def legend(results: Results, *, tiers: bool = True) -> tuple[str, ...]:
    """What the verdicts of this run do and do not say, by the methods that gave them; of `tiers`, where some reach
    beyond the run.
    """
    every = [one for cell in results.cells for one in cell.comparisons]
    methods = {one.method for one in every}
    exact: tuple[str, ...] = EXACT_LEGEND if "sequential" in methods else ()
    exact += COUNTS_LEGEND if "exact" in methods else ()
    if tiers and any(one.supported and one.name != "this campaign" for each in every for one in each.tiers):
        exact += TIER_LEGEND
    return (*exact, *(_FIXED_LEGEND if methods - {"sequential", "exact", "screening", "unjudged"} else ()))


def tier_name(name: Reach) -> str:
    """How far a claim reaches, and what its ratio is of."""
    return _TIERS[name]


def records(results: Results) -> Iterator[str]:
    """Whether the run's folder holds what was written; nothing of results that are not from one."""
    match results.integrity:
        case None:
            return
        case Integrity(state="salvaged", left_out=left_out):
            yield "Salvaged: what was not what hugewise had written was left out; what remains carries no verdict."
            yield from (printable(one) for one in left_out)
        case Integrity(state="no running hash"):
            yield (
                "Whether its records are what was written cannot be told: the version that made them kept nothing to "
                "tell it by."
            )
        case Integrity(state="unaltered", hash=known):
            yield f"Its records are unaltered: their last hash is the expected {known}."
        case Integrity(hash=known):
            yield f"Its records are consistent; their last hash is {known}."
            if results.state == "interrupted":  # without a last record any place looks like their end
                yield (
                    "It may have been interrupted, or have ended and lost its last records: nobody can tell who has not"
                    " noted its last hash (hugewise report --expect HASH)."
                )


def _blocks(comparison: Comparison) -> str:
    n = f"{comparison.n} block{'' if comparison.n == 1 else 's'}"
    return n if comparison.final else f"{n} of {comparison.planned} planned"


def effect_of(one: Judgement) -> str:
    """The change with its interval, a provisional one before there is another, or that there is none; of counts that do
    not vary, that they are the same in all blocks.
    """
    if one.provisional is not None and (span := numbers.interval(one.ratio, *one.provisional)) and not one.constant:
        return f"{numbers.point(one.ratio, *one.provisional)} (provisional: {span})"
    shown = numbers.effect(one.ratio, one.low, one.high, one.n if one.constant else None)
    if one.ratio is None or one.constant or one.verdict not in {"better", "worse", "equivalent", "undecided"}:
        return shown
    if numbers.interval(one.ratio, one.low, one.high):
        return shown
    return f"{shown} (no interval{_yet(one.verdict)})"


def change_of(ratio: float | None, low: float | None, high: float | None) -> str:
    """The change with its interval, or that there is none, of what has no verdict."""
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
    """The effect in words: `25.2% lower`, `200% higher (a factor of 3)`; None where there is no finite one."""
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
    if not comparison.final and comparison.verdict not in {"undecided", "none"}:
        yield "Provisional until the planned number of blocks is reached."
    if comparison.reason:
        reason = plain(printable(comparison.reason))
        yield f"{reason[0].upper()}{reason[1:].rstrip('.')}."
    both = comparison.corrected, comparison.ratio
    if None not in both and comparison.verdict in {"better", "worse"}:
        about, seen = (
            numbers.like(value, comparison.ratio, comparison.low, comparison.high)
            for value in both
            if value is not None
        )
        if about != seen:
            yield f"Corrected for stopping early: about {about} (a `width` in the study's budget makes it sharper)."
    if comparison.verdict in {"undecided", "none"} and numbers.bounded(comparison.change):
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
    if comparison.bias is not None:
        most = numbers.largest(comparison.bias)
        yield f"A covariate moved by the arm could have put up to {most} into this without being noticed."
    for warning in filter(None, map(printable, comparison.warnings)):
        yield f"{warning[0].upper()}{warning[1:].rstrip('.')}."


def _unstarted(side: str, blocks: int) -> Iterator[str]:
    if blocks:
        many = f"{blocks} block{'' if blocks == 1 else 's'}"
        yield f"{printable(side)} could not be started in {many} (counted as failures)."


def _backed(share: float | None) -> str:
    if share is None:
        return "no share at a promised page size is known"
    return f"{numbers.share(share)} of the named memory was backed as promised"


def run_line(results: Results) -> str:
    """One line on the run: its state, blocks and mechanism."""
    return (
        f"{results.state}: {results.blocks_complete} blocks complete, {results.blocks_incomplete} incomplete, "
        f"{results.blocks_disturbed} disturbed; policies set by {_mechanism(results)}"
    )


def _mechanism(results: Results) -> str:
    """How the policies were set, in words."""
    if results.guests is not None:
        return "settings of the whole system in their guests"
    return {
        "system": "settings of the whole system (as root)",
        "process": "settings of each program (without root)",
    }[results.mechanism]


def winners(results: Results) -> Iterable[tuple[CellResult, Comparison, ArmSummary]]:
    """Each arm that beat its baseline, with its cell."""
    for cell in results.cells:
        for comparison in cell.comparisons:
            arm = arm_of(cell, comparison.arm)
            if comparison.verdict == "better" and arm is not None:
                yield cell, comparison, arm


def strength(comparison: Comparison) -> float:
    """How far apart the two sides are, whichever is larger: a ratio of at least 1."""
    ratio = comparison.ratio
    return 1.0 if ratio is None or ratio <= 0 else max(ratio, 1 / ratio)
