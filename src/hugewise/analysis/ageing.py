"""What the memory of a cell was when its attempts began, and what they swapped. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from hugewise.model.results import AgedArm
from hugewise.model.trial import Attempt

__all__ = ["aged_arms"]


def aged_arms(cell: str, arms: Sequence[str], attempts: Sequence[Attempt]) -> tuple[AgedArm, ...]:
    """Of each arm that has accepted attempts which say so."""
    found = []
    for arm in arms:
        own = [one.aged for one in attempts if one.cell == cell and one.arm == arm and one.state == "accepted"]
        told = [one for one in own if one.get("free")]
        swapped = [int(one["swapped"]) for one in told if "swapped" in one]
        if told:
            found.append(
                AgedArm(
                    arm=arm,
                    n=len(told),
                    huge_share=max(one["free_huge"] / one["free"] for one in told),
                    huge_bytes=int(max(one["free_huge"] for one in told)),
                    pinned=int(median(one["pinned"] for one in told)),
                    swapped=int(median(swapped)) if swapped else None,
                )
            )
    return tuple(found)
