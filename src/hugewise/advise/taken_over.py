"""What an advice has of a study beside its workloads: `[between]`, `[validity]`, and of `[design]` what can hold.

The first two are about single attempts, and hold for any arms. A design is about the arms of a block, of which an
advice has other ones than the study, and a different number in each phase.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace

from hugewise.study.study import Study
from hugewise.study.tables import Between, Design, Validity

__all__ = ["not_taken", "taken_over"]


def taken_over(study: Study) -> dict[str, Any]:
    """The fields of a `Question` that come from the study's tables; a table that says nothing of its own has none."""
    found: dict[str, Any] = {}
    if study.between != Between():
        found["between"] = study.between
    if study.validity != Validity():
        found["validity"] = study.validity
    if study.design != Design():
        kinds = {"resident": "auto", "duet": "sequential", "crossover": "sequential"}
        found["design"] = replace(study.design, kind=kinds.get(study.design.kind, study.design.kind))
    return found


def not_taken(study: Study) -> Iterator[str]:
    """What of these tables does not hold in an advice, each with the reason."""
    match study.design.kind:
        case "duet":
            yield (
                "[design]: no duet: it has a CPU for each arm, and gives a verdict on arms that were calibrated; which"
                " arms there are is what an advice finds out. They come one after the other, each on a slot that is"
                " drawn"
            )
        case "crossover":
            yield (
                "[design]: no crossover: only hugewise's own programs have all layouts in one process. Arms come one"
                " after the other"
            )
        case "resident":
            yield (
                "[design]: resident where a calibration of the same workload lets these arms be, with its slice and"
                " wash-out; else arms come one after the other"
            )
    if os.geteuid() != 0 and (study.between.compact or study.between.drop_caches):
        yield "[between]: only root compacts memory and drops the page cache: neither is done"
