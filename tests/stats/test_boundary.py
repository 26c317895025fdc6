from __future__ import annotations

import copy
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hugewise.stats.signflip import Boundary, first_crossing, log_spending, magnitudes, open_ended
from tools.verification import independent

MAGNITUDES = st.lists(st.integers(0, 31), min_size=1, max_size=45)
ALPHAS = st.sampled_from([0.5, 0.2, 0.05, 0.01, 1e-4])


@settings(deadline=None)
@given(MAGNITUDES, ALPHAS, st.integers(1, 60))
def test_the_boundary_is_the_smallest_that_alpha_allows(scores: list[int], alpha: float, budget: int) -> None:
    ours = Boundary(alpha, budget)
    found = [ours.step(a) for a in scores]
    boundaries, spent = independent.crossings(scores, alpha, budget)
    # The same states cross: the numbers may differ by states that no walk can be in.
    assert [b is None for b in found] == [b is None for b in boundaries]
    assert all(mine <= theirs for mine, theirs in zip(found, boundaries, strict=True) if mine and theirs)
    assert [Fraction(x) for x in ours.ledger] == pytest.approx(spent, rel=1e-12)
    assert ours.ledger[-1] <= alpha


def test_long_walks_stay_within_the_share() -> None:
    """Against the same recursion in whole numbers, past the pairs where doubles are exact and past a rescaling."""
    scores = (magnitudes(np.random.default_rng(2).normal(size=700)) // 8).tolist()  # small: so is the exact law
    alpha, budget = 0.05, 700
    ours = Boundary(alpha, budget)
    for a in scores:
        ours.step(a)
    _, spent = independent.crossings(scores, alpha, budget)
    assert [float(x) for x in spent] == pytest.approx(ours.ledger, rel=1e-10)
    share = log_spending(alpha, budget)
    assert all(Fraction(x) <= Fraction(alpha) * Fraction(share(t)) for t, x in enumerate(ours.ledger, 1))
    assert ours.spent > 0.99 * alpha


@pytest.mark.parametrize(("alpha", "first"), [(1e-4, 15), (1e-2, 8), (0.05, 6), (0.2, 4), (0.5, 2)])
def test_the_first_pair_that_could_decide(alpha: float, first: int) -> None:
    assert first_crossing(alpha) == first
    assert 2 * 2.0**-first <= alpha < 2 * 2.0 ** (1 - first)
    share = log_spending(alpha, 2000)
    assert share(first - 1) == 0 < share(first) < share(1999) < share(2000) == share(5000) == 1
    assert log_spending(alpha, first)(first) == 1
    assert log_spending(alpha, first - 1)(10**6) == 0


def test_shares_are_the_formulas() -> None:
    assert log_spending(1e-4, 24000)(1000) == pytest.approx(math.log(1001 / 15) / math.log(24001 / 15))
    share = open_ended(1e-4)
    assert share(10) == 0
    assert share(15 * 16 - 1) == pytest.approx(0.5)
    assert share(15 * 1024 - 1) == pytest.approx(10 / 14)
    walk = Boundary(0.05, None)
    for _ in range(300):
        walk.step(5)
    assert walk.spent <= 0.05 * open_ended(0.05)(300)
    assert walk.spent > 0.8 * 0.05 * open_ended(0.05)(300)


def test_zeros_move_the_clock_alone() -> None:
    law = Boundary(0.05, 100)
    assert [law.step(0) for _ in range(40)] == [None] * 40
    assert law.spent == 0
    assert law.pairs == 40


def test_a_copy_goes_its_own_way() -> None:
    scores = magnitudes(np.random.default_rng(3).normal(size=700)).tolist()
    whole, one, other = (Boundary(0.05, 700) for _ in range(3))
    for a in scores[:600]:
        one.step(a)
    twin = copy.copy(one)
    for _ in range(100):
        one.step(31)  # what one does leaves the other alone
    assert [other.step(a) for a in scores[:600]][-1] == [whole.step(a) for a in scores[:600]][-1]
    assert [twin.step(a) for a in scores[600:]] == [whole.step(a) for a in scores[600:]]
    assert twin.ledger == whole.ledger
    assert one.ledger[:600] == whole.ledger[:600]


def test_bad_arguments_are_refused() -> None:
    for alpha, budget in ((0.0, 10), (1.0, 10), (math.nan, 10), (0.05, 0)):
        with pytest.raises(ValueError, match=r"alpha|budget"):
            Boundary(alpha, budget)
    for magnitude in (-1, 32):
        with pytest.raises(ValueError, match="magnitude"):
            Boundary(0.05, 10).step(magnitude)
