"""`hugewise advise`: what is said and refused, with an advice that is made here."""

import json
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

import hugewise
from hugewise.advise import advise as phases
from hugewise.advise import of_study
from hugewise.advise.of_study import CellAdvice, StudyAdvice
from hugewise.report import deployed
from hugewise.report.numbers import MINUS
from tests.advise.test_advice import found
from tests.build.results import plain
from tests.cli.conftest import Call
from tests.fleet.hosts import RECORDED

ESCAPE = "\x1b]0;owned\x07"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Any]:
    """The questions that are asked: the answer is always the same."""
    seen: list[Any] = []

    def advise(question: Any, *_: object, **__: object) -> tuple[Any, Path]:
        seen.append(question)
        return found(), tmp_path / "advice"

    monkeypatch.setattr(phases, "advise", advise)
    monkeypatch.setattr(phases, "resume", lambda *_, **__: (found(), tmp_path / "advice"))
    monkeypatch.setattr(hugewise, "open_results", lambda _: plain())
    monkeypatch.setattr(hugewise, "write_reports", lambda results: {"html": Path(results.folder, "report.html")})
    monkeypatch.setattr(
        deployed, "write_files", lambda _, output, unit, arms, **__: [f"written to {output} for {unit}: {arms}"]
    )
    return seen


def test_options_of_the_program_are_its_own(call: Call, asked: list[Any]) -> None:
    status, out, _ = call("advise", "--time", "90s", "--margin", "3%", "--", "true", "--time", "a b", "$HOME;x")
    assert status == 0
    assert asked[0].workload["parameters"]["argv"] == ["true", "--time", "a b", "$HOME;x"]
    assert (asked[0].seconds, asked[0].margin) == (90.0, 0.03)
    assert out.startswith("Set `advised`")


@pytest.fixture
def reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A confirmation's run on disk, of the advice that is found, and of two cells of a study's."""
    run = shutil.copytree(RECORDED, tmp_path / "run")
    made = found()
    made.confirmed = msgspec.structs.replace(made.confirmed, folder=str(run))  # type: ignore[type-var]
    monkeypatch.setattr(phases, "advise", lambda *_, **__: (made, tmp_path / "advice"))
    monkeypatch.setattr(phases, "resume", lambda *_, **__: (made, tmp_path / "advice"))
    cells = [CellAdvice(cell=name, folder=name, advice=made) for name in ("a", "b")] + [CellAdvice(cell="c", why="x")]
    advised = StudyAdvice(study="two", time=60.0, cells=cells)
    monkeypatch.setattr(of_study, "resume", lambda *_, **__: (advised, tmp_path / "advice"))
    monkeypatch.setattr(of_study, "is_study", lambda folder: folder.name == "study")
    return run


@pytest.mark.parametrize("words", [("--", "true"), ("--resume", "one")])
@pytest.mark.parametrize("more", [(), ("--verbose",), ("--json",)])
def test_the_confirmation_has_a_report_as_a_run_has(
    call: Call, reported: Path, words: tuple[str, ...], more: tuple[str, ...]
) -> None:
    status, out, err = call("advise", *more, *words)
    assert (status, err) == (0, "")
    assert "</html>" in (reported / "report.html").read_text()
    if more != ("--json",):
        *_, deploy, report, advice = out.splitlines()
        assert deploy.startswith("Deploy: hugewise advise --resume ")
        assert report == f"Report: {reported}/report.html"
        assert advice.startswith("Advice: ")


def test_so_has_that_of_each_cell_of_a_study(call: Call, reported: Path) -> None:
    status, out, err = call("advise", "--resume", "study")
    assert (status, err) == (0, "") and out.splitlines()[-1].startswith("Advice: ")
    assert "</html>" in (reported / "report.html").read_text()
    *_, one, other, advice = call("advise", "--verbose", "--resume", "study")[1].splitlines()
    assert {one, other} == {f"Report: {reported}/report.html"} and advice.startswith("Advice: ")


@pytest.mark.parametrize("words", ["one", "study"])
def test_an_answer_stands_where_the_run_was_moved(call: Call, reported: Path, words: str) -> None:
    reported.rename(reported.with_name("moved"))
    status, out, err = call("advise", "--resume", words)
    assert status == 0 and "Report: " not in out
    assert out.splitlines()[-1].startswith("Advice: ")
    assert f"{reported}: no report was written: " in " ".join(err.split())


def test_it_waits_for_the_host_only_if_asked_to(call: Call, asked: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, bool]] = []
    monkeypatch.setattr("hugewise.session.session.host_lock", lambda _, **how: seen.append(how))
    for words in (["--", "true"], ["--wait", "--", "true"], ["--wait", "--anyway", "--resume", "results/advice/1"]):
        assert call("advise", *words)[0] == 0
    assert seen == [{"anyway": anyway, "wait": wait} for anyway, wait in ((False, False), (False, True), (True, True))]
    assert len(asked) == 2


def test_json_stays_json_where_files_are_written(call: Call, asked: list[Any], tmp_path: Path) -> None:
    status, out, err = call("advise", "--json", "--output", tmp_path / "deploy", "--", "true")
    assert status == 0
    told = json.loads(out)
    assert told["chosen"] == "advised"
    assert told["objective"].startswith("The best wall_s")
    assert told["answer"].startswith("Set `advised`")
    assert [row["name"] for row in told["settings"]] == []
    assert f"written to {tmp_path / 'deploy'} for None: ['advised']" in err


def test_a_folder_that_holds_something_is_refused_before_anything_is_measured(
    call: Call, asked: list[Any], tmp_path: Path
) -> None:
    (tmp_path / "deploy").mkdir()
    (tmp_path / "deploy" / "mine").write_text("")
    status, _, err = call("advise", "--output", tmp_path / "deploy", "--", "true")
    assert (status, asked) == (2, [])
    assert "there is something in that folder" in err


def test_without_a_verdict_there_are_no_files(
    call: Call, asked: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    early = found(confirmed=None, arrived="screening")
    monkeypatch.setattr(phases, "advise", lambda *_, **__: (early, tmp_path))
    status, out, _ = call("advise", "--output", tmp_path / "deploy", "--", "true")
    assert status == 130
    assert "no files: nothing was confirmed" in out


def test_an_advice_that_goes_on_has_its_question_already(call: Call, asked: list[Any], tmp_path: Path) -> None:
    status, _, err = call("advise", "--resume", tmp_path, "--max-candidates", "2")
    assert status == 2
    assert "--max-candidates belongs to a new advice" in err
    status, _, err = call("advise", "--resume", tmp_path, "--value", "x,lower=regex:y")
    assert "--value belongs to a new advice" in err
    assert call("advise", "--resume", tmp_path)[0] == 0
    assert call("advise", "--resume", tmp_path, "--", "true")[0] == call("advise")[0] == 2


@pytest.mark.parametrize(
    ("words", "told", "cure"),
    [
        (("--time", "90s", "./x", "y"), "./x y: a command stands behind --", "hugewise advise -- ./x y"),
        (("--",), "there is no command behind --", "hugewise advise -- COMMAND"),
        (("true",), "true: a program, and no study", "hugewise advise -- true"),
        (("demo", "--", "true"), "a study and a command", "one thing is advised on"),
        (("--resume", "r", "--prepare", "rm x"), "--prepare belongs to a new advice", "has its question"),
        (("demo", "--metric", "x"), "--metric is none of a study", "the study has its own"),
        (("demo", "--prepare", "rm x"), "--prepare is none of a study", "the study has its own"),
        (("--only", "a", "--", "true"), "--only is none of a command", "for a STUDY"),
        (("--prepare", "rm 'x", "--", "true"), "no closing quotation", "rm -f out.dat"),
        (("demo",), "no cell of demo can be advised on", "hugewise run"),
        (("no-such-study",), "no such file", "hugewise list studies"),
        (("--time", "soon", "--", "true"), "--time soon", "--time 10m"),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_cure(
    call: Call, asked: list[Any], words: tuple[str, ...], told: str, cure: str
) -> None:
    status, out, err = call("advise", *words)
    assert (status, out, asked) == (2, "", [])
    assert told in " ".join(err.split())
    assert cure in " ".join(err.split())


def test_what_is_run_before_each_attempt_is_part_of_the_question(call: Call, asked: list[Any]) -> None:
    assert call("advise", "--prepare", "rm -f 'a b'", "--", "true")[0] == 0
    assert asked[0].workload["parameters"] == {"argv": ["true"], "prepare": ["rm", "-f", "a b"]}


def test_the_end_is_short_and_all_of_it_is_asked_for(call: Call, asked: list[Any]) -> None:
    status, short, _ = call("advise", "--", "true")
    assert status == 0
    assert len(short.splitlines()) <= 15
    assert "details.txt" in short.splitlines()[-1]
    assert "Tried: " not in short
    status, long, _ = call("advise", "--verbose", "--", "true")
    assert status == 0
    assert "  Tried: " in long
    objective, answer, *_ = long.splitlines()
    assert objective.startswith("The best wall_s; what takes more than 10% more memory")
    assert short.splitlines()[0] in answer.replace(MINUS, "-")
    assert long.splitlines()[-3:] == short.splitlines()[-3:], "the commands to copy, the report and the folder"
    assert len(long.splitlines()) > len(short.splitlines())
    assert "verbose" not in json.loads(call("advise", "--verbose", "--json", "--", "true")[1])


def test_what_others_wrote_moves_no_cursor(
    call: Call, asked: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = found()
    last = msgspec.structs.replace(made.confirmed, verdict="none", reason=f"killed: {ESCAPE}")  # type: ignore[type-var]
    hostile = msgspec.structs.replace(made, confirmed=last, remarks=(ESCAPE,))
    monkeypatch.setattr(phases, "advise", lambda *_, **__: (hostile, tmp_path / ESCAPE[:3]))
    for more in ((), ("--json",)):
        status, out, err = call("advise", *more, "--", "true")
        assert status == 0
        assert "\x1b" not in out + err
        assert "\x07" not in out + err


# -- a service

SERVER, LOAD = "sh -c 'exec  a \"$1\"' {port}", "true --port {port}"


def test_a_service_is_asked_about_with_its_load(call: Call, asked: list[Any]) -> None:
    words = ("--server", SERVER, "--load", LOAD, "--ready", "exec:true {port}", "--fill", "true 'a b'")
    status, _, err = call("advise", "--time", "60s", *words, "--environment", "A=b", "--value", "r,higher=regex:x")
    assert status == 0, err
    workload = asked[0].workload
    assert workload["name"] == "service"
    assert workload["parameters"] == {
        "server": ["sh", "-c", 'exec  a "$1"', "{port}"],
        "load": ["true", "--port", "{port}"],
        "ready": "exec:true {port}",
        "fill": ["true", "a b"],
        "environment": ["A=b"],
        "values": ["r,higher=regex:x"],
        "ready_within": "5s",
    }
    assert asked[0].of_service


@pytest.mark.parametrize(
    ("words", "told", "cure"),
    [
        (("--server", SERVER), "--server is there, and --load is missing", "redis-benchmark"),
        (("--load", LOAD), "--load is there, and --server is missing", "redis-server"),
        (("--ready", "tcp:1"), "--ready is there, and --server is missing", "redis-server"),
        (("--server", SERVER, "--load", LOAD, "--", "true"), "there is a command, and --server", "ask of one of them"),
        (("--server", "a 'b", "--load", LOAD), '--server "a \'b": no closing quotation', "close every quote"),
        (("--server", " ", "--load", LOAD), "--server ' ' names no program", "close every quote"),
        (("--server", "/no/such", "--load", LOAD), "--server '/no/such': no such program", "whole path"),
        (("--server", SERVER, "--load", "no-such-x"), "--load 'no-such-x': no such program", "whole path"),
        (("--server", SERVER, "--load", LOAD, "--fill", "no-such-x"), "--fill 'no-such-x': no such", "whole path"),
        (("--server", SERVER, "--load", LOAD, "--ready", "exec:no-such-x"), "--ready 'no-such-x': no such", "path"),
        (("--server", SERVER, "--load", LOAD, "--ready", "up"), "--ready 'up': write tcp:PORT", "write for example"),
        (("--server", SERVER, "--load", LOAD, "--environment", "A"), "--environment 'A' is not NAME=VALUE", "LANG=C"),
        (("--server", f"a{ESCAPE} '", "--load", LOAD), "no closing quotation", "close every quote"),
        (("--unit", "redis", "--", "true"), "--unit redis: only files have a unit's name", "--output FOLDER"),
    ],
)
def test_a_service_that_makes_no_sense_is_refused_with_the_cure(
    call: Call, asked: list[Any], words: tuple[str, ...], told: str, cure: str
) -> None:
    status, _, err = call("advise", *words)
    assert (status, asked) == (2, [])
    flat = " ".join(err.split())
    assert told in flat
    assert cure in flat
    assert "\x1b" not in err


def test_a_pending_advice_has_its_service_already(call: Call, asked: list[Any], tmp_path: Path) -> None:
    status, _, err = call("advise", "--server", SERVER, "--load", LOAD, "--resume", tmp_path)
    assert (status, asked) == (2, [])
    assert "one thing is advised on at a time" in " ".join(err.split()) or "belongs to a new advice" in err


def test_files_have_the_name_of_the_unit(call: Call, asked: list[Any], tmp_path: Path) -> None:
    words = ("--unit", "redis-server", "--output", tmp_path / "deploy")
    status, out, err = call("advise", *words, "--server", SERVER, "--load", LOAD)
    assert status == 0, err
    assert "for redis-server" in out
    status, _, err = call("advise", "--unit", "a b", "--output", tmp_path / "other", "--", "true")
    assert status == 2 and "is not the name of a unit" in err
