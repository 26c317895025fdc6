from __future__ import annotations

import math

import numpy as np
import pytest

from hugewise.stats import signflip, stopping
from tests.build import known
from tools.verification import stopping as check

CASES = (
    check.CONTROL,
    check.StoppingCase("Student's t, 3 df", 1.2, 0.01),
    check.StoppingCase("normal", 1.05, 0.0025),
)


@pytest.mark.parametrize(
    ("case", "streams"),
    [*((case, 70) for case in CASES[:2]), *(pytest.param(case, 150, marks=pytest.mark.soak) for case in CASES)],
)
def test_corrected_estimates_average_the_truth_and_plain_ones_do_not(case: check.StoppingCase, streams: int) -> None:
    findings = check.corrected(case, 3, streams)
    assert [finding for finding in findings if not finding.passed] == []
    assert [finding.check for finding in findings] == ["stopping", "control"][: 1 + (case == check.CONTROL)]


def test_the_correction_is_large_where_luck_was_needed_and_none_where_it_was_not() -> None:
    shares = [stopping.corrected(centre, 1.0, 80, 0.01, 2000) or 0.0 for centre in (0.35, 0.5, 1.0, 3.0)]
    shares = [found / centre for found, centre in zip(shares, (0.35, 0.5, 1.0, 3.0), strict=True)]
    assert shares == sorted(shares)
    assert 0.75 < shares[0] < 0.9
    assert shares[-1] == pytest.approx(1, abs=0.001)


def test_sides_and_units_are_alike_and_the_answer_is_always_the_same() -> None:
    one = known(stopping.corrected(0.02, 0.05, 60, 0.01, 500))
    assert stopping.corrected(-0.02, 0.05, 60, 0.01, 500) == -one
    assert stopping.corrected(0.2, 0.5, 60, 0.01, 500) == pytest.approx(10 * one)
    stopping._expected.cache_clear()
    assert stopping.corrected(0.02, 0.05, 60, 0.01, 500) == one


def test_pairs_after_the_crossing_make_the_correction_smaller() -> None:
    found = [stopping.corrected(0.4, 1.0, 60, 0.01, 500, pairs=pairs) or 0.0 for pairs in (60, 90, 150, 400)]
    assert found == sorted(found)
    assert found[0] < 0.37 and found[-1] == pytest.approx(0.4, abs=0.003)


def test_beyond_two_thousand_pairs_the_problem_is_scaled() -> None:
    near = stopping.corrected(0.16, 1.0, 400, 0.01, 10_000)  # pair by pair
    far = stopping.corrected(0.16, 1.0, 401, 0.01, 10_000)  # pairs in twos
    assert near is not None and far is not None
    assert near < 0.15 and far < 0.15
    assert far == pytest.approx(near, rel=0.05)


def test_there_is_not_always_something_to_correct() -> None:
    assert stopping.corrected(0.1, 1.0, None, 0.01, 100) is None
    assert stopping.corrected(0.1, None, 12, 0.01, 100) is None
    assert stopping.corrected(math.inf, 1.0, 12, 0.01, 100) is None
    assert stopping.corrected(0.1, 0.0, 12, 0.01, 100) == 0.1
    assert stopping.corrected(0.0, 1.0, 12, 0.01, 100) == 0.0
    for crossed_at, pairs in ((0, 0), (12, 11), (12, 101)):
        with pytest.raises(ValueError, match="crossed_at"):
            stopping.corrected(0.1, 1.0, crossed_at, 0.01, 100, pairs=pairs)


def test_the_ranks_of_the_walks_are_those_of_the_test() -> None:
    rows = np.abs(np.random.default_rng(1).standard_normal((4, 32)))
    for row, found in zip(rows, stopping._ranked(rows), strict=True):
        assert found.tolist() == signflip.magnitudes(row).tolist()
