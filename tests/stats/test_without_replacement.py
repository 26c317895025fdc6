from __future__ import annotations

import random

import pytest

from hugewise.stats.without_replacement import finite_mean

POPULATIONS = {
    "alike": [1.0] * 400,
    "all but five": [1.0] * 395 + [0.0] * 5,
    "one in fifty": [0.0] * 392 + [1.0] * 8,
    "halves": [0.0, 1.0] * 200,
    "spread": [random.Random(at).random() for at in range(400)],  # noqa: S311
}


@pytest.mark.parametrize("name", POPULATIONS)
@pytest.mark.parametrize(("draws", "most"), [(120, 21), pytest.param(300, 46, marks=pytest.mark.soak)])
def test_intervals_hold_as_often_as_they_say(name: str, draws: int, most: int) -> None:
    """At 90%: of 120 draws 12 misses are allowed, and 22 are three standard deviations above; of 300, 30 and 47."""
    values = POPULATIONS[name]
    true, missed = sum(values) / len(values), 0
    for seed in range(draws):
        found = finite_mean(random.Random(seed).sample(values, 60), len(values), 0.9)  # noqa: S311
        assert 0 <= found.low <= found.estimate <= found.high <= 1
        missed += not found.low - 1e-12 <= true <= found.high + 1e-12
    assert missed <= most


def test_what_was_seen_whole_is_known() -> None:
    found = finite_mean([0.25, 0.5, 0.75], 3, 0.99)
    assert found.low <= found.estimate == 0.5 <= found.high
    assert finite_mean([1.0] * 400, 400, 0.99).low == pytest.approx(1, abs=1e-9)


def test_more_of_it_tells_more() -> None:
    widths = []
    for count in (50, 100, 200, 399):
        found = finite_mean(random.Random(1).sample(POPULATIONS["halves"], count), 400, 0.99)  # noqa: S311
        widths.append(found.high - found.low)
    assert widths == sorted(widths, reverse=True)


@pytest.mark.parametrize(("values", "population"), [([], 3), ([0.5] * 4, 3), ([1.1], 3), ([-0.1], 3)])
def test_what_is_no_sample_is_refused(values: list[float], population: int) -> None:
    with pytest.raises(ValueError, match=r"values of|outside of"):
        finite_mean(values, population, 0.9)
