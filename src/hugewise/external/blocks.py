"""Randomised blocks of elsewhere as a study's closed blocks, so that a run's own method judges them."""

from __future__ import annotations

import math
from collections.abc import Iterator

import msgspec
import numpy as np

from hugewise.external.reader import Series
from hugewise.model.pages import PageTarget
from hugewise.model.trial import Attempt, Block, Delivery
from hugewise.stats.method import Contrast

_CELL = "elsewhere"
ATTEMPT = Attempt(
    run="",
    session=0,
    block=0,
    cell=_CELL,
    arm="",
    baseline=False,
    policy="",
    mechanism="process",
    order=0,
    slot=0,
    number=1,
    state="accepted",
    reason=None,
    started=0.0,
    ended=0.0,
    wall_s=None,
    cpu_s=None,
    overhead_s=None,
    steal_s=0.0,
    pressure={},
    boot_id="",
    delivery=Delivery(target=PageTarget("any", 0), delivered=None, share=None, coverage={}, proof="ranges", source=""),
    knobs={},
    metrics={},
    absent={},
    disturbances=(),
    environment_pad=0,
    peak_bytes=None,
    pool_bytes=0,
    exit_code=None,
    signal=None,
)


def contrast(arm: Series, baseline: Series) -> Contrast:
    """Return the comparison; of its pages nothing is known, and nothing is demanded."""
    return Contrast(_CELL, str(arm.arm), str(baseline.arm), arm.metric, proof_demanded=False)


def closed(arm: Series, baseline: Series) -> Iterator[Block]:
    """Yield every block of the two series, in the order in which they began where that is known, else in that of their
    labels. A value that is missing is absent, as is that of a side without a row: the coin drew both.
    """
    sides = [(series, _places(series)) for series in (arm, baseline)]
    labels = list({label: None for _, places in sides for label in places})
    if arm.order is not None and baseline.order is not None:
        labels.sort(key=lambda label: (min(_began(*side, label) for side in sides), label))
    else:
        labels.sort()
    for number, label in enumerate(labels, 1):
        at = sides[0][1].get(label)
        session = 0 if arm.session is None or at is None else int(arm.session[at])
        yield Block(
            number=number,
            cell=_CELL,
            state="complete",
            reason=None,
            attempts=tuple(_attempt(series, places.get(label), number, session) for series, places in sides),
        )


def _places(series: Series) -> dict[int, int]:
    """Return the first place of each block in the series."""
    assert series.block is not None
    return {block: place for place, block in reversed([*enumerate(series.block.tolist())])}


def _began(series: Series, places: dict[int, int], label: int) -> float:
    assert series.order is not None
    return float(series.order[places[label]]) if label in places else math.inf


def _attempt(series: Series, place: int | None, block: int, session: int) -> Attempt:
    failed = place is not None and series.failed is not None and bool(series.failed[place])
    value = None if place is None or failed or not np.isfinite(series.values[place]) else float(series.values[place])
    name = series.metric.name
    return msgspec.structs.replace(
        ATTEMPT,
        arm=str(series.arm),
        block=block,
        session=session,
        state="failed" if failed else "accepted",
        metrics={name: value},
        absent={} if value is not None else {name: "the files have no value"},
    )
