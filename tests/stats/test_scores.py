from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from hugewise.stats import signflip
from hugewise.stats.signflip import CAP, Scores, magnitudes, signed

LEVELS = st.sampled_from([0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 2.0, 1e6, -1e6, math.inf, -math.inf])
ROWS = st.lists(LEVELS | st.floats(-1e9, 1e9), max_size=40)


def one_by_one(differences: list[float]) -> list[int]:
    made = Scores()
    return [made.add(difference) for difference in differences]


def by_definition(differences: list[float]) -> list[int]:
    """From scipy's ranks and the quantile function itself."""
    found = []
    for t in range(1, len(differences) + 1):
        ranks = stats.rankdata(np.abs(differences[:t]))
        share = (ranks[-1] - 0.5) / t
        score = max(1, min(CAP, round(10 * NormalDist().inv_cdf((1 + share) / 2))))
        found.append(score * int(np.sign(differences[t - 1])))
    return found


@given(ROWS)
def test_one_by_one_all_at_once_and_by_definition(differences: list[float]) -> None:
    expected = by_definition(differences)
    assert one_by_one(differences) == expected
    for few in (signflip._FEW, 0):  # one by one, and all at once
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(signflip, "_FEW", few)
            assert signed(differences).tolist() == expected
            assert magnitudes(differences).tolist() == [abs(score) for score in expected]


@pytest.mark.parametrize("kind", ["normal", "ties", "failures"])
def test_blocks_of_pairs_agree_with_single_ones(kind: str) -> None:
    generator = np.random.default_rng(4)
    values = generator.standard_cauchy(1500)
    if kind == "ties":
        values = np.round(values)
    elif kind == "failures":
        values[generator.integers(0, 1500, 90)] = math.inf
        values[generator.integers(0, 1500, 90)] = -math.inf
    assert signed(values).tolist() == one_by_one([float(value) for value in values])


@given(ROWS, st.integers(0, 2**40 - 1))
def test_coins_set_signs_and_nothing_else(differences: list[float], coins: int) -> None:
    flipped = [-d if coins >> i & 1 else d for i, d in enumerate(differences)]
    before, after = one_by_one(differences), one_by_one(flipped)
    assert [abs(score) for score in after] == [abs(score) for score in before]
    assert after == [-s if coins >> i & 1 else s for i, s in enumerate(before)]


@given(st.lists(LEVELS | st.integers(-(10**6), 10**6).map(float), max_size=40), st.integers(-20, 20))
def test_the_unit_of_the_differences_does_not_matter(differences: list[float], power: int) -> None:
    assert one_by_one([math.ldexp(d, power) for d in differences]) == one_by_one(differences)


def test_small_examples() -> None:
    assert one_by_one([0.3]) == [7]  # u = 1/2: the quartile of the normal distribution, 0.674
    assert one_by_one([0.0, 0.0, -2.0]) == [0, 0, -14]  # zeros take the lower ranks: u = 5/6
    assert one_by_one([1.0, -1.0]) == [7, -7]  # tied: both at mid-rank
    assert one_by_one([1.0, 2.0, math.inf, -math.inf])[2:] == [14, -12]  # failures are tied at the top
    assert max(magnitudes(np.arange(1.0, 3000))) == CAP
    assert magnitudes([]).tolist() == []


def test_not_a_number_is_refused() -> None:
    with pytest.raises(ValueError, match="number or infinite"):
        Scores().add(math.nan)
    with pytest.raises(ValueError, match="one row of numbers"):
        magnitudes([1.0, math.nan])
    with pytest.raises(ValueError, match="one row of numbers"):
        magnitudes(np.ones((2, 2)))
