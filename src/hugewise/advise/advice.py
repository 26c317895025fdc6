"""The answer: what to set, for whom, what it gains, what it costs, and how sure that is. Pure.

state       finished, interrupted, or over with nothing to try
chosen      the candidate that was confirmed or refuted, with `verdict` of the confirmation
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from mmap import PAGESIZE
from typing import Literal

import msgspec

from hugewise.advise import curve as curves
from hugewise.advise import decision, layouts, sentences
from hugewise.advise.candidates import LeftOutCandidate, SettingCandidate
from hugewise.advise.causes import explained
from hugewise.advise.decision import MeasuredSetting, TradeOff
from hugewise.advise.footprint import FootprintChange
from hugewise.advise.pilot import ProgramAsIs
from hugewise.advise.question import Question
from hugewise.errors import UserError
from hugewise.inspection.neighbours import Neighbours
from hugewise.model.answer import GROWTH, POOL_GROWTH
from hugewise.model.design import ESTIMANDS, Kind
from hugewise.model.metric import Metric
from hugewise.model.results import ArmSummary, CellResult, Comparison, Verdict
from hugewise.quantity import format_duration, format_size
from hugewise.report import numbers
from hugewise.report.sentences import arm_of

__all__ = [
    "FORMAT",
    "Advice",
    "Arrived",
    "Confirmed",
    "Screen",
    "answer",
    "confirmed",
    "details",
    "objective",
    "recommended",
    "settings",
]

Arrived = Literal["pilot", "curve", "screening", "confirmation", "finished", "interrupted"]
FORMAT = 2
"""Of the record."""


class Screen(msgspec.Struct, frozen=True, kw_only=True):
    """What a screening chose. `unsure`: it was over before it was clear. `estimates`: ratio to as-is by candidate, None
    where there is none. `failed`: arms of which runs failed, with how many. `left_out`: candidates that could not be
    run here, and why. `runner_up`: who is measured beside the chosen one; empty where there is none that was not
    dropped. `measured`: every arm, `as-is` first.
    """

    folder: str
    chosen: str
    unsure: bool
    reason: str
    better: str
    estimates: dict[str, float | None]
    dropped: dict[str, str]
    failed: dict[str, str] = {}
    left_out: dict[str, str] = {}
    runner_up: str = ""
    measured: tuple[MeasuredSetting, ...] = ()


class Confirmed(msgspec.Struct, frozen=True, kw_only=True):
    """What the confirmation found of the candidate against `as-is`. Shares 0 to 1.

    memory_before, memory_after  bytes at their most, with the pool that is reserved, used or not (`reserved` of the
                                 candidate's): resident memory has no page of a pool
    huge_before, huge_after  share of memory, but for files, in pages above the base size; None where it was not seen
    measured     every arm of its run: `as-is`, the candidate, and the runner-up where one was measured beside it
    ratio        with its interval; None where failures outweigh. `failed`: arms of which runs failed, with how many
    fails        whether more of the candidate's failed than of the program as it is: nobody is told to set it then
    """

    folder: str
    candidate: str
    verdict: Verdict
    reason: str
    metric: str
    better: str
    n: int
    ratio: float | None
    low: float | None
    high: float | None
    confidence: float
    memory_before: int | None
    memory_after: int | None
    huge_before: float | None
    huge_after: float | None
    reserved: int = 0
    design: Kind = "sequential"
    measured: tuple[MeasuredSetting, ...] = ()
    failed: dict[str, str] = {}
    fails: bool = False

    @property
    def seen(self) -> MeasuredSetting | None:
        """The candidate with its footprint; None in records from before there were any."""
        return next((one for one in self.measured if one.name == self.candidate), None)

    @property
    def change(self) -> FootprintChange | None:
        """How its footprint changed, with an interval; None where it is not known."""
        return None if self.seen is None else self.seen.growth

    @property
    def growth(self) -> float | None:
        """How much more memory the program had, as a share: in the typical pair, else by the most of all runs."""
        if self.change is not None:
            return self.change.ratio - 1
        if not self.memory_before or self.memory_after is None:
            return None
        return self.memory_after / self.memory_before - 1


class Advice(msgspec.Struct, kw_only=True):
    """An advice, as far as it has come. Folders are those of runs; `cwd` is where its command is run."""

    format: int = FORMAT
    question: Question
    cwd: str = ""
    arrived: Arrived = "pilot"
    seconds: float = 0.0
    pilot_folder: str = ""
    pilot: ProgramAsIs | None = None
    remarks: tuple[str, ...] = ()
    more_time: str = ""
    """What to give, where the time has hardly room for a verdict; the first remark says so. Empty where it has."""
    tried: tuple[SettingCandidate, ...] = ()
    left_out: tuple[LeftOutCandidate, ...] = ()
    screening_folder: str = ""
    screen: Screen | None = None
    chosen: str = ""
    beside: str | None = None
    """Whom the confirmation measures beside the chosen one; None before that is known, empty for nobody."""
    confirmation_folder: str = ""
    confirmed: Confirmed | None = None
    curve_folder: str = ""
    curve: curves.CurveOfGain | None = None
    apart_folder: str = ""
    apart: layouts.GainParts | None = None
    """Of a layout that was confirmed: what of its gain is the library's own, and what its pages'."""
    neighbours: Neighbours | None = None
    """What the recommended setting does to the other programs, where it reaches them."""

    def candidate(self, name: str) -> SettingCandidate:
        """The candidate of that name. Raises UserError where none of it was tried: somebody has edited its record."""
        for each in self.tried:
            if each.name == name:
                return each
        raise UserError(f"the advice speaks of {name!r}, which it has not tried", hint="ask for a new one")


def confirmed(
    folder: str,
    cell: CellResult,
    comparison: Comparison,
    measured: tuple[MeasuredSetting, ...] = (),
    design: Kind = "sequential",
) -> Confirmed:
    """What the confirmation's run says of the comparison that it judges, and of all its arms, laid out by `design`."""
    before, after = arm_of(cell, comparison.baseline), arm_of(cell, comparison.arm)
    metric: Metric = cell.metric
    return Confirmed(
        folder=folder,
        candidate=comparison.arm,
        verdict=comparison.verdict,
        reason=comparison.reason,
        metric=metric.name,
        better=metric.better,
        n=comparison.n,
        ratio=decision.finite(comparison.ratio),
        low=decision.finite(comparison.low),
        high=decision.finite(comparison.high),
        confidence=comparison.confidence,
        memory_before=_memory(before),
        memory_after=_memory(after),
        huge_before=None if before is None else _huge(before.coverage),
        huge_after=None if after is None else _huge(after.coverage),
        reserved=0 if after is None else after.pool_bytes,
        design=design,
        measured=measured,
        failed=decision.failures(cell),
        fails=decision.fails(comparison, cell),
    )


def _memory(arm: ArmSummary | None) -> int | None:
    return None if arm is None or arm.peak_bytes is None else arm.peak_bytes + arm.pool_bytes


def _huge(coverage: Mapping[str, float]) -> float | None:
    """Share of memory, but for files, in pages above the base size; `coverage` has shares by `kind:page size`."""
    memory = {name: share for name, share in coverage.items() if name.startswith(("anon:", "hugetlb:", "shmem:"))}
    total = sum(memory.values())
    huge = sum(share for name, share in memory.items() if int(name.partition(":")[2]) > PAGESIZE)
    return huge / total if total else None


def objective(found: Advice) -> str:
    """What is weighed, in words."""
    asked, last = found.question, found.confirmed
    if asked.curve:
        return f"For a curve: the gain in {asked.workload.get('metric', 'wall_s')} by the share of its heap."
    metric = last.metric if last is not None else asked.workload.get("metric", "wall_s")
    return sentences.objective(asked.priority, metric, asked.margin, GROWTH, POOL_GROWTH)


def recommended(found: Advice) -> bool:
    """Whether the answer is to set something, or leaves that to its user."""
    last = found.confirmed
    if last is None or last.verdict == "none" or last.fails:
        return False
    if found.question.priority != "memory":
        return last.verdict == "better"
    fits = decision.no_worse(last.low, last.high, last.better, found.question.margin)
    change = last.change
    return bool(fits) and change is not None and change.high is not None and change.high < 1


def answer(found: Advice) -> str:
    """One sentence: what to set, the gain with its interval, the price, and how sure."""
    if found.curve is not None:
        return curves.sentence(found.curve)
    last, margin = found.confirmed, found.question.margin
    if last is None:
        return _unconfirmed(found)
    chosen = found.candidate(last.candidate)
    effect = f"{last.metric} {numbers.effect(last.ratio, last.low, last.high)}"
    if last.failed:
        effect += "; " + ", ".join(f"`{name}`: {how}" for name, how in last.failed.items())
    sure = f"{last.n} pairs at {_sure(last.confidence)}"
    if last.verdict == "none":
        return f"No verdict on `{chosen.name}`: {last.reason.rstrip('.')}."
    if last.fails and (last.verdict != "worse" or found.question.priority == "memory"):
        return f"Leave it as it is: runs of `{chosen.name}` failed, whatever it does to the others ({effect}, {sure})."
    if found.question.priority == "memory":
        fits = decision.no_worse(last.low, last.high, last.better, margin)
        said = sentences.of_memory(chosen.name, last.change, f"{effect}, {sure}", fits, margin)
        return f"{said} {_how(found, chosen)}" if recommended(found) else said
    best = f"the best that was found, `{chosen.name}`," if len(found.tried) > 1 else f"`{chosen.name}`"
    match last.verdict:
        case "better" if last.growth is not None and last.growth > (POOL_GROWTH if chosen.reach == "pool" else GROWTH):
            more = f"but the program has {100 * last.growth:.0f}% more memory"
            return (
                f"`{chosen.name}` is better ({effect}, {sure}), {more}: that is yours to weigh. {_how(found, chosen)}"
            )
        case "better":
            return f"Set `{chosen.name}`: {effect}, {sure}; {sentences.price(last.growth)}. {_how(found, chosen)}"
        case "equivalent":
            no = f"makes no difference above {numbers.percent(margin)}"
            return f"Leave it as it is: {best} {no} ({effect}, {sure})."
        case "worse":
            return f"Leave it as it is: {best} is worse ({effect}, {sure})."
        case _:
            more = f": give --time {found.more_time} or more" if found.more_time else " may decide it: --time"
            return f"Undecided: `{chosen.name}` {effect}, {sure}. More time{more}."


def _unconfirmed(found: Advice) -> str:
    """The answer so far, or why there is nothing to confirm."""
    if found.arrived == "finished" and found.screen is not None:
        return sentences.nothing_smaller(found.screen.measured[1:])
    if found.arrived == "finished" and any("needs root" in left.reason for left in found.left_out):
        return "Leave it as it is, or ask as root: what could still reach this program needs root to be tried."
    if found.arrived == "finished":
        return "Leave it as it is: no setting can reach this program that it does not have already."
    said = f"No answer yet: it ended in the {_PHASES[found.arrived]}"
    if found.screen is None or not found.chosen:
        return f"{said}."
    estimate = found.screen.estimates.get(found.chosen)
    about = "" if estimate is None else f", about {numbers.change(estimate)}"
    return f"{said}. The screening, which claims nothing, has `{found.chosen}` go on{about}."


_PHASES = {
    "pilot": "pilot",
    "curve": "curve",
    "screening": "screening",
    "confirmation": "confirmation",
    "finished": "end",
    "interrupted": "middle",
}


def _how(found: Advice, chosen: SettingCandidate) -> str:
    if chosen.reach == "host" and found.neighbours is not None:
        return f"It reaches every program of this machine: {sentences.beside(found.neighbours)}."
    return {
        "process": "It reaches this program alone.",
        "pool": "It reaches this program alone, from a pool that stays reserved.",
        "host": "It reaches every program of this machine.",
    }[chosen.reach]


def _sure(confidence: float) -> str:
    return f"{100 * confidence:.4g}%"


def settings(found: Advice) -> tuple[TradeOff, ...]:
    """The table: as it is, every setting that was tried, with the best that is known of it, and who dominates it."""
    screen, last = found.screen, found.confirmed
    seen = {one.name: one for one in (screen.measured if screen is not None else ())}
    seen |= {one.name: one for one in (last.measured if last is not None else ())}
    if not seen:
        return ()
    as_is = next(iter(last.measured if last is not None and last.measured else seen.values()))
    rows = [TradeOff(name=as_is.name, reach=None, seen=as_is)]
    gone = screen.left_out if screen is not None else {}
    rows += [
        TradeOff(name=one.name, reach=one.reach, seen=seen.get(one.name), why=gone.get(one.name, ""))
        for one in found.tried
    ]
    better = last.better if last is not None else screen.better if screen is not None else "lower"
    return decision.trade_offs(rows, better, found.question.margin)


def details(found: Advice) -> Iterator[str]:
    """What stands behind the answer, line by line."""
    yield from sentences.table(settings(found))
    if found.pilot is not None:
        seen = found.pilot.huge
        huge = "its pages were not seen" if seen is None else f"{100 * seen:.0f}% of it in huge pages"
        sd = found.pilot.sd
        spread = "" if sd is None else f", pairs of the same differ by {numbers.times(100 * sd)}% (sd)"
        memory = f"at most {sentences.mib(found.pilot.memory)} of memory" if found.pilot.memory else "memory unknown"
        yield (
            f"As it is: {format_duration(found.pilot.wall_s)} a run ({found.pilot.runs} runs{spread}), {memory},"
            f" {huge}."
        )
    if found.curve is not None:
        yield from curves.lines(found.curve, shlex.join(layouts.command_of(found.question)))
    decided = found.confirmed is not None and found.confirmed.verdict not in ("undecided", "none")
    # That the time may not be enough is of no use when it was.
    yield from (f"Note: {one}." for one in found.remarks[1 if decided and found.more_time else 0 :])
    for one in found.tried:
        yield f"Tried: {one.name} ({one.reach}): {one.reason}{_fate(found, one.name)}."
    for left in found.left_out:
        yield f"Not tried: {left.name}: {left.reason}."
    last = found.confirmed
    if last is None:
        return
    if found.question.of_service:
        what = ESTIMANDS[last.design] or "its arms one after the other"
        yield f"Design: {last.design}, {what}."
    if last.huge_after is not None:
        before = "" if last.huge_before is None else f" ({100 * last.huge_before:.0f}% before)"
        yield f"Delivered: {100 * last.huge_after:.0f}% of its memory in pages above {format_size(PAGESIZE)}{before}."
    if last.growth is not None and last.memory_after is not None:
        unused = last.seen.footprint.unused if last.seen is not None else None
        never = f" ({sentences.mib(unused)} of that never used)" if unused else ""
        pool = f", {sentences.mib(last.reserved)} of it a pool that stays reserved{never}" if last.reserved else ""
        counted = "" if last.seen is None or last.seen.footprint.charged else " Its page tables were not counted."
        yield f"Price: at most {sentences.mib(last.memory_after)} of memory{pool}, {_grown(last)}.{counted}"
    if found.apart is not None:
        yield layouts.sentence(found.apart)
    if last.seen is not None and last.seen.causes is not None:
        yield from explained(last.seen.causes)
    if found.neighbours is not None:
        yield f"The other programs that run now: {sentences.beside(found.neighbours)}."


def _grown(last: Confirmed) -> str:
    change = last.change
    if change is None:
        return f"{numbers.change(1 + (last.growth or 0.0))} by the most of all runs"
    return sentences.grown(change)


def _fate(found: Advice, name: str) -> str:
    screen, last = found.screen, found.confirmed
    if last is not None and last.candidate == name:
        return f"; judged by blocks of its own: {last.verdict}"
    if screen is None:
        return ""
    if (gone := screen.left_out.get(name)) is not None:
        return f"; it could not be run here: {gone}"
    estimate = screen.estimates.get(name)
    about = "" if estimate is None else f", about {numbers.change(estimate)}"
    about += f", {screen.failed[name]}" if name in screen.failed else ""
    why = screen.dropped.get(name)
    if why is not None:
        return f"; dropped by the screening{about} ({why})"
    rate = ", unsure" if screen.unsure else ", at the screening's rate of 10%"
    if found.question.priority == "memory":
        rate = ", by the screening's estimate"
    beside = next((one for one in (last.measured if last is not None else ()) if one.name == name), None)
    if beside is None:
        return f"; screened{about}{rate}"
    effect = numbers.effect(beside.ratio, beside.low, beside.high)
    return f"; the runner-up, measured beside the confirmation: {effect} at {_sure(beside.confidence)}, by itself"
