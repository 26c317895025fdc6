from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from hugewise.model.policy import Deployment
from hugewise.model.results import ArmSummary
from hugewise.model.trial import Block
from hugewise.stats.classical import SUMMARY_QUANTILES, describe, summarise
from tests.build.trials import LOWER, attempt, block, delivery


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=40))
def test_numbers_are_numpys_and_scipys(values: list[float]) -> None:
    found = describe(values, 0.99)
    assert found.n == len(values)
    assert found.mean == pytest.approx(np.mean(values), rel=1e-9, abs=1e-6)
    assert found.sd == pytest.approx(np.std(values, ddof=1), rel=1e-9, abs=1e-6)
    assert (found.min, found.max) == (min(values), max(values))
    assert found.median == pytest.approx(np.median(values), rel=1e-9, abs=1e-6)
    for p in SUMMARY_QUANTILES:
        assert found.quantiles[str(p)] == pytest.approx(np.quantile(values, p), rel=1e-9, abs=1e-6)
    assert found.margin == pytest.approx(
        stats.t.ppf(0.995, len(values) - 1) * np.std(values, ddof=1) / math.sqrt(len(values)), rel=1e-9, abs=1e-6
    )


def test_too_few_values() -> None:
    nothing, one = describe([], 0.99), describe([3.0], 0.99)
    assert (nothing.n, nothing.mean, nothing.quantiles, nothing.margin) == (0, None, {}, None)
    assert (one.n, one.mean, one.sd, one.median, one.margin) == (1, 3.0, None, 3.0, None)
    assert one.quantiles["0.95"] == 3.0


def summary(blocks: list[Block]) -> ArmSummary:
    return summarise(
        blocks,
        "thp",
        LOWER,
        0.95,
        policy="thp",
        mechanism="system",
        treatment="enabled=always",
        deployment=Deployment(now=("now",), boot=("boot",), note="note"),
    )


def test_an_arm_over_its_complete_blocks() -> None:
    mixed = {"anon:4096": 1, "anon:2097152": 3}
    found = summary(
        [
            block(2, attempt("thp", 20.0, peak_bytes=300 << 20), attempt("base", 1.0)),
            block(
                1,
                attempt("thp", 10.0, delivery=delivery(coverage=mixed), pool_bytes=7),
                attempt("thp", 99.0, state="rejected"),
            ),
            block(3, attempt("thp", None, state="failed", delivered=None)),
            block(4, attempt("thp", 30.0, delivered=False, peak_bytes=None)),
            block(5, attempt("thp", 40.0, delivery=delivery(None, coverage={}))),
            block(6, attempt("thp", None)),
            block(7, attempt("thp", 1e9), state="incomplete"),
            block(8, attempt("thp", 1e9, state="abandoned")),
        ]
    )
    assert (found.n, found.failed, found.undelivered, found.unproven) == (4, 1, 1, 1)
    assert (found.mean, found.median, found.first, found.min, found.max) == (25.0, 25.0, 10.0, 10.0, 40.0)
    assert found.coverage == {"anon:2097152": pytest.approx(3.75 / 4), "anon:4096": pytest.approx(0.25 / 4)}
    assert found.delivered_share == pytest.approx((1 + 1 + 0.25 + 1) / 4)
    assert (found.proof, found.peak_bytes, found.pool_bytes) == ("ranges (kpageflags)", 300 << 20, 7)
    assert (found.treatment, found.deployment) == (
        "enabled=always",
        Deployment(now=("now",), boot=("boot",), note="note"),
    )


def test_an_arm_that_never_ran() -> None:
    found = summary([])
    assert (found.n, found.mean, found.first, found.coverage, found.proof, found.peak_bytes) == (
        0,
        None,
        None,
        {},
        "",
        None,
    )
