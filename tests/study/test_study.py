import json
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hugewise.errors import StudyError
from hugewise.model.guest import Backing
from hugewise.stats.power import least_pairs
from hugewise.study import keys
from hugewise.study import study as stored_study
from hugewise.study.guest import GuestUse
from hugewise.study.keys import keys_of
from hugewise.study.load import command_study, load, parse, read
from hugewise.study.study import Sampling, Study, stored_digest
from hugewise.study.tables import Between, Budget, Design, PolicyUse, Validity
from tests.build.studies import as_toml, study_data

DEMO = Path(__file__).parents[2] / "studies" / "demo.toml"

FULL = """
format = 1
name = "full"
question = "Which?"
policies = ["base", "thp", { name = "thp-defer", from = "thp", set = { defrag = "defer" }, environment = { A = "b" } }]
baseline = "thp"
margin = "1%"
confidence = 0.95
method = "fixed-n"
window = "2m"

[budget]
blocks = 20
time = "1h"

[[workload]]
name = "chase"
label = "walk"
policies = ["base", "thp"]
metric = "wall_s"
timeout = "60s"
user = "nobody"
cpus = [1]
[workload.parameters]
bytes = ["256k", "1g"]
loads = 2000000
[workload.delivery]
share = 0.9
base_above = "2%"

[[workload]]
name = "command"
parameters = { argv = [["true"], ["ls", "-l"]] }

[between]
settle = "50ms"

[validity]
load_per_cpu = 3
steal = "10%"

[attempt]
retries = 1
environment_pad = "1k"
"""


def scaled(**table: Any) -> dict[str, Any]:
    return {"scales": {"large": table}}


ALL = ["base", "thp", "mthp-64k"]
SEQUENTIAL = {"method": "sequential"}
THRICE = {"workload": [{"name": "a", **scaled(workload={"policies": ["thp", "base", "thp"]})}]}


def error_of(text: str) -> StudyError:
    with pytest.raises(StudyError) as caught:
        parse(text, "s.toml")
    return caught.value


def test_every_key_is_read_into_its_type() -> None:
    study = parse(FULL, "full.toml")
    assert (study.name, study.question, study.compared_with) == ("full", "Which?", "thp")
    assert (study.margin, study.confidence, study.window) == (0.01, 0.95, 120.0)
    assert study.budget == Budget(blocks=20, time=3600.0)
    assert study.policies[2] == PolicyUse(
        name="thp-defer", source="thp", set={"defrag": "defer"}, environment={"A": "b"}
    )
    walk, command = study.workload
    assert (walk.called, walk.policies, walk.metric, walk.timeout) == ("walk", ("base", "thp"), "wall_s", 60.0)
    assert (walk.user, walk.cpus) == ("nobody", (1,))
    assert walk.parameters == {"bytes": ("256k", "1g"), "loads": 2_000_000}
    assert (walk.delivery.share, walk.delivery.base_above) == (0.9, 0.02)
    assert command.parameters == {"argv": (("true",), ("ls", "-l"))}
    assert study.between.settle == 0.05
    assert (study.validity.load_per_cpu, study.validity.steal) == (3.0, 0.1)
    assert (study.attempt.retries, study.attempt.environment_pad) == (1, 1024)


def test_defaults() -> None:
    study = read(study_data(), "s.toml")
    assert study.compared_with == "base"
    assert (study.margin, study.confidence, study.method, study.window) == (0.005, 0.99, "fixed-n", 300.0)
    assert study.budget == Budget(blocks=12, time=None)
    assert study.workload[0].called == "chase"
    assert study.sampling == Sampling(period=1.0)
    assert [read(study_data(sampling={"period": text}), "s.toml").sampling.period for text in ("100ms", "off")] == [
        *(0.1, 0.0)
    ]


def test_the_demo_is_a_study() -> None:
    study = load(DEMO)
    assert [use.name for use in study.policies] == ["base", "thp", "mthp-64k", "hugetlb-2m", "hugetlb-1g"]
    assert (study.confidence, study.margin, study.budget.time) == (0.95, 0.03, 220.0)
    least = least_pairs((1 - study.confidence) / 8, study.budget.blocks)
    assert least is not None and least <= 11  # so that twelve pairs are enough
    assert {use.label: use.policies for use in study.workload} == {
        "random-access": None,
        "fresh-memory": ("base", "thp", "mthp-64k"),
        "mapping-calls": ("base", "thp", "mthp-64k"),
    }


def test_a_study_survives_json() -> None:
    study = parse(FULL, "full.toml")
    assert msgspec.json.decode(msgspec.json.encode(study), type=Study) == study


def test_the_digest_is_of_what_is_said_not_of_how() -> None:
    one = parse(as_toml(study_data(margin="0.5%")), "a.toml")
    assert one.digest == parse("# a comment\n" + as_toml(study_data(margin=0.005)), "b.toml").digest
    assert one.digest != read(study_data(margin="0.6%"), "a.toml").digest
    stored = msgspec.json.encode(one)
    assert stored_digest(stored) == one.digest
    older = json.loads(stored)
    del older["window"]  # as if the key had come with a later version
    assert (
        stored_digest(json.dumps(older).encode()) == stored_digest(json.dumps(older, indent=1).encode()) != one.digest
    )
    assert msgspec.json.decode(json.dumps(older), type=Study) == one


@pytest.mark.parametrize(
    ("change", "key", "value", "hint"),
    [
        ({"formatt": 1}, "formatt", 1, "did you mean format?"),
        ({"blocks": 12}, "blocks", 12, "the key blocks belongs below [budget]"),
        ({"timeout": "9s"}, "timeout", "9s", "the key timeout belongs below [[workload]]"),
        ({"format": 2}, "format", 2, "write format = 1"),
        ({"format": "1"}, "format", "1", "write it without quotes, as in 12"),
        ({"name": "../x"}, "name", "../x", "begin with a letter or digit"),
        ({"name": "x" * 65}, "name", "x" * 65, "at most 64"),
        (
            {"budget": {"blocks": 1}},
            "budget.blocks",
            1,
            "from 2 to 100000: a block gives one pair of values; how far pairs",
        ),
        ({"margin": "5 percent"}, "margin", "5 percent", '"0.5%" or 0.005'),
        ({"margin": 0}, "margin", 0, "above 0 and below 0.5"),
        ({"margin": True}, "margin", True, '"0.5%" or 0.005'),
        ({"confidence": 1.0}, "confidence", 1.0, "above 0.5 and below 1"),
        ({"confidence": float("nan")}, "confidence", float("nan"), "for example"),
        ({"method": "bayes"}, "method", "bayes", "choices: exact, fixed-n, screening, sequential"),
        ({"window": -1}, "window", -1, "for example"),
        ({"window": "0s"}, "window", "0s", "at least 1 s"),
        ({"policies": ["base"]}, "policies", ["base"], "add to the list"),
        ({"policies": ["base", "base"]}, "policies[2]", "base", "remove one"),
        ({"policies": ["base", 3]}, "policies[2]", 3, "from"),
        ({"policies": ["base", {"name": "thp", "set": {"defrag": "x"}}]}, "policies[2].name", "thp", "thp-changed"),
        ({"policies": ["base", {"from": "thp"}]}, "policies[2].name", None, "add: name"),
        ({"policies": ["base", {"name": "x", "from": "thp", "set": {"../enabled": "x"}}]}, None, "x", "correct"),
        ({"policies": ["base", {"name": "x", "from": "thp", "set": {"a": True}}]}, "policies[2].set.a", True, "quotes"),
        ({"policies": ["base", {"name": "x", "from": "thp", "environment": {"A=B": "x"}}]}, None, "x", "correct"),
        ({"baseline": "bsae"}, "baseline", "bsae", "did you mean base?"),
        ({"budget": 3}, "budget", 3, "[table]"),
        ({"budget": {"blocks": 2.0}}, "budget.blocks", 2.0, "without quotes"),
        ({"budget": {"tme": "4m"}}, "budget.tme", "4m", "did you mean time?"),
        ({"workload": {"name": "chase"}}, "workload", {"name": "chase"}, "[[workload]]"),
        ({"workload": []}, "workload", [], "add to the list"),
        ({"workload": [{}]}, "workload[1].name", None, 'add: name = "chase"'),
        ({"workload": [{"name": "a"}, {"name": "a"}]}, "workload[2].name", "a", 'label = "a-2"'),
        ({"workload": [{"name": "a", "policies": ["base", "tph"]}]}, "workload[1].policies[2]", "tph", "mean thp?"),
        ({"workload": [{"name": "a", "policies": ["thp", "thp"]}]}, "workload[1].policies[2]", "thp", "remove"),
        ({"workload": [{"name": "a", "timeout": 0}]}, "workload[1].timeout", 0, "at least"),
        ({"workload": [{"name": "a", "user": "a b"}]}, "workload[1].user", "a b", "account"),
        ({"workload": [{"name": "a", "cpus": [-1]}]}, "workload[1].cpus[1]", -1, "from 0"),
        ({"workload": [{"name": "a", "delivery": {"share": 2}}]}, "workload[1].delivery.share", 2, "for example"),
        ({"workload": [{"name": "a", "parameters": {"x": {}}}]}, "workload[1].parameters.x", {}, "simplify"),
        ({"workload": [{"name": "a", "parameters": {"x": "a\0b"}}]}, "workload[1].parameters.x", "a\0b", "remove"),
        ({"between": {"settle": "fast"}}, "between.settle", "fast", "20ms"),
        ({"validity": {"steal": "150%"}}, "validity.steal", "150%", "for example"),
        ({"validity": {"load_per_cpu": float("inf")}}, "validity.load_per_cpu", float("inf"), "number from 0"),
        ({"attempt": {"retries": -1}}, "attempt.retries", -1, "from 0 to 100"),
        ({"attempt": {"environment_pad": "1g"}}, "attempt.environment_pad", "1g", "to 65536"),
        ({"sampling": {"period": "1ms"}}, "sampling.period", "1ms", "at least 0.01 s"),
        ({"sampling": {"period": "2h"}}, "sampling.period", "2h", "of at most 3600 s"),
        ({"sampling": {"period": True}}, "sampling.period", True, '"20ms"'),
        ({"sampling": {"idle": "20s"}}, "sampling.idle", "20s", "idle memory is not measured"),
        # Keys that do not agree.
        ({"end_points": ["mean"]}, "end_points", ["mean"], 'write method = "sequential"'),
        ({"unjudged": ["thp"]}, "unjudged", ["thp"], 'write method = "sequential"'),
        ({**SEQUENTIAL, "unjudged": ["tph"]}, "unjudged[1]", "tph", "thp"),
        ({**SEQUENTIAL, "unjudged": ["base"]}, "unjudged[1]", "base", "remove it"),
        ({**SEQUENTIAL, "policies": ALL, "unjudged": ["thp", "thp"]}, "unjudged[2]", "thp", "remove one"),
        ({**SEQUENTIAL, "unjudged": ["thp"]}, "unjudged", ["thp"], "take a policy out of it"),
        (
            {**SEQUENTIAL, "policies": ALL, "unjudged": ["thp"], "workload": [{"name": "a", "policies": ALL[:2]}]},
            "unjudged",
            ["thp"],
            "take a policy out of it",
        ),
        ({"design": {"kind": "duet"}}, "design.kind", "duet", 'write kind = "interleaved"'),
        (scaled(design={"kind": "resident"}), "scales.large.design.kind", "resident", 'write kind = "interleaved"'),
        ({"calibration": {"required": True}}, "calibration", {"required": True}, "no verdict waits for a calibration"),
        ({"between": {"compact": True}}, "between.compact", True, "memory_age of a workload"),
        ({"design": {"kind": "interleaved", "slots": [0, 1]}}, "design.slots", [0, 1], "remove it"),
        ({"design": {"kind": "interleaved", "slice": "10ms"}}, "design.slice", "10ms", "at least"),
        ({"design": {"kind": "interleaved", "wash_out": "95%"}}, "design.wash_out", "95%", "below 0.9"),
        ({"design": {"slots": [0, 0]}}, "design.slots[2]", 0, "remove it from one of them"),
        ({"design": {"slots": ["0-1", "1,2"]}}, "design.slots[2]", "1,2", "remove it from one of them"),
        (scaled(design={"slots": [3, 3]}), "scales.large.design.slots[2]", 3, "remove it from one of them"),
        (THRICE, "workload[1].scales.large.workload.policies[3]", "thp", "remove one of them"),
        (
            {"policies": ALL, "workload": [{"name": "a", "policies": ALL[1:]}]},
            "workload[1].policies",
            ALL[1:],
            '"base"',
        ),
    ],
)
def test_a_mistake_names_file_key_value_and_cure(
    change: dict[str, Any], key: str | None, value: object, hint: str
) -> None:
    with pytest.raises(StudyError) as caught:
        read(study_data(**change), "s.toml")
    error = caught.value
    assert error.file == "s.toml"
    assert error.message.startswith("s.toml: ")
    if key is not None:
        assert error.key == key
        assert key in error.message
    assert repr(error.value) == repr(value)
    assert error.hint is not None
    assert hint in error.hint


def test_end_points_are_of_the_sequential_method() -> None:
    assert read(study_data(method="sequential", end_points=["mean"]), "s.toml").end_points == ("mean",)


@pytest.mark.parametrize(
    "text",
    [
        "name = ",
        "a = 1\na = 2",
        "x = " + "[" * 5000,
        "x = " + "9" * 5000,
        "format = 0x" + "f" * 9000,
        "\0",
        '"\\ud800" = 1',
    ],
)
def test_what_is_not_toml_is_an_error(text: str) -> None:
    assert error_of(text).hint


def test_keys_and_values_cannot_write_to_a_terminal() -> None:
    error = error_of('"\\u001b[31mx\\n" = "\\u001b[0m"')
    assert "\x1b" not in error.message
    assert len(error_of(f'name = "{"y" * 9000}"').message) < 300
    assert len(error_of(f'"{"z" * 9000}" = 1').message) < 300


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="no such file") as caught:
        load(tmp_path / "none.toml")
    assert "list studies" in (caught.value.hint or "")
    (tmp_path / "latin.toml").write_bytes(b'name = "\xe9"')
    with pytest.raises(StudyError, match="UTF-8"):
        load(tmp_path / "latin.toml")
    with pytest.raises(StudyError, match="a folder"):
        load(tmp_path)


def test_a_command_without_a_file() -> None:
    study = command_study(["base", "thp"], ["sleep", "1"], blocks=5, time="2m", share=0, pool="4m", timeout="9s")
    assert study.workload[0].parameters == {"argv": ("sleep", "1"), "pool_bytes": "4m"}
    assert (study.budget, study.workload[0].delivery.share) == (Budget(blocks=5, time=120.0), 0.0)
    assert study.question == "Which pages for: sleep 1"
    assert study.method == "sequential"
    alone = command_study(["base", "thp"], ["true"])
    assert (alone.budget, alone.method) == (Budget(blocks=1000, time=600.0), "sequential")
    assert command_study(["base", "thp"], ["true"], time="1m").budget == Budget(blocks=1000, time=60.0)
    assert command_study(["base", "thp"], ["true"], blocks=30).budget == Budget(blocks=30)
    given = command_study(["base", "thp"], ["true"], blocks=1000, time="1h")
    assert (alone.blocks_open, given.blocks_open) == (True, False), "1,000 is a number like others"
    fixed = command_study(["base", "thp"], ["true"], method="fixed-n", baseline="thp", margin="2%", confidence=0.9)
    assert (fixed.budget, fixed.compared_with, fixed.margin, fixed.confidence) == (Budget(), "thp", 0.02, 0.9)
    with pytest.raises(StudyError, match="command line: policies") as caught:
        command_study(["base"], ["true"])
    assert caught.value.hint
    with pytest.raises(StudyError, match="Unicode"):
        command_study(["base", "thp"], ["\udcff"])


def test_the_shortest_duration_that_a_key_allows_is_allowed() -> None:
    place = keys.Place("s.toml", "window")
    assert (keys.duration(1.0).read("1s", place), keys.duration().read("0ms", place)) == (1.0, 0.0)
    with pytest.raises(StudyError, match="is out of range"):
        keys.duration(1.0).read("999ms", place)


@pytest.mark.parametrize("kind", ["duet", "crossover", "resident"])
def test_a_design_of_earlier_versions_is_read_in_a_stored_study(kind: Any) -> None:
    stored = msgspec.structs.replace(parse(as_toml(study_data()), "s.toml"), design=Design(kind=kind))
    stored_study.check(stored, keys.Place("study.json"))


def test_a_stored_study_has_each_key_of_earlier_versions() -> None:
    data = msgspec.toml.decode(resources.files("hugewise.study").joinpath("keys.toml").read_bytes())
    structs = {found.__name__: found for found in (Study, Design, Between, Validity, Sampling, GuestUse)}
    for struct, gone in data["gone"].items():
        assert {key.partition(" = ")[0] for key in gone} <= {*structs[struct].__struct_fields__}


def test_a_table_of_the_model_has_no_keys_of_its_own() -> None:
    """What backs a guest's memory is checked where the study names it."""
    assert keys_of(Backing) == {}
