"""Closed blocks from a few numbers, for the tests of the methods."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hugewise.model.metric import Metric
from hugewise.model.pages import PageKind, PageTarget
from hugewise.model.trial import Attempt, AttemptState, Block, BlockState, Delivery
from hugewise.stats.fixed import FixedN
from hugewise.stats.method import Contrast

LOWER = Metric("ns", "ns", "lower", "time")
HIGHER = Metric("rate", "1/s", "higher", "rate")
NEUTRAL = Metric("count", "1", "neutral", "count")


def attempt(
    arm: str,
    value: float | None,
    *,
    block: int = 0,
    state: AttemptState = "accepted",
    delivered: bool | None = True,
    reason: str | None = None,
    number: int = 1,
    kind: PageKind = "thp",
    absent: str = "no counter here",
    coverage: dict[str, int] | None = None,
    peak_bytes: int | None = 100,
) -> Attempt:
    """An attempt whose every metric is `value` (None: absent)."""
    names = (LOWER.name, HIGHER.name, NEUTRAL.name)
    return Attempt(
        run="r",
        session=1,
        block=block,
        cell="c",
        arm=arm,
        baseline=arm == "base",
        policy=arm,
        mechanism="system",
        order=0,
        slot=0,
        number=number,
        state=state,
        reason=None,
        started=0.0,
        ended=1.0,
        wall_s=1.0,
        cpu_s=1.0,
        overhead_s=0.1,
        steal_s=0.0,
        pressure={},
        boot_id="b",
        delivery=Delivery(
            target=PageTarget(kind, 2 << 20),
            delivered=delivered,
            share=None if delivered is None else 1.0 if delivered else 0.25,
            coverage={"anon:2097152": 4096} if coverage is None else coverage,
            proof="ranges",
            source="kpageflags",
            reason=reason,
        ),
        knobs={},
        metrics=dict.fromkeys(names, value),
        absent=dict.fromkeys(names, absent) if value is None else {},
        disturbances=(),
        environment_pad=0,
        peak_bytes=peak_bytes,
        pool_bytes=7,
        exit_code=0,
        signal=None,
    )


def block(number: int, *attempts: Attempt, cell: str = "c", state: BlockState = "complete") -> Block:
    """A closed block."""
    return Block(number=number, cell=cell, state=state, reason=None, attempts=attempts)


def pair(number: int, ratio: float, baseline: float = 100.0) -> Block:
    """A block in which arm/baseline is `ratio`."""
    return block(number, attempt("thp", baseline * ratio, block=number), attempt("base", baseline, block=number))


def method(metric: Metric = LOWER, *, proof: bool = True, arm: str = "thp", cell: str = "c", **more: Any) -> FixedN:
    """The method for thp against base, planned for 12 pairs at 99% with a margin of 5%."""
    settings: dict[str, Any] = {"planned": 12, "confidence": 0.99, "margin": 0.05, **more}
    return FixedN(Contrast(cell, arm, "base", metric, proof), **settings)


def fed(blocks: Iterable[Block], metric: Metric = LOWER, **more: Any) -> FixedN:
    """A method that has seen `blocks`."""
    made = method(metric, **more)
    for one in blocks:
        made.observe(one)
    return made
