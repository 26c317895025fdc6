"""`hugewise advise`: what is said and refused, with an advice that is made here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

import hugewise
from hugewise.advise import advise as phases
from hugewise.report import deployed
from tests.advise.test_advice import found
from tests.cli.conftest import Call

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
    monkeypatch.setattr(hugewise, "open_results", lambda _: None)
    monkeypatch.setattr(deployed, "write_files", lambda _, output, arm: [f"written to {output}: {arm}"])
    return seen


def test_options_of_the_program_are_its_own(call: Call, asked: list[Any]) -> None:
    status, out, _ = call("advise", "--time", "90s", "--margin", "3%", "--", "-x", "--time", "a b", "$HOME;x")
    assert status == 0
    assert asked[0].workload["parameters"]["argv"] == ["-x", "--time", "a b", "$HOME;x"]
    assert (asked[0].seconds, asked[0].margin) == (90.0, 0.03)
    objective, sentence, *_ = out.splitlines()
    assert objective.startswith("For speed: the best wall_s; what takes more than 10% more memory")
    assert sentence.startswith("Set `advised`")


@pytest.mark.parametrize("priority", ["memory", "tail"])
def test_what_goes_first_is_asked_for_and_said(call: Call, asked: list[Any], priority: str) -> None:
    assert call("advise", "--priority", priority, "--", "true")[0] == 0
    assert asked[0].priority == priority
    status, _, err = call("advise", "--priority", "beauty", "--", "true")
    assert status == 2
    assert "beauty" in err


def test_files_are_those_of_what_is_recommended(
    call: Call, asked: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = found()
    made.question = msgspec.structs.replace(made.question, priority="memory")
    monkeypatch.setattr(phases, "advise", lambda *_, **__: (made, tmp_path))
    status, out, _ = call("advise", "--output", tmp_path / "deploy", "--", "true")
    assert status == 0
    assert "no files: nothing is recommended" in out


def test_json_stays_json_where_files_are_written(call: Call, asked: list[Any], tmp_path: Path) -> None:
    status, out, err = call("advise", "--json", "--output", tmp_path / "deploy", "--", "true")
    assert status == 0
    told = json.loads(out)
    assert told["chosen"] == "advised"
    assert told["objective"].startswith("For speed")
    assert told["answer"].startswith("Set `advised`")
    assert [row["name"] for row in told["settings"]] == []
    assert f"written to {tmp_path / 'deploy'}: advised" in err


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
