"""What a wait returns, and what it says when it was in vain."""

from __future__ import annotations

import pytest

from tests.wait import until


def test_the_first_value_that_is_true_is_returned() -> None:
    values = iter([[], [], [7]])
    assert until(lambda: next(values), "there is one") == [7]


def test_a_wait_in_vain_says_for_what_and_what_it_saw() -> None:
    with pytest.raises(AssertionError, match=r"not within 0 s: all have come; last seen: \[\]"):
        until(list, "all have come", 0)
    with pytest.raises(AssertionError, match="last seen: .two of three"):
        until(lambda: False, "all have come", 0, seen=lambda: "two of three")
