import pwd
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hugewise.errors import StudyError, UserError
from hugewise.model.pages import THP, PageSizes
from hugewise.model.policy import Mechanism
from hugewise.model.results import LeftOut
from hugewise.plan.cells import TakesTurns, resolve
from hugewise.plan.plan import EVERY, Plan, plan
from hugewise.study.load import parse, part, read
from hugewise.study.tables import Design
from hugewise.workloads import discover
from tests.build.studies import IN_GUESTS, SIZES, KnobFiles, policies, study_of, workloads


def planned(
    workload: list[dict[str, Any]],
    *,
    use: list[Any] | None = None,
    mechanism: Mechanism = "system",
    sizes: PageSizes = SIZES,
    missing: dict[str, str] | None = None,
    host: KnobFiles | None = None,
    **more: Any,
) -> Plan:
    study = study_of(policies=use or ["base", "thp", "hugetlb-1g"], workload=workload, **more)
    known = policies(**(missing or {}))
    if sizes is not SIZES:
        known = {name: policy for name, policy in known.items() if name == "base"}
    return plan(study, known, workloads(), host or KnobFiles(), sizes, mechanism)


def refused(workload: dict[str, Any], **more: Any) -> StudyError:
    with pytest.raises(StudyError) as caught:
        planned([workload], **more)
    return caught.value


def test_the_crossover_of_a_stored_study_is_refused_by_name() -> None:
    """It fell into the branch of the duet: its arms would have run at the same time."""
    stored = study_of(workload=[{"name": "chase"}])
    stored = msgspec.structs.replace(stored, design=Design(kind="crossover", slots=(0, 1)))
    with pytest.raises(StudyError, match=r"design.kind = 'crossover': is a design of earlier versions") as caught:
        plan(stored, policies(), workloads(), KnobFiles(), SIZES, "system")
    assert "new run" in (caught.value.hint or "")


def test_a_list_of_values_is_a_factor() -> None:
    made = planned([{"name": "chase", "parameters": {"bytes": ["256k", "1g"], "loads": [5, 7]}}])
    assert [cell.id for cell in made.cells] == [
        "chase-bytes=256k-loads=5",
        "chase-bytes=256k-loads=7",
        "chase-bytes=1g-loads=5",
        "chase-bytes=1g-loads=7",
    ]
    cell = made.cells[2]
    assert cell.values == {"bytes": 1 << 30, "loads": 5}
    assert [arm.name for arm in cell.arms] == ["base", "thp", "hugetlb-1g"]
    assert cell.arm("hugetlb-1g").treatment.map_hugetlb == 1 << 30
    assert (cell.baseline, cell.metric.name, cell.timeout, cell.cpus) == ("base", "ns_per_load", 600, None)
    assert made.left_out == ()
    with pytest.raises(KeyError):
        cell.arm("none")


def test_a_single_cell_has_the_plain_name_and_the_defaults_and_takes_what_the_study_says() -> None:
    (cell,) = planned([{"name": "chase", "label": "walk", "cpus": [1], "metric": "page_faults"}]).cells
    assert (cell.id, cell.values) == ("walk", {"bytes": 1 << 30, "loads": 2_000_000})
    assert (cell.delivery.share, cell.delivery.base_above) == (0.95, 0.01)
    assert (cell.cpus, cell.metric.name) == ((1,), "page_faults")
    said = {"delivery": {"share": 0, "base_above": "3%"}, "policies": ["hugetlb-1g", "base"]}
    (cell,) = planned([{"name": "chase", **said}]).cells
    assert (cell.delivery.share, cell.delivery.base_above) == (0.0, 0.03)
    assert [arm.name for arm in cell.arms] == ["base", "hugetlb-1g"]


@pytest.mark.parametrize(("mechanism", "who"), [("system", "nobody"), ("process", None)])
def test_whom_programs_run_as_is_decided_once(mechanism: Mechanism, who: str | None) -> None:
    made = planned([{"name": "chase"}], mechanism=mechanism)
    (cell,) = made.cells
    assert (cell.account and cell.account.pw_name, cell.stage_account) == (who, None)
    made = planned([{"name": "chase", "user": "nosuch"}, {"name": "chase", "label": "ours"}], mechanism=mechanism)
    assert [cell.id for cell in made.cells] == ["ours"]
    assert [(one.cell, one.reason) for one in made.left_out] == [
        ("chase", "user = 'nosuch': no such account on this machine")
    ]


@pytest.mark.parametrize(
    ("workload", "user", "who"),
    [
        ("redis", None, ("nobody", "nobody")),
        ("sysbench-memory", None, (None, "nobody")),
        ("redis", "daemon", ("daemon", "daemon")),
    ],
)
def test_a_staged_workload_has_two_accounts(
    monkeypatch: pytest.MonkeyPatch, workload: str, user: str | None, who: tuple[str | None, str]
) -> None:
    """Of its timed command, and of all else on its stage. `daemon` called sudo."""
    monkeypatch.setenv("SUDO_UID", str(pwd.getpwnam("daemon").pw_uid))
    known = discover()
    monkeypatch.setattr(type(known[workload]), "missing", lambda *_: ())  # the programs are not what is asked for
    asked = {"name": workload} | ({"user": user} if user else {})
    data = {"format": 1, "name": "s", "policies": ["base", "thp"], "workload": [asked]}
    (cell,) = plan(read(data, "s.toml"), policies(), known, KnobFiles(), SIZES, "system").cells
    timed, stage = cell.account, cell.stage_account
    assert (timed and timed.pw_name, stage and stage.pw_name) == who


def test_an_arm_that_is_declared_as_a_setting_demands_no_delivery() -> None:
    use = [{"name": "base", "judged": "setting"}, "thp", {"name": "thp-set", "from": "thp", "judged": "setting"}]
    (cell,) = planned([{"name": "chase", "delivery": {"base_above": "3%"}}], use=use).cells
    assert [(arm.name, arm.judged, cell.threshold(arm).share) for arm in cell.arms] == [
        ("base", "setting", 0.0),
        ("thp", "backing", 0.95),
        ("thp-set", "setting", 0.0),
    ]
    assert all(cell.threshold(arm).base_above == 0.03 and cell.proof_wanted(arm) for arm in cell.arms)
    assert (
        cell.arm("thp-set").treatment == cell.arm("thp").treatment
    )  # the pages are the same: only the question is not
    (whole,) = planned([{"name": "chase", "delivery": {"share": 0}}], use=["base", "thp", use[2]]).cells
    assert [whole.proof_wanted(arm) for arm in whole.arms] == [False, False, True]


def test_a_command_is_one_value_and_a_list_of_commands_a_factor() -> None:
    (cell,) = planned([{"name": "command", "parameters": {"argv": ["ls", "-l"]}}]).cells
    assert (cell.id, cell.values) == ("command", {"argv": ("ls", "-l")})
    both = planned([{"name": "command", "parameters": {"argv": [["ls", "-l"], ["/bin/true"]]}}]).cells
    assert [cell.id for cell in both] == ["command-argv=ls_-l", "command-argv=_bin_true"]
    assert both[1].values == {"argv": ("/bin/true",)}


def test_every_type_is_read() -> None:
    parameters = {
        "bytes": 4096,
        "rate": 2,
        "wait": "1m",
        "touch_chance": 0.5,
        "words": "x",
        "random": True,
        "pool_bytes": 0,
    }
    (cell,) = planned([{"name": "every", "parameters": parameters}]).cells
    assert cell.values == {**parameters, "calls": 7, "rate": 2.0, "wait": 60.0}


def test_names_of_cells_are_short_unique_and_safe() -> None:
    words = ["a/b", "a b", "../../etc", "x" * 300, "x" * 301, "é", "ü"]
    cells = planned([{"name": "every", "parameters": {"words": words, "random": [True, False]}}]).cells
    names = [cell.id for cell in cells]
    assert len(set(names)) == len(words) * 2
    assert all(len(name) <= 120 and "/" not in name and name.isascii() and not name.startswith(".") for name in names)


def test_what_the_machine_lacks_is_left_out_once() -> None:
    made = planned(
        [{"name": "chase"}, {"name": "fault"}],
        use=["base", "thp", "hugetlb-1g", "mthp-32k", "hugetlb-16g", "mthp-64k-shmem"],
        missing={"hugetlb_1g": "no room for a page of 1g"},
    )
    assert [[arm.name for arm in cell.arms] for cell in made.cells] == [["base", "thp"]] * 2
    assert made.left_out == (
        LeftOut(EVERY, "hugetlb-1g", "no room for a page of 1g"),
        LeftOut(EVERY, "mthp-32k", "the kernel has no transparent huge pages (mTHP) of 32k (it has: 64k, 128k)"),
        LeftOut(EVERY, "hugetlb-16g", "the kernel has no pool of hugetlb pages of 16g (it has: 2m, 1g)"),
        LeftOut(
            EVERY,
            "mthp-64k-shmem",
            "the kernel has no transparent huge pages (mTHP) for shared memory of 64k (it has: none)",
        ),
    )


def test_a_kernel_without_huge_pages_leaves_nothing_to_compare() -> None:
    made = planned([{"name": "chase"}], use=["base", "thp"], sizes=PageSizes(4096, None, (), ()))
    assert made.cells == ()
    assert [item.reason for item in made.left_out] == [
        "the kernel has no transparent huge pages",
        "only base is left to run: there is nothing to compare it with",
    ]


def test_an_arm_that_the_workload_refuses() -> None:
    made = planned([{"name": "mmap-perf"}])
    assert [arm.name for arm in made.cells[0].arms] == ["base", "thp"]
    assert made.left_out == (LeftOut("mmap-perf", "hugetlb-1g", "no hugetlb here"),)


def test_an_impossible_baseline_takes_its_cells_out() -> None:
    made = planned([{"name": "mmap-perf"}, {"name": "chase"}], baseline="hugetlb-1g")
    assert [cell.id for cell in made.cells] == ["chase"]
    assert made.left_out[-1].policy == EVERY
    assert "its baseline hugetlb-1g is left out" in made.left_out[-1].reason
    assert planned([{"name": "chase"}], missing={"base": "no"}).cells == ()


def test_a_workload_that_lacks_its_program() -> None:
    made = planned([{"name": "absent"}])
    reason = "redis-server is missing; no compiler; the folder of SPEC CPU is not named; make is missing"
    packages = ("redis-server", "gcc", "libc6-dev", "make")
    assert made.left_out == (LeftOut("absent", EVERY, reason, packages),)


def test_what_does_not_fit_into_the_machines_memory_is_left_out() -> None:
    small = KnobFiles({"/proc/meminfo": f"MemTotal:       {3 << 19} kB\nMemFree: 1 kB"})
    sized = [{"name": "chase", "parameters": {"bytes": ["1100m", "96g"]}}]
    made = planned(sized, host=small)
    assert [(cell.id, [arm.name for arm in cell.arms]) for cell in made.cells] == [
        ("chase-bytes=1100m", ["base", "thp"])
    ]
    assert made.left_out == (
        LeftOut("chase-bytes=1100m", "hugetlb-1g", "needs 2 GiB, the machine has 1.5 GiB"),
        LeftOut("chase-bytes=96g", EVERY, "needs 96 GiB, the machine has 1.5 GiB"),
    )
    assert planned(sized).left_out == ()  # a machine that does not say how much it has


DEFER = {"name": "mine", "from": "thp", "set": {"defrag": "defer"}, "environment": {"A": "study", "B": "x"}}


def test_a_changed_policy_has_an_identity_of_its_own() -> None:
    made = planned([{"name": "chase"}], use=["base", DEFER])
    arm = made.cells[0].arm("mine")
    assert arm.policy.name == "thp"
    assert arm.treatment.policy == "mine"
    assert arm.treatment.knobs == {f"{THP}/enabled": "always", f"{THP}/defrag": "defer"}
    assert arm.treatment.environment == {"A": "study", "B": "x"}


def test_an_arm_of_the_process_turns_nothing_under_root() -> None:
    made = planned([{"name": "chase"}], use=["base", {"name": "mine", "from": "thp", "mechanism": "process"}])
    base, mine = made.cells[0].arms
    assert (base.treatment.mechanism, mine.treatment.mechanism) == ("system", "process")
    assert (bool(base.treatment.knobs), dict(mine.treatment.knobs)) == (True, {})


def test_a_change_that_cannot_be_made_here_is_left_out() -> None:
    process = planned([{"name": "chase"}], use=["base", "thp", DEFER], mechanism="process")
    assert process.left_out == (LeftOut(EVERY, "mine", "turning defrag needs root"),)
    by_root = planned([{"name": "chase"}], use=["base", "thp", {**DEFER, "mechanism": "process"}])
    assert by_root.left_out == (LeftOut(EVERY, "mine", 'turning defrag needs mechanism = "system"'),)
    for change, reason in (({"defrag": "later"}, "does not take 'later'"), ({"nothing": "1"}, f"has no {THP}/nothing")):
        made = planned([{"name": "chase"}], use=["base", "thp", {**DEFER, "set": change}])
        assert reason in made.left_out[0].reason


@pytest.mark.parametrize(
    ("workload", "more", "key", "hint"),
    [
        ({"name": "chase"}, {"use": ["base", "tph"]}, "policies[2]", "did you mean thp?"),
        ({"name": "chase"}, {"use": ["base", "mthp-65536"]}, "policies[2]", "did you mean mthp-64k?"),
        ({"name": "chase"}, {"use": ["base", "mthp-3k"]}, "policies[2]", "did you mean mthp-64k"),
        ({"name": "chase"}, {"use": ["base", "hugetlb-1g-shmem"]}, "policies[2]", "did you mean hugetlb-1g?"),
        ({"name": "chase"}, {"use": ["base", "qqqqq"]}, "policies[2]", "policies: base, hugetlb-1g"),
        ({"name": "chase"}, {"use": ["base", {"name": "x", "from": "tph"}]}, "policies[2]", "did you mean thp?"),
        ({"name": "chase"}, {"use": ["base", {**DEFER, "name": "mthp-64k"}]}, "policies[2].name", "of its own"),
        ({"name": "chase"}, {"use": ["base", {"name": "mthp-64k", "from": "thp"}]}, "policies[2].name", "of its own"),
        ({"name": "chsae"}, {}, "workload[1].name", "did you mean chase?"),
        ({"name": "chase", "metric": "ns_per_laod"}, {}, "workload[1].metric", "did you mean ns_per_load?"),
        ({"name": "chase", "parameters": {"byts": 1}}, {}, "workload[1].parameters.byts", "did you mean bytes?"),
        ({"name": "chase", "parameters": {"bytes": 0}}, {}, "workload[1].parameters.bytes", "from 1 to"),
        ({"name": "chase", "parameters": {"bytes": ["1g", "x"]}}, {}, "workload[1].parameters.bytes[2]", '"64k"'),
        ({"name": "chase", "parameters": {"bytes": ["1g", "1024m"]}}, {}, "workload[1].parameters.bytes[2]", "remove"),
        ({"name": "chase", "parameters": {"bytes": []}}, {}, "workload[1].parameters.bytes", "at least one"),
        ({"name": "chase", "parameters": {"loads": "5"}}, {}, "workload[1].parameters.loads", "without quotes"),
        ({"name": "command"}, {}, "workload[1].parameters.argv", "the command"),
        ({"name": "command", "parameters": {"argv": "ls"}}, {}, "workload[1].parameters.argv", "no shell"),
        ({"name": "command", "parameters": {"argv": []}}, {}, "workload[1].parameters.argv", "program"),
        ({"name": "command", "parameters": {"argv": ["ls", 1]}}, {}, "workload[1].parameters.argv[2]", "quotes"),
        ({"name": "command", "parameters": {"argv": [["ls"], 1]}}, {}, "workload[1].parameters.argv[2]", "no shell"),
    ],
)
def test_a_mistake_names_key_and_cure(workload: dict[str, Any], more: dict[str, Any], key: str, hint: str) -> None:
    error = refused(workload, **more)
    assert (error.file, error.key) == ("s.toml", key)
    assert hint in (error.hint or "")


def test_a_study_cannot_explode() -> None:
    lists = {"loads": list(range(400)), "bytes": list(range(1, 400))}
    assert "makes 159600 cells" in refused({"name": "chase", "parameters": lists}).message


scalars = st.one_of(
    st.text(max_size=6), st.integers(), st.floats(), st.booleans(), st.sampled_from(["1k", "5%", "2s", "0", "1g"])
)


@settings(max_examples=400, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from([p.name for p in workloads()["every"].parameters]),
        st.one_of(scalars, st.lists(st.one_of(scalars, st.lists(scalars, max_size=2)), max_size=3)),
    )
)
def test_any_parameters_give_typed_cells_or_a_study_error(parameters: dict[str, Any]) -> None:
    kinds = {p.name: p.type for p in workloads()["every"].parameters}
    try:
        made = planned([{"name": "every", "parameters": parameters}])
    except StudyError as error:
        assert error.hint
        assert (error.key or "").startswith("workload[1].parameters")
        return
    assert len({cell.id for cell in made.cells}) == len(made.cells) >= 1
    types = {"size": int, "integer": int, "number": float, "duration": float, "share": float, "text": str, "flag": bool}
    for cell in made.cells:
        assert all(type(value) is types[kinds[name]] for name, value in cell.values.items())


def test_an_arm_with_base_pages_by_prctl_has_its_policys_knobs_and_promises_base_pages() -> None:
    made = planned([{"name": "chase"}], use=["thp", {"name": "off", "from": "thp", "thp_disable": True}])
    plain, off = (arm.treatment for arm in made.cells[0].arms)
    assert off.knobs == plain.knobs
    assert (off.thp_disable, off.advice, str(off.target.kind), off.target.size) == ("all", "none", "base", 4096)
    with pytest.raises(StudyError, match="pages of a pool"):
        planned([{"name": "chase"}], use=["base", {"name": "off", "from": "hugetlb-1g", "thp_disable": True}])


def test_an_arm_has_parameters_of_its_own() -> None:
    more = {"name": "more", "from": "base", "parameters": {"loads": 7, "bytes": "2m"}}
    made = planned([{"name": "chase", "parameters": {"loads": 5}}], use=["base", more])
    (cell,) = made.cells
    assert cell.values["loads"] == 5
    assert cell.given(cell.arm("more")) == {"bytes": 2 << 20, "loads": 7}
    assert cell.given(cell.arm("base")) == cell.values


def test_parameters_of_an_arm_are_looked_up() -> None:
    wrong = {"name": "more", "from": "base", "parameters": {"lodas": 7}}
    assert "did you mean loads?" in (refused({"name": "chase"}, use=["base", wrong]).hint or "")
    text = {"name": "more", "from": "base", "parameters": {"loads": "many"}}
    assert "policies[2].parameters.loads" in str(refused({"name": "chase"}, use=["base", text]))
    here = {"name": "more", "from": "base", "parameters": {"loads": 7}}
    made = planned([{"name": "chase"}, {"name": "mmap-perf"}], use=["base", here, "thp"])
    assert [len(cell.arms) for cell in made.cells] == [3, 2]
    assert LeftOut("mmap-perf", "more", "mmap-perf has no parameter loads") in made.left_out


def test_slots_must_be_there_and_a_workload_may_not_be_pinned_beside_them() -> None:
    design = {"slots": [0, 5]}
    host = KnobFiles({"/sys/devices/system/cpu/online": "0-1,3"})
    made = plan(study_of(design=design), policies(), workloads(), host, SIZES, "system")
    assert made.cells == ()
    assert "CPU 5 of the design's slots is not online here" in made.left_out[0].reason
    assert planned([{"name": "chase"}], design=design).cells
    assert "workload[1].cpus" in str(refused({"name": "chase", "cpus": [1]}, design=design))


def test_parameters_of_an_arm_are_held_against_the_workloads_that_take_it() -> None:
    use = ["base", "thp", {"name": "none", "from": "thp", "parameters": {"bytes": 0}}]
    made = planned([{"name": "chase", "policies": ["base", "thp"]}], use=use)
    assert [arm.name for arm in made.cells[0].arms] == ["base", "thp"]
    assert "parameters.bytes" in str(refused({"name": "chase"}, use=use))


def test_further_metrics_are_judged_beside_the_cells_own() -> None:
    (cell,) = planned([{"name": "chase", "also": ["page_faults", "peak_bytes"]}]).cells
    assert (cell.metric.name, [one.name for one in cell.also]) == ("ns_per_load", ["page_faults", "peak_bytes"])
    (alone,) = planned([{"name": "chase"}]).cells
    assert alone.also == ()


@pytest.mark.parametrize(
    ("also", "words"),
    [
        (["page_fault"], "workload[1].also[1] = 'page_fault': is not a metric of chase"),
        (["cpu_s", "ns_per_load"], "workload[1].also[2] = 'ns_per_load': is judged already"),
        (["cpu_s", "cpu_s"], "workload[1].also"),
    ],
)
def test_a_metric_that_cannot_be_judged_beside_is_named_with_the_cure(also: list[str], words: str) -> None:
    error = refused({"name": "chase", "also": also})
    assert words in error.message
    assert error.hint


def test_emulated_guests_judge_those_that_emulation_counts_exactly() -> None:
    text = IN_GUESTS.replace('name = "fault"', 'name = "fault"\nalso = ["cpu_s", "page_faults", "peak_bytes"]')
    study = parse(text, "s.toml")
    (cell,) = resolve(study, discover())
    assert [one.name for one in cell.beside(emulated=False, counting=False)] == ["cpu_s", "page_faults", "peak_bytes"]
    assert cell.judged(emulated=True, counting=False).name == "page_faults"
    assert [one.name for one in cell.beside(emulated=True, counting=False)] == ["peak_bytes"]


def test_nothing_is_claimed_of_a_metric_without_a_good_direction() -> None:
    with pytest.raises(StudyError, match="neither better high nor low, so that nothing can be claimed of it") as caught:
        resolve(study_of(workload=[{"name": "memcached", "also": ["hit_ratio"]}]), discover())
    assert "workload[1].also[1] = 'hit_ratio'" in caught.value.message


FACTORS: list[dict[str, Any]] = [
    {"name": "chase", "label": "few", "parameters": {"bytes": ["256k", "1g"], "loads": [5, 7]}},
    {"name": "chase", "label": "few-more", "parameters": {"loads": [5, 7]}},
    {"name": "chase", "label": "other"},
]


@pytest.mark.parametrize(
    ("only", "cells"),
    [
        (["few-bytes=1g-loads=7"], ["few-bytes=1g-loads=7"]),
        (["few-bytes=1g-loads=7", "other"], ["few-bytes=1g-loads=7", "other"]),
        (["few-more-loads=5"], ["few-more-loads=5"]),
        (["few-more-loads=5", "few-more"], ["few-more-loads=5", "few-more-loads=7"]),
        (["other"], ["other"]),
    ],
)
def test_a_part_of_a_study_is_of_workloads_or_of_cells(only: list[str], cells: list[str]) -> None:
    chosen = part(study_of(workload=FACTORS), only)
    assert [cell.id for cell in resolve(chosen, workloads())] == cells


def test_a_part_of_a_part_and_one_whose_arms_are_left_out_have_fewer_cells() -> None:
    chosen = part(study_of(workload=FACTORS), ["few-bytes=1g-loads=7", "other"])
    assert part(chosen, (), ["thp"]).cells == chosen.cells == ("few-bytes=1g-loads=7",)
    assert not part(chosen, ["other"]).cells
    workload = [{**FACTORS[0], "policies": ["base", "hugetlb-1g"]}, FACTORS[2]]
    study = study_of(policies=["base", "thp", "hugetlb-1g"], workload=workload)
    left = part(study, ["few-bytes=1g-loads=7", "other"], ["thp"])
    assert [cell.id for cell in resolve(left, workloads())] == ["other"]


def test_a_cell_that_is_not_there_is_named_with_those_that_are_near() -> None:
    with pytest.raises(UserError, match=r"s\.toml has no cell 'few-bytes=2g-loads=7'") as caught:
        resolve(part(study_of(workload=FACTORS), ["few-bytes=2g-loads=7"]), workloads())
    assert "few-bytes=1g-loads=7" in (caught.value.hint or "")
    with pytest.raises(UserError, match="no workload 'nothing'"):
        part(study_of(workload=FACTORS), ["nothing"])


@pytest.mark.parametrize(
    ("workload", "metric", "also"),
    [
        ({}, "cpu_s", []),
        ({"metric": "wall_s"}, "wall_s", []),
        ({"also": ["cpu_s", "peak_bytes"]}, "cpu_s", ["peak_bytes"]),
    ],
)
def test_a_cell_that_takes_turns_has_the_metric_that_was_chosen_unless_the_study_names_one(
    workload: dict[str, Any], metric: str, also: list[str]
) -> None:
    study = study_of(workload=[{"name": "command", "parameters": {"argv": ["true"]}, **workload}])
    (cell,) = resolve(study, discover(), {"command": TakesTurns("interleaved", "cpu_s")})
    assert (cell.kind, cell.together, cell.metric.name) == ("interleaved", True, metric)
    assert [one.name for one in cell.also] == also
