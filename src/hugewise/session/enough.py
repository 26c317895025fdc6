"""Whether the time of a run has room for a verdict at all, by the blocks that it has measured; told once.

Of a study whose blocks were measured before, `analysis.budget` tells it before the first one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from hugewise.analysis.budget import more_time
from hugewise.quantity import format_duration
from hugewise.stats.fixed import FixedN
from hugewise.stats.method import Method
from hugewise.stats.power import least_pairs
from hugewise.stats.sequential import Sequential
from hugewise.study.study import Study

__all__ = ["Enough"]

_SETTLED = 3  # blocks of each cell after which what a block takes is known
_SLOW = 1.25  # times what a block takes that the first ones may take, which start programs and fill caches


@dataclass
class Enough:
    """Looks after each block. `asked`: whether a command line began the run, so that its options are the cure."""

    study: Study
    methods: Sequence[Method]
    asked: bool
    _told: bool = False

    def least(self) -> int | None:
        """The fewest pairs after which any comparison is decided; None where that is not known, or never."""
        if self.study.method not in ("sequential", "fixed-n"):
            return None
        every = [
            least_pairs(method.alpha, method.planned) if isinstance(method, Sequential) else method.planned
            for method in self.methods
            if isinstance(method, Sequential | FixedN) and method.contrast.metric.better != "neutral"
        ]
        return min((one for one in every if one is not None), default=None)

    def shortage(self, complete: Mapping[str, int], took: Mapping[str, Sequence[float]], left: float) -> str | None:
        """Why nothing can be decided in the `left` seconds, and the cure, the first time that this is so.

        complete, took   of each cell that is open: its complete blocks, and the seconds of the last of them
        """
        time, measured = self.study.budget.time, [fmean(each) for each in took.values() if each]
        if time is None or self._told or not sum(measured):
            return None
        least = self.least()
        if least is None:
            return None
        round_ = sum(measured)  # at least, while cells are not begun
        doubt = 1.0 if all(len(each) >= _SETTLED for each in took.values()) else _SLOW
        done = max(complete.values())
        pairs = done + int(left / round_)
        if done + left / round_ * doubt >= least:
            return None
        self._told = True
        several = f"{pairs} pair{'' if pairs == 1 else 's'}"
        fits = f"about {several} of each comparison fit into the time of {format_duration(time)}"
        needed = time - left + (least - done) * round_
        return f"{fits}, and a verdict takes at least {least}: {more_time(needed, asked=self.asked)}"
