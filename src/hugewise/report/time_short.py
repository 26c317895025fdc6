"""Comparisons for which a run's time was too short, and how much would do; the same words in every report."""

from __future__ import annotations

from collections.abc import Iterator

from hugewise.analysis.budget import more_time
from hugewise.model.results import Comparison, Results
from hugewise.stats.power import least_pairs
from hugewise.visible import printable

__all__ = ["time_short"]

_NAMED = 3  # comparisons
_WITH_VERDICTS = ("sequential", "fixed-n")


def time_short(results: Results) -> Iterator[str]:
    """A sentence, where the time was up before comparisons had the pairs that a verdict takes at least."""
    time = results.options.get("budget", {}).get("time")
    every = [
        (cell.cell, one)
        for cell in results.cells
        for one in (*cell.comparisons, *cell.declared)
        if one.method in _WITH_VERDICTS and cell.metric_named(one.metric).better != "neutral"
    ]
    short = [(cell, one, least) for cell, one in every if (least := _least(one)) is not None]
    if results.state != "time is up" or not time or not short:
        return
    fewest, done = min(least for *_, least in short), max(one.n_all for _, one, _ in short)
    if done >= fewest:
        return  # what is lacking is not time
    several = f"{done} pair{'' if done == 1 else 's'}"
    if len(short) == len(every):
        cure = f": {more_time(time * fewest / done, asked=bool(results.command))}" if done else ""
        yield f"The time was up after {several} of each comparison, and a verdict takes at least {fewest}{cure}."
        return
    names = dict.fromkeys(f"{one.arm} on {cell}" for cell, one, _ in short)
    named = printable(", ".join([*names][:_NAMED])) + (
        f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    )
    yield f"The time had no room for a verdict on {named}: {several} at most, and a verdict takes at least {fewest}."


def _least(one: Comparison) -> int | None:
    """The pairs that a verdict of an open comparison takes at least; None where it is not for want of pairs."""
    if one.verdict != "undecided":
        return None
    if one.method == "fixed-n":
        return None if one.final else one.planned
    least = None if one.alpha is None else least_pairs(one.alpha, one.planned)
    return least if least is not None and one.n < least else None
