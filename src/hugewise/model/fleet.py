"""Result of a fleet: the documented JSON (`fleet.json`), and the only source of its report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from hugewise.model.metric import Metric
from hugewise.model.reason import Reason
from hugewise.model.results import Verdict


class FleetHost(msgspec.Struct, frozen=True, kw_only=True):
    """A host whose run is in the report.

    stratum    the name of a `FleetStratum`
    run        the run's id; `folder` is relative to the fleet's folder, and any verb that takes a run takes it
    state      how the run ended
    attempts, blocks   that were made, and that are complete
    restarts   how often the run died and was resumed
    """

    host: str
    stratum: str
    run: str
    folder: str
    state: str
    attempts: int
    blocks: int
    started: float
    ended: float
    mechanism: str
    restarts: int = 0


class LeftOutHost(msgspec.Struct, frozen=True, kw_only=True):
    """A host, or a run of it, that has no part in any figure, and why.

    quarantined   nothing was begun there, or no more: it failed its own check or its doctor
    lost          it gave no answer, or nothing was brought back of it
    copy          it is a run that another host has too, or the machine of another host
    unreadable    its run cannot be read, or is of another study
    not measured  the fleet has not come to it
    """

    host: str
    why: Literal["quarantined", "lost", "copy", "unreadable", "not measured"]
    reason: str
    run: str = ""


class FleetStratum(msgspec.Struct, frozen=True, kw_only=True):
    """A class of hosts that are alike in what moves page effects.

    key        eight digits that stand for all of `facts`
    facts      what its hosts have alike, by name
    measured   hosts of it in the report; known: hosts of it that answered; share: of the fleet that the fleet's effect
               speaks of (null where it has no part in that)
    """

    name: str
    key: str
    facts: Mapping[str, str]
    measured: int
    known: int
    share: float | None


class HostEffect(msgspec.Struct, frozen=True, kw_only=True):
    """Effect on one host by itself, exact on that host; and the host's part in its stratum.

    ratio, low, high, confidence, verdict, reason, n   as its own report has them
    pooled_ratio    the ratio corrected for the stop, as it is pooled; null with the reason in `absent`
    error           the standard error of its logarithm, over all ends that the run could have had
    """

    host: str
    stratum: str
    verdict: Verdict
    reason: Reason
    n: int
    ratio: float | None
    low: float | None
    high: float | None
    confidence: float
    pooled_ratio: float | None
    error: float | None
    absent: Reason = ""


class WithoutHost(msgspec.Struct, frozen=True):
    """The typical effect of a stratum without one of its hosts."""

    host: str
    ratio: float


class ProductOfEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """The e-values of hosts, multiplied: whether the arm is larger, or smaller, on at least one of them.

    end_point   what is judged of the metric: "typical ratio", or one that the study declared
    hosts       that have part in it
    larger, smaller   the products; null where they are refused
    adjusted    by e-Holm over all strata, comparisons and end points together, of the direction that has more
    """

    end_point: str
    hosts: int
    larger: float | None
    smaller: float | None
    adjusted: float | None
    direction: Literal["larger", "smaller", "undecided", "refused"]
    verdict: Verdict
    reason: Reason


class PooledEffect(msgspec.Struct, frozen=True, kw_only=True):
    """A comparison over the hosts of a stratum, or over the fleet. All ratios are arm/baseline.

    stratum     the name of it; empty for the fleet, whose effect is that of its strata weighed by their shares
    hosts       whose estimates it is made of; of `asked` that measured
    lost        hosts of it that were begun and have no run: they count as hosts without any effect
    verdict, reason   on the typical effect, over all strata and comparisons together
    ratio, low, high, confidence   the typical effect and its interval; null with fewer than two hosts
    p, p_signs  of no difference: by Student's t over hosts, and by their signs; a verdict needs both
    error       the standard error of its logarithm
    spread, spread_low, spread_high   of the effects over hosts: a standard deviation of the logarithm of the ratio, and
                its interval at 95%; null for the fleet, and with fewer than two hosts
    next_low, next_high   interval at 95% of the effect that the next host of the stratum has; null below five hosts
    next_good   the chance that the next host's effect is in the metric's good direction; null below five hosts
    without     the typical effect without each host, where there are three at least
    outlying    hosts whose effect does not fit those of the others, at an error of 5% over all hosts of the stratum
    evidence    the e-values of its hosts, multiplied, of each end point
    """

    stratum: str
    asked: int
    hosts: int
    verdict: Verdict
    reason: Reason
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    confidence: float | None = None
    p: float | None = None
    p_signs: float | None = None
    error: float | None = None
    spread: float | None = None
    spread_low: float | None = None
    spread_high: float | None = None
    next_low: float | None = None
    next_high: float | None = None
    next_good: float | None = None
    without: tuple[WithoutHost, ...] = ()
    outlying: tuple[str, ...] = ()
    evidence: tuple[ProductOfEvidence, ...] = ()
    lost: int = 0


class FleetComparison(msgspec.Struct, frozen=True, kw_only=True):
    """Arm against its baseline: on each host, in each stratum, and over the fleet."""

    cell: str
    arm: str
    baseline: str
    metric: Metric
    hosts: tuple[HostEffect, ...]
    strata: tuple[PooledEffect, ...]
    fleet: PooledEffect | None


class StratumLevel(msgspec.Struct, frozen=True, kw_only=True):
    """The values of an arm on the hosts of a stratum, in the metric's unit: accepted attempts in complete blocks.

    hosts, n      that have values, and how many values these are
    median        of the hosts' medians; least, most: the lowest and the highest of these
    low, high     medians over hosts of the 5% and of the 95% quantile on each
    """

    stratum: str
    cell: str
    arm: str
    metric: str
    hosts: int
    n: int
    median: float | None
    low: float | None
    high: float | None
    least: float | None
    most: float | None


class FleetResults(msgspec.Struct, frozen=True, kw_only=True):
    """Fleet, whole. `study` and `question` are those of its runs, `folder` the fleet's.

    confidence   over all strata and comparisons together, and once more for equivalence; margin: of equivalence
    withheld     why nothing is claimed over hosts, such as that the fleet has not ended; empty where something may be
    composition  what the shares of strata are of: hosts that answered, or what was given
    warnings     what the reader should know of the whole
    """

    format: int = 2
    fleet: str
    study: str
    question: str
    folder: str
    confidence: float
    margin: float
    composition: str
    hosts: tuple[FleetHost, ...]
    strata: tuple[FleetStratum, ...]
    left_out: tuple[LeftOutHost, ...]
    comparisons: tuple[FleetComparison, ...]
    levels: tuple[StratumLevel, ...] = ()
    warnings: tuple[str, ...] = ()
    withheld: str = ""
