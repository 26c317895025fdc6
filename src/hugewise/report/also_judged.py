"""What a study declared to judge beside a cell's own metric, as its answer tells it: which policy is better or worse in
what, by how much, and what is open. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from hugewise.model.metric import Metric
from hugewise.model.results import CellResult, Comparison
from hugewise.report.sentences import effect_of, listed
from hugewise.stats.end_points import END_POINTS
from hugewise.visible import printable

__all__ = [
    "Also",
    "also_judged",
    "arms_of",
    "decided",
    "in_exact_words",
    "in_short",
    "of_arm",
    "of_arm_decided",
    "of_each",
]

_END_POINTS = {"mean": "mean {}", "slow": "rate of slow runs by {}", "p99": "{} of the worst hundredth of runs"}

_WORDS: Mapping[str, str] = {"worse": "worse", "better": "better", "undecided": "open"}
"""What an answer says beside the metric: a word for each verdict, the gravest first."""


class Also(NamedTuple):
    """A comparison beside those of the cell's own metric.

    name       of its metric; of an end point, what it looks at
    end_point  what is judged of the cell's own metric; empty of another metric
    """

    name: str
    metric: Metric
    comparison: Comparison
    end_point: str = ""


def also_judged(cell: CellResult, arm: str | None = None) -> Iterator[Also]:
    """End points of the cell's metric, and metrics declared beside it, in the study's order; of one arm, or of all."""
    own = cell.metric
    found = [Also(printable(_end_point(own.name, one.estimand)), own, one, one.estimand) for one in cell.end_points]
    found += [Also(printable(one.metric), cell.metric_named(one.metric), one) for one in cell.declared]
    yield from (one for one in found if arm in {None, one.comparison.arm})


def _with_effect(one: Also) -> str:
    """A rate of slow runs is no ratio, and has none."""
    return one.name if one.comparison.ratio is None else f"{one.name} {effect_of(one.comparison)}"


def _end_point(metric: str, estimand: str) -> str:
    """What an end point looks at, in a few words; the design may have added to its estimand."""
    for kind, words in _END_POINTS.items():
        if estimand.startswith(END_POINTS[kind].estimand):
            return words.format(metric)
    return f"{metric} ({estimand})"


def decided(cell: CellResult, arm: str, verdict: str) -> list[Also]:
    """Of an arm what ended in that verdict, of what is judged by a direction."""
    found = also_judged(cell, arm)
    return [one for one in found if one.comparison.verdict == verdict and one.metric.better != "neutral"]


def in_short(cell: CellResult, arm: str) -> str:
    """`worse in p99_us, and better in fork_us and cow_bytes, and open in wall_s`; empty where nothing is said of it."""
    return ", and ".join(_told(cell, arm, _WORDS, _name))


def of_each(cell: CellResult, first: Iterable[str]) -> str:
    """The same of each arm by its name, these first: `thp` is worse in p99_us; empty where nothing is said of any."""
    return "; ".join(f"`{printable(arm)}` is {told}" for arm in arms_of(cell, first) if (told := in_short(cell, arm)))


def arms_of(cell: CellResult, first: Iterable[str]) -> list[str]:
    """The arms of which something is judged beside the metric, these first."""
    there = dict.fromkeys(one.comparison.arm for one in also_judged(cell))
    return list(dict.fromkeys((*(arm for arm in first if arm in there), *there)))


def in_exact_words(cell: CellResult, first: Iterable[str]) -> str:
    """``declared beside it: `thp` worse in p99_us +61% (+7% to +260%), better in fork_us −90% (−92% to −75%)``."""
    told = [f"`{printable(arm)}` {said}" for arm in arms_of(cell, first) if (said := of_arm(cell, arm))]
    return f"declared beside it: {'; '.join(told)}" if told else ""


def of_arm(cell: CellResult, arm: str) -> str:
    """What is judged of an arm beside the metric, each with its effect: ``worse in p99_us +61% (+7% to +260%)``."""
    return ", ".join(_told(cell, arm, _WORDS, _with_effect))


def of_arm_decided(cell: CellResult, arm: str, *verdicts: str) -> str:
    """Of that what was decided so, by its names alone: `worse in p99_us, better in fork_us and cow_bytes`."""
    return ", ".join(_told(cell, arm, verdicts, _name))


def _told(cell: CellResult, arm: str, verdicts: Iterable[str], named: Callable[[Also], str]) -> list[str]:
    """What ended in each of these verdicts, as that of an arm."""
    every = ((verdict, decided(cell, arm, verdict)) for verdict in verdicts)
    return [f"{_WORDS[verdict]} in {listed([named(one) for one in found])}" for verdict, found in every if found]


def _name(one: Also) -> str:
    return one.name
