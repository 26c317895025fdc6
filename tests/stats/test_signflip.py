from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hugewise.stats import signflip
from hugewise.stats.signflip import SignFlip

LEVELS = st.sampled_from([0.0, 1.0, -1.0, 2.0, -2.0, 1e6, math.inf, -math.inf])
ROWS = st.lists(LEVELS | st.floats(-1e6, 1e6), max_size=40)
LEANING = st.lists(st.floats(-1, 5), min_size=10, max_size=40)


def trace(differences: list[float], alpha: float = 0.2, budget: int = 40) -> list[tuple[int, int, int | None, float]]:
    test = SignFlip(alpha, budget)
    seen = []
    for difference in differences:
        test.add(difference)
        seen.append((test.sign, test.walk, test.boundary, test.spent))
    return seen


@settings(deadline=None, max_examples=40)
@given(ROWS | LEANING)
def test_swapped_labels_swap_the_verdict(differences: list[float]) -> None:
    swapped = [(-sign, -walk, b, spent) for sign, walk, b, spent in trace(differences)]
    assert trace([-d for d in differences]) == swapped


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(-3, 6).map(float) | st.just(math.inf), max_size=40), st.integers(-30, 30))
def test_units_do_not_matter(differences: list[float], power: int) -> None:
    assert trace([math.ldexp(d, power) for d in differences]) == trace(differences)


@settings(deadline=None, max_examples=40)
@given(LEANING)
def test_incremental_batch_and_one_shot_agree(differences: list[float]) -> None:
    live = SignFlip(0.05, 40)
    for difference in differences:
        live.add(difference)
    whole = signflip.run(differences, 0.05, 40)
    for told in ("sign", "crossed_at", "walk", "boundary", "ledger"):
        assert getattr(live, told) == getattr(whole, told)
    assert signflip.verdict(differences, 0.05, 40) == whole.sign
    assert live.pairs == len(differences) == len(live.ledger)


def test_the_first_crossing_decides_for_good() -> None:
    test = signflip.run([1.0] * 20, 0.01, 100)
    assert (test.sign, test.crossed_at) == (1, 11)
    for _ in range(80):
        test.add(-1.0)
    assert (test.sign, test.crossed_at) == (1, 11)
    assert test.walk < 0
    assert test.spent <= test.alpha


@pytest.mark.parametrize(("alpha", "budget", "pairs"), [(1e-4, 2000, 19), (1e-4, 200, 18), (0.01, 200, 11)])
def test_the_fewest_pairs_that_decide(alpha: float, budget: int, pairs: int) -> None:
    rising = [1.0 + 0.01 * i for i in range(40)]
    assert signflip.run(rising, alpha, budget).crossed_at == pairs
    assert signflip.run([-x for x in rising], alpha, budget).sign == -1


def test_failures_of_one_side_decide() -> None:
    assert signflip.verdict([math.inf] * 15, 0.01, 60) == 1
    assert signflip.verdict([-math.inf] * 15, 0.01, 60) == -1
    assert signflip.verdict([0.0] * 60, 0.2, 60) == 0
