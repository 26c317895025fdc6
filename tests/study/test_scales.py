"""A study at several scales: other values of its parameters, under a name. And studies that come with hugewise."""

import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hugewise import workloads as registered
from hugewise.errors import StudyError, UserError
from hugewise.plan.plan import Plan, plan
from hugewise.study import load as shipped
from hugewise.study.load import at_scale, load, parse, part
from hugewise.study.study import Study, stored_digest
from hugewise.study.tables import Budget
from tests.build.studies import SIZES, KnobFiles, policies, study_of, workloads

WORKLOAD = {
    "name": "chase",
    "timeout": "60s",
    "parameters": {"bytes": ["1m", "2m"], "loads": 5},
    "scales": {"published": {"bytes": ["64g"], "workload": {"timeout": "2h", "storage": "/srv", "memory": "96g"}}},
}


def study(*uses: dict[str, Any], **more: Any) -> Study:
    return study_of(policies=["base", "thp", "hugetlb-1g"], workload=list(uses), **more)


def planned(of: Study, gib: int) -> Plan:
    host = KnobFiles({"/proc/meminfo": f"MemTotal:       {gib << 20} kB\n"})
    return plan(of, policies(), workloads(), host, SIZES, "system")


def test_a_study_is_small_as_it_is_written() -> None:
    of = study(WORKLOAD)
    assert of.scale == "small"
    assert at_scale(of, "small") is of
    assert [cell.id for cell in planned(of, 4).cells] == ["chase-bytes=1m", "chase-bytes=2m"]


def test_a_scale_replaces_what_it_names_and_nothing_else() -> None:
    of = study(WORKLOAD, {"name": "fault"}, budget={"blocks": 5, "time": "1m"})
    found = at_scale(of, "published")
    (use, other) = found.workload
    assert use.parameters == {"bytes": ("64g",), "loads": 5}
    assert (use.timeout, use.storage, use.memory, use.cpus) == (7200.0, "/srv", 96 << 30, None)
    assert other == of.workload[1]
    assert (found.scale, found.budget) == ("published", of.budget)
    cell = planned(found, 256).cells[0]
    assert (cell.id, cell.values["bytes"], cell.timeout) == ("chase-bytes=64g", 64 << 30, 7200.0)


def test_a_scale_has_a_budget_of_its_own() -> None:
    of = study(WORKLOAD, budget={"blocks": 5, "time": "1m"}, scales={"published": {"budget": {"blocks": 30}}})
    assert at_scale(of, "published").budget == Budget(blocks=30)
    assert of.budget == Budget(blocks=5, time=60.0)


def test_a_scale_has_a_confidence_of_its_own() -> None:
    scales = {"sure": {"confidence": 0.9999}, "published": {"budget": {"blocks": 9}}}
    of = study(WORKLOAD, confidence=0.95, scales=scales)
    assert [at_scale(of, name).confidence for name in ("sure", "published")] == [0.9999, 0.95]
    with pytest.raises(StudyError, match="scales.sure.confidence = 1.5"):
        study(WORKLOAD, scales={"sure": {"confidence": 1.5}})


def test_what_is_stored_is_the_study_at_its_scale() -> None:
    of = study(WORKLOAD)
    found = at_scale(of, "published")
    stored = msgspec.json.encode(found)
    assert msgspec.json.decode(stored, type=Study) == found
    assert stored_digest(stored) == found.digest != of.digest


def test_a_machine_that_is_too_small_is_told_for_each_cell_and_arm() -> None:
    found = at_scale(study(WORKLOAD | {"scales": {"published": {"bytes": ["2g", "64g"]}}}), "published")
    made = planned(found, 24)
    assert [cell.id for cell in made.cells] == ["chase-bytes=2g"]
    assert [(left.cell, left.reason) for left in made.left_out] == [
        ("chase-bytes=64g", "needs 64 GiB, the machine has 24 GiB")
    ]


def test_an_unknown_scale_names_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"s.toml has no scale 'huge'") as caught:
        at_scale(study(WORKLOAD, scales={"larger": {}}), "huge")
    assert caught.value.hint == "scales that it has: small, larger, published"
    with pytest.raises(UserError, match="at the scale published already"):
        at_scale(at_scale(study(WORKLOAD), "published"), "small")
    path = tmp_path / "s.toml"
    path.write_text('format = 1\nname = "s"\npolicies = ["base", "thp"]\n[[workload]]\nname = "chase"\n')
    with pytest.raises(UserError, match="has no scale") as caught:
        load(path, "published")
    assert caught.value.hint == "scales that it has: small"


@pytest.mark.parametrize(
    ("scales", "said"),
    [
        ("{ published = 5 }", "scales.published = 5: must be a table"),
        ("{ small = { bytes = 1 } }", "scales.small: is the study as it is written"),
        ("{ published = { workload = { label = 'x' } } }", "published.workload.label = 'x': unknown key"),
        ("{ published = { bytes = { a = 1 } } }", "scales.published.bytes"),
        ("{ 'a b' = {} }", "the name is not a scale's name"),
    ],
)
def test_mistakes_in_scales_are_named(scales: str, said: str) -> None:
    text = f'format = 1\nname = "s"\npolicies = ["base", "thp"]\n[[workload]]\nname = "chase"\nscales = {scales}\n'
    with pytest.raises(StudyError) as caught:
        parse(text, "s.toml")
    assert said in caught.value.message


@pytest.mark.parametrize("scale", ["small", "published"])
def test_parameters_of_a_scale_are_checked_whatever_is_chosen(scale: str) -> None:
    of = study(WORKLOAD | {"scales": {"published": {"byte": 1}}})
    with pytest.raises(StudyError, match=r"workload\[1\].scales.published.byte = 1: is not a parameter") as caught:
        planned(at_scale(of, scale), 4)
    assert caught.value.hint == "did you mean bytes?"
    of = study(WORKLOAD | {"scales": {"published": {"loads": "many"}}})
    with pytest.raises(StudyError, match=r"scales.published.loads = 'many'"):
        planned(at_scale(of, scale), 4)


def test_no_parameter_is_called_as_the_table_of_other_keys() -> None:
    names = {parameter.name for found in registered.discover().values() for parameter in found.parameters}
    assert "bytes" in names
    assert "workload" not in names


def test_a_scale_compares_policies_of_its_own() -> None:
    use = WORKLOAD | {
        "policies": ["base", "thp"],
        "scales": {"published": {"workload": {"policies": ["base", "thp", "hugetlb-1g"]}}},
    }
    assert [arm.name for arm in planned(study(use), 256).cells[0].arms] == ["base", "thp"]
    found = at_scale(study(use), "published")
    assert found.workload[0].policies == ("base", "thp", "hugetlb-1g")
    for chosen, why in ((["base", "thq"], "is not one of"), (["thp", "hugetlb-1g"], "lacks the baseline")):
        wrong = WORKLOAD | {"scales": {"published": {"workload": {"policies": chosen}}}}
        with pytest.raises(StudyError, match=why) as caught:
            study(wrong)
        assert "scales.published.workload.policies" in str(caught.value)


def test_a_part_of_a_study_has_the_workloads_and_policies_that_are_named() -> None:
    other = {"name": "fault", "policies": ["base", "hugetlb-1g"]}
    of = study(WORKLOAD, other, {"name": "chase", "label": "again"})
    found = part(of, ["chase", "fault"], ["thp"])
    assert [use.called for use in found.workload] == ["chase"]  # nothing is left of the other
    assert [use.name for use in found.policies] == ["base", "thp"]
    assert [cell.id for cell in planned(found, 4).cells] == ["chase-bytes=1m", "chase-bytes=2m"]
    assert part(of) == of
    assert [use.called for use in part(of, ["again"]).workload] == ["again"]


@pytest.mark.parametrize(
    ("workloads", "policies", "message"),
    [
        (["chases"], [], "has no workload 'chases'"),
        ([], ["thq"], "has no policy 'thq'"),
        ([], ["base"], "nothing is left to compare"),
    ],
)
def test_a_part_that_is_not_there_is_named(workloads: list[str], policies: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        part(study(WORKLOAD), workloads, policies)
    assert caught.value.hint


@pytest.mark.parametrize("name", shipped.names())
def test_a_study_is_known_by_its_name(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert load(Path(name)).name == name


def test_a_file_of_that_name_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("demo").write_text("format = ")
    with pytest.raises(StudyError, match="is not TOML"):
        load(Path("demo"))


@pytest.mark.parametrize("name", ["demo.toml", "studies/demo", "../studies/demo", "no-such", "", ".", "*"])
def test_nothing_else_is_a_name(name: str) -> None:
    assert shipped.shipped_study(Path(name)) is None


def test_a_wheel_has_them_beside_its_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipped, "__file__", str(tmp_path / "lib/python3/site-packages/hugewise/study/shipped.py"))
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    assert (shipped.checkout(), shipped.names()) == (None, [])
    folder = tmp_path / "share" / "hugewise" / "studies"
    folder.mkdir(parents=True)
    (folder / "demo.toml").touch()
    assert shipped.shipped_study(Path("demo")) == folder / "demo.toml"
