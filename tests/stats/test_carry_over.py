"""What a turn does to the next one: simulated blocks whose arms cost the next turn, and what is said of it."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from hugewise.model.trial import draw_turns
from hugewise.stats.carry_over import bias, exposure


@pytest.mark.parametrize(
    ("turns", "places", "x"),
    [
        ("0101", "ab", 1.0),
        ("1010", "ab", 1.0),
        ("0110", "ab", 0.0),
        ("012012", "abc", 1.0),
        ("012210", "abc", 0.5),
        ("021120", "abc", 0.0),
        ("102201", "abc", 0.5),
        ("0123", "abba", 0.0),  # with two copies: each arm follows its own in half of its turns
        ("0123", "abab", 1.0),
        ("01233210", "abab", 0.5),
    ],
)
def test_alternating_turns_are_exposed_and_those_that_follow_their_own_are_not(
    turns: str, places: str, x: float
) -> None:
    assert exposure(turns, places, "a", "b") == x


def blocks(seed: int, cost: float, count: int = 40) -> list[tuple[float, float]]:
    """Two arms of 40 turns each, of which the first costs the turn after its own a share `cost`: x and log-ratio."""
    noise, points = np.random.default_rng(seed), []
    for block in range(count):
        turns = draw_turns(seed.to_bytes(16), block, 2)
        arm = block % 2  # its place is the coin's
        spent = [0.0, 0.0]
        last = turns[-1]
        for turn in itertools.islice(itertools.cycle(turns), 80):
            spent[int(turn)] += 1 + cost * (int(last) == arm)
            last = turn
        points.append(
            (
                exposure(turns, "01", str(arm), str(1 - arm)),
                math.log(spent[arm] / spent[1 - arm]) + noise.normal(0, 0.005),
            )
        )
    return points


def test_an_arm_that_costs_the_next_turn_2_percent_reads_as_better_by_as_much_as_turns_alternate() -> None:
    points = blocks(2, 0.02, 200)
    read = float(np.mean([y for _, y in points]))
    assert read == pytest.approx(-0.01, abs=0.002)
    found = bias(points, 0.95)
    assert found is not None and found[0] < -0.02 * np.mean([x for x, _ in points]) < found[1] < 0


@pytest.mark.parametrize("cost", [0.0, 0.02])
def test_the_interval_of_the_bias_holds_it_19_times_in_20(cost: float) -> None:
    missed = 0
    for seed in range(1, 201):
        points = blocks(seed, cost)
        found = bias(points, 0.95)
        assert found is not None
        missed += not found[0] <= -cost * np.mean([x for x, _ in points]) <= found[1]
    assert 2 <= missed <= 20


def test_a_few_blocks_or_one_order_of_turns_bound_nothing() -> None:
    assert bias([(1.0, 0.1), (0.0, 0.2), (1.0, 0.1)], 0.95) is None
    assert bias([(1.0, 0.1 * n) for n in range(9)], 0.95) is None


def test_blocks_that_scatter_by_many_powers_of_ten_bound_nothing() -> None:
    assert bias([(0.0, -12.0), (1.0, 12.0), (0.0, 12.0), (1.0, -12.0)], 0.9999) is None
