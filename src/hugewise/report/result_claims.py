"""What became of each published claim, by what the runs of a page found. Pure.

A claim is confirmed, contradicted, or not decidable on the machine of the runs; where runs disagree none of it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

from hugewise.model.published_rows import Measured, PublishedFinding, PublishedPoint
from hugewise.model.results import Results
from hugewise.report.sections import beside
from hugewise.report.sentences import effect_of

__all__ = ["STANDINGS", "Claimed", "Standing", "claim_line", "claimed"]

Standing = Literal["confirmed here", "contradicted here", "not decidable here"]
STANDINGS: tuple[Standing, ...] = ("confirmed here", "contradicted here", "not decidable here")
_STANDING: Mapping[str, Standing] = {
    "same sign": "confirmed here",
    "same trend": "confirmed here",
    "no effect in either": "confirmed here",
    "opposite sign": "contradicted here",
    "opposite trend": "contradicted here",
    "equivalent here": "contradicted here",
    "an effect here, none published": "contradicted here",
}


class Claimed(NamedTuple):
    """A published figure or finding as the newest run has it beside its own, and what became of it over all runs."""

    row: PublishedPoint | PublishedFinding
    standing: Standing
    how: str


def claimed(runs: Iterable[Results]) -> list[Claimed]:
    """Every figure and finding of the source; `runs`: the newest first. Where they disagree, nothing is decided: a
    later run does not undo an earlier one.
    """
    newest, *older = map(_standings, runs)
    found = []
    for key, (row, word, how) in newest.items():
        others = {run[key].standing for run in older if key in run}
        decided = ({word} | others) - {"not decidable here"}
        if len(decided) == 2:
            found.append(Claimed(row, "not decidable here", f"{how}; an earlier run says otherwise"))
        else:
            found.append(Claimed(row, word, how))
    return found


def _standings(results: Results) -> dict[tuple[str, ...], Claimed]:
    """By what they are of."""
    if results.beside is None:
        return {}
    rows: list[PublishedPoint | PublishedFinding] = [*results.beside.points, *results.beside.findings]
    return {_key(one): Claimed(one, *_standing(one, results.margin)) for one in rows}


def _key(one: PublishedPoint | PublishedFinding) -> tuple[str, ...]:
    of = (one.quantity, one.cell) if isinstance(one, PublishedPoint) else (one.words, one.condition)
    return (one.entry, *of, one.arm, one.baseline, one.policy)


def _standing(one: PublishedPoint | PublishedFinding, margin: float) -> tuple[Standing, str]:
    """What an agreement (`analysis.signs`) makes of a published claim, on the machine of the run, and the agreement."""
    word = _STANDING.get(one.agreement, "not decidable here")
    small = isinstance(one, PublishedPoint) and one.percent is not None and abs(one.percent) / 100 <= margin
    if one.agreement == "equivalent here" and small:
        return "not decidable here", f"{one.agreement}, and what was published is within that margin"
    return word, one.agreement


def claim_line(one: PublishedPoint | PublishedFinding) -> str:
    """A line: what the source says, what was found, and why they cannot be held against each other."""
    if isinstance(one, PublishedPoint):
        said = f"{one.entry}, {one.quantity}: {one.arm} against {one.baseline} {beside.published_change(one)}"
        found = [_found(one.cell, one.measured)] if one.measured is not None else []
    else:
        said = f"{one.entry}: “{beside.published_words(one)}” ({one.arm} against {one.baseline})"
        found = [_found(level.cell, level.measured) for level in one.measured if level.measured is not None]
    reasons = {one.reason} if isinstance(one, PublishedPoint) else {one.reason, *(each.reason for each in one.measured)}
    why = f"; {'; '.join(sorted(filter(None, reasons)))}" if any(reasons) else ""
    return f"{said}. Here: {'; '.join(found) or 'nothing'}{why}"


def _found(cell: str, measured: Measured) -> str:
    effect = f"{cell}, {measured.arm}: {measured.metric} {effect_of(measured)}, n {measured.n}"
    told = effect if measured.verdict == "not judged" else f"{effect}, {measured.verdict}"
    return f"{told}, {words}" if (words := ", ".join(measured.stand_ins)) else told
