"""What to set for a program, by what all pages of results found: its gain, its price, whom it reaches, where. Pure.

    by_program({"lpc-2024-mthp": data, ...})

The answer of each cell is that of a run (`cell_answers`), the newest that measured it. What an older run alone compared
follows it, and how many runs of the page answer the same stands beside it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from hugewise.model.answer import AnswerState, CellAnswer
from hugewise.model.results import CellResult, Results
from hugewise.report import numbers
from hugewise.report.also_judged import in_exact_words
from hugewise.report.cell_answers import answers, price, resting
from hugewise.report.document import Block, Line, Section, table
from hugewise.report.numbers import NOTHING
from hugewise.report.plain_answers import reach
from hugewise.report.result_data import PageData
from hugewise.report.result_runs import counted, where_in_short
from hugewise.report.result_standing import standing
from hugewise.report.result_together import together_typical
from hugewise.report.sentences import arm_of, listed
from hugewise.stats.evidence import Combined

__all__ = ["by_program"]

_ORDER: Sequence[AnswerState] = ("set", "weigh", "leave", "undecided", "none")
_HEAD = ("program", "what to set", "what was found", "memory", "whom it reaches", "runs that say so", "where", "page")
_OLDER = "; an older run: "


class _Found(NamedTuple):
    """The answer of a cell by one run."""

    results: Results
    cell: CellResult
    answer: CellAnswer


class _Program(NamedTuple):
    """A cell on a page: its answer by the newest run, then what older ones alone compared; the answers of `every` run
    that compared something in it, and what they decide `together`.
    """

    page: str
    found: tuple[_Found, ...]
    every: tuple[CellAnswer, ...]
    together: tuple[Combined, ...]

    @property
    def first(self) -> _Found:
        return self.found[0]


def by_program(found: Mapping[str, PageData]) -> Iterator[Section]:
    """A section with a row for each cell that was measured: what is to be set first, then what is left or open.

    Emulated guests count and measure no speed: their pages are named, and have no row. No section without pages.
    """
    if not found:
        return
    every = [one for name, data in found.items() for one in _programs(name, data)]
    every.sort(key=lambda one: min(_ORDER.index(each.answer.state) for each in one.found))
    said = (
        "For each program that was measured, as far as it was decided, on the machine that is named: another may find"
        " otherwise (hugewise advise asks yours)."
    )
    blocks: list[Block] = [
        Line(said),
        table("what to set, program by program", _HEAD, map(_row, every), len(_HEAD), linked=(7,)),
    ]
    if without := [f"{name}.md" for name in found if all(one.page != name for one in every)]:
        blocks.append(Line(f"In emulated guests, where counts were measured and no speed: {listed(without)}."))
    yield Section("By program", tuple(blocks))


def _programs(page: str, data: PageData) -> Iterator[_Program]:
    cells: dict[str, list[_Found]] = {}
    for _, results in standing(data):
        if not counted(results):
            for cell, one in zip(results.cells, answers(results), strict=True):
                cells.setdefault(cell.cell, []).append(_Found(results, cell, one))
    every: dict[str, list[CellAnswer]] = {}
    for run in data.runs:
        for cell, answer in zip(run.results.cells, answers(run.results), strict=True):
            if cell.comparisons:
                every.setdefault(cell.cell, []).append(answer)
    together = [one for one in together_typical(data) if one.verdict in {"better", "worse"}]
    for cell_name, several in cells.items():
        joint = tuple(one for one in together if one.cell == cell_name)
        yield _Program(page, tuple(several), tuple(every.get(cell_name, ())), joint)


def _row(one: _Program) -> tuple[str, ...]:
    told = (
        _name(one.first.cell),
        _joined(map(_what, one.found)),
        _joined(map(_answer, one.found)),
        _joined(price(each.answer).removeprefix("memory ") for each in one.found),
        _joined("; ".join(reach(each.cell, each.answer)) for each in one.found),
        _runs(one),
        ", or ".join(dict.fromkeys(where_in_short(each.results) for each in one.found)),
        f"{one.page}.md",
    )
    return tuple(text.replace("`", "") for text in told)


def _joined(parts: Iterable[str]) -> str:
    """That of the newest run, then what there is of older ones."""
    first, *others = parts
    return _OLDER.join([first or NOTHING, *filter(None, others)])


def _name(cell: CellResult) -> str:
    """`build: kernel-build`, `memcached (a client of ours)`: the workload, its cell, and what stands in for what."""
    name = cell.cell if cell.cell.startswith(cell.workload) else f"{cell.workload}: {cell.cell}"
    return f"{name} ({', '.join(cell.stand_ins)})" if cell.stand_ins else name


def _what(one: _Found) -> str:
    """What to do, with its prices; nothing of a run that is left with other metrics alone."""
    return one.answer.text.removesuffix(f": {one.answer.found}.") if one.cell.comparisons else ""


def _answer(one: _Found) -> str:
    """The effect and what was declared beside it; of a setting, how much of the memory got its pages."""
    if not one.cell.comparisons:
        return in_exact_words(one.cell, [arm.arm for arm in one.cell.arms])
    rests = resting(one.cell)
    arm = None if rests is None else arm_of(one.cell, rests.arm)
    share = "" if arm is None or arm.judged != "setting" else numbers.share(arm.delivered_share)
    if arm is None or share in {"", "100%"}:
        return one.answer.found
    return f"{one.answer.found}; {arm.arm} is judged as a setting, of whose pages {share} were delivered"


def _runs(one: _Program) -> str:
    """How many runs of the page answer the same, what others answer, and what they decide together."""
    first = one.first.answer
    told = [(answer.state, answer.setting, answer.text.partition(",")[0].partition(":")[0]) for answer in one.every]
    others = Counter(what for state, setting, what in told if (state, setting) != (first.state, first.setting))
    others_told = [f"{count} {what[0].lower()}{what[1:]}" for what, count in others.items()]
    together = [f"{each.arm} {each.verdict} in {each.metric}" for each in one.together]
    return "; ".join(
        [
            f"{len(told) - others.total()} of {len(told)}",
            *([f"others: {listed(others_told)}"] if others else []),
            *([f"together: {listed(together)}"] if together else []),
        ]
    )
