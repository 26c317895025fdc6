"""How high the values of each class of hosts are: of the middle host, and of the hosts at both ends.

Levels say nothing of an effect, which is one of pairs on a host; they say what a class of machines is like.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from hugewise.analysis.pooling import MeasuredHost
from hugewise.model.arm_level import ArmLevel
from hugewise.model.fleet import StratumLevel

__all__ = ["levels"]

_Arm = tuple[str, str, str, str]  # stratum, cell, metric, arm


def levels(measured: Sequence[MeasuredHost]) -> Iterator[StratumLevel]:
    """Of each stratum, cell and arm, in the order of the hosts."""
    found: dict[_Arm, list[ArmLevel]] = {}
    for host in measured:
        for each in host.summary.cells:
            for one in each.levels:
                found.setdefault((host.stratum, each.cell, each.metric.name, one.arm), []).append(one)
    for (stratum, cell, metric, arm), several in found.items():
        medians = [one.median for one in several if one.median is not None]
        yield StratumLevel(
            stratum=stratum,
            cell=cell,
            arm=arm,
            metric=metric,
            hosts=len(medians),
            n=sum(one.n for one in several),
            median=median(medians) if medians else None,
            least=min(medians, default=None),
            most=max(medians, default=None),
            low=_middle([one.low for one in several]),
            high=_middle([one.high for one in several]),
        )


def _middle(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None
