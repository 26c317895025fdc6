"""What a short run on one more host makes of a fleet's verdict."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hugewise.model.results import Verdict
from hugewise.stats.heterogeneity import Own, Prior, TypicalEffect, confirm
from hugewise.stats.sequential import Sequential
from tests.build import known
from tools.verification.block_streams import CONTRAST, pair

FLEET = Prior("better", TypicalEffect(-0.10, 0.005, 9), 0.01, 10)


@pytest.mark.parametrize(
    ("own", "state", "stranger"),
    [
        (Own("better", -0.11, 0.01), "confirmed", False),
        (Own("better", -0.30, 0.01), "confirmed, other size", True),
        (Own("worse", 0.05, 0.01), "contradicted", True),
        (Own("equivalent", -0.001, 0.001), "contradicted", True),
        (Own("undecided", -0.09, 0.02), "prior", False),
        (Own("undecided", 0.2, 0.02), "prior", True),
        (Own("none", None, None), "prior", None),
    ],
)
def test_what_is_claimed(own: Own, state: str, stranger: bool | None) -> None:
    found = confirm(FLEET, own)
    assert (found.state, found.stranger) == (state, stranger)
    assert (found.centre is None) == (state == "prior")


def test_both_estimates_together_are_closer_than_either() -> None:
    found = confirm(FLEET, Own("better", -0.12, 0.02))
    assert -0.12 < known(found.centre) < -0.10
    assert known(found.error) < math.hypot(0.01, 0.005) < 0.02


def test_from_one_host_alone_the_two_are_held_against_their_errors() -> None:
    one = Prior("better", TypicalEffect(-0.10, 0.01, 20), None, 1)
    assert confirm(one, Own("better", -0.12, 0.01)).state == "confirmed"
    assert confirm(one, Own("better", -0.15, 0.01)).state == "confirmed, other size"


def test_nothing_is_confirmed_of_what_was_never_decided() -> None:
    for verdict in ("undecided", "none"):
        prior = FLEET._replace(verdict=verdict)
        assert confirm(prior, Own("better", -0.1, 0.01)).state == "prior"


@pytest.mark.parametrize("hosts", [120, pytest.param(400, marks=pytest.mark.soak)])
def test_a_host_without_any_effect_confirms_in_one_of_twenty_at_most(hosts: int) -> None:
    random, confirmed = np.random.default_rng(5), 0
    for _ in range(hosts):
        made = Sequential(CONTRAST, planned=25, alpha=0.1, margin=0.005)
        number = 0
        while made.decision().status == "continue":
            number += 1
            arm, base = 0.02 * random.standard_normal(2)
            made.observe(pair(number, float(arm), float(base)))
        verdict: Verdict = made.decision().verdict
        confirmed += confirm(FLEET, Own(verdict, made.usable.pairs.centre(), 0.01)).state.startswith("confirmed")
    assert 0 < confirmed / hosts < 0.05 + 3 * math.sqrt(0.05 * 0.95 / hosts)
