from __future__ import annotations

import math

import msgspec
import pytest
from msgspec.structs import replace

from hugewise.attempt.runner import measure_covariates
from hugewise.host.local_host import LocalHost
from hugewise.model.metric import COVARIATES, difference
from hugewise.model.trial import Attempt
from hugewise.report.document import Verdicts
from hugewise.report.write import report
from tests.build.results import plain
from tests.build.trials import attempt
from tests.report.told import blocks


def test_each_is_measured() -> None:
    found = measure_covariates(LocalHost())
    assert set(found) == set(COVARIATES)
    assert 0 < found["canary"] < math.inf
    assert found["load_before"] >= 0


def test_a_difference_is_on_the_covariates_own_scale() -> None:
    assert difference("canary", {"canary": 0.002}, {"canary": 0.001}) == pytest.approx(math.log(2))
    assert difference("load_before", {"load_before": 0.0}, {"load_before": 0.5}) == -0.5
    for arm, base in (({}, {"canary": 1.0}), ({"canary": 1.0}, {"canary": 0.0}), ({"canary": math.nan}, {"canary": 1})):
        assert difference("canary", arm, base) is None


def test_an_attempt_stored_before_there_were_covariates_still_loads() -> None:
    made = attempt("base", 1.0)
    stored = msgspec.json.decode(msgspec.json.encode(made))
    del stored["covariates"]
    assert msgspec.convert(stored, Attempt) == made
    assert made.covariates == {}


def test_warnings_are_told_with_the_verdict() -> None:
    results = plain()
    cell = results.cells[0]
    one = replace(cell.comparisons[0], warnings=("it was <b>loud</b>\x1b[31m",))
    results = replace(results, cells=(replace(cell, comparisons=(one, *cell.comparisons[1:])),))
    (verdicts,) = blocks(report(results), Verdicts)
    (loud,) = (each for each in verdicts.verdicts if "It was <b>loud" in each.text)
    assert "\x1b" not in loud.text
