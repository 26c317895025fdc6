"""The checks that play blocks through the whole method: small ones pass, and their planted faults are found."""

from __future__ import annotations

import numpy as np
import pytest

from hugewise.stats import signflip
from tools.verification import blocks, coverage
from tools.verification.block_streams import BlockScene

SOME = [
    number
    for number, case in enumerate(blocks.NULLS)
    if "undelivered in 30%" in case.what or "duet" in case.what or "late" in case.what
]


@pytest.mark.parametrize("number", [SOME[0], *(pytest.param(number, marks=pytest.mark.soak) for number in SOME[1:])])
def test_a_null_passes_and_its_fault_is_found(number: int) -> None:
    findings = blocks.nulls(number, 3, 30)
    assert len(findings) == 2
    assert [finding for finding in findings if not finding.passed] == []
    assert "(planted)" in findings[1].case


@pytest.mark.parametrize("check", [blocks.equivalence, blocks.untouched])
def test_the_other_promises_and_their_faults(check: object) -> None:
    assert callable(check)
    findings = check(3, 20)
    assert findings
    assert [finding for finding in findings if not finding.passed] == []


def test_the_ends_of_early_stops() -> None:
    findings = blocks.ends(3, 20)
    assert [finding for finding in findings if not finding.passed] == []
    assert signflip.STEPS[0] == 0.0  # the fault that was planted is gone


def test_a_scene_is_what_it_says() -> None:
    procedure = BlockScene(share=0.3, slower=0.1, arm=1.0)
    made = list(procedure.blocks(np.random.default_rng(1), 2000))
    lost = [one for one in made if any(each.delivery.delivered is False for each in one.attempts)]
    assert {one.attempts[0].arm for one in made} == {"arm"}
    assert len(lost) / len(made) == pytest.approx(0.3, abs=0.03)
    assert all(one.attempts[1].delivery.delivered for one in lost)
    slow = [one.attempts[0].metrics["wall_s"] or 0.0 for one in lost]
    assert np.mean(np.log(slow)) == pytest.approx(0.1, abs=0.01)


def test_every_revert_is_planted_somewhere() -> None:
    planted = {case.fault for case in (*blocks.NULLS, blocks.LONG)}
    assert {blocks.DeclaredBudget, blocks.UsableAlone, blocks.BlocksReplaced, blocks.LateIsUsual} <= planted


def test_the_typical_ratio_of_a_known_distribution() -> None:
    values = np.random.default_rng(2).normal(0.03, 0.1, 40_000)
    assert coverage._balanced(values) == pytest.approx(0.03, abs=0.002)
    (finding,) = coverage.lasting("both arms in two modes", 5, 40)
    assert finding.passed
