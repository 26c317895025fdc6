"""Whether each policy was delivered: which pages backed the memory, by which proof, and what it took."""

from __future__ import annotations

from hugewise.model.results import CellResult
from hugewise.report import numbers
from hugewise.report.document import Table, table
from hugewise.report.figures.coverage import kind_label, kind_order

__all__ = ["coverage_table", "proof_table"]


def coverage_table(cell: CellResult) -> Table:
    """Per arm: the share of the named memory by page size."""
    keys = kind_order({key for arm in cell.arms for key in arm.coverage})
    rows = [
        [arm.arm, *(numbers.share(arm.coverage.get(key, 0.0 if arm.coverage else None)) for key in keys)]
        for arm in cell.arms
    ]
    return table("share of the named memory by page size", ["policy", *map(kind_label, keys)], rows, swatch=True)


def proof_table(cell: CellResult) -> Table:
    """Per arm: what it did, what of it is judged, whether it was delivered, by which proof, failures and memory."""
    head = [
        *("policy", "what it does", "judged", "proof", "at the promised size", "undelivered", "unproven", "failed"),
        *("peak memory", "pool reserved"),
    ]
    rows = [
        [
            *(arm.arm, arm.treatment, arm.judged, arm.proof, numbers.share(arm.delivered_share)),
            *(arm.undelivered, arm.unproven, arm.failed),
            *(numbers.size(arm.peak_bytes), numbers.size(arm.pool_bytes)),
        ]
        for arm in cell.arms
    ]
    return table("treatment and delivery (attempts undelivered, unproven, failed)", head, rows, 4, swatch=True)
