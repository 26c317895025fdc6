"""Text of an advice: the setting, its reach, its gain, its price, and the confidence. Pure.

answer      one sentence; `in_short` the same in a few words
details     everything else: kept beside the record, and shown with --verbose
ending      what a terminal shows at the end
where       its last lines: where all of it is, and the commands to copy
"""

from __future__ import annotations

import math
import shlex
import textwrap
from collections.abc import Iterator, Sequence
from mmap import PAGESIZE
from pathlib import Path

from hugewise.advise import decision
from hugewise.advise.advice import Advice, Confirmed
from hugewise.advise.candidates import SettingCandidate
from hugewise.advise.decision import FootprintChange, KnownFrom, TradeOff
from hugewise.advise.question import command_of
from hugewise.model.cause import GROWTH, POOL_GROWTH
from hugewise.model.design import ESTIMANDS
from hugewise.quantity import format_duration, format_size
from hugewise.report import numbers
from hugewise.report.document import table
from hugewise.report.sections.answer import evidence
from hugewise.report.terminal import lines
from hugewise.stats.campaign import unseen
from hugewise.visible import printable

_LITTLE = 10 << 20
_UNCHANGED = 0.005  # share of a footprint
_KNOWN: dict[KnownFrom, str] = {"confirmed": "confirmed", "beside": "runner-up", "screening": "screened"}
FEWEST_SHOWN = 3
"""Pairs without which no effect is shown."""
DETAILS = "details.txt"
"""File beside the record: the whole advice in words."""

LINES, COLUMNS = 15, 80
_ANSWER, _NOTE = 4, 2  # lines of a text at most
_SETTING = 16  # characters of the name of a setting
_FEWEST = 3  # rows that go before notes
_TRIED = 2 * COLUMNS  # characters of a command that is shown, at most
_FILES = 3  # lines that tell of the files to deploy


def mib(size: int) -> str:
    """Return bytes in MiB; below 10 of them to three digits, so that little is not shown as nothing."""
    return f"{size / (1 << 20):,.0f} MiB" if size >= _LITTLE else numbers.size(size)


def price_text(growth: float | None) -> str:
    """Return the text about a setting's cost in memory."""
    if growth is None:
        return "what memory it takes is not known"
    if abs(growth) < _UNCHANGED:
        return "it takes as much memory as before"
    percents = round(abs(growth) * 100, 1)
    if growth > 0:
        return f"it takes {percents:.{0 if percents >= 10 else 1}f}% more memory"
    percents = min(99.9, percents)  # never round a remainder to nothing
    return f"it takes {percents:.{0 if 10 <= percents < 99 else 1}f}% less memory"


def growth_text(change: FootprintChange) -> str:
    """Return a change of the footprint with its interval."""
    at = f"at {100 * change.confidence:.4g}%"
    if change.low is not None and change.high is not None:  # memory hardly varies: a tenth of a percent is enough
        span = f"{_end(change.low)} to {_end(change.high)}"
    else:
        span = numbers.interval(change.ratio, change.low, change.high)
    return f"{numbers.change(change.ratio)}{f' ({span} {at})' if span else ''}"


def _end(ratio: float) -> str:
    # an end is not rounded onto "no change": whether that is excluded is the answer
    places = next((more for more in range(1, 5) if ratio == 1 or round(100 * (ratio - 1), more) != 0), 4)
    return numbers.change(ratio, places=places)


def joint_confidence(verdicts: int, answers: int, each: float, wrong: float) -> str:
    """Return the text on the joint confidence of answers whose verdicts are each wrong with at most chance `each`."""
    rest = "" if verdicts == answers else f", {verdicts} of which rest on a verdict"
    alone = f"{100 * (1 - each / verdicts):.4g}%"
    return (
        f"{answers} answers{rest}: the chance that any of them is wrong is at most {numbers.percent(wrong)}, as each"
        f" verdict alone is wrong with at most {numbers.percent(each)} (--confidence {alone}: {numbers.percent(each)}"
        " over all)."
    )


def objective(found: Advice) -> str:
    """Return what is weighed: the metric, and the memory above which a gain is left to the user."""
    last, table = found.confirmed, found.question.workload
    metric = last.metric if last is not None else table.get("metric", "wall_s")
    more = f"{numbers.percent(GROWTH)} more memory (a pool: {numbers.percent(POOL_GROWTH)})"
    return f"The best {metric}; what takes more than {more} is left to you."


def recommended(found: Advice) -> bool:
    """Return whether there is a setting to deploy: it is better, and its runs do not fail."""
    last = found.confirmed
    return last is not None and last.verdict == "better" and not last.fails


def not_tried(found: Advice) -> str:
    """Return a sentence on the candidates that the time had no room for; empty where one is set, or none was late."""
    names = ", ".join(f"`{one.name}`" for one in found.left_out if one.late)
    if found.confirmed is None or recommended(found) or not names:
        return ""
    return f"Not tried for lack of time: {names}. With all candidates this workload takes {found.time_for_all}."


def answer(found: Advice) -> str:
    """Return one sentence: what to set, the gain with its interval, the price, and how sure."""
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
    if last.fails and last.verdict != "worse":
        return f"Leave it as it is: runs of `{chosen.name}` failed, whatever it does to the others ({effect}, {sure})."
    best = _as_best(found, chosen.name)
    match last.verdict:
        case "better" if _to_weigh(found, last):
            more = f"but the program has {100 * (last.growth or 0):.0f}% more memory"
            said = f"{_named(found, chosen)} is better ({effect}, {sure}), {more}: that is yours to weigh."
            return f"{said} {_how(chosen)}"
        case "better":
            return f"Set {_named(found, chosen)}: {effect}, {sure}; {price_text(last.growth)}. {_how(chosen)}"
        case "equivalent":
            no = f"usually makes no difference above {numbers.percent(margin)}"
            stalls = numbers.percent(round(unseen(last.n, 1 - last.confidence), 3))
            return (
                f"Leave it as it is: {best} {no} ({effect}, {sure}); up to {stalls} of runs may stall, though none of"
                " these pairs shows a stall."
            )
        case "worse":
            return f"Leave it as it is: {best} is worse ({effect}, {sure})."
        case "undecided" if last.earlier and last.reason == last.earlier:
            return (
                f"Undecided: this run alone decides on `{chosen.name}` ({effect}, {sure}), this run and the earlier"
                " runs together do not. Run the same command again: each run adds its evidence."
            )
        case _ if no_gain(found):
            most = numbers.percent(math.ceil(round(1000 * (last.most or 0.0), 6)) / 1000)
            said = f"Leave it as it is: {best} gains at most {most}, if anything ({effect}, {sure})."
            if (last.most or 0.0) <= margin:
                return said
            more = f": --time {found.more_time}" if found.more_time else ""
            return f"{said} More time tells whether it gains more than {numbers.percent(margin)}{more}."
        case _:
            more = f"Give --time {found.more_time} or more." if found.more_time else "A longer --time may decide it."
            return f"Undecided: `{chosen.name}` {effect}, {sure}. {more}"


def no_gain(found: Advice) -> bool:
    """Return whether an undecided confirmation has ruled out a gain that is worth a change (`Question.worth`)."""
    last, worth = found.confirmed, found.question.worth
    if last is None or last.verdict != "undecided" or last.most is None or last.ratio is None:
        return False
    low, high = last.low or 0.0, last.high or math.inf
    if not low < last.ratio < high or not low <= 1 <= high:  # nothing is claimed of such an interval
        return False
    return (
        not (last.earlier and last.reason == last.earlier)
        and last.most < worth
        and not any(gain >= worth for gain in _other_gains(found, last))
    )


def _other_gains(found: Advice, last: Confirmed) -> Iterator[float]:
    """Yield the estimated gains (shares) of the settings that were neither confirmed nor dropped."""
    dropped = found.screen.dropped if found.screen is not None else {}
    for row in settings(found):
        if row.reach is None or row.name == last.candidate or row.name in dropped or row.seen is None:
            continue
        if row.seen.ratio is not None:
            yield row.seen.ratio - 1 if last.better == "higher" else 1 - row.seen.ratio


def _as_best(found: Advice, name: str) -> str:
    if len(found.tried) == 1 or found.screen is None:
        return f"`{name}`"
    if not found.screen.best:
        return f"the best that was found, `{name}`,"
    return f"`{name}`, the first candidate that may be as good as `{found.screen.best}`,"


def _named(found: Advice, chosen: SettingCandidate) -> str:
    use = {} if isinstance(chosen.use, str) else chosen.use
    asked = found.question.workload.get("parameters", {}).get("server", ())
    server = use.get("parameters", {}).get("server", ())
    added = server[len(asked) :] if list(server[: len(asked)]) == list(asked) else ()
    words = [*(f"{name}={value}" for name, value in use.get("environment", {}).items()), *map(str, added)]
    return f"`{chosen.name}` ({' '.join(words)})" if words else f"`{chosen.name}`"


def _to_weigh(found: Advice, last: Confirmed) -> bool:
    most = POOL_GROWTH if found.candidate(last.candidate).reach == "pool" else GROWTH
    return last.growth is not None and last.growth > most


def in_short(found: Advice) -> str:
    """Return the answer in a few words: `set advised`, `leave as it is`, `undecided: advised`."""
    last = found.confirmed
    if last is None:
        if found.arrived != "finished":
            return "no answer yet"
        return "undecided" if found.more_time and not found.tried else "leave as it is"
    if recommended(found):
        return f"{'weigh' if _to_weigh(found, last) else 'set'} {last.candidate}"
    if last.verdict in ("undecided", "none") and not no_gain(found):
        return f"{'undecided' if last.verdict == 'undecided' else 'no verdict'}: {last.candidate}"
    return "leave as it is"


def _unconfirmed(found: Advice) -> str:
    if found.arrived == "finished" and found.more_time and not found.tried:
        time = format_duration(found.question.seconds)
        return (
            f"Undecided: {time} have no room for the pairs of runs that a verdict takes. Give --time {found.more_time}"
            " or more, or a shorter input."
        )
    if found.arrived == "finished" and any(left.needs_root for left in found.left_out):
        return "Leave it as it is, or ask as root: what could still reach this program needs root to be tried."
    if found.arrived == "finished" and len(found.left_out) > 1 and len({left.reason for left in found.left_out}) == 1:
        return f"Leave it as it is: {found.left_out[0].reason}."
    if found.arrived == "finished":
        return "Leave it as it is: no setting can reach this program that it does not have already."
    said = f"No answer yet: interrupted in the {_PHASES[found.arrived]}"
    if found.screen is None or not found.chosen:
        return f"{said}."
    estimate = found.screen.estimates.get(found.chosen)
    about = "" if estimate is None else f", about {numbers.change(estimate)}"
    return f"{said}. The screening chose `{found.chosen}`{about}: an estimate, not a verdict."


_PHASES = {
    "pilot": "pilot",
    "screening": "screening",
    "confirmation": "confirmation",
    "finished": "end",
}


def _how(chosen: SettingCandidate) -> str:
    return {
        "process": "The setting reaches this program alone.",
        "pool": "The setting reaches this program alone; its pool keeps the memory from others.",
        "host": "The setting reaches every program of this machine.",
    }[chosen.reach]


def _sure(confidence: float) -> str:
    return f"{100 * confidence:.4g}%"


def settings(found: Advice) -> tuple[TradeOff, ...]:
    """Return the table of settings: as-is, then each setting tried, with its best figures and what dominates it."""
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
    """Yield the details behind the answer, line by line."""
    rows = settings(found)
    yield from settings_table(found, rows)
    if found.pilot is not None:
        seen = found.pilot.huge
        huge = "its pages were not seen" if seen is None else f"{100 * seen:.0f}% of it in huge pages"
        sd = found.pilot.sd
        spread = "" if sd is None else f", pairs of the same differ by {numbers.times(100 * sd)}% (sd)"
        memory = f"at most {mib(found.pilot.memory)} of memory" if found.pilot.memory else "memory unknown"
        yield (
            f"As it is: {format_duration(found.pilot.wall_s)} a run ({found.pilot.runs} runs{spread}), {memory},"
            f" {huge}."
        )
    yield from notes(found, short=False)
    for one in found.tried:
        row = next((row for row in rows if row.name == one.name), None)
        memory = "" if row is None or row.seen is None or row.seen.growth is None else growth_text(row.seen.growth)
        more = f"; memory {memory}" if memory else ""
        more += f"; dominated by {row.dominated_by}" if row is not None and row.dominated_by else ""
        yield f"Tried: {one.name} ({one.reach}): {one.reason}{_fate(found, one.name)}{more}."
    for left in found.left_out:
        yield f"Not tried: {left.name}: {left.reason}."
    last = found.confirmed
    if last is None:
        return
    if found.question.of_service:
        what = ESTIMANDS[last.design] or "its arms one after the other"
        yield f"Design: {last.design}, {what}."
    yield from delivered(found)
    if last.growth is not None and last.memory_after is not None:
        pool = f", {mib(last.reserved)} of it a pool that stays reserved" if last.reserved else ""
        yield f"Price: at most {mib(last.memory_after)} of memory{pool}, {_grown(last)}."
    yield from causes(found)


def whole(found: Advice) -> str:
    """Return the whole advice as a text: objective, answer, details, the question and the runs."""
    runs = (found.pilot_folder, found.screening_folder, found.confirmation_folder)
    told = (f"Run: {run}" for run in filter(None, runs))
    asked = (f"Asked by: {shlex.join(found.command)}",) if found.command else ()
    command = command_of(found.question)
    other = (f"Page sizes of other machines: hugewise predict -- {shlex.join(command)}",) if command else ()
    every = (objective(found), answer(found), *(f"  {line}" for line in (*details(found), *asked, *told, *other)))
    return "".join(f"{printable(line)}\n" for line in every)


def notes(found: Advice, *, short: bool) -> Iterator[str]:
    """Yield the earlier runs and the remarks; in `short`, the one on the time only where the answer is undecided."""
    decided = found.confirmed is not None and found.confirmed.verdict not in ("undecided", "none")
    time = () if decided and short else filter(None, (found.time_remark,))
    if found.confirmed is not None and found.confirmed.earlier:
        yield found.confirmed.earlier
    yield from (f"Note: {one}." for one in (*time, *found.remarks))


def delivered(found: Advice) -> Iterator[str]:
    """Yield the share of memory above base pages in the confirmation."""
    last = found.confirmed
    if last is not None and last.huge_after is not None:
        before = "" if last.huge_before is None else f" ({100 * last.huge_before:.0f}% before)"
        yield f"Delivered: {100 * last.huge_after:.0f}% of its memory in pages above {format_size(PAGESIZE)}{before}."


def causes(found: Advice) -> tuple[str, ...]:
    """Return the evidence behind the confirmed verdict, sentence by sentence."""
    last = found.confirmed
    return () if last is None or last.cause is None else evidence(last.cause, last.verdict)


def _grown(last: Confirmed) -> str:
    change = last.change
    if change is None:
        return f"{numbers.change(1 + (last.growth or 0.0))} by the most of all runs"
    return growth_text(change)


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
    beside = next((one for one in (last.measured if last is not None else ()) if one.name == name), None)
    if beside is None:
        return f"; screened{about}{rate}"
    effect = numbers.effect(beside.ratio, beside.low, beside.high)
    return f"; the runner-up, measured beside the confirmation: {effect} at {_sure(beside.confidence)}, by itself"


def settings_table(found: Advice, rows: Sequence[TradeOff]) -> Iterator[str]:
    """Yield the settings as a table; nothing of no rows."""
    metric = found.confirmed.metric if found.confirmed is not None else found.question.workload.get("metric", "wall_s")
    head = ("setting", f"{metric} (interval)", "memory", "known", "reach")
    yield from lines(table("", head, map(_setting, rows), len(head)))


def where(found: Advice, folder: Path, reports: Sequence[Path] = (), *, files: bool = False) -> tuple[str, ...]:
    """Return the commands that try and deploy the setting (not with `files`), its reports, and where the rest is."""
    commands = () if files or not recommended(found) else _next(found, folder)
    return (*commands, *report_lines(reports), f"Advice: {folder} (all in {DETAILS})")


def report_lines(reports: Sequence[Path]) -> tuple[str, ...]:
    """Return the lines that name the reports."""
    return tuple(f"Report: {path}" for path in reports)


def ending(found: Advice, folder: Path, reports: Sequence[Path] = (), *, files: bool = False) -> tuple[str, ...]:
    """Return the end of an advice on a terminal; `files`: leave room for the lines about files."""
    rows = settings(found)
    shown = list(settings_table(found, rows))
    remarks = [*_what_is_known(found, rows), *notes(found, short=True), *causes(found)[:1], *delivered(found)]
    if found.confirmed is not None and found.confirmed.decisive:
        remarks.insert(0, f"{found.confirmed.decisive}.")
    return fitted(
        [one for one in (answer(found), not_tried(found)) if one],
        shown,
        remarks,
        where(found, folder, reports, files=files),
        files=files,
    )


def _next(found: Advice, folder: Path) -> Iterator[str]:
    assert found.confirmed is not None
    words = [f"{name}={shlex.quote(value)}" for name, value in found.confirmed.variables.items()]
    command = command_of(found.question)
    tried = " ".join((*words, shlex.join(command)))
    if stdin := found.question.workload.get("parameters", {}).get("stdin"):
        tried += f" < {shlex.quote(str(stdin))}"
    if words and command and len(tried) <= _TRIED:
        yield f"Try it: {printable(tried)}"
    yield f"Deploy: hugewise advise --resume {shlex.quote(str(folder))} --output FILES"


def _what_is_known(found: Advice, rows: Sequence[TradeOff]) -> Iterator[str]:
    if rows and found.confirmed is None:
        yield "The effects are estimates, not verdicts: none was confirmed."
    elif any(row.seen is not None and row.seen.known != "confirmed" for row in rows):
        yield "Only the confirmed effect is a verdict; the others are estimates."


def _setting(row: TradeOff) -> tuple[str, ...]:
    name, reach, seen = numbers.shortened(printable(row.name), _SETTING), row.reach or "", row.seen
    if seen is None:
        return (name, numbers.NOTHING, "", "not run", reach)
    if row.reach is None:
        return (name, numbers.NOTHING, numbers.size(seen.footprint.total), "", "")
    memory = numbers.NOTHING if seen.growth is None else numbers.change(seen.growth.ratio)
    effect = numbers.effect(seen.ratio, seen.low, seen.high) if seen.n >= FEWEST_SHOWN else numbers.NOTHING
    return (name, effect, memory, f"{_KNOWN[seen.known]}, n {seen.n}", reach)


def fitted(
    answer: Sequence[str], settings: Sequence[str], notes: Sequence[str], where: Sequence[str], *, files: bool
) -> tuple[str, ...]:
    """Return the lines that fit into 15 of 80 columns: notes are left out first, then rows, never a command."""
    room = LINES - (_FILES if files else 0)
    before = [line for one in answer for line in _wrapped(one, _ANSWER)]
    told = [_wrapped(one, _NOTE) for one in notes]
    wanted = [(len(settings), few) for few in range(len(told), -1, -1)]
    wanted += [(rows, few) for rows in range(len(settings) - 1, 0, -1) for few in ((1, 0) if rows > _FEWEST else (0,))]
    shown: list[str] = []
    for rows, few in wanted or [(0, 0)]:
        left = len(settings) - rows
        more = [f"({left} more row{'' if left == 1 else 's'} of this table left out)"] if left else []
        shown = [*before, *settings[:rows], *more, *(line for one in told[:few] for line in one)]
        if sum(max(1, -(-len(line) // COLUMNS)) for line in (*shown, *where)) <= room:
            break
    return tuple(line.replace(numbers.MINUS, "-") for line in (*shown, *where))


def _wrapped(said: str, most: int) -> list[str]:
    found = textwrap.wrap(printable(said), COLUMNS, break_on_hyphens=False)
    if len(found) <= most:
        return found
    rest = " ..."
    return [*found[: most - 1], found[most - 1][: COLUMNS - len(rest)].rstrip() + rest]
