"""The answer of a cell: what to set for it, as the report's top, `advise` and `report.json` say it."""

from __future__ import annotations

from typing import Literal

import msgspec

GROWTH = 0.1
"""By so much more memory a faster setting is not recommended without asking."""
POOL_GROWTH = 0.25
"""The same of one whose memory is in a pool, which is filled for somewhat more than was seen."""

AnswerState = Literal["set", "weigh", "leave", "undecided", "none"]
Trade = Literal["", "failures", "worse beside", "memory", "better beside"]
"""What an answer leaves to the reader to weigh, the gravest of it."""


class AlsoJudged(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict on an arm by what the study declared to judge beside the cell's metric; ratios are arm/baseline.

    end_point   what is judged of the metric, where it is another end point of the cell's own; else empty
    """

    arm: str
    metric: str
    end_point: str = ""
    better: str
    verdict: str
    ratio: float | None
    low: float | None
    high: float | None
    n: int
    confidence: float | None


class CellAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What to set for a cell, by the verdicts of one run. Ratios are arm/baseline, sizes are bytes.

    state     set: `setting` beat the baseline, and of those that did it has the largest effect
              weigh: so it did, for so much more memory, with so many runs that failed, or worse in what was declared
              beside the metric; or it makes no difference in the metric, and is better in what was declared beside
              it: that is the reader's to weigh (`trade` says which of these is the gravest)
              leave: nothing was better, and nothing is open in the cell's metric: `setting` is the baseline
              undecided: nothing was better so far, and `open` may be
              none: no verdict is possible, or nothing was compared
    text      the same in one sentence, without the cell's name; `found` is what it says of effects, or why
    ratio, low, high, n, confidence   of the comparison that the answer rests on; null, and n 0, without one
    ranked    every arm beside the baseline, the best first: better ones by their effect, then equivalent, undecided,
              worse ones, and those without a verdict
    beside    arms that beat the baseline too. They were not compared with `setting`; `overlapping` are those whose
              interval overlaps with its own, so that which of them is the better is open
    open      arms whose comparison is undecided
    also      the verdicts on what the study declared to judge beside the metric
    failed    runs of `setting` that failed or could not be started, where they are more than the baseline's; else 0
    memory, memory_before   of `setting` and of the baseline at their most, with the pool that is reserved for it, used
              or not; null where it is not known. pool: its pool alone
    """

    cell: str
    state: AnswerState
    setting: str | None
    text: str
    found: str
    metric: str
    baseline: str
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    n: int = 0
    confidence: float | None = None
    ranked: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    overlapping: tuple[str, ...] = ()
    open: tuple[str, ...] = ()
    also: tuple[AlsoJudged, ...] = ()
    trade: Trade = ""
    failed: int = 0
    memory: int | None = None
    memory_before: int | None = None
    pool: int = 0

    @property
    def what(self) -> str:
        """What to do, without what was found."""
        return self.text.removesuffix(f": {self.found}.")

    @property
    def growth(self) -> float | None:
        """How much more memory the setting takes, as a share of the baseline's."""
        if not self.memory_before or self.memory is None:
            return None
        return self.memory / self.memory_before - 1
