"""What was measured: the values of each arm, of each attempt, and of the other metrics."""

from __future__ import annotations

from hugewise.analysis.changes import Values, emulated_away, known_metrics
from hugewise.model.results import ArmSummary, CellResult, Results
from hugewise.report import numbers
from hugewise.report.document import Table, table
from hugewise.report.figures.points import points
from hugewise.report.numbers import NOTHING, Scale
from hugewise.report.sentences import better_direction

__all__ = ["blocks_table", "metrics_table", "statistics_table", "unit_of"]


def unit_of(cell: CellResult) -> Scale:
    """The unit in which the cell's values are shown."""
    return numbers.scale(cell.metric.unit, [arm.mean for arm in cell.arms])


def statistics_table(cell: CellResult, confidence: float) -> Table:
    """Per arm: n, mean and its margin of error, sd, extremes, median, quantiles, the first block."""
    unit = unit_of(cell)
    probabilities = sorted({q for arm in cell.arms for q in arm.quantiles if q != "0.5"}, key=float)
    head = ["policy", "n", "mean", f"± ({numbers.percent(confidence)})", "sd", "min"]
    head += [f"q{float(q) * 100:g}" for q in probabilities if float(q) < 0.5] + ["median"]
    head += [f"q{float(q) * 100:g}" for q in probabilities if float(q) > 0.5] + ["max", "first block"]

    def row(arm: ArmSummary) -> list[object]:
        def show(value: float | None) -> str:
            return unit.number(value, arm.margin)

        low = [show(arm.quantiles.get(q)) for q in probabilities if float(q) < 0.5]
        high = [show(arm.quantiles.get(q)) for q in probabilities if float(q) > 0.5]
        first = show(arm.first)
        if arm.first is not None and arm.median:
            first = f"{first} ({numbers.change(arm.first / arm.median)})"
        return [
            *(arm.arm, arm.n, show(arm.mean), show(arm.margin), show(arm.sd), show(arm.min)),
            *(*low, show(arm.median), *high, show(arm.max), first),
        ]

    caption = (
        f"{cell.metric.name} in {unit.unit} ({better_direction(cell.metric)}); first block: change from the median"
    )
    return table(caption, head, [row(arm) for arm in cell.arms], swatch=True)


def metrics_table(results: Results, cell: CellResult, values: Values | None = None) -> Table:
    """The median of every other metric by arm; a value that the machine cannot give shows the reason."""
    mine = [a for a in results.attempts if a.cell == cell.cell and a.state == "accepted"]
    untold = emulated_away(mine) | {cell.metric.name}
    values = values or Values.of(cell, results.attempts)
    names = [name for name in values.measured if name not in untold]
    known = known_metrics(cell.workload)

    def show(name: str, arm: str) -> str:
        middle, _ = values.median(arm, name)
        if middle is None:
            return f"{NOTHING} ({values.why[arm, name]})" if (arm, name) in values.why else NOTHING
        return numbers.scale(known[name].unit if name in known else "", [middle]).text(middle)

    head = ["metric", *(arm.arm for arm in cell.arms)]
    rows = [[name, *(show(name, arm.arm) for arm in cell.arms)] for name in names]
    return table("medians of the other metrics", head, rows, metrics=True)


def blocks_table(results: Results, cell: CellResult) -> Table:
    """The judged value of every attempt that ended, a block a row; what did not count is named."""
    unit = unit_of(cell)
    found: dict[int, dict[str, list[str]]] = {}
    for point in points(results, cell):
        text = numbers.NOTHING if point.value is None else unit.number(point.value)
        if point.state != "counted":
            text = f"{text} ({point.state})"
        found.setdefault(point.block, {}).setdefault(point.arm, []).append(text)
    rows = [
        [block, *("; ".join(arms.get(arm.arm, [numbers.NOTHING])) for arm in cell.arms)]
        for block, arms in sorted(found.items())
    ]
    return table(f"{cell.metric.name} of each attempt in {unit.unit}", ["block", *(a.arm for a in cell.arms)], rows, 0)
