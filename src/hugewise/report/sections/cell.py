"""All that is known of one cell: its figures, and tables of statistics, attempts, delivery, allocations and trades."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean

import msgspec

from hugewise.analysis.changes import Values, emulated_away, known_metrics
from hugewise.model.results import VERDICTS, ArmSummary, CellResult, Results
from hugewise.quantity import format_size, parse_size
from hugewise.report import numbers
from hugewise.report.document import Block, Bundle, Figure, Heading, Line, Only, Section, Table, file_name, some, table
from hugewise.report.figures import tail
from hugewise.report.figures.coverage import coverage, kind_label, kind_order
from hugewise.report.figures.distribution import distribution, histogram, means
from hugewise.report.figures.effects import effects, heat, heat_caption, heat_rows, narrowed
from hugewise.report.figures.over_time import latencies, pages
from hugewise.report.figures.over_time import within as seconds
from hugewise.report.figures.pareto import first_pairs, pareto, trades
from hugewise.report.figures.tail import time_order
from hugewise.report.figures.theme import colours, points, thinning
from hugewise.report.numbers import NOTHING, Scale, percent
from hugewise.report.sections.beside import stand_in_line
from hugewise.report.sections.effects import (
    changes_table,
    counters_table,
    declared_table,
    effects_table,
    end_points_table,
    reach_table,
    sensitivity_table,
    spread_table,
)
from hugewise.report.sections.over_time import ageing_table, common, idle_table, sampler_line, stalls_table, tail_table
from hugewise.report.sections.run import facts, folded
from hugewise.report.sentences import better_direction, effect_of, metric_line
from hugewise.visible import printable

PREFIX = "allocations_"  # of the metrics; the page size follows


def allocations_table(results: Results, cell: CellResult, values: Values | None = None) -> Table | None:
    """Return rows: arms; columns: sizes. Mean faults served at the size over the accepted attempts, and the bytes of
    these.

    None where no attempt has such counts. A size at which no arm was served is named in the caption instead.
    """
    values = values or Values.of(cell, results.attempts)
    means = {arm.arm: _means(values, arm.arm) for arm in cell.arms}
    every = sorted({size for mean in means.values() for size in mean})
    if not every:
        return None
    used = [size for size in every if any(mean.get(size) for mean in means.values())]
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
                f"{VERDICTS[told.verdict].symbol} {effect_of(told)}",
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


def metrics_table(results: Results, cell: CellResult, values: Values | None = None) -> Table:
    """Return the median of every other metric by arm; a value that the machine cannot give shows the reason."""
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
    """Return the judged value of every attempt that ended, a block a row; what did not count is named."""
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


def cell(results: Results, number: int, of: CellResult) -> Section:
    """Return the section of the cell `number`, from 1."""
    mine = tuple(
        attempt for attempt in results.attempts if attempt.cell == of.cell
    )  # once: a run may have a million in many cells
    results = msgspec.structs.replace(results, attempts=mine)
    values = Values.of(of, results.attempts)
    drawn = _figures(results, number, of, values)
    shared = common(of)
    workload = f"Workload {of.workload}."
    return Section(
        f"{number}. {of.cell}",
        (
            Only("html", (Line(f"{workload} {metric_line(of.metric)}. Baseline: {of.baseline}.", quiet=True),)),
            Only("markdown", (Line(workload),)),
            *some(Line(shared, quiet=True) if shared else None, stand_in_line(of)),
            Bundle("grid", some(drawn.get("means"), drawn.get("distribution"))),
            *some(drawn.get("histogram"), drawn.get("tail")),
            statistics_table(of, results.confidence),
            Only("html", (Heading("Effects"),)),
            *some(
                drawn.get("effects"),
                effects_table(of),
                reach_table(of),
                spread_table(of),
                end_points_table(of),
                declared_table(of),
                sensitivity_table(of),
                drawn.get("pareto"),
                trades_table(of),
                drawn.get("heat"),
                changes_table(results, of, values),
                counters_table(results, of),
                allocations_table(results, of, values),
                drawn.get("operations"),
                tail_table(of),
            ),
            Bundle(
                "grid",
                (
                    _part("Which pages really backed the memory", drawn.get("coverage")),
                    _part("Order in time", drawn.get("time-order")),
                ),
            ),
            *some(
                drawn.get("within"),
                drawn.get("latencies"),
                stalls_table(of),
                drawn.get("pages"),
                idle_table(of),
                sampler_line(of),
            ),
            coverage_table(of),
            proof_table(of),
            *some(ageing_table(of)),
            folded(blocks_table(results, of)),
            folded(metrics_table(results, of, values)),
            folded(facts("parameters of the workload", of.parameters, titled=True)),
        ),
        key=f"cell-{number}",
    )


def _part(title: str, figure: Block | None) -> Bundle:
    return Bundle("part", (Only("html", (Heading(title),)), *some(figure)))


def _figures(results: Results, number: int, of: CellResult, values: Values) -> Mapping[str, Figure]:
    """Return the figures by kind; a figure without data is left out."""
    palette, level = colours(results), percent(results.confidence)
    attempts = points(results, of)
    thin = thinning(attempts)
    changed, traded = heat_rows(of, values), trades(of)
    metric, name, base = (printable(text) for text in (of.metric.name, of.cell, of.baseline))
    found = {
        "means": (
            means(of, palette, results.confidence),
            f"Mean {metric} of each policy with {level} intervals",
            "Means of the accepted attempts, with the interval of each policy by itself. The verdict rests on pairs "
            "within blocks, not on these.",
        ),
        "distribution": (
            distribution(attempts, of, palette),
            f"{metric} of every attempt, by policy",
            "Every point is one attempt; box: quartiles, line: median. Failed attempts stand at the bad edge." + thin,
        ),
        "histogram": (
            histogram(attempts, of, palette),
            f"How the attempts' {metric} is spread, by policy, with each mean",
            "How the attempts are spread, in common bins; dashed: the mean of the policy's counted attempts.",
        ),
        "tail": (
            tail.of_attempts(attempts, of, palette),
            f"Share of the attempts whose {metric} was as large or larger, by policy, on a logarithmic scale",
            "The tail: what share of the attempts took as long as a value or longer. From one line across to the next "
            "are ten times fewer; the last point is the slowest attempt.",
        ),
        "operations": (
            tail.of_operations(of, palette),
            "Share of the operations that took as long or longer, by policy, on logarithmic scales",
            "Every operation of the middle attempt of each policy: what share took as long as a value or longer. One "
            "attempt each, so that curves that cross far down may do so by chance; the table compares attempts.",
        ),
        "heat": (
            heat(of, changed),
            f"Change of every metric against {base}, by policy, as a table of colours",
            heat_caption(changed, of.baseline),
        ),
        "pareto": (
            pareto(of, traded, palette),
            f"What each policy gains in {metric} against the memory that it takes more than {base}, with intervals",
            "Gain against memory, each with its interval; the baseline is where the dashed lines cross. The thin line "
            "joins what no other policy beats in both, by the estimates. Memory is that at the proof, in use: what "
            f"of a pool is reserved beyond that is not in it{first_pairs(traded)}.",
        ),
        "effects": (
            effects(of, palette, results.margin),
            f"Change of {metric} against {base}, with intervals and the band of ±{percent(results.margin)}",
            "Paired effects with their intervals; an interval within the grey band is equivalent.",
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
        "within": (
            seconds(results, of, palette),
            "Throughput in each second of the measured part: median of the attempts and quartiles, by policy",
            "Throughput in each second of the measured part: the median of the attempts, in the band of their "
            "quartiles. A line that slopes had not settled.",
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
        kind: Figure(
            f"{number}-{kind}",
            f"{stem}_{kind}",
            f"{text} ({name}).",
            spec,
            caption,
            narrowed(spec) if kind == "effects" else None,
        )
        for kind, (spec, text, caption) in found.items()
        if spec
    }
