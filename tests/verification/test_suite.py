from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import msgspec
import pytest

from hugewise.cli import main
from hugewise.errors import UserError
from tools.verification import suite
from tools.verification.__main__ import verify_statistics
from tools.verification.candidate import CheckResult
from tools.verification.selftest import DoubledAlpha

SMALL = suite.Options(
    streams=10,
    pairs=60,
    replays=2,
    repeats=2,
    lengths=(6,),
    ledger=20,
    relations=1,
    jobs=1,
    checks=("size", "ledger", "coins"),
)


def test_a_small_suite_passes_and_says_how_far_it_is() -> None:
    heard: list[tuple[str, int, int]] = []
    report = suite.verify(SMALL, lambda name, done, of: heard.append((name, done, of)))
    assert report.passed
    assert [done for _, done, _ in heard] == list(range(1, len(heard) + 1))
    assert {of for *_, of in heard} == {len(heard)}
    checks = list(dict.fromkeys(finding.check for finding in report.findings))
    assert checks == ["exhaustive size", "ledger", "coins"]


def test_processes_find_the_same_in_the_same_order() -> None:
    options = msgspec.structs.replace(SMALL, checks=("size", "ledger"))
    alone = suite.verify(options)
    together = suite.verify(msgspec.structs.replace(options, jobs=2))
    assert together.findings == alone.findings


def test_a_faulty_method_fails_the_suite() -> None:
    report = suite.verify(msgspec.structs.replace(SMALL, checks=("size",)), candidate=DoubledAlpha())
    assert not report.passed


def test_bad_options_are_refused() -> None:
    for options, message in (
        (suite.Options(checks=("sizes",)), "no check is called sizes"),
        (suite.Options(seed=-1), "--seed -1"),
        (suite.Options(streams=0), "--streams 0"),
        (suite.Options(vector=Path("/nowhere")), "/nowhere"),
        (suite.Options(run=Path("/nowhere")), "/nowhere"),
    ):
        with pytest.raises(UserError, match=message):
            suite.verify(options)


def test_the_report_fits_80_columns_and_names_failures() -> None:
    long = CheckResult(check="a check", case="c" * 70, seen="s" * 40, required="r" * 30, passed=False)
    good = CheckResult(check="a check", case="[bold] case", seen="1", required="1", passed=True)
    report = suite.SuiteReport(passed=False, seed=7, seconds=1.0, findings=(long, good))
    written = io.StringIO()
    suite.show(report, written)
    lines = written.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert "FAIL" in written.getvalue()
    assert "[bold] case" in written.getvalue()
    assert lines[-1] == "2 findings, 1 NOT as required (seed 7, 1 s)"


def test_progress_without_a_terminal_is_ten_lines() -> None:
    written = io.StringIO()
    with suite.progress(written) as listener:
        for done in range(1, 31):
            listener("piece", done, 30)
    assert len(written.getvalue().splitlines()) == 10


def call(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["verify-statistics", *arguments])
    with pytest.raises(SystemExit) as ended:
        main.main(command=verify_statistics)
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_the_command_prints_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    vector = tmp_path / "v.txt"
    vector.write_text("1 2 0 4")
    arguments = ("--check", "coins", "--jobs", "1", "--json", "--vector", str(vector))
    assert call(monkeypatch, *arguments) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["passed"] is True
    assert found["seed"] == 1
    assert {finding["check"] for finding in found["findings"]} == {"coins"}


def test_the_command_refuses_an_unknown_check(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, "--check", "all") == 2
    assert "no check is called all" in capsys.readouterr().err


def test_the_command_fails_when_a_check_does(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def failing(options: suite.Options, listener: suite.PieceListener) -> suite.SuiteReport:
        assert options.checks == ("power",)
        finding = CheckResult(check="power", case="x", seen="2", required="1", passed=False)
        return suite.SuiteReport(passed=False, seed=options.seed, seconds=0.0, findings=(finding,))

    monkeypatch.setattr(suite, "verify", failing)
    assert call(monkeypatch, "--power") == 1
    assert "NOT as required" in capsys.readouterr().out
