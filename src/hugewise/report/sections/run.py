"""The whole run: what was left out, failed or was disturbed, host and options, levels of the study's factors, settings
to use, and how the report is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from hugewise.model.results import ArmSummary, CellResult, Comparison, Results
from hugewise.model.trial import Attempt
from hugewise.quantity import format_duration
from hugewise.report import numbers
from hugewise.report.cell_answers import answers, better_beside, ranked
from hugewise.report.document import (
    Block,
    Commands,
    Figure,
    Folded,
    Line,
    Points,
    Section,
    Table,
    file_name,
    table,
)
from hugewise.report.figures.levels import groups, lines, numeric
from hugewise.report.figures.theme import colours
from hugewise.report.numbers import NOTHING
from hugewise.report.remarks import earlier
from hugewise.report.sections.effects import alpha_table
from hugewise.report.sentences import arm_of
from hugewise.visible import printable

_OPEN = ("the run", "host")  # tables that are shown at once
_FEW = 12  # disturbances that are shown at once


def left_out(results: Results) -> Section:
    """Return what the plan left out before anything ran."""
    rows = [(part.what, part.reason) for part in results.left_out]
    shown = table("left out before anything ran", ("what", "why"), rows, 2)
    return Section("Left out, and why", (shown,), key="left-out", nav="Left out")


def trouble(results: Results) -> Section:
    """Return the disturbances, and every attempt that failed or did not count."""
    lines = Points(results.disturbances)
    many = len(lines.lines)
    found: Block = Line("Nothing was noticed.", quiet=True)
    if many:
        found = Folded(f"Noticed while it was measured ({many})", (lines,), open=many <= _FEW)
    return Section("Failures and disturbances", (found, _failures_table(results)), key="trouble", nav="Failures")


def run(results: Results) -> Section:
    """Return the ledger, the run, its host and its options."""
    tables = (
        alpha_table(results),
        run_table(results),
        facts("host", results.host),
        facts("page settings before the run", results.settings),
        facts("versions", results.versions),
        facts("study options as used", results.options),
    )
    return Section("Run and host", tuple(folded(one) for one in tables if one is not None), key="run")


def folded(one: Table) -> Folded:
    """Return a table behind its caption."""
    return Folded(f"{one.caption[0].upper()}{one.caption[1:]}", (one,), open=one.caption in _OPEN)


def _failures_table(results: Results) -> Table:
    rows = [(a.cell, a.arm, a.block, a.number, state, why) for a in results.attempts for state, why in _trouble(a)]
    caption = "attempts that failed, were rejected or abandoned, or were not delivered"
    return table(caption, ("cell", "policy", "block", "attempt", "what", "why"), rows, 6)


def _trouble(attempt: Attempt) -> Iterable[tuple[str, str]]:
    if attempt.state == "abandoned":
        yield attempt.state, attempt.reason or "its block was not completed, or disturbed: it counts in no pair"
    elif attempt.state != "accepted":
        how = f"signal {attempt.signal}" if attempt.signal else f"exit {attempt.exit_code}"
        yield attempt.state, attempt.reason or how
    elif attempt.delivery.delivered is False:
        yield (
            "not delivered",
            f"{attempt.delivery.reason or ''} ({numbers.share(attempt.delivery.share)} delivered)".strip(),
        )


def run_table(results: Results) -> Table:
    """Return the run itself: times, state, blocks, seed."""
    blocks = (results.blocks_complete, results.blocks_incomplete, results.blocks_disturbed)
    rows = [
        ("run", results.run),
        ("folder", results.folder),
        ("state", results.state),
        ("started", numbers.when(results.started)),
        ("took", format_duration(max(results.ended - results.started, 0.0))),
        ("blocks complete, incomplete, disturbed", ", ".join(map(str, blocks))),
        ("confidence", numbers.percent(results.confidence)),
        ("margin of equivalence", f"±{numbers.percent(results.margin)}"),
        ("mechanism", results.mechanism),
        ("earlier runs", earlier(results, None)),
        ("seed's hash, committed before the first block", results.seed_hash),
        ("seed, revealed at the end", results.seed or "not revealed: the run has not ended"),
    ]
    return table("the run", ("key", "value"), rows, 2)


def facts(caption: str, values: Mapping[str, Any]) -> Table:
    """Nested facts (host, versions, settings, options), a line a leaf: `cpu.model`."""
    return table(caption, ("key", "value"), list(_leaves("", values)), 2)


def _leaves(prefix: str, value: Any) -> Iterable[tuple[str, str]]:
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _leaves(f"{prefix}.{key}" if prefix else str(key), inner)
    elif isinstance(value, list | tuple) and any(isinstance(inner, Mapping | list | tuple) for inner in value):
        for number, inner in enumerate(value):
            yield from _leaves(f"{prefix}[{number}]", inner)
    elif isinstance(value, list | tuple):
        yield prefix, ", ".join(str(inner) for inner in value) or NOTHING
    elif isinstance(value, bool):
        yield prefix, "yes" if value else "no"
    elif isinstance(value, int) and prefix.endswith("bytes"):
        yield prefix, f"{numbers.size(value)} ({value:,})"
    else:
        yield prefix, NOTHING if value is None or value == {} else str(value)


def levels(results: Results) -> Iterator[Section]:
    """Yield lines for each numeric factor."""
    if found := tuple(_figures(results)):
        yield Section("Over the levels of the factors", found, key="levels", nav="Over the levels")


def _figures(results: Results) -> Iterator[Figure]:
    palette = colours(results)
    for number, group in enumerate(groups(results.cells), 1):
        metric, label = printable(group.cells[0].metric.name), printable(group.label)
        found = {
            f"lines-{name}": (
                lines(group, name, palette, results.confidence),
                f"Mean {metric} over {printable(name)}, a line for each policy; a line joins means, and claims nothing "
                "between them",
            )
            for name in group.varied
            if numeric(group, name)
        }
        for kind, (spec, text) in found.items():
            if spec:
                key = f"across-{number}-{file_name(number, kind).partition('-')[2]}"
                yield Figure(key, f"{key}_{file_name(number, group.label)}", f"{text} ({label}).", spec)


def reading(results: Results) -> Section:
    """Return the words of a report, once, at its end."""
    words = {
        "Ratio and change": "Always policy/baseline. The metric's direction says whether lower or higher is better.",
        "Block": "Adjacent attempts of one workload, each policy once, in random order: the unit that is counted.",
        "▲ better, ▼ worse": "The interval lies on one side of no change, and is not within the margin.",
        "= equivalent": f"The whole interval lies within ±{numbers.percent(results.margin)}.",
        "? undecided": "The interval allows both; the largest effect still possible is given once both ends are known.",
        "At least, at most": "The interval has one end; nothing bounds the effect on the other side, where figures "
        "have an arrow.",
        "An arrow in a figure": "The interval leaves the figure's scale there. Tables have its ends, where it "
        "has them.",
        "– none": "No verdict can be given, for the reason that is stated.",
    }
    if results.beside is not None:
        words["Published"] = (
            "Copied from the source that is named, digit for digit, and never computed. “Same sign”: the verdict here "
            "excludes no change, on the side that was published; an undecided comparison has no sign."
        )
    words["Delivered"] = (
        "The pages that the policy promises really backed the memory of the attempt, shown by page flags or another "
        "stated proof."
    )
    return Section(
        "How to read this", (Points(tuple(f"{word}: {meaning}" for word, meaning in words.items())),), key="reading"
    )


_BESIDE = "Better in what was declared beside the metric alone: yours to weigh, by the verdicts above"
_SHORT = 3  # lines of a file that has the same effect as one above it


def settings(results: Results) -> Section:
    """Return commands for each arm that beat its baseline, now and at boot: the best of each cell first."""
    best: list[Commands] = []
    others: list[Commands] = []
    beside: list[Commands] = []
    for cell, answer in zip(results.cells, answers(results), strict=True):
        for place, arm in enumerate(_winners(cell)):
            made = _commands(cell, arm)
            if not place and answer.state == "weigh":
                made = replace(made, place=f"{made.place} (yours to weigh)")
            (others if place else best).append(made)
        beside += [_commands(cell, arm) for arm in _arms(cell, better_beside(cell))]
    first = tuple(_joined(best))
    told = {replace(one, place="") for one in first}
    rest = tuple(one for one in _joined(others) if replace(one, place="") not in told)
    blocks: tuple[Block, ...] = first
    if rest:
        blocks += (Folded("Others that were better than their baseline", rest, long=True),)
    more = tuple(_joined(beside))
    also: tuple[Block, ...] = (Folded(_BESIDE, more, long=True),) if more else ()
    nothing = "No policy was better than its baseline"
    if more:
        nothing += " in the metric that its cell is judged by"
    said = Line(f"{nothing}, so there is nothing to set{' for that alone' if more else ''}.")
    return Section("Settings to use", (*(blocks or (said,)), *also), key="settings")


def _winners(cell: CellResult) -> list[ArmSummary]:
    return _arms(cell, [comparison for comparison in ranked(cell) if comparison.verdict == "better"])


def _arms(cell: CellResult, several: Iterable[Comparison]) -> list[ArmSummary]:
    return [arm for one in several if (arm := arm_of(cell, one.arm)) is not None]


def _commands(cell: CellResult, arm: ArmSummary) -> Commands:
    known = arm.deployment
    if known is None:
        return Commands(arm.arm, cell.cell, None, arm.treatment)
    steps: list[tuple[str, tuple[str, ...]]] = []
    for file in known.files:
        where = "in the guest: " if file.on == "guest" else ""
        other = "or: " if file.instead else ""
        lines = [line for line in file.content.splitlines() if line not in ("", "#!/bin/sh", "set -eu")]
        if file.instead and len(lines) > _SHORT:
            lines = ["# written by: hugewise report RUN --output FOLDER"]
        steps.append((f"{other}{where}{file.path} ({file.scope}; {file.label})", tuple(lines)))
    return Commands(arm.arm, cell.cell, known.note, steps=tuple(steps))


def _joined(several: Iterable[Commands]) -> Iterator[Commands]:
    places: dict[Commands, dict[str, None]] = {}
    for one in several:
        places.setdefault(replace(one, place=""), {})[one.place] = None
    for one, names in places.items():
        yield replace(one, place=", ".join(names))
