"""A forecast of a study as a document, for a terminal of 80 columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hugewise.analysis.forecast import Forecast, Row
from hugewise.quantity import format_duration
from hugewise.report import numbers
from hugewise.report.document import Document, Line, Section, Table, table
from hugewise.report.reasons import in_words


def study(forecast: Forecast) -> Document:
    """Return a table for each cell, and what holds for the whole study."""
    effect = numbers.percent(forecast.effect)
    pairs = sorted({row.pairs for row in forecast.rows})
    many = f"{pairs[0]}" if len(pairs) == 1 else f"{pairs[0]} to {pairs[-1]}"
    sections = []
    for cell in dict.fromkeys(row.cell for row in forecast.rows):
        rows = [row for row in forecast.rows if row.cell == cell]
        metrics = list(dict.fromkeys(row.metric for row in rows))
        line = Line(f"{', '.join(metrics)}; change against {rows[0].baseline}")
        remarks = (remark for row in rows for remark in _remarks(row, _named(row, several=len(metrics) > 1)))
        sections.append(Section(cell, (line, _cell(rows, effect), *remarks)))
    return Document(
        title=f"{forecast.study}: what it takes to show a change of {effect}",
        lead=(Line(f"from {', '.join(forecast.runs)}: {many} pairs of each comparison"),),
        sections=(*sections, Section("", tuple(map(Line, _whole(forecast))))),
    )


def _cell(rows: Sequence[Row], effect: str) -> Table:
    several = len({row.metric for row in rows}) > 1
    own = ("metric",) if several else ()
    head = ("policy", *own, "sd of a pair (95%)", "corr.", f"pairs for {effect}", "time", "shows", "hides")
    told = [
        (
            *(row.arm, *((row.metric,) if several else ())),
            *(_deviation(row), numbers.given(row.correlation, ".2f"), _needed(row), _time(row), *_shown(row)),
        )
        for row in rows
    ]
    return table("", head, told, 2 if several else 1)


def _named(row: Row, *, several: bool) -> str:
    return f"{row.arm}, {row.metric}" if several else row.arm


def _deviation(row: Row) -> str:
    if row.sd is None:
        return numbers.NOTHING
    if row.sd_low is None or row.sd_high is None:
        return _percent(row.sd)
    return f"{_percent(row.sd)} ({_percent(row.sd_low)} to {_percent(row.sd_high)})"


def _needed(row: Row) -> str:
    if row.needed is None:
        return numbers.NOTHING if row.reason else "> 1,000k"
    low, high = (_brief(value) if value else "?" for value in (row.needed_low, row.needed_high))
    return f"{_brief(row.needed)} ({low} to {high})"


def _time(row: Row) -> str:
    return numbers.NOTHING if row.needed is None or row.seconds is None else _duration(row.needed * row.seconds)


def _shown(row: Row) -> tuple[str, ...]:
    return tuple(numbers.NOTHING if effect is None else _percent(effect) for effect in (row.smallest, row.hidden))


def _remarks(row: Row, name: str) -> Iterator[Line]:
    said = []
    if row.reason is not None:
        said.append(in_words(row.reason))
    if row.typical is not None and row.needed is not None and row.typical < row.needed:
        said.append(f"half of such campaigns end by pair {row.typical:,}")
    if row.scale is not None and row.sd is not None and row.scale < 0.8 * row.sd:
        said.append(f"outliers: the test sees a spread of {_percent(row.scale)}")
    if row.failures and row.reason is None:
        said.append(f"{row.failures} of {row.pairs} pairs have a failure")
    if said:
        yield Line(f"{name}: {'; '.join(said)}", quiet=True)


def _whole(forecast: Forecast) -> Iterator[str]:
    chance = numbers.percent(forecast.chance)
    many = f"{forecast.comparisons} comparison{'' if forecast.comparisons == 1 else 's share it'}"
    yield (
        f"Error rate {_level(forecast.alpha)} for the study; {many}: {_level(forecast.level)} each,"
        f" by the method {forecast.method}."
    )
    if forecast.least is None:
        yield f"With {forecast.blocks:,} declared blocks no verdict is possible at this level: declare more."
    elif forecast.method != "fixed-n":
        yield f"The fewest pairs that can decide, if all agree: {forecast.least:,}."
    room = "" if forecast.time_blocks is None else f", and time for about {forecast.time_blocks:,}"
    yield (
        f"Pairs are for a verdict with a chance of {chance}, averaged over what the pilot leaves open; their range is"
        f" that of the sd. 'shows' is the smallest change that the budget shows with that chance, 'hides' the one that"
        f" it misses as often: {forecast.blocks:,} blocks declared{room}."
    )
    if forecast.seconds is not None:
        most = max(row.needed or 0 for row in forecast.rows)
        more = f"; declare {_brief(most)} blocks" if most > forecast.blocks else ""
        yield f"The whole study at these pairs: {_duration(forecast.seconds)}{more}."


def _brief(count: int) -> str:
    return f"{count:,}" if count < 10_000 else f"{count / 1000:,.0f}k"


def _percent(part: float) -> str:
    if part > 100:
        return ">10,000%"
    return f"{part * 100:.{numbers.decimals(part * 100)}f}%"


def _level(alpha: float) -> str:
    return f"{alpha * 100:.3g}%"


def _duration(seconds: float) -> str:
    return format_duration(seconds) if seconds < 48 * 3600 else f"{seconds / 86400:,.1f} days"
