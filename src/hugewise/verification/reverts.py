"""The method `Sequential` as it was before each of its promises was kept: the planted faults of `blocks`.

Each differs from the real one in its fault alone.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np

from hugewise.model.results import Comparison
from hugewise.model.trial import Block
from hugewise.stats import campaign, scores
from hugewise.stats.method import Contrast, Decision
from hugewise.stats.pairs import Pair, Pairs
from hugewise.stats.sequential import Sequential

__all__ = [
    "BlocksReplaced",
    "DeclaredBudget",
    "LateIsUsual",
    "LostIsNothing",
    "NoBias",
    "PseudoMedian",
    "ScoredByLabel",
    "ToTheEnd",
    "TypicalAlone",
    "UsableAlone",
    "low_ranks_at_zero",
]


class UsableAlone(Sequential):
    """No test of the kept-in pairs."""

    name = "no kept-in test"

    def _add(self, kept: Pair, usable: Pair | None) -> None:
        if usable is not None:
            super()._add(usable, usable)


class _Declared(Pairs):
    """The tolerated share is held against all pairs that were declared, and of absent values and starts nothing is."""

    def refusal(self, planned: int) -> str | None:
        return self._never(max(0, planned - len(self.usable)))


class DeclaredBudget(UsableAlone):
    """The delivery rule against the declared budget, and no test of the kept-in pairs."""

    name = "rule against the budget"

    def __init__(self, contrast: Contrast, **given: Any) -> None:
        super().__init__(contrast, **given)
        self.pairs = _Declared(contrast, given.get("covariate"), spared=given["planned"] // 100)


class BlocksReplaced(UsableAlone):
    """A block that lost an arm to its start counts nowhere, and another takes its place."""

    name = "blocks replaced without limit"

    def observe(self, block: Block) -> Decision:
        return self.decision() if block.unstarted else super().observe(block)


class LateIsUsual(UsableAlone):
    """What started at a later try, or was made anew, is an attempt like any other."""

    name = "made again, it counts as usual"

    def observe(self, block: Block) -> Decision:
        return super().observe(msgspec.structs.replace(block, late=(), redone=()))


class LostIsNothing(Sequential):
    """A pair of which nothing is known is no difference, or no pair: as if it were dropped."""

    name = "what is lost is dropped"

    def _add(self, kept: Pair, usable: Pair | None) -> None:
        if not kept.lost or usable is not None:
            super()._add(msgspec.structs.replace(kept, lost=False), usable)


class ScoredByLabel(Sequential):
    """What is lost counts against the side that lost it, and there is no share of late starts."""

    name = "lost pairs scored against their label"

    def observe(self, block: Block) -> Decision:
        self._side = -1.0 if self.contrast.baseline in block.late else 1.0
        return super().observe(msgspec.structs.replace(block, late=(), redone=block.late))

    def _add(self, kept: Pair, usable: Pair | None) -> None:
        if kept.lost:
            kept = msgspec.structs.replace(kept, lost=False, arm_failed=self._side > 0, baseline_failed=self._side < 0)
        super()._add(kept, usable)


class ToTheEnd(Sequential):
    """No fault: it is only asked what it would say after all pairs, and not stopped by what it said before."""

    def observe(self, block: Block) -> Decision:
        before = len(self.pairs.kept)
        usable = self.pairs.take(block)
        for kept in self.pairs.kept[before:]:
            self._add(kept, usable)
        return Decision("continue", None, "undecided", "it is asked at the end")


class PseudoMedian(ToTheEnd):
    """The estimate is another test's: the median of all means of two differences, which Wilcoxon's ranks belong to."""

    name = "the pseudo-median"

    def _fits(self, low: float, high: float) -> bool:
        return True

    def comparison(self) -> Comparison:
        values = np.array(self.usable.pairs.values)
        sums = (values[:, None] + values[None, :])[np.triu_indices(len(values))]
        return msgspec.structs.replace(super().comparison(), ratio=math.exp(float(np.median(sums)) / 2))


class NoBias(Sequential):
    """The covariate is taken for one that the arm cannot have moved."""

    name = "no bound of the bias"

    def _bias(self) -> float | None:
        return None


class _Unasked(campaign.Campaign):
    def within(self, most: float) -> bool:
        return True


class TypicalAlone(Sequential):
    """Equivalence by the typical pair alone."""

    name = "the typical pair alone"

    def __init__(self, contrast: Contrast, **given: Any) -> None:
        super().__init__(contrast, **given)
        self._average = _Unasked(given["alpha"])

    def _fits(self, low: float, high: float) -> bool:
        return True


@contextlib.contextmanager
def low_ranks_at_zero() -> Iterator[None]:
    """Scores as they were: 0 for the lowest ranks."""
    table = scores.STEPS
    first = math.erf(0.5 / scores.UNIT / math.sqrt(2))
    scores.STEPS = [first, *table[1:]]
    try:
        yield
    finally:
        scores.STEPS = table
