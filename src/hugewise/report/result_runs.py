"""Of each run on a page of results: what it was, where, and what is needed to make it again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from hugewise.model.results import CellResult, Results
from hugewise.quantity import format_duration
from hugewise.report import numbers
from hugewise.report.document import Block, table
from hugewise.report.numbers import NOTHING

__all__ = ["facts"]


def facts(runs: Iterable[Results]) -> Block:
    """Each run with all that is needed to make it again."""
    rows: list[tuple[object, ...]] = []
    for found in runs:
        rows += [
            ("run", f"{found.run}, {found.state}, {numbers.when(found.started)}"),
            ("took", format_duration(max(found.ended - found.started, 0.0))),
            ("study", _study(found)),
            ("machine", _machine(found)),
            ("seed", found.seed or NOTHING),
            ("last running hash", (found.integrity and found.integrity.hash) or NOTHING),
            ("blocks disturbed or incomplete", f"{found.blocks_disturbed}, {found.blocks_incomplete}"),
            ("memory delivered as promised", _delivered(found.cells)),
        ]
    return table("the runs", ("what", "of it"), rows, 2)


def _study(results: Results) -> str:
    scale = results.options.get("scale")
    return f"{results.study}, as its run has it{f', at the scale {scale}' if scale else ''}"


def _machine(results: Results) -> str:
    def of(kind: str, name: str) -> object:
        known = results.host.get(kind)
        return known.get(name) if isinstance(known, Mapping) else None

    cpus, total = of("cpu", "count"), of("memory", "total_bytes")
    parts = [
        of("cpu", "model"),
        f"{cpus} CPUs" if cpus else None,
        numbers.size(total) if isinstance(total, int) else None,
        f"kernel {of('kernel', 'release')}" if of("kernel", "release") else None,
    ]
    return ", ".join(str(part) for part in parts if part) or NOTHING


def _delivered(cells: Sequence[CellResult]) -> str:
    shares = [arm.delivered_share for cell in cells for arm in cell.arms if arm.delivered_share is not None]
    return f"{numbers.share(min(shares))} to {numbers.share(max(shares))} over the arms" if shares else NOTHING
