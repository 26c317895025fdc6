"""Closed blocks from a few numbers, for the tests of the methods."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from hugewise.model.metric import Metric
from hugewise.model.pages import PageKind, PageTarget
from hugewise.model.results import Comparison
from hugewise.model.trial import Attempt, Block, BlockState
from hugewise.stats.fixed import FixedN
from hugewise.stats.method import Contrast
from hugewise.stats.tail import TailEffect
from tests.build import known
from tests.build import trials as examples

LOWER = Metric("ns", "ns", "lower", "time")
HIGHER = Metric("rate", "1/s", "higher", "rate")
NEUTRAL = Metric("count", "1", "neutral", "count")


def ends(found: Comparison | TailEffect) -> tuple[float, float]:
    """Both ends of an interval, which are there."""
    return known(found.low), known(found.high)


def attempt(
    arm: str,
    value: float | None,
    *,
    block: int = 0,
    delivered: bool | None = True,
    reason: str | None = None,
    number: int = 1,
    kind: PageKind = "thp",
    absent: str = "no counter here",
    coverage: Mapping[str, int] = {"anon:2097152": 4096},
    peak_bytes: int | None = 100,
    **more: Any,
) -> Attempt:
    """An attempt whose every metric is `value` (None: absent)."""
    names = (LOWER.name, HIGHER.name, NEUTRAL.name)
    share = None if delivered is None else 1.0 if delivered else 0.25
    target = PageTarget(kind, 2 << 20)
    made = examples.attempt(
        arm,
        value,
        block=block,
        cell="c",
        delivery=examples.delivery(delivered, target=target, share=share, coverage=coverage, reason=reason),
        metrics=dict.fromkeys(names, value),
        absent=dict.fromkeys(names, absent) if value is None else {},
        peak_bytes=peak_bytes,
        pool_bytes=7,
        **more,
    )
    return msgspec.structs.replace(made, number=number)


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
