from __future__ import annotations

import numpy as np

from tools.verification import planning


def test_pilots_deliver_what_they_promise_and_the_planted_fault_does_not() -> None:
    findings = planning.pairs(planning.PilotCase(1.0, 0.01, 500), 1, 200)
    assert [finding.case for finding in findings if not finding.passed] == []
    assert {finding.required for finding in findings} == {"88 to 92%", "45 to 55%", "outside 88 to 92%", "not judged"}
    for finding in (*planning.budgets(0.01, 1, 200), *planning.fixed(1.0, 0.01, 1, 200)):
        assert finding.passed, finding


def test_what_is_delivered_is_the_share_that_ended_by_then() -> None:
    ends = np.array([3.0, 9.0, np.inf, 5.0])
    assert planning.delivered(np.array([2.0, 5.0, 1e9]), ends).tolist() == [0.0, 0.5, 0.75]


def test_each_case_is_a_task() -> None:
    names = [task.name for task in planning.tasks(1, 10)]
    assert len(names) == len(set(names)) == len(planning.CASES) + 5
