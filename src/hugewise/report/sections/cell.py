"""All that is known of one cell: its figures, and the tables of the other sections' builders."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from hugewise.analysis.changes import Values
from hugewise.model.results import CellResult, Results
from hugewise.report.document import Block, Bundle, Figure, Heading, Line, Only, Section, some
from hugewise.report.figures import heat, tail
from hugewise.report.figures.coverage import coverage
from hugewise.report.figures.distribution import distribution
from hugewise.report.figures.effects import effects
from hugewise.report.figures.histogram import histogram
from hugewise.report.figures.means import means
from hugewise.report.figures.over_time import latencies, pages
from hugewise.report.figures.pareto import first_pairs, pareto, trades
from hugewise.report.figures.points import points, thinning
from hugewise.report.figures.theme import colours
from hugewise.report.figures.time_order import time_order
from hugewise.report.figures.within import within as seconds
from hugewise.report.names import file_name
from hugewise.report.numbers import percent
from hugewise.report.sections import within
from hugewise.report.sections.ageing import ageing_table
from hugewise.report.sections.allocations import allocations_table
from hugewise.report.sections.changes import changes_table, counters_table
from hugewise.report.sections.delivery import coverage_table, proof_table
from hugewise.report.sections.effects import (
    declared_table,
    effects_table,
    end_points_table,
    reach_table,
    sensitivity_table,
    spread_table,
)
from hugewise.report.sections.over_time import idle_table, sampler_line, stalls_table, tail_table
from hugewise.report.sections.run import facts, folded
from hugewise.report.sections.stand_ins import stand_in_line
from hugewise.report.sections.trades import trades_table
from hugewise.report.sections.values import blocks_table, metrics_table, statistics_table
from hugewise.report.sentences import metric_line
from hugewise.visible import printable

__all__ = ["cell"]


def cell(results: Results, number: int, of: CellResult) -> Section:
    """The section of the cell `number`, from 1."""
    mine = tuple(one for one in results.attempts if one.cell == of.cell)  # once: a run may have a million in many cells
    results = msgspec.structs.replace(results, attempts=mine)
    values = Values.of(of, results.attempts)
    drawn = _figures(results, number, of, values)
    shared = within.common(of)
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
    """By kind; a figure without data is left out."""
    palette, level = colours(results), percent(results.confidence)
    attempts = points(results, of)
    thin = thinning(attempts)
    changed, traded = heat.heat_rows(of, values), trades(of)
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
            heat.heat(of, changed),
            f"Change of every metric against {base}, by policy, as a table of colours",
            heat.caption(changed, of.baseline),
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
        kind: Figure(f"{number}-{kind}", f"{stem}_{kind}", f"{text} ({name}).", spec, caption)
        for kind, (spec, text, caption) in found.items()
        if spec
    }
