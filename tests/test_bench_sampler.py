"""The benchmark of the sampler: what is judged of it, and one pair of real attempts."""

from __future__ import annotations

from bench import sampler


def one(ratio: float, share: float) -> sampler.Cost:
    spread = [0.9999, 1.0001] * 10
    return sampler.Cost("chase, base", tuple(ratio * each for each in spread), (share,) * 20)


def test_it_fails_where_it_is_shown_to_cost_more_than_it_may() -> None:
    assert not sampler.failed(one(1.0, 0.0001))
    assert not sampler.failed(one(1.0049, 0.0001))
    assert sampler.failed(one(1.006, 0.0001))
    assert sampler.failed(one(1.0, 0.006))
    noisy = sampler.Cost("chase, base", (0.8, 1.3) * 10, (0.0001,) * 20)
    assert not sampler.failed(noisy)  # nothing is shown
    assert "+0.60%" in sampler.told(one(1.006, 0.0001))


def test_a_pair_is_measured_with_it_and_without() -> None:
    words = ("fault", "--bytes", "32m", "--rounds", "6", "--advice", "nohuge")
    found = sampler.cost("fault, base", words, 1, period=0.01)
    assert len(found.ratios) == len(found.shares) == 1
    assert found.shares[0] > 0
