from __future__ import annotations

import math

import numpy as np
import pytest

from hugewise.stats import paired, power
from tests.build import known


def averaged(shift: float, pairs: int, budget: int) -> float:
    return power.averaged(lambda factor: power.power(shift * factor, pairs, 0.01, budget), 13.0)


def test_the_nodes_are_those_of_the_spread() -> None:
    for freedom in (3.4, 13.0, 100.0):
        # E (s/sigma)^2 = 1, and its variance is that of chi^2.
        squares = [(weight, factor**2) for weight, factor in power.nodes(freedom)]
        assert sum(weight * square for weight, square in squares) == pytest.approx(1, abs=1e-3)
        variance = sum(weight * (square - 1) ** 2 for weight, square in squares)
        assert variance == pytest.approx(2 / freedom, rel=0.05)
    with pytest.raises(ValueError):
        power.nodes(0.0)


@pytest.mark.parametrize("pilots", [300, pytest.param(600, marks=pytest.mark.soak)])
def test_the_scale_of_a_pilot_has_the_spread_that_is_averaged_over(pilots: int) -> None:
    random = np.random.default_rng(11)
    for pairs in (12, 40):
        scales = np.array([paired.scale(list(random.normal(0, 1, pairs))) for _ in range(pilots)])
        assert np.mean(np.log(scales)) == pytest.approx(-1 / (2 * paired.freedom(pairs)), abs=0.03)
        assert np.std(np.log(scales)) == pytest.approx(math.sqrt(1 / (2 * paired.freedom(pairs))), rel=0.15)


def test_pairs_have_the_chance_on_average() -> None:
    for shift, budget in ((0.4, 2_000), (0.4, None), (0.08, 24_000), (1.5, 60)):
        needed = known(power.pairs_for_assurance(shift, 13.0, 0.01, budget=budget))
        chance = averaged(shift, needed, budget or needed)
        assert 0.9 <= chance < 0.93
        plugged = known(power.pairs_for_assurance(shift, power.KNOWN, 0.01, budget=budget))
        assert 1.1 * plugged < needed < 1.5 * plugged
    assert power.pairs_for_assurance(0.0, 13.0, 0.01) is None
    assert power.pairs_for_assurance(1e-6, 13.0, 0.01) is None
    assert power.pairs_for_assurance(0.2, 13.0, 0.01, budget=100) is None


def test_a_spread_that_is_known_costs_nothing() -> None:
    for shift in (0.3, 1.0):
        plain = known(power.pairs_for_assurance(shift, power.KNOWN, 0.01, budget=2_000))
        assert power.pairs_for_assurance(shift, 1e6, 0.01, budget=2_000) == pytest.approx(plain, abs=1)
        fixed = known(power.student_needed(shift, power.KNOWN, 0.01))
        assert power.student_needed(shift, 1e6, 0.01) == pytest.approx(fixed, abs=1)


def test_what_a_budget_shows_and_hides() -> None:
    for pairs in (50, 400, 24_000):
        for chance in (0.9, 0.1):
            shift = known(power.shift_shown(pairs, 13.0, 0.01, chance=chance))
            assert averaged(shift, pairs, pairs) == pytest.approx(chance, abs=0.01)
    assert power.shift_shown(7, 13.0, 0.01) is None
    fixed = known(power.student_shift(50, 13.0, 0.01))
    assert power.student_needed(fixed, 13.0, 0.01) == pytest.approx(50, abs=1)
