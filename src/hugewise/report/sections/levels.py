"""Sections of the whole run: levels of the study's factors, settings to use, and how the report is read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from hugewise.model.results import ArmSummary, CellResult, Comparison, Results
from hugewise.report import numbers
from hugewise.report.cell_answers import answers, better_beside, ranked
from hugewise.report.document import Block, Commands, Figure, Folded, Line, Section, Words, file_name
from hugewise.report.figures.levels import bars, groups, lines, numeric
from hugewise.report.figures.theme import colours
from hugewise.report.sentences import arm_of
from hugewise.visible import printable


def levels(results: Results) -> Iterator[Section]:
    """Yield lines for each numeric factor, and grouped bars, if there are such cells."""
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
        found["bars"] = (
            bars(group, palette, results.confidence),
            f"Mean {metric} at every level of {', '.join(map(printable, group.varied))}, in the legend's order",
        )
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
    return Section("How to read this", (Words(tuple(words.items())),), key="reading", only="html")


_BESIDE = "Better in what was declared beside the metric alone: yours to weigh, by the verdicts above"
_FEW = 3  # lines of a file that has the same effect as one above it


def settings(results: Results) -> Iterator[Section]:
    """Yield the commands for each arm that beat its baseline, now and at boot: the best of each cell, then the
    others.
    """
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
    yield Section("Settings to use", (*(blocks or (said,)), *also), key="settings", only="html")
    yield Section("Settings of the winning policies", (*(blocks or (Line(f"{nothing}."),)), *also), only="markdown")


def _winners(cell: CellResult) -> list[ArmSummary]:
    """Return the arms that beat the baseline, the best first."""
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
        if file.instead and len(lines) > _FEW:
            lines = ["# written by: hugewise report RUN --output FOLDER"]
        steps.append((f"{other}{where}{file.path} ({file.scope}; {file.label})", tuple(lines)))
    return Commands(arm.arm, cell.cell, known.note, steps=tuple(steps))


def _joined(several: Iterable[Commands]) -> Iterator[Commands]:
    """Yield commands that differ only in their place as one, in the order of their first places."""
    places: dict[Commands, dict[str, None]] = {}
    for one in several:
        places.setdefault(replace(one, place=""), {})[one.place] = None
    for one, names in places.items():
        yield replace(one, place=", ".join(names))
