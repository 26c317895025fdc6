"""What each policy gains and the memory that it takes for it, beside the figure of the two."""

from __future__ import annotations

from hugewise.model.results import CellResult
from hugewise.report import numbers
from hugewise.report.document import Table, table
from hugewise.report.figures.pareto import first_pairs, trades
from hugewise.report.numbers import NOTHING, percent
from hugewise.report.sentences import SYMBOLS, effect_of

__all__ = ["trades_table"]


def trades_table(cell: CellResult) -> Table | None:
    """A row for each arm: the change of the judged metric, of the memory, and GiB for each percent gained."""
    found = trades(cell)
    if not found:
        return None
    rows = []
    for one in found:
        size, told = one.footprint, one.comparison
        change = numbers.effect(size.ratio, size.low, size.high, size.n if size.constant else None)
        price = NOTHING if one.price is None else f"{numbers.size(one.price * (1 << 30))}"
        rows.append(
            (
                one.arm,
                f"{SYMBOLS[told.verdict]} {effect_of(told)}",
                numbers.size(size.value_baseline),
                numbers.size(size.value),
                change,
                price,
            )
        )
    caption = (
        f"speed and memory: the change of {cell.metric.name}, the median memory at the proof and its change within "
        f"pairs with the {percent(found[0].footprint.confidence)} interval by itself, and memory for each percent that "
        f"is gained{first_pairs(found)}"
    )
    head = ("policy", cell.metric.name, cell.baseline, "with it", "change of memory", "for each percent")
    return table(caption, head, rows, 2, swatch=True)
