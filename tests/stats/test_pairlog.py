from __future__ import annotations

import math
import tracemalloc

import pytest

from hugewise.stats.pairs import Pair, PairLog

PAIRS = [
    Pair(1, 1, 0.25, 5.0, 4.0, False, False),
    Pair(2, 1, None, None, 4.0, True, False),
    Pair(3, 2, None, None, None, True, True, -0.5),
    Pair(1 << 40, 70_000, -1e-9, 1e300, 1e-300, False, True, math.inf),
    Pair(5, 0, None, None, None, False, False, lost=True),
]


def test_what_is_kept_comes_back_as_it_was() -> None:
    log = PairLog()
    for pair in PAIRS:
        log.append(pair)
    assert list(log) == PAIRS
    assert (len(log), log[1], log[-1], log[1:3], log[3:]) == (5, PAIRS[1], PAIRS[4], PAIRS[1:3], PAIRS[3:])
    with pytest.raises(IndexError):
        log[5]


def test_logs_beside_each_other_have_their_own_pairs() -> None:
    kept = PairLog()
    usable = PairLog(beside=kept)
    for number, pair in enumerate(PAIRS):
        kept.append(pair)
        if number % 2:
            usable.append(pair)
    usable.append(PAIRS[0])
    assert list(kept) == PAIRS
    assert list(usable) == [PAIRS[1], PAIRS[3], PAIRS[0]]


def test_a_pair_takes_little_memory() -> None:
    logs = [kept := PairLog(), PairLog(beside=kept), PairLog(beside=kept)]
    tracemalloc.start()
    try:
        for number in range(20_000):
            pair = Pair(number, 1, number / 7, number / 3, number / 5, False, False)
            for log in logs:
                log.append(pair)
        taken = tracemalloc.get_traced_memory()[0] / 20_000
    finally:
        tracemalloc.stop()
    assert taken < 70
