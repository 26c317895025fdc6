"""Which attempts the tests of whole runs leave out: one, for which the machine had no huge page."""

from __future__ import annotations

import pytest

from hugewise.model.trial import AttemptState
from tests.build.trials import attempt
from tests.servers.trying import NO_PAGE, last

FULL = f"server ended before it answered (exit status 1): {NO_PAGE[1]}"


def ending(*ends: tuple[AttemptState, str | None]) -> AttemptState:
    """The state of the last of so many attempts of an arm."""
    made = [attempt("thp", None, block=n, state=state, reason=reason) for n, (state, reason) in enumerate(ends)]
    return last([attempt("base", 1.0, block=0), *made])["thp"].state


def test_the_last_of_those_that_ended_alike_is_taken() -> None:
    assert ending(("accepted", None), ("accepted", None)) == "accepted"
    assert ending(("rejected", "no room"), ("rejected", "no place")) == "rejected"


def test_one_that_had_no_huge_page_is_left_out() -> None:
    assert ending(("rejected", FULL), ("accepted", None)) == "accepted"


@pytest.mark.parametrize(
    "ends",
    [
        (("rejected", "the server ended"),),
        (("rejected", FULL), ("rejected", FULL)),
        (("failed", FULL),),
        (("abandoned", None),),
    ],
)
def test_any_other_and_a_second_one_is_a_failure(ends: tuple[tuple[AttemptState, str | None], ...]) -> None:
    with pytest.raises(AssertionError):
        ending(*ends, ("accepted", None))
