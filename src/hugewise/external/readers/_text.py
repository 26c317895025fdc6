"""Figures gathered from the text of tools that report each run once, and may report intervals within it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from hugewise.external.reader import DataError, Series
from hugewise.model.metric import Metric

__all__ = ["Gathered"]


@dataclass
class _Values:
    metric: Metric
    within: bool
    values: list[float] = field(default_factory=list)
    runs: list[int] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)


class Gathered:
    """Values by metric, each with the run and the line that it came from."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._found: dict[str, _Values] = {}

    def add(self, metric: Metric, value: float, run: int, line: int, *, within: bool = False) -> None:
        """Take in a value; `within`: of an interval within the run. Raises DataError at a second one of a run."""
        known = self._found.setdefault(metric.name, _Values(metric, within))
        if not within and known.runs and known.runs[-1] == run:
            raise DataError(
                f"a second {metric.name} of the same run",
                file=self._path,
                where=f"line {line}",
                hint="give the tool's own output, whole and in its order",
            )
        known.values.append(value)
        known.runs.append(run)
        known.lines.append(line)

    def has(self, metric: Metric, run: int) -> bool:
        """Whether the metric of that run is known already."""
        return metric.name in self._found and run in self._found[metric.name].runs[-1:]

    def series(self, *, primary: Metric, cure: str) -> list[Series]:
        """A series for each metric, `primary` first. Raises DataError where nothing was found."""
        if not self._found:
            raise DataError("none of its figures was found", file=self._path, hint=cure)
        chosen = primary.name if primary.name in self._found else next(iter(self._found))
        return [
            Series(
                arm=None,
                metric=known.metric,
                values=np.array(known.values),
                source=str(self._path),
                order=np.array(known.lines, dtype=np.float64),
                run=np.array(known.runs, dtype=np.int64),
                primary=known.metric.name == chosen,
                notes=("The intervals are cut from one run: they are not runs of their own.",) if known.within else (),
            )
            for known in sorted(self._found.values(), key=lambda one: one.metric.name != chosen)
        ]
