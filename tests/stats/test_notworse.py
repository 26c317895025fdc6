"""Whether an arm is worse by more than the margin, on simulated blocks: when it ends, and how often wrongly."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hugewise.model.metric import Metric
from hugewise.model.trial import Block
from hugewise.stats.method import Contrast
from hugewise.stats.sequential import NotWorse, Sequential
from tests.build.trials import HIGHER, LOWER, attempt, block, ends


def made(metric: Metric = LOWER, *, alpha: float = 0.05, planned: int = 400) -> NotWorse:
    return NotWorse(Contrast("chase", "thp", "base", metric), planned=planned, alpha=alpha, margin=0.02)


def stream(level: float, seed: int, count: int = 400, sd: float = 0.01) -> list[Block]:
    random = np.random.default_rng(seed)
    return [
        block(number, {"base": 1.0, "thp": math.exp(level + random.normal(0, sd))}) for number in range(1, count + 1)
    ]


def fed(method: Sequential, blocks: list[Block]) -> int:
    for number, each in enumerate(blocks, 1):
        if method.observe(each).status == "stop":
            return number
    return len(blocks)


def test_an_arm_that_is_a_little_slower_is_not_worse() -> None:
    """The test of no difference crosses on the way: it ends nothing here."""
    method = made()
    blocks = stream(math.log(1.012), 3, sd=0.01)
    ordinary = Sequential(method.contrast, planned=400, alpha=0.05, margin=0.02)
    assert fed(method, blocks) > fed(ordinary, blocks)
    assert (method.settled, ordinary.decision().verdict) == ("not worse", "worse")
    found = method.comparison()
    assert ends(ordinary.comparison())[1] > 1.02 > ends(found)[1]
    assert found.corrected is None


def test_what_is_settled_is_said_where_the_direction_is_not_known() -> None:
    method = made()
    fed(method, stream(-0.012, 12, sd=0.03))
    found = method.comparison()
    assert (method.settled, found.verdict) == ("not worse", "undecided")
    assert found.reason.startswith("not worse by the margin of 0.02 or more; ")
    assert ends(found)[0] < 1 < ends(found)[1] < 1.02


def test_an_arm_that_is_far_slower_is_worse_by_more() -> None:
    method = made()
    assert fed(method, stream(0.1, 3)) < 25
    assert (method.settled, method.comparison().verdict) == ("worse by more", "worse")
    assert ends(method.comparison())[0] > 1.02


def test_an_arm_that_is_faster_is_not_waited_for() -> None:
    method = made()
    assert fed(method, stream(-0.2, 3)) < 25
    assert (method.settled, method.comparison().verdict) == ("not worse", "better")


@pytest.mark.parametrize(("level", "settled"), [(0.05, "not worse"), (-0.1, "worse by more")])
def test_a_rate_is_worse_where_it_is_lower(level: float, settled: str) -> None:
    method = made(HIGHER)
    fed(method, stream(level, 5))
    assert method.settled == settled


def test_whoever_fails_is_not_called_no_worse() -> None:
    method = made()
    method.observe(block(1, attempt("base", 1.0), attempt("thp", None, state="failed")))
    for each in stream(-0.2, 1, 60):
        method.observe(block(each.number + 1, *each.attempts))
    assert method.settled is None


@pytest.mark.parametrize(
    ("level", "sd", "pairs", "streams"),
    [
        (math.log(1.02), 0.03, 30, 60),
        *(pytest.param(math.log(level), 0.01, 60, 200, marks=pytest.mark.soak) for level in (1.02, 1.025)),
    ],
)
def test_an_arm_at_the_margin_is_called_no_worse_at_most_as_often_as_it_says(
    level: float, sd: float, pairs: int, streams: int
) -> None:
    """At 20% (10% a side): 3 standard errors above."""
    wrong = 0
    for seed in range(streams):
        method = made(alpha=0.2, planned=pairs)
        fed(method, stream(level, seed, pairs, sd))
        wrong += method.settled == "not worse"
    assert wrong / streams < 0.1 + 3 * math.sqrt(0.09 / streams)
