"""The words of an advice that are made of its figures: objectives, prices, tables. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hugewise.advise.decision import KnownFrom, MeasuredSetting, Priority, TradeOff
from hugewise.advise.footprint import FootprintChange
from hugewise.inspection.neighbours import Neighbours
from hugewise.quantity import format_size
from hugewise.report import numbers
from hugewise.visible import printable

__all__ = ["beside", "grown", "mib", "nothing_smaller", "objective", "of_memory", "price", "table", "together"]

_LITTLE = 10 << 20
_UNCHANGED = 0.005  # of a footprint
_KNOWN: dict[KnownFrom, str] = {
    "confirmed": "confirmation at {}",
    "beside": "beside it, {} by itself",
    "screening": "screening, claims nothing",
}


def mib(size: int) -> str:
    """Bytes in MiB; below 10 of them to three digits, so that little is not shown as nothing."""
    return f"{size / (1 << 20):,.0f} MiB" if size >= _LITTLE else numbers.size(size)


def objective(priority: Priority, metric: str, margin: float, growth: float, pool: float) -> str:
    """What is weighed against what."""
    unasked = (
        f"what takes more than {numbers.percent(growth)} more memory (a pool: {numbers.percent(pool)}) is left to you"
    )
    match priority:
        case "memory":
            most = numbers.percent(margin)
            return f"For memory: the smallest footprint of those that are not worse in {metric} by more than {most}."
        case "tail":
            return f"For the tail: the best {metric}; {unasked}."
        case "speed":
            return f"For speed: the best {metric}; {unasked}."


def price(growth: float | None) -> str:
    """What a setting costs in memory."""
    if growth is None:
        return "what memory it takes is not known"
    if abs(growth) < _UNCHANGED:
        return "it takes as much memory as before"
    percents = round(abs(growth) * 100, 1)
    if growth > 0:
        return f"it takes {percents:.{0 if percents >= 10 else 1}f}% more memory"
    percents = min(99.9, percents)  # what is left is not rounded to nothing
    return f"it takes {percents:.{0 if 10 <= percents < 99 else 1}f}% less memory"


def grown(change: FootprintChange) -> str:
    """A change of the footprint with its interval."""
    at = f"at {100 * change.confidence:.4g}%"
    if change.low is not None and change.high is not None:  # memory hardly varies: a tenth of a percent is enough
        span = f"{_end(change.low)} to {_end(change.high)}"
    else:
        span = numbers.interval(change.ratio, change.low, change.high)
    return f"{numbers.change(change.ratio)}{f' ({span} {at})' if span else ''}"


def _end(ratio: float) -> str:
    """An end of an interval, which is not rounded onto "no change": whether that is excluded is the answer."""
    places = next((more for more in range(1, 5) if ratio == 1 or round(100 * (ratio - 1), more) != 0), 4)
    return numbers.change(ratio, places=places)


def of_memory(name: str, change: FootprintChange | None, effect: str, fits: bool | None, margin: float) -> str:
    """The answer where memory goes first. `fits`: whether it is known not to be worse by more than the margin."""
    most = numbers.percent(margin)
    if change is None:
        return f"No answer: what memory `{name}` takes is not known ({effect})."
    memory = f"memory {grown(change)}"
    if fits is False:
        return f"Leave it as it is: `{name}` is worse by more than {most} ({effect}; {memory})."
    if change.high is None or change.high >= 1:
        return f"Leave it as it is: `{name}` is not seen to take less memory ({memory}; {effect})."
    if fits is None:
        undecided = (
            f"Undecided: `{name}` takes less ({memory}), and whether it is worse by more than {most} is not known"
        )
        return f"{undecided} ({effect}). More time may decide it: --time."
    return f"Set `{name}`: {memory}; it is not worse by more than {most} ({effect})."


def nothing_smaller(seen: Sequence[MeasuredSetting]) -> str:
    """The answer where memory goes first and no candidate seems to take less."""
    told = [f"`{one.name}` {numbers.change(one.growth.ratio)}" for one in seen if one.growth is not None]
    found = f" ({', '.join(told)}: estimates of the screening, which claims nothing)" if told else ""
    return f"Leave it as it is: nothing that was tried takes less memory{found}."


def beside(found: Neighbours) -> str:
    """What a setting of the whole host does to the other programs."""
    some = "1 process" if found.unread == 1 else f"{found.unread} processes"
    unread = f"; {some} could not be looked into" if found.unread else ""
    if not found.eligible:
        return f"of the {found.processes} processes that run now none has memory that it would change{unread}"
    named = ", ".join(f"{printable(one.name)} {mib(one.eligible)}" for one in found.programs)
    return (
        f"of those that run now {mib(found.eligible)} would be eligible for pages of {format_size(found.size)}"
        f" ({named}), and grow by {mib(found.growth)} at most{unread}"
    )


def together(verdicts: int, answers: int, each: float, wrong: float) -> str:
    """How sure several answers are together, of which each verdict is wrong with a chance of at most `each`."""
    rest = "" if verdicts == answers else f", {verdicts} of which rest on a verdict"
    alone = f"{100 * (1 - each / verdicts):.4g}%"
    return (
        f"{answers} answers{rest}: the chance that any of them is wrong is at most {numbers.percent(wrong)}, as each"
        f" verdict alone is wrong with at most {numbers.percent(each)} (--confidence {alone}: {numbers.percent(each)}"
        " over all)."
    )


def table(rows: Sequence[TradeOff]) -> Iterator[str]:
    """The settings in aligned columns; nothing of no rows."""
    lines = [("setting", "effect", "known", "footprint", "reach", ""), *map(_row, rows)] if rows else []
    widths = [max(len(line[at]) for line in lines) for at in range(len(lines[0]) - 1)] if lines else []
    for line in lines:
        cells = [cell.ljust(width) for cell, width in zip(line, widths, strict=False)]
        yield "  ".join([*cells, line[-1]]).rstrip()


def _row(row: TradeOff) -> tuple[str, ...]:
    seen = row.seen
    reach = row.reach or numbers.NOTHING
    if seen is None:
        return (printable(row.name), numbers.NOTHING, numbers.NOTHING, numbers.NOTHING, reach, printable(row.why))
    note = f"dominated by {printable(row.dominated_by)}" if row.dominated_by else ""
    size = numbers.size(seen.footprint.total)
    if row.reach is None:
        return (printable(row.name), numbers.NOTHING, numbers.NOTHING, size, reach, note)
    change = "" if seen.growth is None else f", {grown(seen.growth)}"
    known = _KNOWN[seen.known].format(f"{100 * seen.confidence:.4g}%")
    effect = numbers.effect(seen.ratio, seen.low, seen.high)
    return (printable(row.name), effect, known, f"{size}{change}", reach, note)
