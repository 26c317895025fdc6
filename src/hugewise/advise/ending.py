"""The end of an advice on a terminal: the answer, one table, what qualifies it, where the rest is. Pure.

At most 15 lines of 80 columns. Where they have no room for all, notes are left out, then rows of the table: the record,
`details.txt` and --verbose have everything. A command that is to be copied is never broken.
"""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

from hugewise.advise import text
from hugewise.advise.advice import Advice
from hugewise.advise.decision import KnownFrom, TradeOff
from hugewise.advise.of_study import CellAdvice, StudyAdvice, together
from hugewise.advise.question import command_of
from hugewise.report import numbers
from hugewise.report.document import table
from hugewise.report.terminal import lines
from hugewise.visible import printable

LINES, COLUMNS = 15, 80
_ANSWER, _NOTE = 4, 2  # lines of a text at most
_NAME = 18  # characters of the name of a cell
_SETTING = 16
_METRIC = 12
_FEWEST = 3  # rows that go before notes
_CELLS = ("cell", "answer", "change (interval)")
_TRIED = 2 * COLUMNS  # characters of a command that is shown, at most
_FILES = 3  # lines that tell of the files to deploy

_KNOWN: dict[KnownFrom, str] = {"confirmed": "confirmed", "beside": "runner-up", "screening": "screened"}


def of_command(found: Advice, folder: Path, *, files: bool = False) -> tuple[str, ...]:
    """Return the ending of the advice on a program or server. `files`: leave room for the lines about files."""
    where = [f"Advice: {folder} (all in {text.DETAILS})"]
    rows = text.settings(found)
    metric = found.confirmed.metric if found.confirmed is not None else found.question.workload.get("metric", "wall_s")
    head = ("setting", f"{metric} (interval)", "memory", "known", "reach")
    shown = list(lines(table("", head, map(_setting, rows), len(head))))
    notes = [*_what_is_known(found, rows), *text.notes(found, short=True), *text.causes(found)[:1]]
    notes += text.delivered(found)
    if found.confirmed is not None and found.confirmed.decisive:
        notes.insert(0, f"{found.confirmed.decisive}.")
    if not files and text.recommended(found):
        where[:0] = _next(found, folder)
    return _fitted([text.answer(found)], shown, notes, where, files=files)


def _next(found: Advice, folder: Path) -> Iterator[str]:
    """Yield the commands that try the setting and that write the files to deploy it."""
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
    name, reach, seen = _cut(printable(row.name), _SETTING), row.reach or "", row.seen
    if seen is None:
        return (name, numbers.NOTHING, "", "not run", reach)
    if row.reach is None:
        return (name, numbers.NOTHING, numbers.size(seen.footprint.total), "", "")
    memory = numbers.NOTHING if seen.growth is None else numbers.change(seen.growth.ratio)
    effect = numbers.effect(seen.ratio, seen.low, seen.high) if seen.n >= text.FEWEST_SHOWN else numbers.NOTHING
    return (name, effect, memory, f"{_KNOWN[seen.known]}, n {seen.n}", reach)


def of_study(found: StudyAdvice, folder: Path, *, files: bool = False) -> tuple[str, ...]:
    """Return the ending of the advice on a study's cells: a row for each cell that has an advice."""
    cells = [one for one in found.cells if one.advice is not None]
    rows = list(lines(table("", _CELLS, map(_cell, cells), len(_CELLS))))
    notes = [
        f"{one.cell}: {f'no advice: {one.why}' if one.why else 'not begun'}" for one in found.cells if one not in cells
    ]
    notes += together(found)
    where = [f"Advice: {folder} (all in {text.DETAILS} of each cell)"]
    done = sum(one.over and not one.why for one in found.cells)
    title = f"{found.study}: {done} of {len(found.cells)} cells answered"
    return _fitted([title], rows, notes, where, files=files)


def _cell(one: CellAdvice) -> tuple[str, ...]:
    assert one.advice is not None
    last = one.advice.confirmed
    effect = numbers.NOTHING if last is None else _effect(last.metric, last.ratio, last.low, last.high)
    return (_cut(printable(one.cell)), _cut(printable(text.in_short(one.advice))), effect)


def _effect(metric: str, ratio: float | None, low: float | None, high: float | None) -> str:
    return f"{_cut(printable(metric), _METRIC)} {numbers.effect(ratio, low, high)}"


def _fitted(
    answer: Sequence[str], settings: Sequence[str], notes: Sequence[str], where: Sequence[str], *, files: bool
) -> tuple[str, ...]:
    """Return the lines that fit. The first row of a table is its head; a line says how many rows are left out."""
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
    """Lines of 80 columns, at most so many; the end of a longer text is in the details."""
    found = textwrap.wrap(printable(said), COLUMNS, break_on_hyphens=False)
    if len(found) <= most:
        return found
    rest = " ..."
    return [*found[: most - 1], found[most - 1][: COLUMNS - len(rest)].rstrip() + rest]


def _cut(name: str, most: int = _NAME) -> str:
    """A name of at most so many characters: the beginning and the end of a longer one, which tell cells apart."""
    half = most // 2
    return name if len(name) <= most else f"{name[: half - 1]}…{name[-(most - half) :]}"
