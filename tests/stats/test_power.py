"""Planning: the pairs that a question takes, with an uncertain noise, for end points, and for a fleet of hosts."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hugewise.stats import paired
from hugewise.stats import power as planning
from hugewise.stats.power import (
    KNOWN,
    least_pairs,
    pairs_for_assurance,
    power,
    shift_shown,
    student_needed,
    student_shift,
)
from hugewise.stats.signflip import first_crossing, stopped
from tests.build import known


def pairs_needed(shift: float, alpha: float, *, chance: float = 0.9, budget: int | None = None) -> int | None:
    return pairs_for_assurance(shift, KNOWN, alpha, chance=chance, budget=budget)


def ends(shift: float, alpha: float, budget: int, replays: int, *, at_most: int) -> list[int]:
    """The pairs after which the real test ended, over simulated campaigns of normal differences."""
    random = np.random.default_rng(20261120)
    tests = [stopped(random.normal(shift, 1.0, at_most).tolist(), alpha, budget) for _ in range(replays)]
    return [test.pairs if test.sign > 0 else at_most + 1 for test in tests]


@pytest.mark.parametrize(
    ("shift", "alpha", "budget", "replays"),
    [
        (1.2, 1e-4, 200, 500),
        (0.5, 1e-2, 2_000, 500),
        pytest.param(0.36, 1e-4, 24_000, 400, marks=pytest.mark.soak),
        pytest.param(0.75, 1e-4, 5_000, 1000, marks=pytest.mark.soak),
        pytest.param(1.2, 1e-4, 200, 1000, marks=pytest.mark.soak),
        pytest.param(0.5, 1e-2, 2_000, 1000, marks=pytest.mark.soak),
    ],
)
def test_the_forecast_is_that_of_the_real_test(shift: float, alpha: float, budget: int, replays: int) -> None:
    far = known(pairs_needed(shift, alpha, chance=0.999, budget=budget))
    seen = np.array(ends(shift, alpha, budget, replays, at_most=far))
    for chance in (0.5, 0.9):
        forecast = known(pairs_needed(shift, alpha, chance=chance, budget=budget))
        # How far the quantile may lie from the forecast by chance alone: 3 standard errors of its probability.
        room = 3 * math.sqrt(chance * (1 - chance) / replays)
        low, high = np.quantile(seen, [chance - room, min(1.0, chance + room)])
        assert low <= max(1.08 * forecast, forecast + 1)
        assert high >= min(forecast / 1.08, forecast - 1)


def test_the_walk_and_its_approximation_agree_where_they_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    for shift, budget in ((0.12, 24_000), (0.16, 3_000)):
        exact = [power(shift, pairs, 1e-4, budget) for pairs in (1_000, 1_500, 2_000)]
        monkeypatch.setattr(planning, "WALKED", 10)
        close = [power(shift, pairs, 1e-4, budget) for pairs in (1_000, 1_500, 2_000)]
        monkeypatch.undo()
        assert close == pytest.approx(exact, abs=0.03)
        assert 0.1 < exact[1] < 0.95


def test_without_a_difference_the_chance_of_one_direction_is_half_of_alpha() -> None:
    assert power(0.0, 2_000, 0.01) == pytest.approx(0.005, rel=0.05)


@pytest.mark.parametrize("alpha", [0.01, 0.001, 1e-4])
def test_the_floor_is_where_all_coins_agree(alpha: float) -> None:
    budget = 2_000
    least = known(least_pairs(alpha, budget))
    assert least >= first_crossing(alpha)
    seen = set(ends(50.0, alpha, budget, 3, at_most=100))
    assert least in seen and seen <= {least, least + 1}
    assert least_pairs(alpha, first_crossing(alpha) - 1) is None


def test_needed_pairs_have_the_chance_and_no_fewer_have_it() -> None:
    for shift in (0.3, 0.6, 1.5, 5.0):
        needed = known(pairs_needed(shift, 1e-3))
        assert power(shift, needed, 1e-3) >= 0.9
        assert power(shift, needed - 1, 1e-3) < 0.9
    assert pairs_needed(0.0, 1e-3) is None
    assert pairs_needed(1e-6, 1e-3) is None
    assert pairs_needed(0.03, 1e-4, budget=5_000) is None
    assert pairs_needed(0.3, 1e-4, budget=60) is None


def test_the_smallest_shift_is_what_the_pairs_show() -> None:
    for pairs in (12, 50, 400, 24_000):
        shift = known(shift_shown(pairs, KNOWN, 0.01))
        assert power(1.01 * shift, pairs, 0.01) >= 0.9 > power(shift / 1.02, pairs, 0.01)
    assert shift_shown(7, KNOWN, 0.01) is None


@pytest.mark.parametrize("arguments", [(-0.1, 10, 0.01), (1.0, 0, 0.01), (1.0, 10, 0.01, 9), (1.0, 10, 0.0)])
def test_what_makes_no_sense_is_refused(arguments: tuple[float, int, float]) -> None:
    with pytest.raises(ValueError):
        power(*arguments)


def test_students_power_is_that_of_tables() -> None:
    # Cohen 1988, table 2.3 for paired differences: n = 34, d = 0.5, two-sided 5%: 0.81 to 0.82
    assert planning.student_power(0.5, 34, 0.05) == pytest.approx(0.81, abs=0.01)
    needed = student_needed(0.5, KNOWN, 0.05, chance=0.8)
    assert needed == 34
    shift = student_shift(34, KNOWN, 0.05, chance=0.8)
    assert shift == pytest.approx(0.5, abs=0.01)
    assert student_needed(0.0, KNOWN, 0.05) is None


def averaged(shift: float, pairs: int, budget: int) -> float:
    return planning.averaged(lambda factor: planning.power(shift * factor, pairs, 0.01, budget), 13.0)


def test_the_nodes_are_those_of_the_spread() -> None:
    for freedom in (3.4, 13.0, 100.0):
        # E (s/sigma)^2 = 1, and its variance is that of chi^2.
        squares = [(weight, factor**2) for weight, factor in planning.nodes(freedom)]
        assert sum(weight * square for weight, square in squares) == pytest.approx(1, abs=1e-3)
        variance = sum(weight * (square - 1) ** 2 for weight, square in squares)
        assert variance == pytest.approx(2 / freedom, rel=0.05)
    with pytest.raises(ValueError):
        planning.nodes(0.0)


@pytest.mark.parametrize("pilots", [300, pytest.param(600, marks=pytest.mark.soak)])
def test_the_scale_of_a_pilot_has_the_spread_that_is_averaged_over(pilots: int) -> None:
    random = np.random.default_rng(11)
    for pairs in (12, 40):
        scales = np.array([paired.scale(list(random.normal(0, 1, pairs))) for _ in range(pilots)])
        assert np.mean(np.log(scales)) == pytest.approx(-1 / (2 * paired.freedom(pairs)), abs=0.03)
        assert np.std(np.log(scales)) == pytest.approx(math.sqrt(1 / (2 * paired.freedom(pairs))), rel=0.15)


def test_pairs_have_the_chance_on_average() -> None:
    for shift, budget in ((0.4, 2_000), (0.4, None), (0.08, 24_000), (1.5, 60)):
        needed = known(planning.pairs_for_assurance(shift, 13.0, 0.01, budget=budget))
        chance = averaged(shift, needed, budget or needed)
        assert 0.9 <= chance < 0.93
        plugged = known(planning.pairs_for_assurance(shift, planning.KNOWN, 0.01, budget=budget))
        assert 1.1 * plugged < needed < 1.5 * plugged
    assert planning.pairs_for_assurance(0.0, 13.0, 0.01) is None
    assert planning.pairs_for_assurance(1e-6, 13.0, 0.01) is None
    assert planning.pairs_for_assurance(0.2, 13.0, 0.01, budget=100) is None


def test_a_spread_that_is_known_costs_nothing() -> None:
    for shift in (0.3, 1.0):
        plain = known(planning.pairs_for_assurance(shift, planning.KNOWN, 0.01, budget=2_000))
        assert planning.pairs_for_assurance(shift, 1e6, 0.01, budget=2_000) == pytest.approx(plain, abs=1)
        fixed = known(planning.student_needed(shift, planning.KNOWN, 0.01))
        assert planning.student_needed(shift, 1e6, 0.01) == pytest.approx(fixed, abs=1)


def test_what_a_budget_shows_and_hides() -> None:
    for pairs in (50, 400, 24_000):
        for chance in (0.9, 0.1):
            shift = known(planning.shift_shown(pairs, 13.0, 0.01, chance=chance))
            assert averaged(shift, pairs, pairs) == pytest.approx(chance, abs=0.01)
    assert planning.shift_shown(7, 13.0, 0.01) is None
    fixed = known(planning.student_shift(50, 13.0, 0.01))
    assert planning.student_needed(fixed, 13.0, 0.01) == pytest.approx(50, abs=1)
