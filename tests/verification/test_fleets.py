from __future__ import annotations

import pytest

from tools.verification import fleets


@pytest.mark.parametrize(
    "case", [pytest.param(fleets.CONTROL, marks=pytest.mark.soak), fleets.FleetCase(1.05, 0.5, 0.01, 200)]
)
def test_fleets_keep_their_promise_and_the_planted_fault_does_not(case: fleets.FleetCase) -> None:
    findings = fleets.together(case, 1, 20)
    assert [finding.check for finding in findings] == ["fleet", "fleet", *(["control"] * (case == fleets.CONTROL))]
    for finding in findings:
        assert finding.passed, finding


@pytest.mark.soak
def test_a_machine_type_in_unequal_numbers_moves_nothing() -> None:
    findings = fleets.skew(1, 20)
    assert [finding.check for finding in findings] == ["fleet", "fleet", "control", "control"]
    for finding in findings:
        assert finding.passed, finding


@pytest.mark.soak
def test_hosts_that_are_not_there_are_seen_to_matter_and_bounded_do_not() -> None:
    findings = fleets.absent(1, 25)
    assert [finding.check for finding in findings] == ["control", "control", "control", "fleet"]
    for finding in findings:
        assert finding.passed, finding


def test_below_five_hosts_none_is_shown() -> None:
    (finding,) = fleets.fewest(1)
    assert finding.passed, finding


def test_each_case_is_a_task() -> None:
    names = [task.name for task in fleets.tasks(1, 10)]
    assert len(names) == len(set(names)) == len(fleets.CASES) + 3
