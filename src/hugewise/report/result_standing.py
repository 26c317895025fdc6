"""Which results of a page's runs stand: of the newest all, of an older run what no later one has. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from hugewise.model.results import CellResult, Comparison, Results
from hugewise.report.result_data import PageData, PageRun

Key = tuple[str, str, str, str]
"""A cell, what of it (its metric, an end point, a metric beside it), an arm and a metric."""


def standing(data: PageData) -> Iterator[tuple[PageRun, Results]]:
    """Each run with those of its results that stand: a cell that no later run has, and of one that a later run
    measured with other arms (`--arms`) or metrics the comparisons that only this run has.
    """
    cells, seen = set[str](), set[Key]()
    for one in data.runs:
        found = [_unseen(cell, seen) for cell in one.results.cells]
        left = tuple(cell for cell in found if cell.cell not in cells or cell.judged)
        cells |= {cell.cell for cell in one.results.cells}
        seen |= {key for cell in one.results.cells for key, _ in _keyed(cell)}
        if left:
            yield one, replace(one.results, cells=left)


def newer_cells(data: PageData, run: PageRun) -> frozenset[str]:
    """The cells that a later run has."""
    place = next(place for place, one in enumerate(data.runs) if one is run)
    return frozenset(cell.cell for one in data.runs[:place] for cell in one.results.cells)


def labels(found: Results, newer: frozenset[str]) -> list[str]:
    """The cells by name; those of which a later run has a part with the arms that it has not: `build (thp)`."""
    return [
        f"{cell.cell} ({', '.join(dict.fromkeys(one.arm for one in cell.judged))})" if cell.cell in newer else cell.cell
        for cell in found.cells
    ]


def _keyed(cell: CellResult) -> Iterator[tuple[Key, Comparison]]:
    for what in ("comparisons", "end_points", "declared"):
        for one in getattr(cell, what):
            yield (cell.cell, what, one.arm, one.metric), one


def _unseen(cell: CellResult, seen: set[Key]) -> CellResult:
    if not any(key in seen for key, _ in _keyed(cell)):
        return cell

    def left(what: str) -> tuple[Comparison, ...]:
        return tuple(one for key, one in _keyed(cell) if key[1] == what and key not in seen)

    return replace(
        cell, comparisons=left("comparisons"), end_points=left("end_points"), declared=left("declared"), causes=()
    )
