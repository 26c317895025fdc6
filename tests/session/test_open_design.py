"""Cells that take turns where the study leaves its design open."""

from __future__ import annotations

import pytest

import hugewise
from hugewise.session.feasibility import make_plan
from hugewise.session.identity import cell_records, in_turns, planned
from hugewise.study.load import parse
from hugewise.study.study import Study
from tests.build.trials import opened
from tests.requirements import need_program, need_root

TEXT = """
format = 1
name = "servers"
policies = ["base", "thp", { name = "tuned", from = "thp", set = { "khugepaged/max_ptes_none" = "0" } }]
[[workload]]
name = "redis"
policies = ["base", "thp"]
parameters = { allocator = "libc", keys = 1000 }
[[workload]]
name = "redis"
label = "tuned"
parameters = { allocator = "libc", keys = 1000 }
[[workload]]
name = "chase"
policies = ["base", "thp"]
[design]
kind = "auto"
"""


@pytest.fixture(autouse=True)
def _possible() -> None:
    need_root()
    need_program("redis-server", "redis-server")


def servers(text: str = TEXT) -> Study:
    return parse(text, "servers.toml")


def kinds(study: Study) -> dict[str, str]:
    return {cell.id: cell.kind for cell in planned(study).cells}


def test_servers_take_turns_where_no_arm_is_lost_by_it() -> None:
    """khugepaged of `tuned` would have to go on while the arms take turns."""
    study = servers()
    assert kinds(study) == {"redis": "interleaved", "tuned": "sequential", "chase": "sequential"}
    made = {cell.id: cell for cell in hugewise.make_plan(study).cells}
    assert made["redis"].together and not made["chase"].together
    assert len(made["tuned"].arms) == 3


def test_a_study_that_names_its_design_has_it() -> None:
    study = servers(TEXT.replace('kind = "auto"', 'kind = "sequential"'))
    assert set(kinds(study).values()) == {"sequential"}


def test_a_resumed_run_has_the_designs_that_it_began_with() -> None:
    study = servers()
    began = planned(study)
    recorded = cell_records(began, study.design.first, lambda cell, arm, pool: None)  # type: ignore[arg-type, return-value]
    assert [cell.kind for cell in recorded] == ["interleaved", None, None]
    again = make_plan(study, in_turns=in_turns(opened("r", cells=recorded)))
    assert cell_records(again, study.design.first, lambda cell, arm, pool: None) == recorded  # type: ignore[arg-type, return-value]
