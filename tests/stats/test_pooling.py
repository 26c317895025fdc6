"""Hosts that stopped early, pooled; strata, weighed; verdicts over all of them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hugewise.stats import pooling, stopping
from hugewise.stats.heterogeneity import TypicalEffect
from hugewise.stats.pooling import HostEstimate
from tests.build import known


def estimate(centre: float, *, scale: float = 0.05, pairs: int = 60, **changes: object) -> HostEstimate:
    made = HostEstimate(centre, scale, pairs, 0.01, 200, crossed=True, stops=True)
    return made._replace(**changes)  # type: ignore[arg-type]


def test_estimates_are_corrected_as_a_host_corrects_its_own() -> None:
    hosts = pooling.pooled([estimate(0.03), estimate(-0.04)])
    for found, centre in zip(hosts.estimates, (0.03, -0.04), strict=True):
        assert found == pytest.approx(known(stopping.corrected(centre, 0.05, 60, 0.01, 200)), rel=0.03)


def test_hosts_that_are_equally_noisy_weigh_the_same_whenever_they_stopped() -> None:
    hosts = pooling.pooled([estimate(0.05, pairs=20), estimate(0.02, pairs=120), estimate(0.03, pairs=60)])
    assert len(set(hosts.errors.tolist())) == 1
    noisy = pooling.pooled([estimate(0.03), estimate(0.03, scale=0.1), estimate(0.03)])
    assert noisy.errors[1] > noisy.errors[0] == noisy.errors[2]


def test_what_does_not_stop_by_its_effect_is_not_corrected() -> None:
    hosts = pooling.pooled([estimate(0.05, stops=False, pairs=25), estimate(0.05, stops=False, pairs=100)])
    assert hosts.estimates.tolist() == [0.05, 0.05]
    assert hosts.errors.tolist() == pytest.approx([0.01, 0.005])


def test_counts_that_do_not_vary_have_no_error_to_speak_of() -> None:
    hosts = pooling.pooled([estimate(-2.0, scale=0.0), estimate(-2.0, scale=0.0), estimate(-2.0, scale=0.0)])
    assert hosts.tau() == 0 and known(hosts.typical()).centre == pytest.approx(-2.0)


def test_time_that_was_up_shortens_the_law() -> None:
    ended = [estimate(0.01, pairs=30, crossed=False), estimate(0.04, pairs=20), estimate(0.02, pairs=30, crossed=False)]
    short = pooling.pooled(ended)
    whole = pooling.pooled([one._replace(pairs=200 if not one.crossed else 20) for one in ended])
    assert short.errors[0] > whole.errors[0]


def test_the_fleet_is_weighed_by_what_it_is_made_of() -> None:
    strata = {"a": TypicalEffect(0.10, 0.01, 4), "b": TypicalEffect(0.20, 0.02, 9)}
    shares = pooling.shares({"a": 30, "b": 10, "c": 60}, ["a", "b"])
    assert shares == {"a": 0.75, "b": 0.25}
    found = pooling.fleet_effect(strata, shares)
    assert found.centre == pytest.approx(0.125)
    assert found.error == pytest.approx(math.hypot(0.0075, 0.005))
    one, other = 0.0075**2, 0.005**2  # Satterthwaite
    assert found.freedom == math.floor((one + other) ** 2 / (one**2 / 4 + other**2 / 9))
    with pytest.raises(ValueError, match="none of the strata"):
        pooling.shares({"c": 1}, ["a"])


def test_verdicts_and_intervals_agree_over_a_family() -> None:
    effects = [
        TypicalEffect(0.10, 0.01, 9),
        TypicalEffect(0.03, 0.012, 9),  # by itself at 5%, not among four
        TypicalEffect(0.0, 0.0005, 9),
        TypicalEffect(-0.2, 0.02, 5),
    ]
    found = pooling.held(effects, [False, False, True, True], 0.05, 0.01)
    assert [one.verdict for one in found] == ["worse", "undecided", "equivalent", "worse"]
    assert pooling.held(effects[1:2], [True], 0.05, 0.01)[0].verdict == "better"
    for effect, one in zip(effects, found, strict=True):
        assert (one.low > 0 or one.high < 0) == (one.verdict in ("better", "worse"))
        assert one.low < effect.centre < one.high
    assert -math.log1p(0.01) < found[2].low and found[2].high < math.log1p(0.01)


def test_a_family_keeps_its_error() -> None:
    random, wrong = np.random.default_rng(3), 0
    for _ in range(400):
        effects = [
            TypicalEffect(float(drawn.mean()), float(drawn.std(ddof=1)) / math.sqrt(6), 5)
            for drawn in random.standard_normal((5, 6))
        ]
        wrong += any(one.verdict in ("better", "worse") for one in pooling.held(effects, [True] * 5, 0.1, 0.001))
    assert wrong / 400 < 0.1 + 3 * math.sqrt(0.1 * 0.9 / 400)


def test_the_law_of_ends_is_that_of_the_correction() -> None:
    law = stopping.end_law(0.01, 200, 200)
    for centre in (0.3, 0.5, 0.8, -0.4, 3.0):
        assert law.corrected(centre) == pytest.approx(known(stopping.corrected(centre, 1.0, 40, 0.01, 200)), rel=0.03)
    assert law.corrected(0.0) == 0.0
    assert law.error(0.4) == pytest.approx(law.error(-0.4))
    # Nothing stops early without an effect: the error is that of all pairs.
    assert law.error(0.0) == pytest.approx(1 / math.sqrt(200), rel=0.15)
    with pytest.raises(ValueError, match="last"):
        stopping.end_law(0.01, 200, 201)
