"""Cells whose load generator kept the whole histogram of its operations."""

from __future__ import annotations

from msgspec.structs import replace

from hugewise.model.over_time import ArmOverTime
from hugewise.model.results import CellResult

__all__ = ["with_operations"]


def with_operations(cell: CellResult) -> CellResult:
    """The cell with three operations of base and of thp, whose slowest took twice as long."""
    return replace(
        cell,
        over_time=tuple(
            ArmOverTime(
                arm=arm,
                block=1,
                number=1,
                of=1,
                length_s=1.0,
                t_s=(),
                memory={},
                events={},
                absent={},
                interval_s=None,
                latency_us=(100.0, 900.0, slowest),
                as_slow=(1.0, 0.01, 0.00002),
            )
            for arm, slowest in (("base", 40_000.0), ("thp", 90_000.0))
        ),
    )
