"""Answer of each cell of a run, by its verdicts: what to set, and what is better, worse or open beside it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from hugewise.analysis.earlier import contradicted
from hugewise.model.cause import GROWTH, POOL_GROWTH, AnswerState, CellAnswer, Trade
from hugewise.model.metric import Metric
from hugewise.model.results import DECIDED, DIRECTIONS, ArmSummary, CellResult, Comparison, Results
from hugewise.report import numbers
from hugewise.report.numbers import percent
from hugewise.report.reasons import in_words
from hugewise.report.sentences import arm_of, effect_of, listed, size_of, strength
from hugewise.visible import printable

_END_POINTS = {"mean": "mean {}", "slow": "rate of slow runs by {}", "p99": "{} of the worst hundredth of runs"}

_WORDS: Mapping[str, str] = {"worse": "worse", "better": "better", "undecided": "open"}
"""Words of an answer beside the metric: one for each verdict, the gravest first."""


class Also(NamedTuple):
    """A comparison beside those of the cell's own metric.

    name       of its metric; of an end point, what it looks at
    end_point  what is judged of the cell's own metric; empty of another metric
    """

    name: str
    metric: Metric
    comparison: Comparison
    end_point: str = ""


def also_judged(cell: CellResult, arm: str | None = None) -> Iterator[Also]:
    """End points of the cell's metric, and metrics declared beside it, in the study's order; of one arm, or of all."""
    own = cell.metric
    found = [
        Also(printable(_end_point(own.name, comparison)), own, comparison, comparison.estimand)
        for comparison in cell.end_points
    ]
    found += [
        Also(printable(comparison.metric), cell.metric_named(comparison.metric), comparison)
        for comparison in cell.declared
    ]
    yield from (one for one in found if arm in {None, one.comparison.arm})


def _end_point(metric: str, comparison: Comparison) -> str:
    words = _END_POINTS.get(comparison.end_point)
    return f"{metric} ({comparison.estimand})" if words is None else words.format(metric)


def decided(cell: CellResult, arm: str, verdict: str) -> list[Also]:
    """Return the arm's results beside the metric with that verdict, among those judged by a direction."""
    found = also_judged(cell, arm)
    return [one for one in found if one.comparison.verdict == verdict and one.metric.better != "neutral"]


def of_each(cell: CellResult, first: Iterable[str]) -> str:
    """Return what is judged of each arm beside the metric, `first` first: `thp` is worse in p99_us."""
    arms = dict.fromkeys((*first, *(also.comparison.arm for also in also_judged(cell))))
    told = ((arm, ", and ".join(of_arm(cell, arm))) for arm in arms)
    return "; ".join(f"`{printable(arm)}` is {text}" for arm, text in told if text)


def of_arm(cell: CellResult, arm: str, verdicts: Iterable[str] = tuple(_WORDS), *, effects: bool = False) -> list[str]:
    """Return what is judged of an arm beside the metric, a text for each verdict: `better in fork_us and cow_bytes`."""

    def named(also: Also) -> str:
        return (
            f"{also.name} {effect_of(also.comparison)}" if effects and also.comparison.ratio is not None else also.name
        )

    every = ((verdict, decided(cell, arm, verdict)) for verdict in verdicts)
    return [f"{_WORDS[verdict]} in {listed([named(one) for one in found])}" for verdict, found in every if found]


_UNCLAIMED = ("screening", "unjudged")  # methods that claim nothing, and have no part in the error rate
_ORDER = ("better", "equivalent", "undecided", "worse", "none")
_TITLES: dict[AnswerState, str] = {
    "set": "Set {}",
    "weigh": "Yours to weigh",
    "leave": "Leave it at {}",
    "undecided": "Undecided",
    "none": "No answer",
}
_TRADES: dict[Trade, str] = {
    "": "is better, for a price",
    "failures": "is better, and runs of it failed",
    "worse beside": "is better, but worse in what was declared beside it",
    "earlier runs": "is better, but not by all runs of the same question",
    "memory": "is better, for more memory",
    "better beside": "makes no difference, and is better in what was declared beside it",
}


def answers(results: Results) -> tuple[CellAnswer, ...]:
    """Return the answer of each cell, in the order of the study."""
    return tuple(_of_cell(results, cell) for cell in results.cells)


def ranked(cell: CellResult) -> tuple[Comparison, ...]:
    """Return comparisons of the cell, the best first: better ones by their effect, worse ones by it the other way."""

    def rank(comparison: Comparison) -> tuple[int, float]:
        size = strength(comparison) if comparison.verdict in DIRECTIONS else 0.0
        return _ORDER.index(comparison.verdict), size if comparison.verdict == "worse" else -size

    return tuple(sorted(cell.comparisons, key=rank))


def resting(cell: CellResult) -> Comparison | None:
    """Return the comparison that the cell's answer rests on; None where nothing was compared."""
    order = ranked(cell)
    if any(comparison.verdict == "better" for comparison in order):
        return order[0]
    if undecided := [comparison for comparison in order if comparison.verdict == "undecided"]:
        return max(undecided, key=lambda one: _gain(one, cell.metric.better))
    return next(iter((*better_beside(cell), *order)), None)


def _of_cell(results: Results, cell: CellResult) -> CellAnswer:
    order, rests = ranked(cell), resting(cell)
    by_verdict = {verdict: [comparison for comparison in order if comparison.verdict == verdict] for verdict in _ORDER}
    if better := by_verdict["better"]:
        return _better(results, cell, better, order)
    if (undecided := by_verdict["undecided"]) and rests is not None:
        names = separately((comparison.arm for comparison in undecided), "or")
        known = f"`{printable(rests.arm)}`: {_in_full(cell, rests)}"
        found = f"whether {names} is better than {_base(cell)} cannot be told yet; {known}"
        return _made(cell, "undecided", None, found, rests=rests, order=order)
    if several := better_beside(cell):
        beside = several[0]
        name, names = f"`{printable(beside.arm)}`", listed([also.name for also in decided(cell, beside.arm, "better")])
        same = f"usually makes no difference above {percent(results.margin)} in {printable(cell.metric.name)}"
        what = f"Yours to weigh, as {name} {same} and is better in {names}{''.join(prices_of(cell, beside).values())}"
        found = f"{gain_beside(cell, beside)}; {_in_full(cell, beside)}"
        return _made(cell, "weigh", beside.arm, found, what=what, rests=beside, order=order, trade="better beside")
    if by_verdict["equivalent"] or by_verdict["worse"]:
        found = _nothing(results, by_verdict)
        return _made(cell, "leave", cell.baseline, found, rests=rests, order=order)
    if rests is None:
        return _made(cell, "none", None, "nothing was compared in this cell", rests=None, order=order)
    found = in_words(rests.reason or "no verdict is possible").rstrip(".")
    return _made(cell, "none", None, found, rests=rests, order=order)


def _better(
    results: Results, cell: CellResult, better: Sequence[Comparison], order: Sequence[Comparison]
) -> CellAnswer:
    best = better[0]
    name, prices = f"`{printable(best.arm)}`", prices_of(cell, best)
    if (every := contradicted(results, cell, best)) is not None:
        prices["earlier runs"] = f"{',' if prices else ''} but not together with {count_of(every.runs)}"
    what = f"Yours to weigh, as {name} is better{''.join(prices.values())}" if prices else ""
    gravest: Trade = [*prices][-1] if prices else ""
    found = "; ".join((_in_full(cell, best), *without_price(cell)))
    state: AnswerState = "weigh" if prices else "set"
    made = _made(cell, state, best.arm, found, what=what, rests=best, order=order, beside=better[1:], trade=gravest)
    return msgspec.structs.replace(made, failed=_failures(cell, best)[0] if gravest == "failures" else 0)


def prices_of(cell: CellResult, comparison: Comparison) -> dict[Trade, str]:
    """Return the prices of an arm that may be set, against its baseline, the gravest last."""
    arm = arm_of(cell, comparison.arm)
    growth = _growth(cell, comparison, arm)
    dear = growth > (POOL_GROWTH if arm is not None and arm.pool_bytes else GROWTH)
    worse, (failed, of_base) = decided(cell, comparison.arm, "worse"), _failures(cell, comparison)
    prices: dict[Trade, str] = {}
    if dear:
        prices["memory"] = f" for {100 * growth:.0f}% more memory"
    if worse:
        prices["worse beside"] = f", but worse in {listed([comparison.name for comparison in worse])}"
    if failed > of_base:
        prices["failures"] = f" and {failed} of its runs failed ({_base(cell)}: {of_base})"
    return prices


def _growth(cell: CellResult, comparison: Comparison, arm: ArmSummary | None) -> float:
    """Return by how much more memory the arm has, as a share: as its pairs decided, else by the highest peak of each
    arm, with pools.
    """
    ratio = memory_ratio(cell, comparison)
    if ratio is not None:
        return ratio - 1
    before, after = memory_of(arm_of(cell, comparison.baseline)), memory_of(arm)
    return after / before - 1 if before and after is not None else 0.0


def memory_ratio(cell: CellResult, comparison: Comparison) -> float | None:
    """Return the ratio of the peaks of memory where their pairs decided it; None else, and where an arm has a pool."""
    sides = (comparison.arm, comparison.baseline)
    if any(arm is not None and arm.pool_bytes for arm in (arm_of(cell, name) for name in sides)):
        return None
    peaks = (one for one in cell.declared if (one.arm, one.baseline) == sides and one.metric == "charged_peak_bytes")
    return next((one.ratio for one in peaks if one.verdict in DECIDED), None)


def unpriced(cell: CellResult) -> list[Comparison]:
    """Return, where the best arm has a price, the better arms without one."""
    better = [comparison for comparison in ranked(cell) if comparison.verdict == "better"]
    return (
        [comparison for comparison in better[1:] if not prices_of(cell, comparison)]
        if better and prices_of(cell, better[0])
        else []
    )


def better_beside(cell: CellResult) -> list[Comparison]:
    """Return arms without a difference in the metric or a price, and better beside it, by how much of it."""
    same = [
        comparison
        for comparison in cell.comparisons
        if comparison.verdict == "equivalent" and decided(cell, comparison.arm, "better")
    ]
    found = [comparison for comparison in same if not prices_of(cell, comparison).keys() - {"memory"}]
    return sorted(found, key=lambda one: -len(decided(cell, one.arm, "better")))


def _failures(cell: CellResult, comparison: Comparison) -> tuple[int, int]:
    sides = ((comparison.arm, comparison.unstarted_arm), (comparison.baseline, comparison.unstarted_baseline))
    found = [unstarted + (0 if (arm := arm_of(cell, name)) is None else arm.failed) for name, unstarted in sides]
    return found[0], found[1]


def _made(
    cell: CellResult,
    state: AnswerState,
    setting: str | None,
    found: str,
    *,
    what: str = "",
    rests: Comparison | None,
    order: Sequence[Comparison],
    beside: Sequence[Comparison] = (),
    trade: Trade = "",
) -> CellAnswer:
    what = what or _title(state, setting)
    ranking = tuple(comparison.arm for comparison in order)
    arm, base = arm_of(cell, setting or cell.baseline), arm_of(cell, cell.baseline)
    return CellAnswer(
        cell=cell.cell,
        state=state,
        setting=setting,
        text=f"{what}: {'; '.join(filter(None, (found, of_each(cell, ranking))))}.",
        what=what,
        found=found,
        metric=cell.metric.name,
        baseline=cell.baseline,
        ratio=None if rests is None else rests.ratio,
        low=None if rests is None else rests.low,
        high=None if rests is None else rests.high,
        n=0 if rests is None else rests.n,
        confidence=None if rests is None else rests.confidence,
        ranked=ranking,
        beside=tuple(one.arm for one in beside),
        overlapping=tuple(one.arm for one in beside if rests is not None and _overlap(one, rests)),
        open=tuple(comparison.arm for comparison in order if comparison.verdict == "undecided"),
        trade=trade,
        memory=memory_of(arm),
        memory_before=memory_of(base),
        pool=0 if arm is None else arm.pool_bytes,
    )


def _title(state: AnswerState, setting: str | None) -> str:
    return _TITLES[state].format(f"`{printable(setting)}`")


def _nothing(results: Results, by_verdict: dict[str, list[Comparison]]) -> str:
    texts = []
    if same := by_verdict["equivalent"]:
        makes = f"usually make{'s' if len(same) == 1 else ''} no difference above {percent(results.margin)}"
        texts.append(f"{separately(comparison.arm for comparison in same)} {makes}")
    if worse := by_verdict["worse"]:
        texts.append(f"{separately(comparison.arm for comparison in worse)} {'is' if len(worse) == 1 else 'are'} worse")
    if unknown := [one for one in by_verdict["none"] if one.method not in _UNCLAIMED]:
        texts.append(
            f"{separately(other.arm for other in unknown)} {'has' if len(unknown) == 1 else 'have'} no verdict"
        )
    return ", ".join(texts)


def _gain(comparison: Comparison, direction: str) -> float:
    ratio = comparison.ratio
    if ratio is None or ratio <= 0:
        return 0.0
    return ratio if direction == "higher" else 1 / ratio


def _in_full(cell: CellResult, comparison: Comparison) -> str:
    """`tps is 5.1% higher than with `base` (what was measured leaves room for 2.4% to 7.6% higher; 11 blocks)`."""
    return f"{changed(cell.metric.name, comparison)} ({left(comparison)}; {blocks_of(comparison)})"


def changed(metric: str, comparison: Comparison) -> str:
    """`latency_ns is 40.0% lower than with base`."""
    size, name = size_of(comparison), printable(metric)
    if size is None:
        return f"so many runs failed that {name} has no size to compare"
    return f"{name} is {size} than with `{printable(comparison.baseline)}`"


def blocks_of(comparison: Comparison) -> str:
    """`11 blocks`, or how many there are so far."""
    blocks = f"{comparison.n} block{'' if comparison.n == 1 else 's'}"
    return blocks if comparison.final else f"{blocks} so far, of {comparison.planned} planned"


def left(comparison: Comparison) -> str:
    """Return what the measurements leave room for."""
    if comparison.constant:
        return "each time with the same difference"
    room = numbers.room(comparison.ratio, comparison.low, comparison.high)
    return f"what was measured leaves room for {room}" if room else "too little to say how far off the estimate may be"


def gain_beside(cell: CellResult, comparison: Comparison) -> str:
    """Return the gain where the metric makes no difference: in the first of what was declared beside it."""
    better = (also for also in decided(cell, comparison.arm, "better") if size_of(also.comparison) is not None)
    also = next(better, None)
    return changed(cell.metric.name, comparison) if also is None else changed(also.name, also.comparison)


def without_price(cell: CellResult) -> Iterator[str]:
    """Yield the best arm that costs nothing, where the best of all does."""
    for comparison in unpriced(cell)[:1]:
        found = f"{changed(cell.metric.name, comparison)} ({left(comparison)})"
        yield f"without that price, `{printable(comparison.arm)}` is better too: {found}"


def exact_effect(cell: CellResult, comparison: Comparison) -> str:
    """`tps +5.1% (+2.4% to +7.6%), 11 pairs at 99.75%`."""
    return f"{printable(cell.metric.name)} {effect_of(comparison)}, {_sure(comparison)}"


def _base(cell: CellResult) -> str:
    return f"`{printable(cell.baseline)}`"


def _sure(comparison: Comparison) -> str:
    blocks = f"{comparison.n} pair{'' if comparison.n == 1 else 's'}"
    return f"{blocks} at {percent(comparison.confidence)}" + ("" if comparison.final else ", provisional")


def memory_of(arm: ArmSummary | None) -> int | None:
    """Bytes of an arm at their most, with the pool that is reserved for it, used or not; None where not known."""
    return None if arm is None or arm.peak_bytes is None else arm.peak_bytes + arm.pool_bytes


def _overlap(comparison: Comparison, other: Comparison) -> bool:
    low, high = (
        max(comparison.low or 0.0, other.low or 0.0),
        [end for end in (comparison.high, other.high) if end is not None],
    )
    return not high or low <= min(high)


def separately(names: Iterable[str], word: str = "and") -> str:
    """Return `a`, `a and b`, `a, b and c`, each in its quotes."""
    texts = [f"`{printable(name)}`" for name in names]
    return f" {word} ".join(filter(None, (", ".join(texts[:-1]), texts[-1]))) if texts else ""


def price(answer: CellAnswer) -> str:
    """`memory 1.02 GiB (+2.0%), 512 MiB of it a pool that stays reserved`; empty where it is not known."""
    if answer.memory is None or answer.state not in ("set", "weigh"):
        return ""
    of = (
        f" of `{printable(answer.setting or '')}`" if answer.trade and answer.beside else ""
    )  # others are named with it
    return f"memory{of} {memory_words(answer.memory, answer.memory_before, answer.pool)}"


def memory_words(after: int, before: int | None, pool: int) -> str:
    """`1.02 GiB (+2.0%), 512 MiB of it a pool that stays reserved`: bytes of a setting, its baseline and pool."""
    change = f" ({numbers.change(after / before)})" if before else ""
    return f"{numbers.size(after)}{change}{f', {numbers.size(pool)} of it a pool that stays reserved' if pool else ''}"


def not_compared(answer: CellAnswer) -> str:
    """Return that the better arms were compared with the baseline alone; empty where there is but one."""
    if not answer.beside or answer.setting is None:
        return ""
    every = separately([answer.setting, *answer.beside])
    text = f"{every} were each compared with `{printable(answer.baseline)}`, not with one another"
    if answer.overlapping:
        return (
            f"{text}: `{printable(answer.setting)}` has the largest estimate, and its interval overlaps with that of"
            f" {separately(answer.overlapping)}, so that which of them is the better is open."
        )
    return f"{text}; the interval of `{printable(answer.setting)}` overlaps with none of the others."


def selection(results: Results) -> str:
    """Return how choosing among the arms affects the statement on the chosen one; empty where nothing was chosen."""
    claimed, many = _claimed(results)
    if all(len(several) < 2 for several in claimed):
        return ""
    chosen = "The best arm of a cell was chosen on the blocks that it is judged by."
    if {one.method for several in claimed for one in several} <= {"sequential", "exact"}:
        return (
            f"{chosen} That is covered: {many} comparisons share the error rate of {percent(1 - results.confidence)},"
            " so that all their verdicts and intervals hold together, whichever is looked at. The estimate alone, of"
            " the one that came out largest, is rather too large than too small."
        )
    return (
        f"{chosen} The verdicts of {many} comparisons hold together (Holm, {percent(1 - results.confidence)}),"
        " whichever is looked at. Each interval holds by itself and not together with the others, so that the chosen"
        " one's, and its estimate, lean to a larger effect: confirm it by a run of its own (hugewise advise)."
    )


def claims(cell: CellResult, comparison: Comparison) -> bool:
    """Tell whether a comparison of the cell shares the error rate of its study."""
    return comparison.method not in _UNCLAIMED and cell.metric_named(comparison.metric).better != "neutral"


def _claimed(results: Results) -> tuple[list[list[Comparison]], int]:
    claimed = [[comparison for comparison in cell.comparisons if claims(cell, comparison)] for cell in results.cells]
    return claimed, sum(claims(cell, comparison) for cell in results.cells for comparison in cell.judged)


def count_of(runs: Sequence[str]) -> str:
    """Return `the earlier run of the same question`, `the 3 earlier runs of the same question`."""
    return f"the {'earlier run' if len(runs) == 1 else f'{len(runs)} earlier runs'} of the same question"


def joint_confidence(results: Results) -> str:
    """Return the joint confidence of the answers of all cells; empty where no comparison claims something."""
    claimed, many = _claimed(results)
    several = sum(any(one.verdict != "none" for one in claim) for claim in claimed)
    if not several:
        return ""
    wrong = percent(1 - results.confidence)
    answers_ = "1 answer rests" if several == 1 else f"{several} answers rest"
    if many == 1:
        return f"{answers_} on 1 comparison: the chance that its verdict is wrong is at most {wrong}."
    return f"{answers_} on {many} comparisons: the chance that any of their verdicts is wrong is at most {wrong}."


class SameAnswer(NamedTuple):
    """The same answer for several cells."""

    state: AnswerState
    setting: str | None
    answers: tuple[CellAnswer, ...]
    trade: Trade = ""

    @property
    def heading(self) -> str:
        """Action without the effects."""
        title = _title(self.state, self.setting)
        return title if self.state != "weigh" else f"{title}: `{printable(self.setting)}` {_TRADES[self.trade]}"


def joined(several: Iterable[CellAnswer]) -> Iterator[SameAnswer]:
    """Answers that are the same but for their cell together: first what is to be set, then what is open or left."""
    groups: dict[tuple[AnswerState, str | None, Trade], list[CellAnswer]] = {}
    for one in several:
        groups.setdefault((one.state, one.setting, one.trade), []).append(one)
    for state in ("set", "weigh", "undecided", "leave", "none"):
        for (of, setting, trade), found in groups.items():
            if of == state:
                yield SameAnswer(state, setting, tuple(found), trade)
