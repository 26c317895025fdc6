"""Anonymous page faults by the size of page that they were served with, as a table: from a guest's own counters."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean

from hugewise.analysis.changes import Values
from hugewise.model.results import CellResult, Results
from hugewise.quantity import format_size, parse_size
from hugewise.report import numbers
from hugewise.report.document import Table, table
from hugewise.report.numbers import NOTHING

__all__ = ["PREFIX", "allocations_table"]

PREFIX = "allocations_"  # of the metrics; the page size follows


def allocations_table(results: Results, cell: CellResult, values: Values | None = None) -> Table | None:
    """Rows: arms; columns: sizes. Mean faults served at the size over the accepted attempts, and the bytes of these.

    None where no attempt has such counts. A size at which no arm was served is named in the caption instead.
    """
    values = values or Values.of(cell, results.attempts)
    means = {arm.arm: _means(values, arm.arm) for arm in cell.arms}
    every = sorted({size for found in means.values() for size in found})
    if not every:
        return None
    used = [size for size in every if any(found.get(size) for found in means.values())]
    unused = [format_size(size) for size in every if size not in used]
    caption = "allocations by page size: mean faults served at it over the accepted attempts, and their bytes"
    if unused:
        caption += f"; none at {', '.join(unused)}"
    caption += "; base pages have no such counter"
    rows = [(arm, *(_shown(size, found.get(size)) for size in used), _together(found)) for arm, found in means.items()]
    return table(caption, ("policy", *map(format_size, used), "together"), rows, swatch=True)


def _means(values: Values, arm: str) -> Mapping[int, float]:
    """Mean count by page size in bytes; a size that an arm's kernel does not have is not there."""
    return {
        parse_size(name.removeprefix(PREFIX)): fmean(several)
        for (of, name), several in values.found.items()
        if of == arm and name.startswith(PREFIX) and several
    }


def _shown(size: int, count: float | None) -> str:
    if count is None:
        return NOTHING
    if count == 0:
        return "0"
    return f"{_count(count)} ({numbers.size(count * size)})"


def _together(found: Mapping[int, float]) -> str:
    return numbers.size(sum(size * count for size, count in found.items())) if found else NOTHING


def _count(count: float) -> str:
    return f"{count:,.0f}" if count.is_integer() or count >= 1000 else f"{count:,.1f}"
