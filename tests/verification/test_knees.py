from __future__ import annotations

import pytest

from tools.verification import knees
from tools.verification.knees import KneeCase


@pytest.mark.parametrize("case", [KneeCase("no gain", "normal"), KneeCase("a gain that levels off", "normal")])
def test_knees_keep_their_promise_and_the_planted_fault_does_not(case: KneeCase) -> None:
    findings = knees.together(case, 1, 300)
    assert {finding.check for finding in findings} == ({"knee"} if case.shape == "no gain" else {"knee", "control"})
    for finding in findings:
        assert finding.passed, finding


def test_each_shape_and_noise_is_a_task() -> None:
    names = [task.name for task in knees.tasks(1, 10)]
    assert len(names) == len(set(names)) == len(knees.CASES) == 10
