import math

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hugewise.analysis.calibration import NOMINAL, _crossings, _signs, agreement, relabelled
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


def test_the_difference_of_a_design_s_effect_has_an_interval() -> None:
    sequential = noise(60, 6, shift=-0.2)
    for shift, differs in ((-0.2, False), (-0.3, True), (-0.1, True)):
        other = msgspec.structs.replace(noise(60, 9, shift=shift), kind="interleaved")
        found = agreement("thp", sequential, other)
        assert (found.kind, found.arm) == ("interleaved", "thp")
        low, high = known(found.low), known(found.high)
        assert low < shift + 0.2 < high
        assert (low <= 0 <= high) is not differs
        wide = agreement("thp", noise(12, 6, sd=0.2, shift=-0.2), other)
        assert known(wide.high) - known(wide.low) > 2 * (high - low)
