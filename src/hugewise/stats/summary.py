"""What one arm did: location, spread, quantiles and margin of error of its accepted attempts in complete blocks.

Mean, standard deviation (n-1) and the margin of error (half-width of the mean's t interval) describe the arm; they
ignore the pairing and carry no verdict. Quantiles are linear in the order statistics (type 7 of Hyndman and Fan 1996,
Am. Stat. 50:361).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import fmean, median, stdev

import msgspec

from hugewise.model.deployment import Deployment
from hugewise.model.metric import Metric
from hugewise.model.policy import Mechanism
from hugewise.model.results import ArmSummary
from hugewise.model.trial import Attempt, Block
from hugewise.stats.classical import margin_of_error, quantile

__all__ = ["PROBABILITIES", "Description", "describe", "summarise"]

PROBABILITIES = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95)


class Description(msgspec.Struct, frozen=True, kw_only=True):
    """A sample in numbers, in the metric's unit; None where it is too small."""

    n: int
    mean: float | None = None
    sd: float | None = None
    min: float | None = None
    max: float | None = None
    median: float | None = None
    quantiles: dict[str, float] = {}
    margin: float | None = None


def describe(values: Sequence[float], confidence: float) -> Description:
    """Describe finite `values`; the margin of error is at `confidence`."""
    n = len(values)
    if n == 0:
        return Description(n=0)
    ordered = sorted(values)
    sd = stdev(ordered) if n > 1 else None
    return Description(
        n=n,
        mean=fmean(ordered),
        sd=sd,
        min=ordered[0],
        max=ordered[-1],
        median=median(ordered),
        quantiles={str(p): quantile(ordered, p) for p in PROBABILITIES},
        margin=None if sd is None else margin_of_error(sd, n, confidence),
    )


def summarise(
    blocks: Iterable[Block],
    arm: str,
    metric: Metric,
    confidence: float,
    *,
    policy: str,
    mechanism: Mechanism,
    treatment: str,
    deployment: Deployment | None,
) -> ArmSummary:
    """The summary of `arm` over the complete ones of its cell's `blocks`, in the order of their numbers."""
    attempts = [
        attempt
        for block in sorted(blocks, key=lambda block: block.number)
        if block.state == "complete"
        for attempt in block.attempts
        if attempt.arm == arm and attempt.state in ("accepted", "failed")
    ]
    accepted = [attempt for attempt in attempts if attempt.state == "accepted"]
    values = [value for attempt in accepted if (value := _finite(attempt, metric)) is not None]
    shares = [attempt.delivery.share for attempt in accepted if attempt.delivery.share is not None]
    return ArmSummary(
        **msgspec.structs.asdict(describe(values, confidence)),
        arm=arm,
        policy=policy,
        mechanism=mechanism,
        failed=len(attempts) - len(accepted),
        undelivered=sum(attempt.delivery.delivered is False for attempt in attempts),
        unproven=sum(attempt.delivery.delivered is None for attempt in accepted),
        first=values[0] if values else None,
        coverage=_coverage(accepted),
        delivered_share=fmean(shares) if shares else None,
        proof=", ".join(sorted({f"{a.delivery.proof} ({a.delivery.source})" for a in accepted})),
        peak_bytes=max((a.peak_bytes for a in accepted if a.peak_bytes is not None), default=None),
        pool_bytes=max((a.pool_bytes for a in attempts), default=0),
        treatment=treatment,
        deployment=deployment,
    )


def _finite(attempt: Attempt, metric: Metric) -> float | None:
    value = attempt.metrics.get(metric.name)
    return value if value is not None and math.isfinite(value) else None


def _coverage(attempts: Sequence[Attempt]) -> dict[str, float]:
    """Mean share of the named memory by kind and page size, over the attempts that were scanned."""
    scanned = [(a.delivery.coverage, sum(a.delivery.coverage.values())) for a in attempts]
    shares = [{kind: size / total for kind, size in coverage.items()} for coverage, total in scanned if total > 0]
    kinds = sorted({kind for share in shares for kind in share})
    return {kind: fmean(share.get(kind, 0.0) for share in shares) for kind in kinds}
