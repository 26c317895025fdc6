"""An advice in words: what to set, for whom, what it gains, what it costs, and how sure that is. Pure.

summary     what whoever asked reads at once, some ten lines behind the answer
details     all that stands behind it: kept beside the record, and shown with --verbose
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from mmap import PAGESIZE

from hugewise.advise import curve as curves
from hugewise.advise import decision, layouts, sentences
from hugewise.advise.advice import Advice, Confirmed
from hugewise.advise.candidates import SettingCandidate
from hugewise.advise.causes import explained
from hugewise.advise.decision import TradeOff
from hugewise.model.answer import GROWTH, POOL_GROWTH
from hugewise.model.design import ESTIMANDS
from hugewise.quantity import format_duration, format_size
from hugewise.report import numbers
from hugewise.report.plain import plain
from hugewise.visible import printable

__all__ = ["DETAILS", "answer", "details", "objective", "recommended", "settings", "summary", "whole"]

DETAILS = "details.txt"
"""Beside the record: the whole of it in words."""


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
        return f"No verdict on `{chosen.name}`: {plain(last.reason).rstrip('.')}."
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


def summary(found: Advice) -> Iterator[str]:
    """What stands behind the answer, in short: the settings, what was delivered, and where the gain comes from."""
    yield from sentences.table(settings(found))
    if found.curve is not None:
        yield from _curve(found)
    yield from _notes(found, short=True)
    yield from _delivered(found)
    if found.apart is not None:
        yield layouts.sentence(found.apart)
    yield from tuple(_causes(found))[:1]


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
        yield from _curve(found)
    yield from _notes(found, short=False)
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
    yield from _delivered(found)
    if last.growth is not None and last.memory_after is not None:
        unused = last.seen.footprint.unused if last.seen is not None else None
        never = f" ({sentences.mib(unused)} of that never used)" if unused else ""
        pool = f", {sentences.mib(last.reserved)} of it a pool that stays reserved{never}" if last.reserved else ""
        counted = "" if last.seen is None or last.seen.footprint.charged else " Its page tables were not counted."
        yield f"Price: at most {sentences.mib(last.memory_after)} of memory{pool}, {_grown(last)}.{counted}"
    if found.apart is not None:
        yield layouts.sentence(found.apart)
    yield from _causes(found)
    if found.neighbours is not None:
        yield f"The other programs that run now: {sentences.beside(found.neighbours)}."


def whole(found: Advice) -> str:
    """All of it as a text: the objective, the answer, and what stands behind it, with what asked and the runs."""
    runs = (found.pilot_folder, found.screening_folder, found.confirmation_folder, found.apart_folder)
    told = (f"Run: {run}" for run in filter(None, (*runs, found.curve_folder)))
    asked = (f"Asked by: {shlex.join(found.command)}",) if found.command else ()
    lines = (objective(found), answer(found), *(f"  {line}" for line in (*details(found), *asked, *told)))
    return "".join(f"{printable(line)}\n" for line in lines)


def _curve(found: Advice) -> Iterator[str]:
    assert found.curve is not None
    yield from curves.lines(found.curve, shlex.join(layouts.command_of(found.question)))


def _notes(found: Advice, *, short: bool) -> Iterator[str]:
    """The remarks. That the time may not be enough is of no use when it was; nor, in `short`, what it could show."""
    decided = found.confirmed is not None and found.confirmed.verdict not in ("undecided", "none")
    yield from (f"Note: {one}." for one in found.remarks[1 if decided and (found.more_time or short) else 0 :])


def _delivered(found: Advice) -> Iterator[str]:
    last = found.confirmed
    if last is not None and last.huge_after is not None:
        before = "" if last.huge_before is None else f" ({100 * last.huge_before:.0f}% before)"
        yield f"Delivered: {100 * last.huge_after:.0f}% of its memory in pages above {format_size(PAGESIZE)}{before}."


def _causes(found: Advice) -> Iterator[str]:
    last = found.confirmed
    if last is not None and last.seen is not None and last.seen.causes is not None:
        yield from explained(last.seen.causes)


def _grown(last: Confirmed) -> str:
    change = last.change
    if change is None:
        return f"{numbers.change(1 + (last.growth or 0.0))} by the most of all runs"
    return sentences.grown(change)


def _verdict(found: Advice, last: Confirmed) -> str:
    """What the confirmation came to: of memory, whether it is known not to be worse."""
    if found.question.priority != "memory" or last.verdict == "none":
        return last.verdict
    margin = found.question.margin
    fits = decision.no_worse(last.low, last.high, last.better, margin)
    most = f"worse by more than {numbers.percent(margin)}"
    return "undecided" if fits is None else f"not {most}" if fits else most


def _fate(found: Advice, name: str) -> str:
    screen, last = found.screen, found.confirmed
    if last is not None and last.candidate == name:
        return f"; judged by blocks of its own: {_verdict(found, last)}"
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
