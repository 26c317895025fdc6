"""What the benchmark of an idle worker says; where one runs: `test_engine`."""

from __future__ import annotations

import math

import pytest

from bench import quiet


def test_the_interval_of_pairs() -> None:
    ratio, low, high = quiet.interval([1.01, 0.99, 1.02, 1.0])
    assert low < ratio < high
    assert ratio == pytest.approx(math.prod([1.01, 0.99, 1.02, 1.0]) ** 0.25)
    told = quiet.show((0.0012, 2.0), [1.01, 0.99, 1.02, 1.0], 600)
    assert "over 600 s, TLS on: 0.120% of a core" in told
    assert "target at most 0.3% of a core and 5 wake-ups a second -> met" in told
    assert quiet.met(0.003, 5.0)
    for missed in ((0.004, 2.0), (0.0012, 6.0)):
        assert not quiet.met(*missed) and "MISSED" in quiet.show(missed, [1.01, 0.99], 600)
