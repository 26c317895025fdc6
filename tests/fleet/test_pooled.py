"""Summaries of runs are made beside the coordinator, as soon as the runs are there; a report has only to read them."""

import json
import math
import shutil
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

from hugewise.analysis.pooling import HostSummary
from hugewise.cli.main import cli
from hugewise.errors import RunError, UserError
from hugewise.fleet import pooled as summaries
from hugewise.fleet.pooled import pooled_results
from hugewise.fleet.records import Assigned, HostGone, RunGivenUp
from hugewise.model.fleet import FleetResults
from hugewise.report.reasons import in_words, worded
from tests.analysis.test_forecast import the_study
from tests.build import known
from tests.build.fleets import FAST, SLOW, FleetHostMade, a_fleet

HOSTS = (
    *(FleetHostMade(f"fast-{number}", FAST, -0.10 + 0.001 * number) for number in range(10)),
    *(FleetHostMade(f"slow-{number}", SLOW, -0.30) for number in range(9)),
    FleetHostMade("odd", quarantined="the same is called worse than the same"),
)


pytestmark = pytest.mark.usefixtures("read_in_process")


def called(*arguments: str | Path) -> Result:
    return CliRunner(env={"COLUMNS": "100"}).invoke(cli, ["fleet", "report", *map(str, arguments)])


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return a_fleet(tmp_path_factory.mktemp("fleet"), HOSTS)


@pytest.fixture
def results(path: Path) -> FleetResults:
    return pooled_results(path)


def test_each_host_each_class_the_fleet_and_the_next_host(results: FleetResults) -> None:
    (comparison,) = results.comparisons
    fast, slow = comparison.strata
    assert (fast.stratum, slow.stratum) == ("Fast 9", "Slow 1")
    assert [stratum.verdict for stratum in comparison.strata] == ["better", "better"]
    assert math.log(known(fast.ratio)) == pytest.approx(-0.095, abs=0.015)
    assert known(fast.next_low) < known(fast.ratio) < known(fast.next_high)
    fleet = known(comparison.fleet)
    assert math.log(known(fleet.ratio)) == pytest.approx(
        (11 * -0.095 + 9 * -0.30) / 20, abs=0.02
    )  # as many as answered
    assert {host.host: host.verdict for host in comparison.hosts} == {host.name: "better" for host in HOSTS[:19]}
    assert [(stratum.name, stratum.measured, stratum.known) for stratum in results.strata] == [
        ("Fast 9", 10, 11),
        ("Slow 1", 9, 9),
    ]
    assert sum(stratum.share or 0 for stratum in results.strata) == pytest.approx(1)
    assert {level.stratum: level.hosts for level in results.levels if level.arm == "thp"} == {"Fast 9": 10, "Slow 1": 9}


def test_a_run_that_is_not_of_its_host_has_no_part(tmp_path: Path) -> None:
    """Of another machine, kernel or version than was greeted: it is kept, and its host is left out by name."""
    path = a_fleet(tmp_path, [FleetHostMade(name) for name in ("a", "b", "other")])
    log = path / "log.jsonl"
    lines = log.read_text().splitlines()
    why = "it was measured on another machine than the one that was greeted"
    for at, line in enumerate(lines):
        record = json.loads(line)
        if record["record"] == "run_shipped" and "/other/" in record["folder"]:
            lines[at] = json.dumps(record | {"foreign": why})
    lines.append(json.dumps({"record": "host_quarantined", "t": 9.0, "host": "other", "reason": f"the study: {why}"}))
    log.write_text("\n".join(lines) + "\n")
    results = pooled_results(path)
    assert [host.host for host in results.hosts] == ["a", "b"]
    assert [(left.host, left.why, left.reason) for left in results.left_out] == [
        ("other", "quarantined", f"the study: {why}")
    ]


def test_who_was_left_out_and_why(tmp_path: Path) -> None:
    hosts = [FleetHostMade("a"), FleetHostMade("b"), FleetHostMade("gone"), FleetHostMade("odd", quarantined="its A/A")]
    results = pooled_results(a_fleet(tmp_path, hosts, records=(HostGone(t=6.0, host="gone", reason="no route"),)))
    assert [(left.host, left.why, left.reason) for left in results.left_out] == [("odd", "quarantined", "its A/A")]
    assert [host.host for host in results.hosts] == ["a", "b", "gone"]
    assert any("1 host was not fit" in warning for warning in results.warnings)


def test_before_a_fleet_has_ended_nothing_is_claimed_over_its_hosts(tmp_path: Path) -> None:
    results = pooled_results(a_fleet(tmp_path, HOSTS[5:11], closed=False))
    assert "the fleet has not ended: 6 of 6" in results.withheld
    (comparison,) = results.comparisons
    assert {host.verdict for host in comparison.hosts} == {"better"}
    for stratum in (*comparison.strata, known(comparison.fleet)):
        assert (stratum.verdict, stratum.ratio, stratum.next_low, stratum.spread) == ("none", None, None, None)
        assert "has not ended" in in_words(stratum.reason)
        assert stratum.evidence[0].larger is not None  # which holds at every look
    text = " ".join(called(Path(results.folder)).output.split())
    assert "No answer on `thp` against `base` on this fleet" in text and "by themselves: 5 better" in text
    assert "Nothing is claimed over hosts: the fleet has not ended" in text


def test_hosts_that_are_lost_count_as_hosts_without_any_effect(tmp_path: Path) -> None:
    hosts = [FleetHostMade(f"h{number:02d}", FAST, -0.10) for number in range(12)]
    whole = pooled_results(a_fleet(tmp_path / "whole", hosts)).comparisons[0].strata[0]
    begun = [Assigned(t=6.0, number=13, host="x", purpose="study")]
    lacking = [*hosts, FleetHostMade("x", quarantined="it gave no answer any more")]
    (comparison,) = pooled_results(a_fleet(tmp_path / "one", lacking, records=begun)).comparisons
    (lost,) = comparison.strata
    assert (lost.lost, lost.hosts, lost.verdict) == (1, 12, "better")
    assert math.log(known(lost.ratio)) == pytest.approx(math.log(known(whole.ratio)) * 12 / 13, rel=0.05)
    assert "count as hosts without any effect" in in_words(lost.reason)
    assert known(lost.next_high) > known(whole.next_high)
    assert len(comparison.hosts) == 12
    begun[0] = msgspec.structs.replace(begun[0], number=6)
    more = pooled_results(a_fleet(tmp_path / "more", [*hosts[:5], lacking[-1]], records=begun))
    assert "1 of 6 hosts that were begun have no run" in more.withheld


def test_copies_and_machines_under_two_names_are_left_out_by_name(tmp_path: Path) -> None:
    twin = {"host": {"name": "a", "machine": "0" * 15 + "1"}}
    hosts = [
        FleetHostMade("a"),
        FleetHostMade("copied", changes={"seed_hash": f"{1:064x}"}),
        FleetHostMade("twin", changes=twin),
        FleetHostMade("b"),
    ]
    results = pooled_results(a_fleet(tmp_path, hosts))
    assert [host.host for host in results.hosts] == ["a", "b"]
    assert [(left.host, left.why, left.reason) for left in results.left_out] == [
        ("copied", "copy", "it is the run of a: the same coins"),
        ("twin", "copy", "it is the machine of a under another name"),
    ]
    assert not results.withheld  # they are no hosts that were lost


def test_processes_that_read_runs_run_no_file_of_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(summaries, "_MANY", 4)
    path = a_fleet(tmp_path / "fleet", HOSTS[:4])
    here = tmp_path / "here"
    here.mkdir()
    for name in ("multiprocessing", "msgspec", "hugewise"):
        (here / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    monkeypatch.chdir(here)
    runs = sorted(path.glob("hosts/*/*"))
    found = summaries.summaries(path, runs, jobs=2)
    assert all(isinstance(one, HostSummary) for one in found)
    assert not (tmp_path / "ran").exists()


def test_a_run_that_was_given_up_is_lost_and_one_of_another_study_is_not_read(tmp_path: Path) -> None:
    path = a_fleet(tmp_path, [FleetHostMade("a"), FleetHostMade("b")])
    log = path / "log.jsonl"
    text = log.read_text()
    kept = [line for line in text.splitlines() if '"run_shipped"' not in line or '"number":2' not in line]
    given_up = msgspec.json.encode(RunGivenUp(t=7.0, number=2, reason="its files were torn")).decode()
    log.write_text("\n".join([*kept, given_up]) + "\n")
    left_out = [(one.host, one.why, one.reason) for one in pooled_results(path).left_out]
    assert left_out == [("b", "lost", "its files were torn")]
    log.write_text(text.replace(the_study().digest, "f" * 64))
    with pytest.raises(UserError, match="its run is of another study"):
        pooled_results(path)


def test_a_run_that_was_altered_is_left_out_by_name(path: Path, tmp_path: Path) -> None:
    copied = tmp_path / path.name
    shutil.copytree(path, copied)
    pooled_results(copied)  # the summaries are kept now, and of no use for what was altered
    log = next(copied.glob("hosts/fast-0/*/run.jsonl"))
    log.write_text(log.read_text().replace('"block":3', '"block":4', 1))
    results = pooled_results(copied)
    assert [(left.host, left.why) for left in results.left_out] == [("odd", "quarantined"), ("fast-0", "unreadable")]
    assert "run.jsonl" in results.left_out[1].reason
    assert len(results.hosts) == 18


def test_the_second_report_reads_summaries_and_no_run_but_for_those_that_are_none(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = pooled_results(path)
    for kept in (path / "summaries").iterdir():
        kept.write_text('{"format": 1}')
    assert pooled_results(path) == first

    def never(run: Path) -> None:
        raise AssertionError(f"{run} is read again")

    monkeypatch.setattr(summaries, "summarised", never)
    assert pooled_results(path) == first


def test_shares_of_the_fleet_can_be_given(path: Path, results: FleetResults) -> None:
    key = results.strata[1].key
    turned = pooled_results(path, {"Fast 9": 1, key: 99})
    assert turned.composition == "as given"
    fleet, slow = known(turned.comparisons[0].fleet), turned.comparisons[0].strata[1]
    assert math.log(known(fleet.ratio)) == pytest.approx(math.log(known(slow.ratio)), abs=0.01)
    with pytest.raises(UserError, match="no stratum") as caught:
        pooled_results(path, {"Middle 5": 1})
    assert key in (caught.value.hint or "")
    refused = called(path, "--share", "Fast 9=half").exception
    assert isinstance(refused, UserError) and "not a number" in refused.message


def test_hosts_with_and_without_root_are_classes_of_their_own(tmp_path: Path) -> None:
    made = a_fleet(tmp_path, [FleetHostMade("a"), FleetHostMade("b", changes={"mechanism": "process"})])
    results = pooled_results(made)
    assert [stratum.name for stratum in results.strata] == ["Fast 9", "Fast 9, without root"]
    assert any("as root and others without" in warning for warning in results.warnings)


def test_no_fleet_and_an_empty_one_are_errors(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="not a fleet's folder"):
        pooled_results(tmp_path)
    path = a_fleet(tmp_path, [FleetHostMade("odd", quarantined="its A/A")])
    with pytest.raises(UserError, match="its A/A"):
        pooled_results(path)


def test_the_terminal_says_first_whether_it_holds_where_and_what_the_next_host_sees(path: Path) -> None:
    done = called(path)
    assert done.exit_code == 0, done.exception
    text = " ".join(done.output.split())
    assert "thp` is better than `base` on the middle host of this fleet: ns_per_load is 16." in text
    assert "Another host of this class will most likely see" in text
    assert "odd quarantined" in text
    assert all(len(line) <= 100 for line in done.output.splitlines() if not line.startswith("Report:"))
    for name in ("report.html", "report.md", "fleet.json"):
        assert (path / name).is_file()
    kept = msgspec.json.decode((path / "fleet.json").read_bytes(), type=FleetResults)
    assert kept == msgspec.convert(worded(pooled_results(path)), FleetResults)


def test_json_is_what_python_gives(path: Path) -> None:
    done = called(path, "--json")
    assert done.exit_code == 0
    assert msgspec.json.decode(done.output, type=FleetResults) == msgspec.convert(
        worded(pooled_results(path)), FleetResults
    )
    assert json.loads(done.output)["format"] == 2
