"""Published figures beside measured ones, and stand-ins: the rows are made by `hugewise.analysis.published`.

A published figure is shown as the source's file has it, digit for digit, in columns of its own that are called
published; a measured one is shown as everywhere else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from hugewise.analysis.published import Size, size
from hugewise.model.reason import Known, Reason
from hugewise.model.results import APART, Beside, CellResult, Level, Measured, PublishedFinding, PublishedPoint
from hugewise.published import Sample
from hugewise.report import numbers
from hugewise.report.document import Block, Line, Section, Table, table
from hugewise.report.numbers import MINUS, NOTHING
from hugewise.report.reasons import in_words
from hugewise.report.sentences import effect_of, marked


def stand_in_line(cell: CellResult) -> Line | None:
    """Return the cell's own; None where nothing stands in for anything."""
    return Line(f"Stand-in: {', '.join(cell.stand_ins)}.") if cell.stand_ins else None


def stand_ins_of_cells(cells: Iterable[CellResult]) -> list[Line]:
    """Return a line for each kind of stand-in, with the cells that have it."""
    found: dict[tuple[str, ...], list[str]] = {}
    for cell in cells:
        if cell.stand_ins:
            found.setdefault(cell.stand_ins, []).append(cell.cell)
    return [Line(f"Stand-in: {', '.join(words)}, in {', '.join(names)}.") for words, names in found.items()]


def behind(measured: Iterable[Measured | None]) -> str:
    """`; MariaDB in place of MySQL`, to follow what was measured; empty where nothing stands in for anything."""
    found = dict.fromkeys(words for one in measured if one is not None for words in one.stand_ins)
    return f"; {', '.join(found)}" if found else ""


_TITLE = "Published beside measured"

_POINTS = (
    *("published quantity", "published arm", "published change", "published figures"),
    *("measured policy", "measured metric", "measured change (interval)", "n", "verdict", "sign, size"),
)
_DIFFERENCE = 7  # the column before which the difference of counts stands
_MARK = "✱"
_SIZES: dict[Size | None, str] = {
    "within": "published change within our interval",
    "rounded": "published change within our interval as far as it is rounded",
    "larger": "published change larger than all of our interval",
    "smaller": "published change smaller than all of our interval",
    None: "",
}

_FINDINGS = (
    *("published in words", "published arms", "published figures"),
    *("measured in", "measured policy", "measured metric", "measured change (interval)", "n", "verdict", "signs"),
)


def beside(found: Beside | None, *, introduced: bool = False) -> Iterator[Section]:
    """Yield published figures beside measured ones; `introduced`: the source and exact reasons stand above."""
    if found is not None:
        told: tuple[Block, ...] = (
            *(() if introduced else map(Line, introduction(found))),
            *tables(found),
            *(Line(one, quiet=True) for one in remarks(found)),
        )
        yield Section(_TITLE, told, key="beside")


def introduction(beside: Beside) -> Iterator[str]:
    """Yield the source of the figures, and in one line the machines of both sides."""
    yield f"Published: “{beside.title}”, {beside.publisher}, {beside.date}."
    theirs = _machine(beside.machine, beside.kernel)
    mine = _machine(beside.here_machine, beside.here_kernel)
    yield (
        f"Published on: {theirs}. Measured on: {mine}. Machine and kernel differ, so that signs can be compared, while "
        "the size of an effect need not be the same."
    )
    if beside.runs is not None and beside.statistic:
        yield f"A published figure is the {beside.statistic} of {beside.runs} runs."
    if beside.missing:
        yield f"The source does not give: {'; '.join(beside.missing)}."
    yield from beside.caveats
    if any(point.points is not None for point in beside.points):
        yield (
            "Differences are of counts and sizes: the measured change less the published one, in percentage points; "
            f"{_MARK} marks more than {APART:g}."
        )


def remarks(beside: Beside) -> Iterator[str]:
    """Yield the source's words on these workloads, and its arms that nothing here stands for."""
    for text in beside.texts:
        yield f"The source says: “{text}”."
    if beside.elsewhere:
        yield f"Published as well, with no policy of this run in its place: {', '.join(beside.elsewhere)}."


def tables(beside: Beside) -> Iterator[Table]:
    """Yield one table for the figures of each entry in each cell, then one for what is published in words."""
    for entry, cell in dict.fromkeys((point.entry, point.cell) for point in beside.points):
        mine = [point for point in beside.points if (point.entry, point.cell) == (entry, cell)]
        against = ", ".join(dict.fromkeys(point.baseline for point in mine))
        place = f"beside {cell}" if cell else "with nothing measured beside it"
        caption = f"{entry} as published, {place}; published changes are against {against}"
        caption += behind(point.measured for point in mine)
        head: tuple[str, ...] = _POINTS
        rows = [_point(point) for point in mine]
        if any(point.points is not None for point in mine):
            head = (*head[:_DIFFERENCE], "difference", *head[_DIFFERENCE:])
            rows = [
                (*row[:_DIFFERENCE], _points(point.points), *row[_DIFFERENCE:])
                for row, point in zip(rows, mine, strict=True)
            ]
        yield table(caption, head, rows, len(head))
    if beside.findings:
        rows = [row for finding in beside.findings for row in _finding(finding)]
        caption = "what is published in words beside what was measured"
        caption += behind(level.measured for finding in beside.findings for level in finding.measured)
        yield table(caption, _FINDINGS, rows, len(_FINDINGS))


def judged(beside: Beside) -> Iterator[str]:
    """Yield a line for every figure and finding that was judged here."""
    for point in beside.points:
        if point.measured is not None and point.measured.verdict != "not judged" and point.percent is not None:
            yield (
                f"{point.cell}, {point.policy}: published {point.quantity} {published_change(point)} ({point.arm}); "
                f"here {_measured(point.measured)}: {'; '.join(filter(None, (point.agreement, published_size(point))))}"
                f"{f', {_points(point.points)}' if point.points is not None else ''}"
            )
    for finding in beside.findings:
        levels = [level for level in finding.measured if level.measured and level.measured.verdict != "not judged"]
        if levels:
            ends = levels[:1] + levels[1:][-1:]
            here = " and ".join(_level(level) for level in ends)
            place = levels[0].cell if len(levels) == 1 else finding.entry
            yield (
                f"{place}, {finding.policy}: published in words: {finding.words} ({finding.arm}); here {here}: "
                f"{finding.agreement}"
            )


def published_change(point: PublishedPoint) -> str:
    """`+17%`, as the source prints it; its sign says whether the arm's value is larger."""
    return NOTHING if point.percent is None else change_as_printed(point.percent)


def change_as_printed(percent: float) -> str:
    """Return the same of the figure alone."""
    return _sign(f"{percent:+.12g}%") if percent else "0%"


def published_figures(point: PublishedPoint) -> str:
    """Return both arms' own figures, their numbers of samples and margins of error, as far as the source gives them."""
    if point.baseline_sample is None or point.arm_sample is None:
        return point.statistic or "no figures of the arms"
    parts = []
    for name, sample in ((point.baseline, point.baseline_sample), (point.arm, point.arm_sample)):
        parts.append(f"{name} {_sample(sample, point.unit, point.confidence)}")
    return f"{point.statistic}: {'; '.join(parts)}"


def published_size(row: PublishedPoint | PublishedFinding) -> str:
    """Return the place of the published change beside our interval; empty where there is no figure, or no interval."""
    return _SIZES[size(row.percent, row.measured)] if isinstance(row, PublishedPoint) else ""


def published_words(finding: PublishedFinding) -> str:
    """Return the claim with what the source limits it to."""
    return f"{finding.words} ({finding.condition})" if finding.condition else finding.words


def _sample(sample: Sample, unit: str, confidence: float | None) -> str:
    text = _number(sample.mean)
    if sample.margin_of_error is not None:
        text += f" ± {_number(sample.margin_of_error)}"
    text += f" {unit}" if unit else ""
    if sample.margin_of_error is not None and confidence is not None:
        text += f" ({numbers.percent(confidence)})"
    if sample.margin_of_error is None and sample.sd is not None:
        text += f", sd {_number(sample.sd)}"
    return text if sample.n is None else f"{text}, n {_number(sample.n)}"


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) or not value.is_integer() else f"{int(value):,}"


def _sign(text: str) -> str:
    return text.replace("-", MINUS)


def _machine(machine: str | None, kernel: str | None) -> str:
    return f"{machine or 'a machine that is not told'}, kernel {kernel or 'not told'}"


def _point(point: PublishedPoint) -> tuple[str, ...]:
    return (
        point.quantity,
        point.arm,
        published_change(point) if point.percent is not None else "no change printed",
        published_figures(point),
        point.policy or NOTHING,
        *_side(point.measured, point.reason),
        "; ".join(filter(None, (point.agreement, published_size(point)))),
    )


def _points(points: float | None) -> str:
    """`+5.4 points ✱`: the measured change less the published one."""
    if points is None:
        return NOTHING
    return f"{_sign(f'{points:+.1f}')} points{f' {_MARK}' if abs(points) > APART else ''}"


def _finding(finding: PublishedFinding) -> Iterator[tuple[str, ...]]:
    said = (
        published_words(finding),
        f"{finding.arm} against {finding.baseline}",
        f"figures published: {finding.figures}",
    )
    levels = finding.measured or (Level(cell="", value="", measured=None, reason=finding.reason),)
    last = len(levels) - 1
    for number, level in enumerate(levels):
        agreed = finding.agreement if number == last else ""
        if number == last and finding.reason and level.measured is not None:
            agreed = f"{agreed}: {in_words(finding.reason)}"
        yield (
            *(said if number == 0 else ("", "", "")),
            level.cell or NOTHING,
            finding.policy or NOTHING,
            *_side(level.measured, level.reason),
            agreed,
        )


def _side(measured: Measured | None, reason: Reason) -> tuple[str, str, str, str]:
    if measured is None:
        # The report explains emulation once.
        why = "not measured by emulation" if reason == Known("emulated") else in_words(reason)
        return NOTHING, why or NOTHING, NOTHING, NOTHING
    change = effect_of(measured)
    if measured.verdict == "not judged":
        return measured.metric, f"{change}, of medians", str(measured.n), "not judged"
    verdict = marked(measured.verdict)
    if measured.judged == "setting":
        verdict += f", of the setting ({numbers.share(measured.delivered_share)} delivered)"
    return measured.metric, change, str(measured.n), verdict


def _level(level: Level) -> str:
    told = _measured(level.measured) if level.measured is not None else NOTHING
    return f"{told} in {level.cell}" if level.value else told


def _measured(measured: Measured) -> str:
    return f"{measured.metric} {effect_of(measured)}"
