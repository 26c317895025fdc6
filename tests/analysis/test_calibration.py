import hashlib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hugewise.analysis.calibration import (
    CalibrationRecord,
    HostNow,
    Planned,
    calibration_key,
    identity,
    load,
    save,
    withheld,
)
from hugewise.model.pages import PageTarget
from hugewise.model.policy import Treatment
from hugewise.study.load import parse
from hugewise.study.study import Study
from tests.build.calibrations import BASE, KEY, NOW, THP, agreed, calibrated, record

CELL = Planned("chase", KEY, BASE, {"thp": THP})
HERE = HostNow("m", "h", "6.18", NOW)
STUDY = """
format = 1
name = "s"
policies = ["base", "thp"]
[design]
kind = "{kind}"
slots = [0, 1]
[calibration]
required = {required}
age = "2h"
[[workload]]
name = "chase"
"""


def study(kind: str = "sequential", required: str = "true") -> Study:
    return parse(STUDY.format(kind=kind, required=required), "s.toml")


def reason(asked: Study, *records: CalibrationRecord) -> str | None:
    return withheld(asked, [CELL], records, HERE).get("chase")


def test_records_are_kept_by_host_and_read_the_newest_first(tmp_path: Path) -> None:
    old, new = record(made=NOW - 9000), record(calibrated(agreements=(agreed(),)), host="a/b")
    assert save(old, tmp_path).parent == tmp_path / "h"
    assert save(new, tmp_path).parent == tmp_path / "a-b"
    (tmp_path / "h" / "torn.json").write_text('{"format": 1')
    assert load(tmp_path) == [new, old]
    assert load(tmp_path / "nothing") == []


def test_a_study_that_requires_nothing_gets_its_verdicts() -> None:
    assert reason(study(required="false")) is None


@pytest.mark.parametrize(
    ("records", "words"),
    [
        ([], "there is none of this workload on this host"),
        ([record(machine="other")], "there is none"),
        ([record(host="other")], "there is none"),
        ([record(planted=0.1)], "there is none"),
        ([record(calibrated(key="other"))], "there is none"),
        ([record(kernel="6.12")], "under kernel 6.12"),
        ([record(made=NOW - 7201)], "old (age: 2 h"),
        ([record(calibrated(passed=False, reason="too many"))], "failed: too many"),
    ],
)
def test_what_is_missing_is_said_with_the_cure(records: list[CalibrationRecord], words: str) -> None:
    said = reason(study(), *records) or ""
    assert words in said
    assert said.endswith("(hugewise calibrate s.toml)")


def test_a_good_calibration_lets_verdicts_stand() -> None:
    assert reason(study(), record()) is None
    assert calibration_key("chase", {"bytes": 1 << 21}, "ns_per_load") != KEY


def test_how_long_a_service_is_waited_for_is_no_part_of_what_is_measured() -> None:
    key = calibration_key("service", {"load": ("a",), "ready_within": 5.0, "pool_bytes": 0}, "wall_s")
    assert calibration_key("service", {"load": ("a",), "ready_within": 60.0, "pool_bytes": 1 << 20}, "wall_s") == key
    assert calibration_key("service", {"load": ("b",), "ready_within": 5.0, "pool_bytes": 0}, "wall_s") != key
    assert calibration_key("command", {"argv": ("a",), "pool_bytes": 0}, "wall_s") != calibration_key(
        "command", {"argv": ("a",), "pool_bytes": 1 << 20}, "wall_s"
    )


def test_a_calibration_in_guests_counts_for_guests_of_the_same_kind() -> None:
    inside = calibration_key("chase", {"bytes": 1 << 20}, "ns_per_load", {"accelerator": "kvm", "memory": 1 << 30})
    assert (
        calibration_key("chase", {"bytes": 1 << 20}, "ns_per_load", {"memory": 1 << 30, "accelerator": "kvm"}) == inside
    )
    assert (
        calibration_key("chase", {"bytes": 1 << 20}, "ns_per_load", {"accelerator": "tcg", "memory": 1 << 30}) != inside
    )
    assert "there is none" in (reason(study(), record(calibrated(key=inside))) or "")  # the study's is the host's


def test_a_duet_needs_every_arm_to_agree_even_if_the_study_asks_for_nothing() -> None:
    duet = study("duet", required="false")
    assert "there is none" in (reason(duet, record()) or "")
    assert reason(duet, record(calibrated(agreements=(agreed(),)))) is None
    far = record(calibrated(agreements=(agreed(agrees=False, reason="the effects may lie 9% apart"),)))
    assert "for thp the effects may lie 9% apart" in (reason(duet, far) or "")
    other = record(calibrated(agreements=(agreed(treatment="other"),)))
    assert "had not thp beside the baseline" in (reason(duet, other) or "")


def test_the_interleaved_design_needs_no_calibration_unless_the_study_wants_one() -> None:
    text = STUDY.replace("slots = [0, 1]\n", "")
    assert reason(parse(text.format(kind="interleaved", required="false"), "s.toml"), record()) is None
    wanted = parse(text.format(kind="interleaved", required="true"), "s.toml")
    said = reason(wanted) or ""
    assert said.startswith("the study requires a calibration, and there is none of this workload on this host")
    assert reason(wanted, record(calibrated())) is None


def test_a_treatments_name_is_not_its_identity() -> None:
    assert identity(THP) == identity(msgspec.structs.replace(THP, policy="mine"))
    assert identity(THP) != identity(msgspec.structs.replace(THP, advice="none"))


def test_a_treatment_without_what_came_later_is_what_it_was_before() -> None:
    target = PageTarget("thp", 2 << 20)
    known = Treatment(policy="thp", mechanism="process", target=target, advice="huge")
    assert identity(known) == "1967d5d784224b24"
    assert identity(msgspec.structs.replace(known, layout="thp")) != identity(known)
    assert identity(msgspec.structs.replace(known, surplus=True)) != identity(known)


@pytest.mark.parametrize(
    ("workload", "gone"),
    [
        ("redis", {"malloc_conf": "", "client": "probe"}),
        ("tpcc", {"seed": 1, "sysbench_tpcc": ""}),
        ("x264", {"clips": "", "preset": "medium", "copy_binary": True}),
    ],
)
def test_a_calibration_made_with_parameters_that_are_gone_is_found(workload: str, gone: dict[str, Any]) -> None:
    values = {"alpha": 1, "zeta": "z"}
    exact = msgspec.json.encode([workload, {**values, **gone}, "m"], order="deterministic")
    assert calibration_key(workload, values, "m") == hashlib.sha256(exact).hexdigest()[:16]
    assert calibration_key("pgbench", values, "m") != calibration_key(workload, values, "m")
