"""What the words of a call ask for: commands as values of options, and names between commas."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import pytest

from hugewise.cli import request
from hugewise.errors import HugewiseError, UserError
from hugewise.session import session
from tests.cli.conftest import Call


def test_the_words_of_a_command_are_split_and_nothing_else_of_a_shell_is_there() -> None:
    assert request.words("prepare", None) == []
    assert request.words("prepare", "rm -f 'a b' $HOME;x >y") == ["rm", "-f", "a b", "$HOME;x", ">y"]


@pytest.mark.parametrize("text", ["", "  ", "''", "rm 'a", "rm \\"])
def test_a_command_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="--prepare") as caught:
        request.words("prepare", text)
    assert "rm -f out.dat" in (caught.value.hint or "")


def test_what_is_run_before_each_attempt_is_in_the_plan(call: Call) -> None:
    status, out, _ = call("run", "--policy", "base,thp", "--dry-run", "--prepare", "rm -f x", "--", "true")
    assert status == 0
    assert "command" in out
    status, _, err = call("run", "--policy", "base,thp", "--dry-run", "--prepare", "rm 'x", "--", "true")
    assert status == 2
    assert "no closing quotation" in err
    status, _, err = call("run", "--dry-run", "--prepare", "rm x", "demo")
    assert status == 2
    assert "--prepare belongs to --policy" in err
    status, _, err = call("run", "--policy", "base,thp", "--prepare", "no-such-program -x", "--", "true")
    assert status == 2
    assert "no-such-program: no such program on PATH" in err


def test_a_program_in_the_place_of_a_study_is_told_where_it_belongs(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "prog").write_bytes(b"\x7fELF\xff")
    (tmp_path / "prog").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    for verb, before in (("advise", "hugewise advise --"), ("run", "hugewise run --policy base,thp --")):
        for name in ("prog", "./prog"):
            status, _, err = call(verb, name)
            assert (status, f"cure: {before} ./prog" in err) == (2, True), err


def test_a_command_that_begins_with_no_program_is_told_why(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "prog").write_text("#!/bin/sh\n")
    (tmp_path / "prog").chmod(0o755)
    (tmp_path / "text").write_text("")
    monkeypatch.chdir(tmp_path)
    for words, said, cure in (
        (
            "./prog -n 5",
            "'./prog -n 5': no such program",
            "without quotes, each word by itself: hugewise advise -- ./p",
        ),
        ("prog", "prog: no such program on PATH", "it is in this folder: hugewise advise -- ./prog"),
        ("./text", "./text: no such program, or it is not executable", "by its whole path"),
    ):
        status, _, err = call("advise", "--", words)
        assert (status, said in err, cure in err) == (2, True, True), err
        assert not (tmp_path / "results").exists(), "nothing was begun"


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (("run", "demo", "--blocks", "3"), ("hugewise", "run", "demo", "--blocks", "3")),
        (("run", "demo", "--seed", "ab" * 16, "--seed"), ("hugewise", "run", "demo", "--seed", "SEED", "--seed")),
        (("run", f"--seed={'ab' * 16}", "demo"), ("hugewise", "run", "--seed=SEED", "demo")),
        (
            ("run", "--policy", "a,b", "--", "x", "--seed", "42"),
            ("hugewise", "run", "--policy", "a,b", "--", "x", "--seed", "42"),
        ),
        (("run", "demo", "--results", "/tmp/\udce9"), ("hugewise", "run", "demo", "--results", "/tmp/?")),
        ((), ()),
        (None, ()),
    ],
)
def test_a_run_keeps_its_command_line_without_a_seed(given: object, kept: tuple[str, ...]) -> None:
    assert request.command_line(given) == kept


class _BegunError(HugewiseError):
    pass


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        (("plan", "demo", "--only", "fresh-memory", "--pilot", "6"),) * 2,
        (("calibrate", "--pairs", "12", "--seed", "ab" * 16), ("calibrate", "--pairs", "12", "--seed", "SEED")),
        (("advise", "--time", "4m", "--", "true", "--seed", "42"),) * 2,
    ],
)
def test_whatever_measures_keeps_its_command_line(
    words: tuple[str, ...], kept: tuple[str, ...], call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runs of pilots, calibrations and advices, as those of `run`."""
    seen: list[Sequence[str]] = []

    def run(*_: object, command: Sequence[str], **__: object) -> NoReturn:
        seen.append(command)
        raise _BegunError("begun")

    monkeypatch.setattr(session, "run", run)
    monkeypatch.chdir(tmp_path)
    assert call(*words)[0] != 0
    assert seen == [("hugewise", *kept)]
