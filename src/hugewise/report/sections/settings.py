"""What to set: the commands of the policies that beat their baseline."""

from __future__ import annotations

from collections.abc import Iterator

from hugewise.model.results import CellResult, Comparison, Results
from hugewise.report.document import Commands, Line, Section
from hugewise.report.sentences import arm_of, winners

__all__ = ["brief", "settings"]


def settings(results: Results) -> Iterator[Section]:
    """For each arm that beat its baseline what to type, now and at boot."""
    blocks = []
    for cell, comparison, arm in winners(results):
        known = arm.deployment
        steps = (("Now", known.now), ("At boot", known.boot)) if known else ()
        told = tuple(step for step in steps if step[1])
        blocks.append(Commands(comparison.arm, cell.cell, known.note if known else None, arm.treatment, told))
    nothing = "No policy was better than its baseline"
    said = Line(f"{nothing}, so there is nothing to set.")
    yield Section("Settings to use", tuple(blocks) or (said,), key="settings", only="html")
    yield Section("Settings of the winning policies", tuple(blocks) or (Line(f"{nothing}."),), only="markdown")


def brief(results: Results) -> Iterator[Section]:
    """For a terminal: what to type now for the best policy of each cell; cells with the same commands together."""
    best: dict[str, tuple[CellResult, Comparison]] = {}
    for cell, comparison, _ in winners(results):
        known = best.get(cell.cell)
        if known is None or _distance(comparison) > _distance(known[1]):
            best[cell.cell] = (cell, comparison)
    found: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for name, (cell, comparison) in best.items():
        arm = arm_of(cell, comparison.arm)
        if arm is not None and arm.deployment is not None and arm.deployment.now:
            found.setdefault((comparison.arm, arm.deployment.now), []).append(name)
    if found:
        told = tuple(Commands(arm, ", ".join(cells), "", steps=(("now", now),)) for (arm, now), cells in found.items())
        yield Section("To set the best policy of a cell now (at boot: see the report)", told)


def _distance(comparison: Comparison) -> float:
    ratio = comparison.ratio
    return 1.0 if ratio is None or ratio <= 0 else max(ratio, 1 / ratio)
