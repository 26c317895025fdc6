"""What to set for each cell of a run, by its verdicts: the report's top, and `advise --from`. Pure.

What a study declared to judge beside a cell's own metric, as its answer tells it: which policy is better or worse in
what, by how much, and what is open. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from hugewise.model.answer import GROWTH, POOL_GROWTH, AlsoJudged, AnswerState, CellAnswer, Trade
from hugewise.model.metric import Metric
from hugewise.model.results import ArmSummary, CellResult, Comparison, Results
from hugewise.report import numbers
from hugewise.report.numbers import percent
from hugewise.report.sentences import arm_of, effect_of, listed, plain, strength
from hugewise.stats.end_points import END_POINTS
from hugewise.visible import printable

_END_POINTS = {"mean": "mean {}", "slow": "rate of slow runs by {}", "p99": "{} of the worst hundredth of runs"}

_WORDS: Mapping[str, str] = {"worse": "worse", "better": "better", "undecided": "open"}
"""What an answer says beside the metric: a word for each verdict, the gravest first."""


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
    found = [Also(printable(_end_point(own.name, one.estimand)), own, one, one.estimand) for one in cell.end_points]
    found += [Also(printable(one.metric), cell.metric_named(one.metric), one) for one in cell.declared]
    yield from (one for one in found if arm in {None, one.comparison.arm})


def _with_effect(one: Also) -> str:
    """A rate of slow runs is no ratio, and has none."""
    return one.name if one.comparison.ratio is None else f"{one.name} {effect_of(one.comparison)}"


def _end_point(metric: str, estimand: str) -> str:
    """What an end point looks at, in a few words; the design may have added to its estimand."""
    for kind, words in _END_POINTS.items():
        if estimand.startswith(END_POINTS[kind].estimand):
            return words.format(metric)
    return f"{metric} ({estimand})"


def decided(cell: CellResult, arm: str, verdict: str) -> list[Also]:
    """Of an arm what ended in that verdict, of what is judged by a direction."""
    found = also_judged(cell, arm)
    return [one for one in found if one.comparison.verdict == verdict and one.metric.better != "neutral"]


def in_short(cell: CellResult, arm: str) -> str:
    """`worse in p99_us, and better in fork_us and cow_bytes, and open in wall_s`; empty where nothing is said of it."""
    return ", and ".join(_told(cell, arm, _WORDS, _name))


def of_each(cell: CellResult, first: Iterable[str]) -> str:
    """The same of each arm by its name, these first: `thp` is worse in p99_us; empty where nothing is said of any."""
    return "; ".join(f"`{printable(arm)}` is {told}" for arm in arms_of(cell, first) if (told := in_short(cell, arm)))


def arms_of(cell: CellResult, first: Iterable[str]) -> list[str]:
    """The arms of which something is judged beside the metric, these first."""
    there = dict.fromkeys(one.comparison.arm for one in also_judged(cell))
    return list(dict.fromkeys((*(arm for arm in first if arm in there), *there)))


def in_exact_words(cell: CellResult, first: Iterable[str]) -> str:
    """``declared beside it: `thp` worse in p99_us +61% (+7% to +260%), better in fork_us −90% (−92% to −75%)``."""
    told = [f"`{printable(arm)}` {said}" for arm in arms_of(cell, first) if (said := of_arm(cell, arm))]
    return f"declared beside it: {'; '.join(told)}" if told else ""


def of_arm(cell: CellResult, arm: str) -> str:
    """What is judged of an arm beside the metric, each with its effect: ``worse in p99_us +61% (+7% to +260%)``."""
    return ", ".join(_told(cell, arm, _WORDS, _with_effect))


def of_arm_decided(cell: CellResult, arm: str, *verdicts: str) -> str:
    """Of that what was decided so, by its names alone: `worse in p99_us, better in fork_us and cow_bytes`."""
    return ", ".join(_told(cell, arm, verdicts, _name))


def _told(cell: CellResult, arm: str, verdicts: Iterable[str], named: Callable[[Also], str]) -> list[str]:
    """What ended in each of these verdicts, as that of an arm."""
    every = ((verdict, decided(cell, arm, verdict)) for verdict in verdicts)
    return [f"{_WORDS[verdict]} in {listed([named(one) for one in found])}" for verdict, found in every if found]


def _name(one: Also) -> str:
    return one.name


_UNCLAIMED = ("screening", "unjudged")  # methods that claim nothing, and have no part in the error rate
_ORDER = ("better", "equivalent", "undecided", "worse", "none")
_TRADES: dict[Trade, str] = {
    "": "is better, for a price",
    "failures": "is better, and runs of it failed",
    "worse beside": "is better, and worse in what was declared beside it",
    "memory": "is better, for more memory",
    "better beside": "makes no difference, and is better in what was declared beside it",
}


def answers(results: Results) -> tuple[CellAnswer, ...]:
    """The answer of each cell, in the order of the study."""
    return tuple(_of_cell(results, cell) for cell in results.cells)


def ranked(cell: CellResult) -> tuple[Comparison, ...]:
    """The comparisons of the cell, the best first: better ones by their effect, worse ones by it the other way."""

    def rank(one: Comparison) -> tuple[int, float]:
        size = strength(one) if one.verdict in ("better", "worse") else 0.0
        return _ORDER.index(one.verdict), size if one.verdict == "worse" else -size

    return tuple(sorted(cell.comparisons, key=rank))


def resting(cell: CellResult) -> Comparison | None:
    """The comparison that the cell's answer rests on: the best, the most promising open one, or what shows that there
    is nothing to set; None where nothing was compared.
    """
    order = ranked(cell)
    if any(one.verdict == "better" for one in order):
        return order[0]
    if undecided := [one for one in order if one.verdict == "undecided"]:
        return max(undecided, key=lambda one: _gain(one, cell.metric.better))
    return next(iter((*better_beside(cell), *order)), None)


def _of_cell(results: Results, cell: CellResult) -> CellAnswer:
    order, rests = ranked(cell), resting(cell)
    by_verdict = {verdict: [one for one in order if one.verdict == verdict] for verdict in _ORDER}
    if better := by_verdict["better"]:
        return _better(cell, better, order)
    if (undecided := by_verdict["undecided"]) and rests is not None:
        of = "" if len(undecided) == 1 else f"`{printable(rests.arm)}`: "
        names = separately((one.arm for one in undecided), "or")
        found = f"whether {names} is better than {_base(cell)} is open; {of}{exact_effect(cell, rests)}"
        return _made(cell, "undecided", None, "Undecided", found, rests=rests, order=order)
    if several := better_beside(cell):
        beside = several[0]
        name, names = f"`{printable(beside.arm)}`", listed([one.name for one in decided(cell, beside.arm, "better")])
        same = f"makes no difference above {percent(results.margin)} in {printable(cell.metric.name)}"
        what = f"Yours to weigh, as {name} {same} and is better in {names}{''.join(prices_of(cell, beside).values())}"
        found = exact_effect(cell, beside)
        return _made(cell, "weigh", beside.arm, what, found, rests=beside, order=order, trade="better beside")
    if by_verdict["equivalent"] or by_verdict["worse"]:
        found = _nothing(results, by_verdict)
        return _made(cell, "leave", cell.baseline, f"Leave it at {_base(cell)}", found, rests=rests, order=order)
    if rests is None:
        return _made(cell, "none", None, "No answer", "nothing was compared in this cell", rests=None, order=order)
    found = plain(rests.reason or "no verdict is possible").rstrip(".")
    return _made(cell, "none", None, "No answer", found, rests=rests, order=order)


def _better(cell: CellResult, better: Sequence[Comparison], order: Sequence[Comparison]) -> CellAnswer:
    best = better[0]
    name, prices = f"`{printable(best.arm)}`", prices_of(cell, best)
    what = f"Yours to weigh, as {name} is better{''.join(prices.values())}" if prices else f"Set {name}"
    gravest: Trade = [*prices][-1] if prices else ""
    free = (f"without that price, `{printable(one.arm)}`: {exact_effect(cell, one)}" for one in unpriced(cell)[:1])
    found = "; ".join((exact_effect(cell, best), *free))
    state: AnswerState = "weigh" if prices else "set"
    made = _made(cell, state, best.arm, what, found, rests=best, order=order, beside=better[1:], trade=gravest)
    return msgspec.structs.replace(made, failed=_failures(cell, best)[0] if gravest == "failures" else 0)


def prices_of(cell: CellResult, one: Comparison) -> dict[Trade, str]:
    """What an arm that may be set costs against its baseline, the gravest last."""
    arm = arm_of(cell, one.arm)
    before, after = memory_of(arm_of(cell, one.baseline)), memory_of(arm)
    growth = after / before - 1 if before and after is not None else 0.0
    dear = growth > (POOL_GROWTH if arm is not None and arm.pool_bytes else GROWTH)
    worse, (failed, of_base) = decided(cell, one.arm, "worse"), _failures(cell, one)
    prices: dict[Trade, str] = {}
    if dear:
        prices["memory"] = f" for {100 * growth:.0f}% more memory"
    if worse:
        prices["worse beside"] = f"{',' if dear else ''} and worse in {listed([each.name for each in worse])}"
    if failed > of_base:
        prices["failures"] = f" and {failed} of its runs failed ({_base(cell)}: {of_base})"
    return prices


def unpriced(cell: CellResult) -> list[Comparison]:
    """Where the best arm has a price: those that are better as well, and have none."""
    better = [one for one in ranked(cell) if one.verdict == "better"]
    return [one for one in better[1:] if not prices_of(cell, one)] if better and prices_of(cell, better[0]) else []


def better_beside(cell: CellResult) -> list[Comparison]:
    """Arms that make no difference in the cell's metric and are better in what was declared beside it, that in most of
    it first; worse they are in nothing, and their runs fail no more often.
    """
    same = [one for one in cell.comparisons if one.verdict == "equivalent" and decided(cell, one.arm, "better")]
    found = [one for one in same if not prices_of(cell, one).keys() - {"memory"}]
    return sorted(found, key=lambda one: -len(decided(cell, one.arm, "better")))


def _failures(cell: CellResult, one: Comparison) -> tuple[int, int]:
    """Runs of an arm and of its baseline that failed, or could not be started."""
    sides = ((one.arm, one.unstarted_arm), (one.baseline, one.unstarted_baseline))
    found = [unstarted + (0 if (arm := arm_of(cell, name)) is None else arm.failed) for name, unstarted in sides]
    return found[0], found[1]


def _made(
    cell: CellResult,
    state: AnswerState,
    setting: str | None,
    what: str,
    found: str,
    *,
    rests: Comparison | None,
    order: Sequence[Comparison],
    beside: Sequence[Comparison] = (),
    trade: Trade = "",
) -> CellAnswer:
    found = "; ".join(filter(None, (found, in_exact_words(cell, [one.arm for one in order]))))
    arm, base = arm_of(cell, setting or cell.baseline), arm_of(cell, cell.baseline)
    return CellAnswer(
        cell=cell.cell,
        state=state,
        setting=setting,
        text=f"{what}: {found}.",
        found=found,
        metric=cell.metric.name,
        baseline=cell.baseline,
        ratio=None if rests is None else rests.ratio,
        low=None if rests is None else rests.low,
        high=None if rests is None else rests.high,
        n=0 if rests is None else rests.n,
        confidence=None if rests is None else rests.confidence,
        ranked=tuple(one.arm for one in order),
        beside=tuple(one.arm for one in beside),
        overlapping=tuple(one.arm for one in beside if rests is not None and _overlap(one, rests)),
        open=tuple(one.arm for one in order if one.verdict == "undecided"),
        also=tuple(_also(cell)),
        trade=trade,
        memory=memory_of(arm),
        memory_before=memory_of(base),
        pool=0 if arm is None else arm.pool_bytes,
    )


def _also(cell: CellResult) -> Iterator[AlsoJudged]:
    for _, metric, one, end_point in also_judged(cell):
        yield AlsoJudged(
            arm=one.arm,
            metric=metric.name,
            end_point=end_point,
            better=metric.better,
            verdict=one.verdict,
            ratio=one.ratio,
            low=one.low,
            high=one.high,
            n=one.n,
            confidence=one.confidence,
        )


def _nothing(results: Results, by_verdict: dict[str, list[Comparison]]) -> str:
    """Why nothing is to be set: what made no difference, what was worse, and what has no verdict."""
    said = []
    if same := by_verdict["equivalent"]:
        difference = f"no difference above {percent(results.margin)}"
        said.append(f"{separately(one.arm for one in same)} {'makes' if len(same) == 1 else 'make'} {difference}")
    if worse := by_verdict["worse"]:
        said.append(f"{separately(one.arm for one in worse)} {'is' if len(worse) == 1 else 'are'} worse")
    if unknown := [one for one in by_verdict["none"] if one.method not in _UNCLAIMED]:
        said.append(f"{separately(one.arm for one in unknown)} {'has' if len(unknown) == 1 else 'have'} no verdict")
    return ", ".join(said)


def _gain(one: Comparison, direction: str) -> float:
    ratio = one.ratio
    if ratio is None or ratio <= 0:
        return 0.0
    return ratio if direction == "higher" else 1 / ratio


def exact_effect(cell: CellResult, one: Comparison) -> str:
    """`tps +5.1% (+2.4% to +7.6%), 11 pairs at 99.75%`."""
    return f"{printable(cell.metric.name)} {effect_of(one)}, {_sure(one)}"


def _base(cell: CellResult) -> str:
    return f"`{printable(cell.baseline)}`"


def _sure(one: Comparison) -> str:
    blocks = f"{one.n} pair{'' if one.n == 1 else 's'}"
    return f"{blocks} at {percent(one.confidence)}" + ("" if one.final else ", provisional")


def memory_of(arm: ArmSummary | None) -> int | None:
    """Bytes of an arm at their most, with the pool that is reserved for it, used or not; None where not known."""
    return None if arm is None or arm.peak_bytes is None else arm.peak_bytes + arm.pool_bytes


def _overlap(one: Comparison, other: Comparison) -> bool:
    """Whether their intervals have a point in common; an end that is not there bounds nothing."""
    low, high = max(one.low or 0.0, other.low or 0.0), [end for end in (one.high, other.high) if end is not None]
    return not high or low <= min(high)


def separately(names: Iterable[str], word: str = "and") -> str:
    """`a`, `a and b`, `a, b and c`, each in its quotes."""
    told = [f"`{printable(name)}`" for name in names]
    return f" {word} ".join(filter(None, (", ".join(told[:-1]), told[-1]))) if told else ""


def price(one: CellAnswer) -> str:
    """`memory 1.02 GiB (+2.0%), 512 MiB of it a pool that stays reserved`; empty where it is not known."""
    if one.memory is None or one.state not in ("set", "weigh"):
        return ""
    of = f" of `{printable(one.setting or '')}`" if one.trade and one.beside else ""  # others are named with it
    return f"memory{of} {memory_words(one.memory, one.memory_before, one.pool)}"


def memory_words(after: int, before: int | None, pool: int) -> str:
    """`1.02 GiB (+2.0%), 512 MiB of it a pool that stays reserved`: bytes of a setting, its baseline and pool."""
    change = f" ({numbers.change(after / before)})" if before else ""
    return f"{numbers.size(after)}{change}{f', {numbers.size(pool)} of it a pool that stays reserved' if pool else ''}"


def not_compared(one: CellAnswer) -> str:
    """That the arms which are better were compared with the baseline alone; empty where there is but one."""
    if not one.beside or one.setting is None:
        return ""
    every = separately([one.setting, *one.beside])
    said = f"{every} were each compared with `{printable(one.baseline)}`, not with one another"
    if one.overlapping:
        return (
            f"{said}: `{printable(one.setting)}` has the largest estimate, and its interval overlaps with that of"
            f" {separately(one.overlapping)}, so that which of them is the better is open."
        )
    return f"{said}; the interval of `{printable(one.setting)}` overlaps with none of the others."


def selection(results: Results) -> str:
    """What choosing among the run's arms does to what is said of the chosen one; empty where nothing was chosen."""
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


def claims(cell: CellResult, one: Comparison) -> bool:
    """Tell whether a comparison of the cell shares the error rate of its study."""
    return one.method not in _UNCLAIMED and cell.metric_named(one.metric).better != "neutral"


def _claimed(results: Results) -> tuple[list[list[Comparison]], int]:
    """By cell the comparisons that have a part in the error rate, and how many these are with their end points and
    those of other metrics.
    """
    claimed = [[one for one in cell.comparisons if claims(cell, one)] for cell in results.cells]
    return claimed, sum(claims(cell, one) for cell in results.cells for one in cell.judged)


def joint_confidence(results: Results) -> str:
    """How sure the answers of all cells are together; empty where no more than one comparison claims something."""
    claimed, many = _claimed(results)
    several = sum(any(one.verdict != "none" for one in each) for each in claimed)
    if many < 2 or not several:
        return ""
    wrong = percent(1 - results.confidence)
    answers_ = "1 answer rests" if several == 1 else f"{several} answers rest"
    return f"{answers_} on {many} comparisons: the chance that any of their verdicts is wrong is at most {wrong}."


class SameAnswer(NamedTuple):
    """The same answer for several cells."""

    state: AnswerState
    setting: str | None
    answers: tuple[CellAnswer, ...]
    trade: Trade = ""

    @property
    def heading(self) -> str:
        """What to do, without the effects."""
        name = f"`{printable(self.setting)}`" if self.setting is not None else ""
        return {
            "set": f"Set {name}",
            "weigh": f"Yours to weigh: {name} {_TRADES[self.trade]}",
            "leave": f"Leave it at {name}",
            "undecided": "Undecided",
            "none": "No answer",
        }[self.state]


def joined(several: Iterable[CellAnswer]) -> Iterator[SameAnswer]:
    """Answers that are the same but for their cell together: first what is to be set, then what is open or left."""
    groups: dict[tuple[AnswerState, str | None, Trade], list[CellAnswer]] = {}
    for one in several:
        groups.setdefault((one.state, one.setting, one.trade), []).append(one)
    for state in ("set", "weigh", "undecided", "leave", "none"):
        for (of, setting, trade), found in groups.items():
            if of == state:
                yield SameAnswer(state, setting, tuple(found), trade)
