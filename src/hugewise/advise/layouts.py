"""Layouts of a program's heap in an advice: whom the library reaches, and what of a gain is the library's own.

A layout changes two things at once: the program has another heap (one arena, in one piece, of which nothing is given
back), and that heap has other pages. A run of its own tells them apart: the program as it is, with the library alone,
and with the layout, in blocks of fixed number. What the library alone does is its ratio to the program as it is; what
the pages do is the layout's ratio to the library alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from hugewise.advise.candidates import SettingCandidate
from hugewise.advise.question import Question
from hugewise.machine import layouts
from hugewise.model.pages import PageTarget
from hugewise.model.policy import Treatment
from hugewise.model.results import CellResult, Comparison
from hugewise.report import numbers

__all__ = [
    "LIBRARY",
    "GainPart",
    "GainParts",
    "alone",
    "blocks",
    "command_of",
    "is_layout",
    "sentence",
    "told_apart",
    "unlaid",
]

LIBRARY = "library"
"""The arm that loads the library, and has its heap laid out without advice."""
KEPT = 0.25
"""Share of the time of a layout's confirmation that is kept for telling it apart."""

_FEWEST, _MOST = 6, 24  # blocks
_ARMS = 3  # of each, where the pilot's have two


class GainPart(msgspec.Struct, frozen=True, kw_only=True):
    """A ratio with its interval; an end, or all of it, is None where the data do not say it."""

    ratio: float | None
    low: float | None
    high: float | None


class GainParts(msgspec.Struct, frozen=True, kw_only=True):
    """What of a layout's effect is the library's own, and what its pages'. `folder`: of the run, of `n` blocks."""

    folder: str
    metric: str
    better: str
    n: int
    confidence: float
    library: GainPart
    pages: GainPart


def command_of(asked: Question) -> tuple[str, ...]:
    """The words of the command that is asked about; none where it is another workload."""
    if asked.workload.get("name") != "command":
        return ()
    return tuple(asked.workload.get("parameters", {}).get("argv", ()))


def unlaid(asked: Question) -> str | None:
    """Why the layout library does not reach what is asked about, or None where it does."""
    command = command_of(asked)
    if asked.of_service:
        command = tuple(asked.workload.get("parameters", {}).get("server", ()))
    if not command:
        return "layouts are for commands, and for services by --server and --load"
    any_size = PageTarget("any", 4096)
    return layouts.unreached(command, Treatment(policy="any", mechanism="process", target=any_size, layout="none"))


def is_layout(chosen: SettingCandidate) -> bool:
    """Whether the candidate is a layout of the heap."""
    return not isinstance(chosen.use, str) and str(chosen.use.get("from", "")).startswith("layout-")


def alone(chosen: SettingCandidate, mode: str) -> Mapping[str, Any]:
    """The policy that loads the same library as the layout, without its pages, over the same other settings.

    `mode` of transparent huge pages here. Where that is `always`, a heap in one piece has them without any advice: base
    pages are asked for then, so that pages are not taken for the library's doing.
    """
    assert not isinstance(chosen.use, str)
    of_pool = str(chosen.use["from"]).startswith("layout-hugetlb")
    source, words = ("layout-base", "none") if of_pool else ("layout-thp", "base" if mode == "always" else "none")
    return {"name": LIBRARY, "from": source, "layout": words, "mechanism": "process"}


def blocks(seconds: float, block_s: float) -> int:
    """How many blocks of three arms fit into so much time, where the pilot's blocks took `block_s`; 0: too few."""
    fit = int(seconds / (block_s * _ARMS / 2)) if block_s > 0 else _MOST
    return 0 if fit < _FEWEST else min(_MOST, fit)


def told_apart(folder: str, cell: CellResult, layout: str) -> GainParts | None:
    """What the run says whose baseline is the library alone; None where an arm of it could not be run."""
    by_arm = {one.arm: one for one in cell.comparisons}
    pages, before = by_arm.get(layout), next((one for name, one in by_arm.items() if name != layout), None)
    if pages is None or before is None:
        return None
    return GainParts(
        folder=folder,
        metric=cell.metric.name,
        better=cell.metric.better,
        n=min(pages.n, before.n),
        confidence=pages.confidence,
        library=_turned(before),
        pages=GainPart(ratio=pages.ratio, low=pages.low, high=pages.high),
    )


def _turned(one: Comparison) -> GainPart:
    """The baseline's ratio to the arm."""
    return GainPart(ratio=_over(one.ratio), low=_over(one.high), high=_over(one.low))


def _over(value: float | None) -> float | None:
    return 1 / value if value else None


def sentence(parts: GainParts) -> str:
    """What it says, in words."""
    library, pages = (numbers.effect(one.ratio, one.low, one.high) for one in (parts.library, parts.pages))
    return (
        f"Of that, {parts.metric}: the library alone {library}, its pages {pages}"
        f" ({parts.n} blocks of their own at {100 * parts.confidence:.4g}%)."
    )
