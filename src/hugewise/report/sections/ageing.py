"""What the memory of a cell had been through, in words and as a table."""

from __future__ import annotations

from collections.abc import Iterator

from hugewise.model import age
from hugewise.model.results import CellResult
from hugewise.quantity import readable_size
from hugewise.report import numbers
from hugewise.report.document import Table, table
from hugewise.visible import printable

__all__ = ["ageing_table", "remarks"]


def remarks(cell: CellResult) -> Iterator[str]:
    """What is to be known beside the verdicts of a cell whose memory has aged."""
    if age.fragmented(cell.memory_age) and cell.aged:
        share, most = (max(getattr(one, name) for one in cell.aged) for name in ("huge_share", "huge_bytes"))
        yield (
            f"Its memory was fragmented before every attempt: at most {numbers.share(share)} of what was free"
            f" ({readable_size(most)}) could become a huge page at once."
        )
    if not age.pressed(cell.memory_age):
        return
    limit = "" if cell.memory is None else f" of {readable_size(cell.memory)}"
    told = [f"{printable(one.arm)} {readable_size(one.swapped)}" for one in cell.aged if one.swapped is not None]
    yield (
        f"Its programs had a limit{limit}, and swap: {', '.join(told) or 'nothing is known of what'}"
        f"{'' if not told else ' were'} swapped out and in on the whole host meanwhile (medians)."
    )
    if still := [printable(one.arm) for one in cell.aged if one.swapped == 0]:
        yield f"Nothing was swapped under {', '.join(still)}: the limit was no pressure there."


def ageing_table(cell: CellResult) -> Table | None:
    """Per arm: what of the free memory could become a huge page when its attempts began, and what was swapped."""
    if cell.memory_age == "fresh" or not cell.aged:
        return None
    delivered = {arm.arm: arm.delivered_share for arm in cell.arms}
    rows = [
        [
            *(one.arm, one.n, numbers.share(one.huge_share), readable_size(one.huge_bytes), one.pinned),
            *("–" if one.swapped is None else readable_size(one.swapped), numbers.share(delivered.get(one.arm))),
        ]
        for one in cell.aged
    ]
    head = ["policy", "attempts", "free in huge blocks (most)", "that is", "pinned pages", "swapped", "delivered"]
    return table(f"memory that has aged: {cell.memory_age}", head, rows, swatch=True)
