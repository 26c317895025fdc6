"""Cells that take turns where the study leaves its design open, and calibrations that a study wants."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

import hugewise
from hugewise.analysis.calibration import Agreement, calibration_key, identity, load, save
from hugewise.host.local_host import LocalHost
from hugewise.machine import fingerprint
from hugewise.plan.plan import Cell
from hugewise.session import calibrate
from hugewise.session.feasibility import make_plan
from hugewise.session.identity import cell_records, in_turns, planned, withheld
from hugewise.study.load import parse
from hugewise.study.study import Study
from tests.build.calibrations import agreed, calibrated, record
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


def cells(study: Study) -> dict[str, Cell]:
    return {cell.id: cell for cell in make_plan(study).cells}


def kept(
    results: Path,
    *cells: Cell,
    agrees: bool = True,
    passed: bool = True,
    age: float = 60.0,
    metrics: Sequence[str] | None = None,
) -> None:
    """A calibration of this host, in which the cells' arms were held against sequential pairs; of these metrics, or of
    each cell's own.
    """
    facts = fingerprint.fingerprint(LocalHost())

    def agreement(cell: Cell, name: str) -> Agreement:
        held = agreed(
            treatment=identity(cell.arm(name).treatment), baseline=identity(cell.arm(cell.baseline).treatment)
        )
        return msgspec.structs.replace(held, kind="interleaved", slice=0.05, wash_out=0.2, agrees=agrees)

    found = [
        calibrated(
            key=calibration_key(cell.workload.name, cell.values, metric),
            agreements=tuple(agreement(cell, arm.name) for arm in cell.arms if arm.name != cell.baseline),
            passed=passed,
        )
        for cell in cells
        for metric in metrics or [cell.metric.name]
    ]
    kernel = facts["kernel"]["release"]
    made = record(*found, made=time.time() - age, host=LocalHost().name, machine=facts["machine"], kernel=kernel)
    save(made, results / "calibration")


def kinds(study: Study) -> dict[str, str]:
    return {cell.id: cell.kind for cell in planned(study).cells}


def test_servers_take_turns_where_no_arm_is_lost_by_it() -> None:
    """khugepaged of `tuned` would have to go on while the arms take turns."""
    study = servers()
    assert kinds(study) == {"redis": "interleaved", "tuned": "sequential", "chase": "sequential"}
    made = {cell.id: cell for cell in hugewise.make_plan(study).cells}
    assert made["redis"].together and not made["chase"].together
    assert len(made["tuned"].arms) == 3


def test_each_metric_that_is_judged_needs_a_calibration_of_its_own_where_the_study_wants_one(tmp_path: Path) -> None:
    text = TEXT.replace('name = "redis"\npolicies', 'name = "redis"\nalso = ["server_cpu_us"]\npolicies')
    study = servers(text + "[calibration]\nrequired = true\n")
    kept(tmp_path, cells(study)["redis"])
    said = withheld(study, planned(study), tmp_path / "calibration", LocalHost(), lambda _: None)
    assert "redis" not in said
    assert "there is none of this workload" in said["redis:server_cpu_us"]


@pytest.mark.parametrize("lacking", [{"passed": False}, {"age": 8 * 86_400.0}])
def test_a_calibration_that_says_otherwise_withholds_what_the_study_wants_calibrated(
    tmp_path: Path, lacking: dict[str, float]
) -> None:
    study = servers(TEXT + "[calibration]\nrequired = true\n")
    kept(tmp_path, cells(study)["redis"], **lacking)  # type: ignore[arg-type]
    assert "redis" in withheld(study, planned(study), tmp_path / "calibration", LocalHost(), lambda _: None)


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


def test_a_calibration_keeps_the_command_line_that_asked_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibrate, "_calibrated", lambda *_: iter([calibrated()]))
    asked = ["hugewise", "calibrate", "--seed", "SEED"]
    made, path = calibrate.calibrate(None, tmp_path, command=asked)
    assert made.command == tuple(asked)
    assert load(path.parent.parent) == [made]
    path.write_text(path.read_text().replace('"command"', '"none"'))  # as before any was kept
    assert load(path.parent.parent) == [msgspec.structs.replace(made, command=())]
