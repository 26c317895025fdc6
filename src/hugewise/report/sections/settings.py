"""What to set: the commands of the policies that beat their baseline, once for all cells that share them, the best of
each cell first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from hugewise.model.results import ArmSummary, CellResult, Comparison, Results
from hugewise.report.cell_answers import answers, better_beside, ranked
from hugewise.report.document import Block, Commands, Folded, Line, Section
from hugewise.report.sentences import arm_of

__all__ = ["settings"]

_BESIDE = "Better in what was declared beside the metric alone: yours to weigh, by the verdicts above"
_FEW = 3  # lines of a file that has the same effect as one above it


def settings(results: Results) -> Iterator[Section]:
    """For each arm that beat its baseline what to type, now and at boot: the best of each cell, then the others."""
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
    """The arms that beat the baseline, the best first."""
    return _arms(cell, [one for one in ranked(cell) if one.verdict == "better"])


def _arms(cell: CellResult, several: Iterable[Comparison]) -> list[ArmSummary]:
    return [arm for one in several if (arm := arm_of(cell, one.arm)) is not None]


def _commands(cell: CellResult, arm: ArmSummary) -> Commands:
    known = arm.deployment
    if known is None:
        return Commands(arm.arm, cell.cell, None, arm.treatment)
    steps = [("Now", known.now), ("At boot", known.boot)]  # of runs that were made before deployments were files
    for file in known.files:
        where = "in the guest: " if file.on == "guest" else ""
        other = "or: " if file.instead else ""
        lines = [line for line in file.content.splitlines() if line not in ("", "#!/bin/sh", "set -eu")]
        if file.instead and len(lines) > _FEW:
            lines = ["# written by: hugewise report RUN --output FOLDER"]
        steps.append((f"{other}{where}{file.path} ({file.scope}; {file.label})", tuple(lines)))
    return Commands(arm.arm, cell.cell, known.note, steps=tuple(step for step in steps if step[1]))


def _joined(several: Iterable[Commands]) -> Iterator[Commands]:
    """Those that are the same but for their place as one, in the order of their first places."""
    places: dict[Commands, dict[str, None]] = {}
    for one in several:
        places.setdefault(replace(one, place=""), {})[one.place] = None
    for one, names in places.items():
        yield replace(one, place=", ".join(names))
