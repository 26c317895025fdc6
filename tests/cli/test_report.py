"""Reports of a finished run, and of one that was damaged."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.cli.conftest import Call


def test_texts_of_a_study_are_escaped_in_its_reports(finished: Path) -> None:
    page = (finished / "report.html").read_text(encoding="utf-8")
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "<script" not in (finished / "report.md").read_text(encoding="utf-8").replace("\\<", "")


def test_a_report_can_be_made_again_and_is_the_same(call: Call, copy: Path) -> None:
    written = {path.name: path.read_bytes() for path in copy.iterdir() if path.suffix == ".csv"}
    first = call("report", copy)
    assert first[0] == 0
    assert first == call("report", copy)
    assert len(written) == 2
    assert {name: (copy / name).read_bytes() for name in written} == written


def test_verdicts_are_shown_where_the_report_cannot_be_written(call: Call, copy: Path) -> None:
    shutil.rmtree(copy / "figures")
    (copy / "figures").write_text("in the way")
    status, out, err = call("report", copy)
    assert status == 1
    assert "2 blocks complete" in out
    assert "Report: " not in out
    assert "the report cannot be written" in err


def test_a_torn_last_line_is_passed_over(call: Call, copy: Path) -> None:
    lines = (copy / "run.jsonl").read_bytes().splitlines(keepends=True)
    (copy / "run.jsonl").write_bytes(b"".join(lines[:-1]) + lines[-1][:20])
    status, out, _ = call("report", copy)
    assert status == 0
    assert "Interrupted: 2 blocks complete" in out
