"""What to set for the policies that won: once for all cells that share it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from hugewise.policy import Deployment
from hugewise.report.sentences import printable
from hugewise.results import ArmSummary, CellResult, Comparison

__all__ = ["Deployed", "deployed"]


class Deployed(NamedTuple):
    """An arm that won in `cells`, and how it is set there; `treatment` says what it did where no commands are known."""

    arm: str
    deployment: Deployment | None
    treatment: str
    cells: tuple[str, ...]

    @property
    def places(self) -> str:
        """The cells in words."""
        return ", ".join(map(printable, self.cells))


def deployed(winners: Iterable[tuple[CellResult, Comparison, ArmSummary]]) -> Iterator[Deployed]:
    """The settings of these `sentences.winners`, in the order of their first cells."""
    found: dict[tuple[str, Deployment | None, str], list[str]] = {}
    for cell, _, arm in winners:
        treatment = arm.treatment if arm.deployment is None else ""
        found.setdefault((arm.arm, arm.deployment, treatment), []).append(cell.cell)
    for (name, deployment, treatment), cells in found.items():
        yield Deployed(name, deployment, treatment, tuple(dict.fromkeys(cells)))
