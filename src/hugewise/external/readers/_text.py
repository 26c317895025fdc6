"""Figures gathered from what tools report of each run once, and may report of intervals within it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from hugewise.external.reader import DataError, Series, readable
from hugewise.model.metric import Metric
from hugewise.reading import figure


@dataclass
class RunFigures:
    """Values of one metric, each with the run that it came from, and a time or place that tells their order."""

    metric: Metric
    values: list[float] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    runs: list[int] = field(default_factory=list)

    def add(self, value: float, at: float, run: int) -> None:
        """Take in a value."""
        self.values.append(value)
        self.times.append(at)
        self.runs.append(run)

    def series(self, path: Path, *, primary: bool, notes: tuple[str, ...] = ()) -> Series:
        """All of them."""
        return Series(
            arm=None,
            metric=self.metric,
            values=np.array(self.values),
            source=str(path),
            order=np.array(self.times, dtype=np.float64),
            run=np.array(self.runs, dtype=np.int64),
            primary=primary,
            notes=notes,
        )


class Gathered:
    """Values by metric, each with the run and the line that it came from."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._found: dict[str, RunFigures] = {}
        self._within: set[str] = set()

    def number(self, written: str, line: int) -> float:
        """A number as the tool prints it. Raises DataError."""
        with readable(self._path, "give the tool's own output, whole and as it is", f"line {line}"):
            return figure(written, "the figure", low=0)

    def add(self, metric: Metric, written: str, run: int, line: int, *, times: float = 1, within: bool = False) -> None:
        """Take in a value, `times` what is written; `within`: of an interval within the run.

        Raises DataError where it is no number, and at a second one of a run.
        """
        value = times * self.number(written, line)
        known = self._found.setdefault(metric.name, RunFigures(metric))
        if not within and known.runs and known.runs[-1] == run:
            raise DataError(
                f"a second {metric.name} of the same run",
                file=self._path,
                where=f"line {line}",
                hint="give the tool's own output, whole and in its order",
            )
        if within:
            self._within.add(metric.name)
        known.add(value, line, run)

    def has(self, metric: Metric, run: int) -> bool:
        """Whether the metric of that run is known already."""
        return metric.name in self._found and run in self._found[metric.name].runs[-1:]

    def series(self, *, primary: Metric, cure: str) -> list[Series]:
        """A series for each metric, `primary` first. Raises DataError where nothing was found."""
        if not self._found:
            raise DataError("none of its figures was found", file=self._path, hint=cure)
        chosen = primary.name if primary.name in self._found else next(iter(self._found))
        cut = ("The intervals are cut from one run: they are not runs of their own.",)
        ordered = sorted(self._found, key=lambda name: name != chosen)
        return [
            self._found[name].series(self._path, primary=name == chosen, notes=cut if name in self._within else ())
            for name in ordered
        ]
