"""What ran in place of what others publish figures of, told where the figures stand."""

from __future__ import annotations

from collections.abc import Iterable

from hugewise.model.published_rows import Measured
from hugewise.model.results import CellResult
from hugewise.report.document import Line

__all__ = ["behind", "stand_in_line", "stand_ins_of_cells"]


def stand_in_line(cell: CellResult) -> Line | None:
    """The cell's own; None where nothing stands in for anything."""
    return Line(f"Stand-in: {_words(cell.stand_ins)}.") if cell.stand_ins else None


def stand_ins_of_cells(cells: Iterable[CellResult]) -> list[Line]:
    """A line for each kind of stand-in, with the cells that have it."""
    found: dict[tuple[str, ...], list[str]] = {}
    for cell in cells:
        if cell.stand_ins:
            found.setdefault(cell.stand_ins, []).append(cell.cell)
    return [Line(f"Stand-in: {_words(words)}, in {', '.join(names)}.") for words, names in found.items()]


def behind(measured: Iterable[Measured | None]) -> str:
    """`; MariaDB in place of MySQL`, to follow what was measured; empty where nothing stands in for anything."""
    found = dict.fromkeys(words for one in measured if one is not None for words in one.stand_ins)
    return f"; {_words(tuple(found))}" if found else ""


def _words(stand_ins: tuple[str, ...]) -> str:
    return ", ".join(stand_ins)
