"""The control of blocks with two copies: each policy against itself, in the results and in every report."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from hugewise.analysis.analysis import control, with_carry_over
from hugewise.model.reason import CarryOver
from hugewise.model.results import Comparison, Control, Results
from hugewise.model.trial import Block
from hugewise.report.document import Line
from hugewise.report.remarks import control_of, differing_controls
from hugewise.report.summary import summary
from hugewise.report.write import report
from hugewise.stats import inversion, paired
from hugewise.stats.power import pairs_for_assurance
from hugewise.stats.signflip import placings, stopped
from hugewise.stats.stopping import corrected
from hugewise.study.load import parse
from tests.analysis.test_forecast import cell
from tests.build import known
from tests.build.results import comparison, plain
from tests.build.trials import LOWER
from tests.report.told import blocks as told_blocks
from tests.report.told import printed
from tests.stats.test_placings import block_of

STUDY = parse(
    """
format = 1
name = "s"
policies = ["base", "thp"]
[budget]
blocks = 24
[[workload]]
name = "chase"
""",
    "test.toml",
)


def made(first: float, second: float = 100.0, *, count: int = 12, noise: float = 0.01) -> Control | None:
    """The control of so many blocks in which the baseline's copies are these, but for noise."""
    random = np.random.default_rng(3)
    of = replace(cell("chase", "thp"), copies=2, metric=LOWER)
    return control(of, [_block(number, first, second, *random.normal(1, noise, 2)) for number in range(count)], STUDY)


def _block(number: int, first: float, second: float, *noise: float) -> Block:
    return block_of(number, (first / 2, second / 2 * noise[1]), (first * noise[0], second))


def test_the_control_of_equal_copies_differs_by_noise_alone() -> None:
    found = known(made(100.0))
    assert (found.n, found.different, found.confidence) == (24, False, STUDY.confidence)
    assert found.ratio == pytest.approx(1.0, abs=0.02)
    assert found.deviation == pytest.approx(0.01, rel=0.5)
    assert found.low is not None and found.high is not None and found.low < 1 < found.high


def test_copies_that_something_tells_apart_are_called_different() -> None:
    found = known(made(110.0))
    assert found.different
    assert found.ratio == pytest.approx(1.1, abs=0.02)
    assert found.low is not None and found.low > 1


def test_what_is_not_measured_is_no_control() -> None:
    assert made(math.nan) is None, "a failed copy has no value"
    alone = _block(1, 100.0, 101.0, 1.0, 1.0)
    alone = replace(alone, attempts=tuple(one for one in alone.attempts if one.label != "thp"))
    one = known(control(replace(cell("chase", "thp"), copies=2, metric=LOWER), [alone], STUDY))
    assert (one.n, one.deviation, one.low, one.high) == (1, None, None, None)
    broken = replace(_block(1, 100.0, 100.0, 1.0, 1.0), state="disturbed")
    assert control(replace(cell("chase", "thp"), copies=2, metric=LOWER), [broken], STUDY) is None


def of(found: Control | None) -> Results:
    whole = plain()
    return replace(whole, cells=(replace(whole.cells[0], control=found), *whole.cells[1:]))


EQUAL = Control(n=8, ratio=0.997, low=0.988, high=1.007, confidence=0.99, deviation=0.009, different=False)
DIFFERENT = replace(EQUAL, ratio=1.05, low=1.02, high=1.09, different=True)


def flat(results: Results) -> str:
    return " ".join(printed(summary(results), Path("report.html")).split())


def test_each_form_of_the_report_has_the_control() -> None:
    results = of(EQUAL)
    sentence = "each policy against itself −0.30% (−1.20% to +0.70%), 8 pairs"
    assert control_of(results.cells[0]) == sentence
    assert f"Control: {sentence.replace('−', '-')}." in flat(results)
    assert any(sentence in str(one) for one in told_blocks(report(results), Line))
    assert "Control:" not in flat(of(None))


def test_a_control_that_differs_stands_on_top() -> None:
    results = of(DIFFERENT)
    (said,) = differing_controls(results)
    assert said.startswith(f"Do not rely on {results.cells[0].cell}: the control differs")
    assert "Chance alone does this in at most 1% of such cells." in said
    assert "Do not rely on" in flat(results).partition("cell policy")[0]
    assert "Do not rely on" not in flat(of(EQUAL))
    assert any("Do not rely on" in str(one) for one in report(results).lead)


def test_carry_over_is_looked_for_in_each_block() -> None:
    """Two pairs of a block share the order of its turns: they are one point."""
    blocks = [replace(_block(number, 100.0, 101.0, 1.0, 1.0), turns="01233210") for number in range(1, 7)]
    one: Comparison = with_carry_over(
        comparison("thp", LOWER.name, "better", n=12, ratio=0.5, low=0.4, high=0.6), blocks
    )
    (warning,) = [each for each in one.warnings if isinstance(each, CarryOver)]
    assert warning.blocks == 6


@pytest.mark.parametrize(("effect", "budget"), [(0.05, 200), (0.05, 48), (0.2, 48)])
def test_planned_pairs_of_two_copies_are_those_of_the_test(effect: float, budget: int) -> None:
    """Half, and nine in ten, have ended within a block or a tenth of the planned pairs."""
    random = np.random.default_rng(20261130)
    rows = random.normal(0, 0.05 / math.sqrt(2), (300, budget // 2, 4))
    rows[:, :, :2] += math.log1p(effect)
    tests = [stopped((placings(row[:2], row[2:]) for row in each), 0.01, budget, copies=2) for each in rows.tolist()]
    ends = sorted(test.pairs if test.sign > 0 else budget + 1 for test in tests)
    planned = {
        chance: known(
            pairs_for_assurance(math.log1p(effect) / 0.05, math.inf, 0.01, chance=chance, budget=budget, copies=2)
        )
        for chance in (0.5, 0.9)
    }
    assert abs(planned[0.5] - ends[150]) <= max(2, 0.1 * ends[150])
    assert abs(planned[0.9] - ends[270]) <= max(2, 0.1 * ends[270])


def test_an_estimate_at_the_stop_of_two_copies_is_corrected() -> None:
    """On average over 120 streams the plain one is too large; the corrected one is within 5% of the truth."""
    random, truth = np.random.default_rng(20261130), math.log1p(0.05)
    rows = random.normal(0, 0.05 / math.sqrt(2), (120, 60, 4))
    rows[:, :, :2] += truth
    plain, after = [], []
    for each in rows:
        seen = [placings(row[:2], row[2:]) for row in each.tolist()]
        at = stopped(seen, 0.01, 120, copies=2).crossed_at
        if at is None:
            continue
        scale = paired.scale((each[: at // 2, :2] - each[: at // 2, 2:]).ravel().tolist())
        plain.append(inversion.point(seen[: at // 2]) / truth)
        after.append(known(corrected(plain[-1] * truth, scale, at, 0.01, 120, copies=2)) / truth)
    assert len(after) > 115
    assert np.mean(plain) > 1.03
    assert np.mean(after) == pytest.approx(1.0, abs=0.05)
