from __future__ import annotations

import pytest

from tools.verification import screenings


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(screenings.ScreeningCase("normal", 6, 0.0), marks=pytest.mark.soak),
        screenings.ScreeningCase("normal", 2, 1.05),
    ],
)
def test_screenings_keep_their_promise_and_the_planted_faults_do_not(case: screenings.ScreeningCase) -> None:
    findings = screenings.together(case, 1, 150)
    promised = 1 if case.gain else 2  # where nothing differs, also that the runner-up has no part in it
    assert [finding.check for finding in findings] == ["screening"] * promised + ["control"]
    for finding in findings:
        assert finding.passed, finding


def test_each_screening_is_a_task() -> None:
    names = [task.name for task in screenings.tasks(1, 10)]
    assert len(names) == len(set(names)) == len(screenings.CASES) + 2


@pytest.mark.parametrize("noise", ["normal", pytest.param("Student's t, 3 df", marks=pytest.mark.soak)])
def test_what_is_worse_by_the_margin_is_seldom_called_not_worse(noise: str) -> None:
    findings = screenings.not_worse(noise, 1, 50)
    assert [finding.check for finding in findings] == ["screening", "control"]
    for finding in findings:
        assert finding.passed, finding
