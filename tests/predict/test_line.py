"""The line through layouts: it finds planted costs, its intervals cover, and layouts that do not tell give none."""

from __future__ import annotations

import numpy as np
import pytest

from hugewise.predict import line

INSTRUCTIONS = 10**9
MISSES = np.array([8e6, 6e6, 3e6, 1e6, 0.0])
HITS = np.array([1e6, 4e6, 2e6, 5e6, 3e6])
NONE = np.zeros(5)


def events(*columns: line.Numbers) -> line.Numbers:
    return np.column_stack(columns)


def test_planted_costs_are_found() -> None:
    found = events(MISSES, HITS, NONE)
    seconds = np.repeat((2 + 3e-9 * HITS + 5e-8 * MISSES)[:, np.newaxis], 3, axis=1)
    chosen = line.columns(found, INSTRUCTIONS)
    assert chosen == (0, 1)
    fitted = line.fit(found, seconds, chosen)
    assert fitted is not None
    assert fitted.costs() == pytest.approx({0: 5e-8, 1: 3e-9})
    found_at = fitted.at((1e7, 0, 0))
    assert (found_at.low, found_at.value, found_at.high) == pytest.approx((2.5, 2.5, 2.5))


@pytest.mark.parametrize(
    ("columns", "chosen"),
    [
        ((MISSES, NONE, 8e6 - MISSES), (0,)),  # misses of huge pages are what is left
        ((NONE + 7e6, HITS, NONE), (1,)),
        ((MISSES / 1e4, HITS / 1e4, NONE), ()),  # too few to take time
        ((MISSES, MISSES + HITS / 1e4, NONE), (0,)),
        ((MISSES, HITS / 4, NONE), (0,)),  # hits take less time than misses
        ((MISSES, NONE, HITS / 4), (0, 2)),
    ],
)
def test_only_events_that_change_by_themselves_are_fitted(
    columns: tuple[line.Numbers, ...], chosen: tuple[int, ...]
) -> None:
    assert line.columns(events(*columns), INSTRUCTIONS) == chosen


def test_three_layouts_tell_one_cost_and_one_that_is_held_out_is_judged_by_the_runs() -> None:
    found = events(MISSES, HITS, NONE)[:3]
    chosen = line.columns(found, INSTRUCTIONS)
    assert chosen == (0,)
    seconds = (1 + 1e-8 * MISSES[:3])[:, np.newaxis] + np.array([0.0, 0.01, 0.02])
    for predicted, took in zip(line.held_out(found, seconds, chosen), line.quartile(seconds), strict=True):
        assert predicted is not None
        assert predicted.value == pytest.approx(took)
        assert 0.01 < predicted.high - predicted.value < 0.1


def test_one_run_that_was_lent_speed_moves_no_time() -> None:
    found = events(MISSES, NONE, NONE)
    chosen = line.columns(found, INSTRUCTIONS)
    seconds = (1 + 1e-8 * MISSES)[:, np.newaxis] + np.linspace(0, 0.02, 9)
    seconds[1, 4] *= 0.6
    for predicted, took in zip(line.held_out(found, seconds, chosen), line.quartile(seconds), strict=True):
        assert predicted is not None
        assert took == pytest.approx(predicted.value, rel=0.005)


def test_a_layout_that_alone_has_misses_cannot_be_held_out() -> None:
    found = events(np.array([1e7, 0, 0, 0, 0]), NONE, NONE)
    seconds = np.ones((5, 3))
    assert [each is None for each in line.held_out(found, seconds, (0,))] == [True, False, False, False, False]


@pytest.mark.parametrize(("noise", "apart"), [(0.01, 0.0), (0.01, 0.01), (0.002, 0.02)])
@pytest.mark.parametrize("curve", [0.0, 0.1])
def test_intervals_of_90_percent_cover_85_of_held_out_layouts(noise: float, apart: float, curve: float) -> None:
    """Runs with other load, layouts that lie off the line by chance, and a line that is a curve."""
    random, inside, all_ = np.random.default_rng(41), 0, 0
    for _ in range(150):
        shares = random.dirichlet(np.full(4, 2.0))
        share = np.array([1, 1 - shares[0], shares[:2].sum(), shares[0], 0])
        true = 1 + 0.3 * share + curve * share * (1 - share) + apart * random.standard_normal(5)
        seconds = true[:, np.newaxis] + noise * random.exponential(size=(5, 6))
        found = events(1e7 * share, NONE, 1e7 * (1 - share))
        chosen = line.columns(found, INSTRUCTIONS)
        for predicted, took in zip(line.held_out(found, seconds, chosen), line.quartile(seconds), strict=True):
            assert predicted is not None
            inside += predicted.low <= took <= predicted.high
            all_ += 1
    assert inside / all_ >= 0.85
