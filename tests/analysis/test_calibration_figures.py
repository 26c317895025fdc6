import math
import random

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hugewise.analysis.calibration import NOMINAL, Stream, _crossings, _signs, agreement, purchases, relabelled, stream
from hugewise.stats import signflip
from tests.build import known
from tests.build.calibrations import noise


def test_a_stream_is_described() -> None:
    found = noise(200, 1, drift=0.05)
    assert found.pairs == 200
    assert found.sd == pytest.approx(0.02 * math.sqrt(2), rel=0.2)
    assert known(found.sd_low) < found.sd < known(found.sd_high)
    assert known(found.correlation) > 0.8
    assert known(found.lag_one) > 0.5
    assert found.verdict == 0
    assert noise(60, 2, shift=0.1).verdict == 1
    assert noise(60, 2, shift=-0.1).verdict == -1


def test_relabelling_finds_as_many_verdicts_as_the_test_allows() -> None:
    """Also where an effect is planted: labels are drawn anew, so every verdict is wrong."""
    for shift in (0.0, 0.1):
        found = relabelled(noise(60, 3, shift=shift, drift=0.2).differences, 7)
        assert found.passed
        assert 0.02 < found.rate <= found.limit
        assert 5 <= found.campaign_verdicts <= 32


@settings(max_examples=20, deadline=None)
@given(st.lists(st.floats(-1, 1), min_size=12, max_size=30), st.integers(0, 1000))
def test_the_relabelled_walks_cross_where_the_test_itself_says(differences: list[float], seed: int) -> None:
    signs = _signs(np.random.default_rng(seed), 40, len(differences))
    magnitudes = np.abs(differences)
    expected = sum(signflip.verdict(row * magnitudes, 0.2, len(differences)) != 0 for row in signs)
    assert _crossings(differences, 0.2, signs) == expected


def test_a_test_that_is_too_generous_does_not_pass() -> None:
    found = relabelled(noise(30, 4).differences, 1)
    assert not msgspec.structs.replace(found, rate=0.08).passed
    assert not msgspec.structs.replace(found, campaign_verdicts=33).passed
    assert found.nominal == NOMINAL


def test_where_a_machine_drifts_pairs_buy_much_and_where_it_does_not_little() -> None:
    def gains(drift: float) -> dict[str, float]:
        coins = random.Random(5)  # noqa: S311
        level, in_time = 0.0, []
        for _ in range(400):
            level += coins.gauss(0, drift)
            in_time.append(math.exp(level + coins.gauss(0, 0.01)))
        first, second = in_time[::2], in_time[1::2]
        sequential = stream("sequential", first, second, in_time, 0.4)
        crossover = stream("crossover", [1.0] * 50, [math.exp(coins.gauss(0, 0.002)) for _ in range(50)], [], 0.2)
        found = {bought.design: bought for bought in purchases(in_time, [sequential, crossover])}
        assert found["blocked"].for_pairs == 1
        assert found["crossover"].measured
        assert not found["coin pairs"].measured
        assert (found["crossover"].for_time or 0) == pytest.approx(2 * (found["crossover"].for_pairs or 0))
        return {name: bought.for_pairs or 0 for name, bought in found.items()}

    calm, drifting = gains(0.0), gains(0.02)
    assert 0.5 < calm["coin pairs"] < 2
    assert drifting["coin pairs"] > 10
    assert drifting["alternating"] > 10
    assert purchases([1.0, 2.0], [noise(12, 1)]) == ()


def test_a_duet_that_agrees_and_is_more_alike_is_believed() -> None:
    sequential, duet = noise(60, 6, shift=-0.2), noise(60, 7, shift=-0.2, drift=0.1)
    found = agreement("thp", ("t", "b"), sequential, duet, 0.05)
    assert found.agrees
    assert known(found.low) < 0 < known(found.high)


def test_a_duet_that_finds_another_effect_or_buys_nothing_is_not() -> None:
    sequential = noise(60, 6, shift=-0.2, drift=0.05)
    other = agreement("thp", ("t", "b"), sequential, noise(60, 7, shift=-0.05, drift=0.1), 0.05)
    assert not other.agrees
    assert "apart" in other.reason
    alone = agreement("thp", ("t", "b"), sequential, noise(60, 8, shift=-0.2), 0.05)
    assert not alone.agrees
    assert "no more alike" in alone.reason


def in_turns(n: int, seed: int, **how: float) -> Stream:
    return msgspec.structs.replace(noise(n, seed, **how), kind="interleaved")


def test_interleaved_pairs_that_see_no_other_effect_and_spread_less_are_believed() -> None:
    """Even where both together spread too much for the margin that is asked of a duet."""
    sequential, found = noise(40, 6, sd=0.2, shift=-0.2), in_turns(40, 9, shift=-0.2)
    said = agreement("thp", ("t", "b"), sequential, found, 0.09)
    assert (said.kind, said.agrees) == ("interleaved", True)
    assert known(said.low) < 0 < known(said.high)
    apart, times = 100 * max(abs(known(said.low)), known(said.high)), (sequential.sd / found.sd) ** 2
    assert times > 30
    assert said.reason == (
        f"no difference of the effects is seen (at most {apart:.3g}%), and {times:.3g} times fewer pairs are needed"
    )


@pytest.mark.parametrize("pairs", [6, 12])
def test_few_pairs_that_see_nothing_are_no_agreement(pairs: int) -> None:
    """They would see no difference where residence turned the effect round."""
    sequential, found = noise(pairs, 6, sd=0.2, shift=-0.2), in_turns(pairs, 9, shift=-0.2)
    said = agreement("thp", ("t", "b"), sequential, found, 0.05)
    assert known(said.low) < 0 < known(said.high)
    assert (said.agrees, "more pairs would tell" in said.reason) == (False, True)
    assert "(at most 10.2%, twice the agreement)" in said.reason


def test_interleaved_pairs_that_see_another_effect_or_spread_as_much_are_not() -> None:
    sequential = noise(60, 6, sd=0.05, shift=-0.2)
    for shift in (-0.3, -0.1):
        other = agreement("thp", ("t", "b"), sequential, in_turns(60, 9, shift=shift), 0.9)
        assert (other.agrees, other.reason) == (False, "the effects differ: taking turns changes what is measured")
    wide = agreement("thp", ("t", "b"), sequential, in_turns(60, 9, sd=0.08, shift=-0.2), 0.9)
    assert not wide.agrees
    assert "spread no less than sequential ones" in wide.reason
