"""Statistical method: an object for one comparison that sees closed blocks and decides whether to go on.

A method holds nothing but what it has observed, so that resuming a run is feeding it the stored blocks again.

Rows of numbers, as all methods take and give them.
"""

from __future__ import annotations

from typing import Literal, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from hugewise.model.metric import Metric
from hugewise.model.reason import Reason
from hugewise.model.results import Verdict
from hugewise.model.trial import Block


class Contrast(msgspec.Struct, frozen=True):
    """Comparison of an arm with the baseline of its own blocks, on one metric of one cell.

    copies          attempts of either side in a block, as planned: one, or two
    proof_demanded  whether undelivered or unproven pages take a pair out; False judges the setting alone
                    (intention to treat; a study's delivery share of 0)
    """

    cell: str
    arm: str
    baseline: str
    metric: Metric
    proof_demanded: bool = True
    copies: int = 1


class Effect(msgspec.Struct, frozen=True):
    """arm/baseline: estimate, interval at `confidence` (None: unbounded), two-sided p of "no difference", pairs."""

    ratio: float
    low: float | None
    high: float | None
    confidence: float
    p: float
    n: int


class Decision(msgspec.Struct, frozen=True):
    """Decision whether this comparison needs more blocks, with the results so far.

    A verdict given here holds in the conclusion over the whole family too; that can only add verdicts, and call a
    difference equivalent when its narrower interval turns out to lie within the margin.
    """

    status: Literal["continue", "stop"]
    effect: Effect | None
    verdict: Verdict
    reason: Reason


class Method(Protocol):
    """One comparison under observation."""

    name: str
    planned: int
    contrast: Contrast

    def observe(self, block: Block) -> Decision:
        """Take in a closed block; blocks of other cells, incomplete ones and ones without the arm change nothing."""
        ...

    def decision(self) -> Decision:
        """Return the last decision."""
        ...


Numbers = NDArray[np.float64]
Integers = NDArray[np.int64]
