"""Section of one cell: its figures, and tables of statistics, attempts, delivery, allocations and trades."""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

from hugewise.model.results import VERDICTS, ArmSummary, CellResult, Results
from hugewise.report import numbers
from hugewise.report.document import Figure, Line, Section, Table, file_name, some, table
from hugewise.report.figures.distribution import distribution
from hugewise.report.figures.drift import time_order
from hugewise.report.figures.pages import coverage, kind_label, kind_order, latencies, pages
from hugewise.report.figures.theme import colours, points, thinning
from hugewise.report.numbers import NOTHING, Scale, percent
from hugewise.report.remarks import control_of
from hugewise.report.sections.beside import stand_in_line
from hugewise.report.sections.effects import (
    changes_table,
    effects_table,
    reach_table,
    sensitivity_table,
)
from hugewise.report.sections.over_time import ageing_table, common, sampler_line, stalls_table, tail_table
from hugewise.report.sections.run import facts, folded
from hugewise.report.sentences import better_direction, effect_of, metric_line
from hugewise.visible import printable


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


def trades_table(cell: CellResult) -> Table | None:
    """Return a row for each arm: the change of the judged metric, of the memory, and the memory for each percent
    gained.

    None where no arm differs from the baseline in memory, or the cell is judged by memory itself.
    """
    if cell.metric.better == "neutral" or cell.metric.unit == "bytes":
        return None
    footprints = {footprint.arm: footprint for footprint in cell.footprints if footprint.ratio is not None}
    if all(footprint.ratio == 1 for footprint in footprints.values()):
        return None
    rows, fewest = [], None
    for comparison in cell.comparisons:
        memory = footprints.get(comparison.arm)
        if memory is None or memory.ratio is None or comparison.ratio is None or not 0 < comparison.ratio < math.inf:
            continue
        gained = 100 * (comparison.ratio - 1) * (-1 if cell.metric.better == "lower" else 1)
        paid = memory.value_baseline * (memory.ratio - 1)
        if memory.n < comparison.n:
            fewest = max(fewest or 0, memory.n)
        rows.append(
            (
                comparison.arm,
                f"{VERDICTS[comparison.verdict].symbol} {effect_of(comparison)}",
                numbers.size(memory.value_baseline),
                numbers.size(memory.value),
                numbers.effect(memory.ratio, memory.low, memory.high, memory.n if memory.constant else None),
                numbers.size(paid / gained) if gained > 0 and paid > 0 else NOTHING,
            )
        )
    if not rows:
        return None
    first = "" if fewest is None else f"; the interval of memory is of the first {fewest:,} pairs"
    caption = (
        f"speed and memory: the change of {cell.metric.name}, the median memory at the proof and its change within "
        f"pairs with the {percent(next(iter(footprints.values())).confidence)} interval by itself, and memory for each "
        f"percent that is gained{first}"
    )
    head = ("policy", cell.metric.name, cell.baseline, "with the policy", "change of memory", "for each percent")
    return table(caption, head, rows, 2, swatch=True)


def unit_of(cell: CellResult) -> Scale:
    """Return the unit in which the cell's values are shown."""
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


def cell(results: Results, number: int, of: CellResult) -> Section:
    """Return the section of the cell `number`, from 1."""
    mine = tuple(attempt for attempt in results.attempts if attempt.cell == of.cell)
    results = msgspec.structs.replace(results, attempts=mine)  # once: a run may have a million in many cells
    drawn = _figures(results, number, of)
    shared = common(of)
    return Section(
        f"{number}. {of.cell}",
        (
            Line(f"Workload {of.workload}. {metric_line(of.metric)}. Baseline: {of.baseline}.", quiet=True),
            *some(
                Line(shared, quiet=True) if shared else None,
                Line(f"Control: {control}.") if (control := control_of(of)) is not None else None,
                stand_in_line(of),
                drawn.get("distribution"),
                statistics_table(of, results.confidence),
                effects_table(of),
                reach_table(of),
                sensitivity_table(of),
                trades_table(of),
                changes_table(results, of),
                tail_table(of),
                drawn.get("latencies"),
                stalls_table(of),
                drawn.get("coverage"),
                coverage_table(of),
                proof_table(of),
                drawn.get("pages"),
                sampler_line(of),
                ageing_table(of),
                drawn.get("time-order"),
            ),
            folded(facts("parameters of the workload", of.parameters)),
        ),
        key=f"cell-{number}",
    )


def _figures(results: Results, number: int, of: CellResult) -> Mapping[str, Figure]:
    # by kind; a figure without data is left out
    palette, attempts = colours(results), points(results, of)
    thin = thinning(attempts)
    metric, name = printable(of.metric.name), printable(of.cell)
    found = {
        "distribution": (
            distribution(attempts, of, palette),
            f"{metric} of every attempt, by policy",
            "Every point is one attempt; box: quartiles, line: median. Failed attempts stand at the bad edge." + thin,
        ),
        "coverage": (
            coverage(of),
            "Share of the named memory by page size, by policy",
            "Mean share of the named memory by page size, over the accepted attempts.",
        ),
        "time-order": (
            time_order(attempts, of, palette),
            f"{metric} of every attempt against its start time, as deviation from its policy's median",
            "A common slope is drift of the machine. Rings mark the first block; points beyond the axis stand at its "
            "edge." + thin,
        ),
        "latencies": (
            latencies(of, palette),
            "Operations and 99th percentile of the latency in each second of the middle attempt of each policy",
            "The middle attempt of each policy, second by second. Marks above p99: what the whole machine counted "
            "between two readings that was more than twice what is usual in that attempt; it need not be the cause.",
        ),
        "pages": (
            pages(of),
            "Memory of the whole machine by page size over time, in the middle attempt of each policy",
            "Anonymous memory and pages of pools over time, by page size, in the middle attempt of each policy: of the "
            "whole machine, other processes and what came before the measured part with it.",
        ),
    }
    stem = file_name(number, of.cell)
    return {
        kind: Figure(f"{number}-{kind}", f"{stem}_{kind}", f"{text} ({name}).", spec, caption)
        for kind, (spec, text, caption) in found.items()
        if spec
    }
