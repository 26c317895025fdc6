"""The answer: what to set, for whom, what it gains, what it costs, and how sure that is. Pure.

state       finished, interrupted, or over with nothing to try
chosen      the candidate that was confirmed or refuted, with `verdict` of the confirmation
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Literal

import msgspec

from hugewise.advise import curve as curves
from hugewise.advise import layouts
from hugewise.advise.candidates import LeftOutCandidate, SettingCandidate
from hugewise.advise.pilot import LARGEST_BASE, ProgramAsIs
from hugewise.advise.question import Question
from hugewise.errors import UserError
from hugewise.model.design import ESTIMANDS, Kind
from hugewise.model.metric import Metric
from hugewise.model.results import ArmSummary, CellResult, Comparison, Verdict
from hugewise.quantity import format_duration, format_size
from hugewise.report import numbers
from hugewise.report.sentences import arm_of

__all__ = ["FORMAT", "Advice", "Arrived", "Confirmed", "Screen", "answer", "confirmed", "details"]

Arrived = Literal["pilot", "curve", "screening", "confirmation", "finished", "interrupted"]
FORMAT = 2
"""Of the record."""
GROWTH = 0.1
"""By so much more memory a faster setting is not recommended without asking."""
POOL = 0.25
"""The same of one whose memory is in a pool, which is filled for somewhat more than was seen."""


class Screen(msgspec.Struct, frozen=True, kw_only=True):
    """What a screening chose. `unsure`: it was over before it was clear. `estimates`: ratio to as-is, by candidate.
    `left_out`: candidates that could not be run here, and why.
    """

    folder: str
    chosen: str
    unsure: bool
    reason: str
    better: str
    estimates: dict[str, float | None]
    dropped: dict[str, str]
    left_out: dict[str, str] = {}


class Confirmed(msgspec.Struct, frozen=True, kw_only=True):
    """What the confirmation found of the candidate against `as-is`. Shares 0 to 1.

    memory_before, memory_after  bytes at their most, with the pool that is reserved, used or not (`reserved` of the
                                 candidate's): resident memory has no page of a pool
    huge_before, huge_after  share of private memory in pages above the base size; None where it was not seen
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

    @property
    def growth(self) -> float | None:
        """How much more memory the program had, as a share."""
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
    tried: tuple[SettingCandidate, ...] = ()
    left_out: tuple[LeftOutCandidate, ...] = ()
    screening_folder: str = ""
    screen: Screen | None = None
    chosen: str = ""
    confirmation_folder: str = ""
    confirmed: Confirmed | None = None
    curve_folder: str = ""
    curve: curves.CurveOfGain | None = None
    apart_folder: str = ""
    apart: layouts.GainParts | None = None
    """Of a layout that was confirmed: what of its gain is the library's own, and what its pages'."""

    def candidate(self, name: str) -> SettingCandidate:
        """The candidate of that name. Raises UserError where none of it was tried: somebody has edited its record."""
        for each in self.tried:
            if each.name == name:
                return each
        raise UserError(f"the advice speaks of {name!r}, which it has not tried", hint="ask for a new one")


def confirmed(folder: str, cell: CellResult, comparison: Comparison, design: Kind = "sequential") -> Confirmed:
    """What the confirmation's run says of its one comparison, whose arms were laid out by that `design`."""
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
        ratio=comparison.ratio,
        low=comparison.low,
        high=comparison.high,
        confidence=comparison.confidence,
        memory_before=_memory(before),
        memory_after=_memory(after),
        huge_before=None if before is None else _huge(before.coverage),
        huge_after=None if after is None else _huge(after.coverage),
        reserved=0 if after is None else after.pool_bytes,
        design=design,
    )


def _memory(arm: ArmSummary | None) -> int | None:
    return None if arm is None or arm.peak_bytes is None else arm.peak_bytes + arm.pool_bytes


def _huge(coverage: Mapping[str, float]) -> float | None:
    """Share of private memory in huge pages; `coverage` has shares by `kind:page size`."""
    private = {name: share for name, share in coverage.items() if name.startswith(("anon:", "hugetlb:"))}
    total = sum(private.values())
    huge = sum(share for name, share in private.items() if int(name.partition(":")[2]) > LARGEST_BASE)
    return huge / total if total else None


def answer(found: Advice) -> str:
    """One sentence: what to set, the gain with its interval, the price, and how sure."""
    last = found.confirmed
    if found.curve is not None:
        return curves.sentence(found.curve)
    if last is None:
        if found.arrived == "finished" and any("needs root" in left.reason for left in found.left_out):
            return "Leave it as it is, or ask as root: what could still reach this program needs root to be tried."
        if found.arrived == "finished":
            return "Leave it as it is: no setting can reach this program that it does not have already."
        return f"No answer yet: it ended in the {_PHASES[found.arrived]}."
    chosen = found.candidate(last.candidate)
    effect = (
        f"{last.metric} {numbers.effect(last.ratio, last.low, last.high)}, {last.n} pairs at {_sure(last.confidence)}"
    )
    match last.verdict:
        case "better" if last.growth is not None and last.growth > (POOL if chosen.reach == "pool" else GROWTH):
            more = f"but the program has {100 * last.growth:.0f}% more memory"
            return f"`{chosen.name}` is better ({effect}), {more}: that is yours to weigh. {_how(chosen)}"
        case "better":
            return f"Set `{chosen.name}`: {effect}. {_how(chosen)}"
        case "equivalent":
            return (
                f"Leave it as it is: the best that was found, `{chosen.name}`, makes no difference above"
                f" {numbers.percent(found.question.margin)} ({effect})."
            )
        case "worse":
            return f"Leave it as it is: the best that was found, `{chosen.name}`, is worse ({effect})."
        case "undecided":
            return f"Undecided: `{chosen.name}` {effect}. More time may decide it: --time."
        case _:
            return f"No verdict on `{chosen.name}`: {last.reason}."


_PHASES = {
    "pilot": "pilot",
    "curve": "curve",
    "screening": "screening",
    "confirmation": "confirmation",
    "finished": "end",
    "interrupted": "middle",
}


def _how(chosen: SettingCandidate) -> str:
    return {
        "process": "It reaches this program alone.",
        "pool": "It reaches this program alone, from a pool that stays reserved.",
        "host": "It reaches every program of this machine.",
    }[chosen.reach]


def _sure(confidence: float) -> str:
    return f"{100 * confidence:.4g}%"


def details(found: Advice) -> Iterator[str]:
    """What stands behind the answer, line by line."""
    if found.pilot is not None:
        seen = found.pilot.huge
        huge = "its pages were not seen" if seen is None else f"{100 * seen:.0f}% of it in huge pages"
        spread = "" if found.pilot.sd is None else f", pairs of the same differ by {100 * found.pilot.sd:.2g}% (sd)"
        memory = format_size(found.pilot.memory) if found.pilot.memory else "unknown"
        yield (
            f"As it is: {format_duration(found.pilot.wall_s)} a run ({found.pilot.runs} runs{spread}), at most"
            f" {_mib(found.pilot.memory) if found.pilot.memory else memory} of memory, {huge}."
        )
    if found.curve is not None:
        yield from curves.lines(found.curve, shlex.join(layouts.command_of(found.question)))
    yield from (f"Note: {one}." for one in found.remarks)
    for one in found.tried:
        yield f"Tried: {one.name} ({one.reach}): {one.reason}{_fate(found, one.name)}."
    for left in found.left_out:
        yield f"Not tried: {left.name}: {left.reason}."
    last = found.confirmed
    if last is not None and found.question.of_service:
        what = ESTIMANDS[last.design] or "its arms one after the other"
        yield f"Design: {last.design}, {what}."
    if last is not None and last.huge_after is not None:
        before = "" if last.huge_before is None else f" ({100 * last.huge_before:.0f}% before)"
        yield f"Delivered: {100 * last.huge_after:.0f}% of its memory in huge pages{before}."
        if last.growth is not None and last.memory_after is not None:
            pool = f", {_mib(last.reserved)} of it a pool that stays reserved" if last.reserved else ""
            yield f"Price: at most {_mib(last.memory_after)} of memory{pool}, {100 * last.growth:+.1f}%."
    if found.apart is not None:
        yield layouts.sentence(found.apart)


def _fate(found: Advice, name: str) -> str:
    screen = found.screen
    if found.confirmed is not None and found.confirmed.candidate == name:
        return f"; confirmed by blocks of its own: {found.confirmed.verdict}"
    if screen is None:
        return ""
    if (gone := screen.left_out.get(name)) is not None:
        return f"; it could not be run here: {gone}"
    estimate = screen.estimates.get(name)
    about = "" if estimate is None else f", about {numbers.change(estimate)}"
    why = screen.dropped.get(name)
    if why is not None:
        return f"; dropped by the screening{about} ({why})"
    return f"; screened{about}, at the screening's rate of 10%" if not screen.unsure else f"; screened{about}, unsure"


def _mib(size: int) -> str:
    return f"{size / (1 << 20):,.0f} MiB"
