from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ville import BettingTest
from ville.evalues import combine as villes_product

from hugewise.stats.evidence import GRID, EProcess, multiply_e_values

ROWS = st.lists(st.sampled_from([0.0, math.inf, -math.inf]) | st.floats(-1e6, 1e6), max_size=30)


def after(differences: list[float]) -> EProcess:
    process = EProcess()
    for difference in differences:
        process.add(difference)
    return process


def test_the_grid() -> None:
    assert len(GRID) == 16
    assert GRID[0] == pytest.approx(0.02)
    assert GRID[-1] == pytest.approx(3.0)
    assert np.diff(np.log(GRID)) == pytest.approx([math.log(150) / 15] * 15)


def test_by_definition() -> None:
    process = after([0.5, -0.2, 0.9])
    scores = np.array([7, -3, 14]) / 10  # u = 1/2, 1/4, 5/6
    up = np.mean([np.prod(np.exp(r * scores) / np.cosh(r * scores)) for r in GRID])
    down = np.mean([np.prod(np.exp(-r * scores) / np.cosh(r * scores)) for r in GRID])
    assert (process.up, process.down) == pytest.approx((up, down))
    assert process.value == pytest.approx((up + down) / 2)
    assert process.log_value == pytest.approx(math.log((up + down) / 2))


def test_one_rate_on_equal_magnitudes_is_villes_betting_on_a_coin() -> None:
    """exp(l s)/cosh(l) = 1 + s tanh(l): a fixed stake on heads or tails, as ville bets when its stake is capped."""
    generator = np.random.default_rng(3)
    heads = generator.random(60) < 0.6
    magnitude = 0.7  # each of equal magnitudes is at mid-rank: score 7
    rate = math.atanh(0.02) / magnitude
    ours, log_values = EProcess([rate]), []
    for head in heads:
        ours.add(1.0 if head else -1.0)
        log_values.append(ours.log_value)
    theirs = BettingTest(0.5, c=0.02).update(heads.astype(float))
    assert log_values == pytest.approx(theirs.log_e_values_.tolist(), rel=1e-9)
    assert ours.rejects(0.75) == (theirs.stopping_time(0.75) is not None)


@settings(deadline=None)
@given(ROWS)
def test_swapped_labels_swap_up_and_down(differences: list[float]) -> None:
    one, other = after(differences), after([-d for d in differences])
    assert (one.log_up, one.log_down) == pytest.approx((other.log_down, other.log_up), abs=1e-9)
    assert one.rejects(0.05) == other.rejects(0.05)


@settings(deadline=None)
@given(st.lists(st.integers(-5, 9).map(float), max_size=30), st.integers(-30, 30))
def test_units_do_not_matter(differences: list[float], power: int) -> None:
    assert after([math.ldexp(d, power) for d in differences]).log_value == after(differences).log_value


def test_a_rejection_stays() -> None:
    process = after([])
    assert process.value == 1
    assert not process.rejects(0.5)
    values = []
    for difference in [1.0 + 0.01 * i for i in range(40)]:
        process.add(difference)
        values.append(process.value)
    first = next(i for i, value in enumerate(values, 1) if value >= 1e4)
    assert 15 <= first <= 24
    assert process.rejects(1e-4)
    assert process.up > process.down
    for _ in range(120):
        process.add(-1.0)
    assert process.value < 1e4
    assert process.rejects(1e-4)
    assert process.pairs == 160


@pytest.mark.parametrize("shift", [0.0, 0.3])
def test_the_largest_value_is_not_missed(shift: float) -> None:
    """Against the value after every pair."""
    process, largest = EProcess(), 1.0
    for difference in (np.random.default_rng(7).standard_normal(300) + shift).tolist():
        process.add(difference)
        largest = max(largest, process.value)
        assert process._log_largest == pytest.approx(math.log(largest), rel=1e-12, abs=1e-12)


def test_hosts_multiply() -> None:
    one, other = after([1.0, 2.0, -0.5, 3.0]), after([0.4, 0.3, 0.8])
    assert multiply_e_values([one.value, other.value]) == pytest.approx(one.value * other.value)
    assert multiply_e_values([one.value, other.value]) == pytest.approx(
        float(villes_product([one.value, other.value], method="product"))
    )
    assert multiply_e_values([]) == 1
    assert multiply_e_values([0.0, math.inf]) == 0
    assert multiply_e_values([1e300, 1e300]) == math.inf
    for bad in (-1.0, math.nan):
        with pytest.raises(ValueError, match="from 0 on"):
            multiply_e_values([1.0, bad])


def test_very_long_evidence_does_not_overflow() -> None:
    process = after([1.0 + i for i in range(1200)])
    assert process.value == math.inf
    assert process.log_value > 700
    assert process.rejects(1e-4)


def test_bad_arguments_are_refused() -> None:
    for grid in ([], [0.0, 1.0], [-1.0], [math.inf], [math.nan]):
        with pytest.raises(ValueError, match="grid"):
            EProcess(grid)
    for alpha in (0.0, 1.0, math.nan):
        with pytest.raises(ValueError, match="alpha"):
            after([]).rejects(alpha)
    with pytest.raises(ValueError, match="number or infinite"):
        after([math.nan])
