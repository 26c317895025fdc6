"""What `hugewise analyze` finds: the documented JSON, and the only thing that its reports are made from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import msgspec
import numpy as np

from hugewise.external.caveats import DataLayout
from hugewise.model.metric import Metric
from hugewise.model.results import Reach, Verdict
from hugewise.stats.classical import Figures

__all__ = [
    "AnalysisPlan",
    "ArmFigures",
    "ExternalComparison",
    "ExternalResults",
    "MetricResults",
    "Suggestion",
    "TierLine",
    "encode",
]

Suggestion = Literal["better", "worse", "larger", "smaller", "equivalent", "nothing"]


@dataclass(frozen=True)
class AnalysisPlan:
    """What was decided about the analysis; `budget` is the number of pairs declared before the first one, or None."""

    confidence: float = 0.99
    margin: float = 0.005
    baseline: str | None = None
    randomised: bool = False
    budget: int | None = None
    metrics: tuple[str, ...] = ()


class TierLine(msgspec.Struct, frozen=True):
    """How far a statement reaches: its name, and what these data say on it. Ratios; None where they carry nothing."""

    name: Reach
    low: float | None
    high: float | None
    sentence: str


class ExternalComparison(msgspec.Struct, frozen=True, kw_only=True):
    """One arm against the baseline; all ratios are arm/baseline.

    n            replicates that the statistic counts: pairs, or (for Welch) the smaller side's effective number
    verdict      better, worse, equivalent, undecided; `none` where the layout carries no verdict
    suggestion   what the numbers suggest where there is no verdict, with `reason`; `nothing` if they do not
    medians      k -> chance that the median of k runs of the arm against the median of k of the baseline shows the arm
                 on the side of the lower values
    shared       correlation of the logarithms within pairs: what pairing takes out
    """

    arm: str
    baseline: str
    method: str
    estimand: str
    n: float
    ratio: float | None
    low: float | None
    high: float | None
    confidence: float
    p: float | None
    verdict: Verdict
    suggestion: Suggestion
    reason: str
    assumptions: tuple[str, ...]
    layout: DataLayout
    tiers: tuple[TierLine, ...] = ()
    medians: dict[str, float] = {}
    shared: float | None = None
    failures_arm: int = 0
    failures_baseline: int = 0


class ArmFigures(msgspec.Struct, frozen=True, kw_only=True):
    """One arm: its figures over successful runs, and what stands behind them.

    runs             distinct program runs that the values come from; None: each value is one
    run_means        figures of the runs' means, where values are parts of runs and there are two runs or more
    session_share    variance component between sessions, as a share; None where sessions are not known
    sampled          at most 1,500 values in time order, for drawing: (place, value)
    """

    arm: str
    sources: tuple[str, ...]
    missing: int
    failed: int
    order_known: bool
    runs: int | None
    figures: Figures
    run_means: Figures | None
    session_share: float | None
    sampled: tuple[tuple[int, float], ...]
    notes: tuple[str, ...]


class MetricResults(msgspec.Struct, frozen=True, kw_only=True):
    """Everything on one metric."""

    metric: Metric
    baseline: str
    arms: tuple[ArmFigures, ...]
    comparisons: tuple[ExternalComparison, ...]


class ExternalResults(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `hugewise analyze`: the documented JSON, and what its reports are made from."""

    format: int = 1
    files: tuple[str, ...]
    formats: tuple[str, ...]
    confidence: float
    margin: float
    randomised: bool
    budget: int | None
    metrics: tuple[MetricResults, ...]
    others: tuple[str, ...]  # metrics in the files that were not asked about


def encode(results: ExternalResults) -> bytes:
    """Indented JSON. A value that is not there is null."""

    def plain(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return value.tolist()
        if isinstance(value, np.generic):
            return value.item()
        raise NotImplementedError(type(value))

    return msgspec.json.format(msgspec.json.encode(results, enc_hook=plain), indent=1) + b"\n"
