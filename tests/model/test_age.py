from __future__ import annotations

from typing import get_args

from hugewise.model.pages import AGES, MemoryAge, allowed, fragmented, pressed

GIB = 1 << 30


def test_fragmented_is_a_twentieth_of_what_is_free_and_a_tenth_of_what_is_used() -> None:
    assert allowed(20 * GIB, 0) == GIB
    assert allowed(20 * GIB, GIB) == GIB // 10
    assert allowed(GIB, 100 * GIB) == GIB // 20
    assert allowed(0, GIB) == 0


def test_every_age_is_in_the_order_once_and_differs_in_one_thing_from_the_next() -> None:
    assert sorted(AGES) == sorted(get_args(MemoryAge))
    known = [(fragmented(age), pressed(age)) for age in AGES]
    assert known == [(False, False), (False, True), (True, True), (True, False)]
