"""Commands: numbers in their output, what is run in place of what others publish, and words for xargs."""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import hugewise
from hugewise.analysis.analysis import stand_ins_of
from hugewise.errors import StudyError
from hugewise.model.design import TakingTurns
from hugewise.model.metric import Metric
from hugewise.model.workload import Direct, StandIn
from hugewise.study.load import command_study
from hugewise.workloads import discover, x264
from hugewise.workloads._outputs import extract, parse
from hugewise.workloads.command import WORKLOAD
from tests.build import known
from tests.build.studies import study_of
from tests.build.workloads import given
from tests.requirements import need_program
from tests.servers.trying import attempts

ARMS = ["as-is", {"name": "other", "from": "as-is", "environment": {"A": "1"}}]
REPORT = {"end": {"sum": [{"rate": 7.5}, {"rate": "12"}], "odd key": 3}, "ok": True, "huge": 10**400}


def test_a_value_names_its_metric_with_unit_and_direction() -> None:
    value = parse("rate,higher,MiB/s=regex:([0-9.]+) MiB/s")
    assert value.metric == Metric("rate", "MiB/s", "higher", "matched by ([0-9.]+) MiB/s")
    assert parse("t,lower=json:.a").metric.unit == ""
    assert parse("t,lower,a, b=regex:x=y").metric.unit == "a, b"
    assert parse("t,lower=regex:x=(y):z").where == "x=(y):z"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "write NAME"),
        ("regex:x", "write NAME"),
        ("rate=regex:x", "write NAME"),
        ("rate,higher=xpath:x", "write NAME"),
        ("rate,higher=regex:", "write NAME"),
        ("rate,good=regex:x", "'good' says not which direction"),
        ("Rate!,lower=regex:x", "'Rate!' is not of small letters"),
        ("wall_s,lower=regex:x", "has a metric wall_s of its own"),
        ("rate,lower=regex:(", "not a regular expression"),
        (f"rate,lower=regex:a{{{'9' * 20}}}", "'a{99999999999999999999}' repeats more often than a pattern can"),
        (f"rate,lower=regex:{'(' * 3000}{')' * 3000}", "((... is nested too deeply: write a simpler one"),
        ("rate,lower=json:a b", "neither"),
        ("rate,lower=json:.a[x]", "'[x]' is neither"),
    ],
)
def test_what_is_written_wrongly_is_told_with_the_way_to_write_it(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        parse(text)
    assert why in str(caught.value)


@pytest.mark.parametrize(
    ("where", "stdout", "stderr", "number"),
    [
        # The last match of stdout counts, and else that of stderr.
        (r"regex:([0-9.]+) MiB/s", "1 MiB/s\n2.5 MiB/s", "", 2.5),
        (r"regex:\d+", "a 3 b", "4", 3.0),
        (r"regex:^took (\S+)", "nothing", "took 1e-3 s", 1e-3),
        # A path leads through keys and indexes.
        ("json:$.end.sum[0].rate", json.dumps(REPORT), "", 7.5),
        ("json:.end.sum[-1].rate", json.dumps(REPORT), "", 12.0),
        ('json:.end["odd key"]', json.dumps(REPORT), "", 3.0),
    ],
)
def test_a_value_is_found_by_a_pattern_or_a_path(where: str, stdout: str, stderr: str, number: float) -> None:
    assert extract(parse(f"x,lower={where}"), stdout, stderr) == number


@pytest.mark.parametrize(
    ("value", "stdout", "why"),
    [
        ("x,lower=regex:rate (.*)", "it began\nand ended", r"matches 'rate (.*)'; it begins: 'it began"),
        ("x,lower=regex:rate (.*)", "rate fast", "found 'fast', which is not a number"),
        ("x,lower=regex:rate( .)?", "rate", "found '', which is not a number"),
        ("x,lower=json:.end.rate", json.dumps(REPORT), "nothing at .rate of .end (there is: sum, odd key)"),
        ("x,lower=json:.end.sum[2]", json.dumps(REPORT), "nothing at [2] of .end.sum (there is: a list)"),
        ("x,lower=json:.ok", json.dumps(REPORT), "found True, which is not a number"),
        ("x,lower=json:.huge", json.dumps(REPORT), "which is not a number"),
        ("x,lower=json:.a", "no JSON here", "not JSON"),
    ],
)
def test_what_is_not_there_is_named_with_the_begin_of_the_output(value: str, stdout: str, why: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        extract(parse(value), stdout, "")
    assert why in str(caught.value)


def test_a_study_is_judged_by_its_first_value() -> None:
    rate, time = "rate,higher,1/s=regex:r (.*)", "spent,lower,s=regex:t (.*)"
    named = WORKLOAD.named({"values": (rate, time)})
    assert [metric.name for metric in named] == ["rate", "spent"]
    assert WORKLOAD.parse("r 2\nt 3\n", "", {"values": (rate, time)}) == {"rate": 2.0, "spent": 3.0}
    with pytest.raises(ValueError, match="a value rate already"):
        WORKLOAD.named({"values": (rate, rate)})


def told(script: str, **parameters: Any) -> Mapping[str, Any]:
    return {"name": "command", "parameters": {"argv": [sys.executable, "-c", script], **parameters}}


@pytest.mark.parametrize(("proof", "why"), [("exit", None), ("twin", "a second time"), ("counters", "tell arms apart")])
def test_a_command_takes_turns_where_its_own_memory_is_the_proof(proof: str, why: str | None) -> None:
    workload: object = WORKLOAD
    assert isinstance(workload, TakingTurns)
    refused = workload.turns_refused({"argv": ("true",), "proof": proof})
    assert refused is None if why is None else why in known(refused)


def test_what_a_command_says_of_its_own_time_is_not_compared_in_turns() -> None:
    """It would hold the others' turns: twice the work took 1.7 times as long, by the command's own clock."""
    refused = WORKLOAD.turns_refused({"argv": ("true",), "values": ("spent,lower,s=regex:t (.*)",)})
    assert "its own clock goes on while it stands still" in known(refused)


def test_what_is_run_before_it_is_part_of_the_cell_and_must_be_there() -> None:
    table = {"name": "command", "parameters": {"argv": ["true"], "prepare": ["rm", "-f", "a b; c"]}}
    (cell,) = hugewise.make_plan(study_of(policies=ARMS, workload=[table])).cells
    assert cell.values["prepare"] == ("rm", "-f", "a b; c"), "the record of a run has it"
    direct: object = cell.workload
    assert isinstance(direct, Direct)
    assert direct.launch(cell.arms[0].treatment, cell.values).prepare == ("rm", "-f", "a b; c")
    told = command_study(["as-is", "base"], ["true"], prepare=["no-such-program-anywhere"])
    (left,) = hugewise.make_plan(told).left_out
    assert left.reason == "no-such-program-anywhere: no such program on PATH"
    refused = WORKLOAD.turns_refused({"argv": ("true",), "prepare": ("rm",)})
    assert "one clears what another has" in known(refused)


def test_one_line_names_a_value_and_judges_it() -> None:
    given = ["rate,higher,MiB/s=regex:rate (.*)", "spent,lower,s=json:.t"]
    chosen = command_study(["as-is", "base"], ["true"], values=given)
    (used,) = chosen.workload
    assert used.parameters["values"] == tuple(given)
    told = {"argv": ["true"], "values": given}
    (cell,) = hugewise.make_plan(study_of(policies=ARMS, workload=[{"name": "command", "parameters": told}])).cells
    assert (cell.metric.name, cell.metric.better, cell.metric.unit) == ("rate", "higher", "MiB/s")
    use = {"name": "command", "metric": "spent", "parameters": told}
    (cell,) = hugewise.make_plan(study_of(policies=ARMS, workload=[use])).cells
    assert cell.metric.name == "spent"


def test_a_wrong_value_is_the_study_s_mistake() -> None:
    chosen = study_of(policies=ARMS, workload=[dict(told("pass", values=["rate=regex:x"]))])
    with pytest.raises(StudyError) as caught:
        hugewise.make_plan(chosen)
    assert "parameters" in str(caught.value)
    assert "write NAME" in (caught.value.hint or "")


@pytest.mark.whole
def test_output_that_cannot_be_read_fails_each_attempt_and_not_the_run(tmp_path: Path) -> None:
    script = "import os; os.write(1, eval(os.environ['SAID']))"
    hostile = {"deep": "b'[' * 9000", "long": "b'9' * 5000", "bytes": "b'\\xff{'", "wide": "b'1' * (65 << 20)"}
    policies = [{"name": name, "from": "as-is", "environment": {"SAID": said}} for name, said in hostile.items()]
    found = attempts(tmp_path, told(script, values=["rate,higher=json:.a"]), policies, blocks=2)
    assert {each.arm: each.state for each in found} == dict.fromkeys(hostile, "failed")
    reasons = {each.arm: each.reason or "" for each in found}
    assert "nested too deeply" in reasons["deep"] and "out of range" in reasons["long"]
    assert "not JSON" in reasons["bytes"]
    # The launcher sees it while the command runs, or the reader after a command that was quicker.
    assert "its stdout has more than 67108864 bytes" in reasons["wide"]


@pytest.mark.whole
def test_values_of_a_real_command_are_its_metrics(tmp_path: Path) -> None:
    script = "import os; print('rate', 2 + len(os.environ['GIVEN']), 'x')"
    policies = [
        {"name": "a", "from": "as-is", "environment": {"GIVEN": "1"}},
        {"name": "b", "from": "as-is", "environment": {"GIVEN": "22"}},
    ]
    workload = told(script, values=["rate,higher,x/s=regex:rate (.*) x"])
    found = attempts(tmp_path, workload, policies, blocks=2)
    assert [(each.arm, each.metrics["rate"]) for each in sorted(found, key=lambda each: each.arm)] == [
        ("a", 3.0),
        ("a", 3.0),
        ("b", 4.0),
        ("b", 4.0),
    ]
    silent = told("print('so it began')", values=["rate,higher,x/s=regex:rate (.*) x"])
    failed = attempts(tmp_path, silent, policies, blocks=2)
    assert {each.state for each in failed} == {"failed"}
    assert "it begins: 'so it began" in (failed[0].reason or "")


@pytest.mark.whole
@pytest.mark.parametrize("kind", ["sequential", "interleaved"])
def test_each_run_reads_the_file_that_is_its_standard_input(tmp_path: Path, kind: str) -> None:
    (tmp_path / "numbers").write_text("20\n22\n")
    script = "import sys, time\nwhile time.process_time() < 0.5: pass\nassert sum(map(int, sys.stdin)) == 42"
    workload = told(script, stdin=str(tmp_path / "numbers"))
    found = attempts(tmp_path, workload, ["as-is", "base"], blocks=2, design={"kind": kind})
    assert [each.state for each in found] == ["accepted"] * 4, [each.reason for each in found]


@pytest.mark.parametrize(
    ("stdin", "words"),
    [("numbers", "is not a whole path"), ("/nowhere/numbers", "is not a file"), ("/", "is not a file")],
)
def test_standard_input_must_be_a_file(stdin: str, words: str) -> None:
    (missing,) = WORKLOAD.missing({"argv": (sys.executable,), "stdin": stdin})
    assert words in missing.reason


ODD = ("a b", "it's", '"quoted"', "back\\slash", "tab\there", "-x", "$HOME", "*", "[a];b", "é")


def test_every_argument_arrives_as_it_is(tmp_path: Path) -> None:
    need_program("xargs", "findutils")
    show = (sys.executable, "-c", "import sys; print(sys.argv[1:])")
    path = tmp_path / "a file"
    path.write_text(x264.argument_lines([(*show, *ODD), (*show, "second")]))
    done = subprocess.run(x264.sequential_command(str(path)), capture_output=True, text=True, check=True)
    assert done.stdout == f"{list(ODD)}\n['second']\n"


def test_a_command_that_fails_fails_the_whole(tmp_path: Path) -> None:
    need_program("xargs", "findutils")
    path = tmp_path / "list"
    path.write_text(x264.argument_lines([("true",), ("false",)]))
    assert subprocess.run(x264.sequential_command(str(path)), check=False).returncode == 123


def test_each_line_is_pinned_to_its_cpu(tmp_path: Path) -> None:
    need_program("taskset", "util-linux")
    show = (sys.executable, "-c", "import os; print(os.sched_getaffinity(0))")
    (tmp_path / "inner").write_text(x264.argument_lines([show]))
    (tmp_path / "list").write_text(x264.argument_lines([("0", *x264.sequential_command(str(tmp_path / "inner")))]))
    argv = x264.pinned_command(str(tmp_path / "list"), 1)
    assert subprocess.run(argv, capture_output=True, text=True, check=True).stdout == "{0}\n"


@pytest.mark.parametrize("word", ["", "two\nlines"])
def test_what_no_line_can_hold_is_an_error(word: str) -> None:
    with pytest.raises(ValueError, match="cannot be an argument"):
        x264.argument_lines([("x", word)])


TOLD: list[tuple[str, dict[str, Any], tuple[str, ...]]] = [
    ("mysql-ro", {}, ("MariaDB in place of MySQL",)),
    ("integer-set", {}, ("open programs with inputs of their own in place of SPECint",)),
    ("x264", {}, ("synthetic clips in place of vbench's",)),
    ("tpcc", {}, ("go-tpc in place of sysbench-tpcc",)),
    ("build", {}, ()),
    ("build", {"project": "lua"}, ("Lua in place of GDB",)),
    ("build", {"project": "gdb"}, ()),
    ("build", {"project": "gdb", "target": "all-libiberty"}, ("all-libiberty of GDB in place of all-gdb",)),
    ("redis", {}, ("hugewise's own load generator in place of memtier_benchmark",)),
    ("memcached", {}, ("hugewise's own load generator in place of memtier_benchmark",)),
    ("pgbench", {}, ()),
]


@pytest.mark.parametrize(("name", "parameters", "words"), TOLD)
def test_a_workload_names_what_it_stands_in_with(name: str, parameters: dict[str, Any], words: tuple[str, ...]) -> None:
    workload = discover()[name]
    assert isinstance(workload, StandIn)
    values = given(workload, **parameters)
    assert workload.stand_ins(values) == words
    assert stand_ins_of(name, values) == words


def test_of_other_versions_nothing_is_told() -> None:
    assert stand_ins_of("gone", {}) == stand_ins_of("tpcc", {"sysbench_tpcc": "/t"}) == ()
    assert stand_ins_of("build", {"jobs": 3}) == (), "it had no such parameter then"
    assert stand_ins_of("chase", {}) == (), "a micro-workload is what it is"
