"""An arm that is measured beside the judged ones: what it takes of them, and what it says."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hugewise.model.results import Comparison
from hugewise.model.trial import Block
from hugewise.plan.plan import plan
from hugewise.stats.family import conclude, methods_for
from hugewise.stats.method import Method
from hugewise.stats.sequential import Sequential, Unjudged
from tests.build.studies import SIZES, FakeHost, policies, study_of, workloads
from tests.build.trials import CONTRAST, attempt, block, ends


def methods(**keys: object) -> tuple[Method, ...]:
    study = study_of(policies=["base", "thp", "mthp-64k"], method="sequential", **{"budget": {"blocks": 300}, **keys})
    return methods_for(study, plan(study, policies(), workloads(), FakeHost(), SIZES, "system").cells)


def drawn(levels: Mapping[str, float], seed: int, count: int) -> list[Block]:
    random = np.random.default_rng(seed)
    times = [{arm: math.exp(level + random.normal(0, 0.02)) for arm, level in levels.items()} for _ in range(count)]
    return [block(number, values) for number, values in enumerate(times, 1)]


def conducted(made: Sequence[Method], blocks: Sequence[Block]) -> int:
    """As a run does: blocks as long as something is open; how many there were."""
    for number, each in enumerate(blocks):
        if all(method.decision().status == "stop" for method in made):
            return number
        for method in made:
            method.observe(each)
    return len(blocks)


def of(made: Sequence[Method], arm: str) -> Comparison:
    return next(one for one in conclude(made, 0.99, 0.005) if one.arm == arm)


LEVELS = {"base": 0.0, "thp": -0.1, "mthp-64k": -0.001}


def test_it_ends_with_what_is_judged_and_takes_nothing_of_its_error_rate() -> None:
    blocks = drawn(LEVELS, 1, 300)
    alone, beside, both = methods(unjudged=[]), methods(unjudged=["mthp-64k"]), methods(unjudged=["thp"])
    took = conducted(beside, blocks)
    assert took == conducted(
        [Sequential(alone[0].contrast, planned=beside[0].planned, alpha=0.01, margin=0.005)], blocks
    )
    assert took < conducted(alone, blocks), "an arm that makes next to no difference prolongs it where it is judged"
    assert of(beside, "thp").verdict == "better"
    assert of(beside, "thp").alpha == pytest.approx(0.01)
    conducted(both, blocks)
    assert of(both, "thp").verdict == "none"
    assert of(both, "mthp-64k").alpha == pytest.approx(0.01)


def test_it_claims_nothing_however_clear_it_is() -> None:
    made = methods(unjudged=["mthp-64k"])
    conducted(made, drawn({"base": 0.0, "thp": -0.02, "mthp-64k": -0.5}, 2, 300))
    found = of(made, "mthp-64k")
    assert (found.verdict, found.method, found.reach, found.tiers, found.evidence) == (
        "none",
        "unjudged",
        None,
        (),
        None,
    )
    assert found.alpha_spent is None
    assert found.confidence == pytest.approx(0.99)
    low, high = ends(found)
    assert low < math.exp(-0.5) < high < 0.7
    assert "claims nothing" in found.reason


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([-0.3, 0.0, 0.2]), st.booleans())
def test_what_is_judged_is_as_it_would_be_without_it(seed: int, level: float, failing: bool) -> None:
    """The same blocks, with and without the unjudged arm in them: verdict, interval and end are those of the judged."""
    blocks = drawn({"base": 0.0, "thp": -0.03, "mthp-64k": level}, seed, 60)
    if failing:
        broken = [attempt("mthp-64k", None, block=each.number, state="failed") for each in blocks]
        blocks = [
            block(each.number, *(one for one in each.attempts if one.arm != "mthp-64k"), bad)
            for each, bad in zip(blocks, broken, strict=True)
        ]
    without = [block(each.number, *(one for one in each.attempts if one.arm != "mthp-64k")) for each in blocks]
    beside, alone = methods(unjudged=["mthp-64k"]), methods()[:1]
    lone = Sequential(alone[0].contrast, planned=alone[0].planned, alpha=1 - 0.99, margin=0.005)
    assert conducted(beside, blocks) == conducted([lone], without)
    assert of(beside, "thp") == of([lone], "thp")


def test_an_arm_that_never_gets_its_pages_is_not_measured_to_the_end() -> None:
    judged = Sequential(CONTRAST, planned=200, alpha=0.01, margin=0.005)
    made = Unjudged(CONTRAST, [judged], planned=200, alpha=0.01, margin=0.005)
    for number in range(1, 60):
        made.observe(block(number, attempt("base", 1.0), attempt("thp", 1.0, delivered=False)))
    assert judged.decision().status == "continue"
    assert made.decision().status == "stop"
    assert "not delivered" in made.comparison().reason
    assert made.comparison().ratio is None


@pytest.mark.parametrize("streams", [50, pytest.param(200, marks=pytest.mark.soak)])
def test_its_interval_misses_no_more_often_than_it_says(streams: int) -> None:
    """Streams at 90%, ended by another arm's verdict: at most 10%, and 3 standard errors."""
    missed = 0
    for seed in range(streams):
        made = methods(unjudged=["mthp-64k"], confidence=0.9)
        conducted(made, drawn({"base": 0.0, "thp": -0.03, "mthp-64k": 0.02}, seed, 200))
        found = next(one for one in conclude(made, 0.9, 0.005) if one.arm == "mthp-64k")
        if found.low is not None and found.high is not None:
            missed += not found.low <= math.exp(0.02) <= found.high
    assert missed / streams < 0.1 + 3 * math.sqrt(0.09 / streams)


def test_without_anything_judged_there_is_nothing_to_wait_for() -> None:
    assert Unjudged(CONTRAST, [], planned=200, alpha=0.01, margin=0.005).decision().status == "stop"
